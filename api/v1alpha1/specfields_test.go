package v1alpha1_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// revisionFields are the fields of a VMDiskImageSpec that make a revision.
var revisionFields = []string{"url", "sourceType", "checksum", "diskSize", "storageClass", "architecture", "dataSource"}

// detachedFields say nothing about the source or its storage.
var detachedFields = []string{"name", "priority", "deleteUnreferencedAfter", "publish", "defaults"}

func TestSpecsAreComparedByEveryField(t *testing.T) {
	base := apitest.Image("ns/a").Obj().Spec
	variants := apitest.SpecVariants(base)
	assert.ElementsMatch(t, slices.Collect(maps.Keys(variants)), v1alpha1.SpecFields())
	for field, other := range variants {
		t.Run(field, func(t *testing.T) {
			assert.Equal(t, []string{field}, base.DiffersIn(&other))
			assert.False(t, base.Equal(&other))
			assert.True(t, other.Equal(other.DeepCopy()))
			assert.Equal(t, slices.Contains(revisionFields, field), base.Revision() != other.Revision(),
				"a field that makes a revision makes every cluster download the image again")
			assert.Equal(t, slices.Contains(detachedFields, field), base.SourceDigest() == other.SourceDigest(), "what is approved is the whole source")
		})
	}
	sameSize := apitest.Image("ns/a").WithDiskSize("1024Mi").Obj().Spec
	assert.True(t, base.Equal(&sameSize))
}

// TestRevisionsOfStoredSpecsStay compares with revisions that version 0.2 computed: another one
// would make every cluster download the image again after an upgrade.
func TestRevisionsOfStoredSpecsStay(t *testing.T) {
	text, err := os.ReadFile("testdata/revisions.json")
	require.NoError(t, err)
	var recorded []struct {
		Revision string
		Spec     v1alpha1.VMDiskImageSpec
	}
	require.NoError(t, json.Unmarshal(text, &recorded))
	require.Greater(t, len(recorded), 30)
	types := map[v1alpha1.SourceType]int{}
	for i := range recorded {
		spec := &recorded[i].Spec
		types[spec.SourceType]++
		assert.Equal(t, recorded[i].Revision, spec.Revision(), "%+v", spec)
		spec.ExtraHeaders, spec.SecretExtraHeaders, spec.PullMethod = []string{"A: b"}, []string{"s"}, v1alpha1.PullNode
		assert.Equal(t, recorded[i].Revision, spec.Revision(), "how an image is downloaded makes no revision: %+v", spec)
	}
	assert.Len(t, types, 4)
}
