package relay

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestTold(t *testing.T) {
	result := Result{Another: "other", Older: true, Ahead: v1alpha1.PlanVersion{Epoch: 1, Sequence: 2}, AheadGrant: 3, Dropped: []string{"ClusterPlan.spec.images"}, Confirmed: 4}
	var status v1alpha1.MemberLinkStatus
	result.Tell(&status, "mine")
	assert.Equal(t, result, Told(&status, "mine"))

	result.Confirmed = 0
	assert.Equal(t, result, Told(&status, "another process's"), "what was confirmed to another process is of no account")
	assert.Equal(t, Result{}, Told(&v1alpha1.MemberLinkStatus{}, ""))
}
