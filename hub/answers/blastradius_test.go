package answers_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// A cache lists members in any order: which of them an answer names does not change with it.
func TestBlastRadiusHasNoOrderOfItsOwn(t *testing.T) {
	names := make([]string, 30)
	for i := range names {
		names[i] = fmt.Sprintf("edge-%02d", i)
	}
	members := newMembers(names...)
	for i := range members {
		members[i].Labels, members[i].Status.OwnConcurrency = map[string]string{"edge": "true"}, ptr.To[int32](1)
	}
	for name, tt := range map[string]struct {
		data                  map[string]string
		wantHeld, wantRefused int
	}{
		"held": {data: map[string]string{"concurrency": "3"}, wantHeld: 20},
		"refused": {data: map[string]string{"overrides": `
- {selector: {matchLabels: {edge: "true"}}, retryBackoffDuration: 50m}
- {selector: {matchExpressions: [{key: edge, operator: Exists}]}, maxRetryBackoff: 40m}`}, wantRefused: 20},
	} {
		t.Run(name, func(t *testing.T) {
			then, _, errs := policy.ParsePolicy(tt.data)
			require.Empty(t, errs)
			in := answers.CompareBlast{Then: then, InForce: answers.PolicyInForce{Now: now}, Members: slices.Clone(members), Limit: 5}
			want := answers.BlastRadius(&in)
			assert.Len(t, want.HeldMembers, tt.wantHeld)
			assert.Len(t, want.Refused, tt.wantRefused)
			slices.Reverse(in.Members)
			assert.Equal(t, want, answers.BlastRadius(&in))
		})
	}
}
