package rollout_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// setImage publishes a version with a template, and returns the versions of the status after
// the decision, as they are stored.
func setImage(t *testing.T, img *v1alpha1.FleetDiskImage, version string, template *v1alpha1.VMDiskImageSpec) []v1alpha1.VersionStatus {
	t.Helper()
	img.Spec.Version, img.Spec.Template = version, *template.DeepCopy()
	d := decideAndCheck(t, rollout.View{Image: img, Clusters: parseClusters("canary=S"), Now: now})
	text, err := json.Marshal(d.Status)
	require.NoError(t, err)
	img.Status = v1alpha1.FleetDiskImageStatus{}
	require.NoError(t, json.Unmarshal(text, &img.Status))
	return img.Status.Versions
}

func withoutTemplates(versions []v1alpha1.VersionStatus) (names []v1alpha1.VersionStatus) {
	for _, v := range versions {
		v.Template = nil
		names = append(names, v)
	}
	return names
}

// Writing back a recorded template makes the revision that clusters have, whatever field of the
// spec has changed since.
func TestRecordedTemplatesMakeTheSameRevision(t *testing.T) {
	base := apitest.FleetDiskImage("ubuntu").Obj().Spec.Template
	for field, other := range apitest.SpecVariants(base) {
		t.Run(field, func(t *testing.T) {
			img := newUbuntu().Obj()
			setImage(t, img, "1", &base)
			versions := setImage(t, img, "2", &other)
			require.Len(t, versions, 2)
			assert.Equal(t, "1", versions[1].Version)
			require.NotNil(t, versions[1].Template)
			back := other.WithSourceFields(versions[1].Template)
			assert.Equal(t, versions[1].Revision, back.Revision())
			switch field {
			case "priority", "deleteUnreferencedAfter", "publish", "defaults":
				assert.Equal(t, []string{field}, back.DiffersIn(&base), "how it is treated now stays")
			default:
				assert.Empty(t, back.DiffersIn(&base))
			}
			assert.Equal(t, versions[1].Revision, setImage(t, img, "1", back)[0].Revision)
		})
	}
}

// What changes without a new revision, as the name of a Secret, is recorded too.
func TestRecordedTemplateFollowsTheSpec(t *testing.T) {
	img := newUbuntu().Obj()
	template := img.Spec.Template.DeepCopy()
	before := setImage(t, img, "1", template)[0]
	template.SecretRef = "rotated"
	after := setImage(t, img, "1", template)[0]
	assert.Equal(t, "rotated", after.Template.SecretRef)
	assert.Equal(t, before.Since, after.Since)

	// A status of a hub that recorded none.
	img.Status.Versions[0].Template = nil
	img.Status.Versions = append(img.Status.Versions, v1alpha1.VersionStatus{Version: "0", Namespace: "images", Image: "ubuntu-0", Revision: "x", Since: before.Since})
	versions := setImage(t, img, "1", template)
	assert.Equal(t, after, versions[0])
	assert.Nil(t, versions[1].Template)
	assert.Empty(t, versions[1].TemplateOmitted)
}

func TestTemplatesThatAreNotRecorded(t *testing.T) {
	for _, tt := range []struct {
		name        string
		change      func(*v1alpha1.VMDiskImageSpec)
		wantOmitted string
	}{
		{"usual", func(*v1alpha1.VMDiskImageSpec) {}, ""},
		{"secrets by name", func(s *v1alpha1.VMDiskImageSpec) { s.SecretRef, s.SecretExtraHeaders = "a", []string{"b"} }, ""},
		{"signed url", func(s *v1alpha1.VMDiskImageSpec) { s.URL += "?X-Amz-Signature=abc" }, "its url has a query, which may be a credential"},
		{"headers", func(s *v1alpha1.VMDiskImageSpec) { s.ExtraHeaders = []string{"Authorization: Basic abc"} }, "it has extraHeaders, which may be credentials"},
		{"fragment", func(s *v1alpha1.VMDiskImageSpec) { s.URL += "#token=abc" }, "its url has a query, which may be a credential"},
		{"longest of ASCII", func(s *v1alpha1.VMDiskImageSpec) { *s = longestTemplate("x") }, ""},
		{"longest of escapes", func(s *v1alpha1.VMDiskImageSpec) { *s = longestTemplate("\x01") }, "it has more than 8 KiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			img := newUbuntu().Obj()
			template := img.Spec.Template.DeepCopy()
			tt.change(template)
			version := setImage(t, img, "1", template)[0]
			assert.Equal(t, tt.wantOmitted, version.TemplateOmitted)
			assert.Equal(t, tt.wantOmitted == "", version.Template != nil)

			// It is about the version's template, not about the version.
			version = setImage(t, img, "1", &apitest.FleetDiskImage("ubuntu").Obj().Spec.Template)[0]
			assert.Empty(t, version.TemplateOmitted)
			assert.NotNil(t, version.Template)
		})
	}
}

// longestTemplate fills each field to its limit, near to MaxTemplateBytes in ASCII.
func longestTemplate(letter string) v1alpha1.VMDiskImageSpec {
	spec := apitest.FleetDiskImage("ubuntu").Obj().Spec.Template
	fill := func(n int) string { return strings.Repeat(letter, n) }
	spec.Name, spec.URL, spec.Checksum = fill(1024), "https://example.com/"+fill(2028), fill(256)
	spec.SecretRef, spec.CertConfigMap, spec.StorageClass, spec.SnapshotClass = fill(253), fill(253), fill(253), fill(253)
	for range 4 {
		spec.SecretExtraHeaders = append(spec.SecretExtraHeaders, fill(253))
	}
	return spec
}

// All versions with the largest templates stay far below what one object can hold, and those
// that a retention can keep have theirs.
func TestRecordedTemplatesAreBounded(t *testing.T) {
	img := newUbuntu().Obj()
	var versions []v1alpha1.VersionStatus
	for i := range v1alpha1.MaxVersions + 5 {
		template := longestTemplate("x")
		template.DiskSize.Add(*template.DiskSize.ToDec())
		versions = setImage(t, img, fmt.Sprintf("1.%d", i), &template)
	}
	require.Len(t, versions, v1alpha1.MaxVersions)
	total, recorded := 0, 0
	for i := range versions {
		if versions[i].Template == nil {
			assert.Equal(t, "the templates of newer versions fill the 80 KiB that are recorded", versions[i].TemplateOmitted)
			continue
		}
		assert.Equal(t, recorded, i, "the newest are recorded")
		recorded++
		text, err := json.Marshal(versions[i].Template)
		require.NoError(t, err)
		assert.LessOrEqual(t, len(text), v1alpha1.MaxTemplateBytes)
		total += len(text)
	}
	assert.GreaterOrEqual(t, recorded, 10, "as many as spec.retention.keepVersions can be")
	assert.LessOrEqual(t, total, v1alpha1.MaxTemplatesBytes)
	require.Less(t, recorded, v1alpha1.MaxVersions, "the test fills the status")

	// A version without its template gets it again with its spec.
	template := longestTemplate("x")
	versions = setImage(t, img, versions[v1alpha1.MaxVersions-1].Version, &template)
	assert.NotNil(t, versions[0].Template)
	assert.Empty(t, versions[0].TemplateOmitted)
}

// The recorded template is no part of what members are to have.
func TestRecordedTemplateIsNoOtherVersion(t *testing.T) {
	img := newUbuntu().Obj()
	setImage(t, img, "1", &img.Spec.Template)
	since := img.Status.Versions[0].Since
	img.Status.Versions[0].Template = nil
	v := rollout.View{Image: img, Clusters: parseClusters("canary=S"), Now: now}
	v.Now = now.Add(time.Hour)
	d := decideAndCheck(t, v)
	assert.Equal(t, since, d.Status.Versions[0].Since)
	assert.NotNil(t, d.Status.Versions[0].Template)
	img.Spec.Template.URL = "https://images.example.com/changed"
	assert.NotEqual(t, img.Spec.Template.URL, d.Status.Versions[0].Template.URL, "a copy")
}
