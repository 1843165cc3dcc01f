package mailbox

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestFindingsFromStatus(t *testing.T) {
	result := Findings{OtherCluster: "other", ReportOlder: true, NewerPlan: v1alpha1.PlanVersion{Epoch: 1, Sequence: 2}, NewerGrant: 3, DroppedFields: []string{"ClusterPlan.spec.images"}, ConfirmedSequence: 4}
	var status v1alpha1.MemberLinkStatus
	result.SetStatus(&status, "mine")
	assert.Equal(t, result, FindingsFromStatus(&status, "mine"))

	result.ConfirmedSequence = 0
	assert.Equal(t, result, FindingsFromStatus(&status, "another process's"), "what was confirmed to another process is of no account")
	assert.Equal(t, Findings{}, FindingsFromStatus(&v1alpha1.MemberLinkStatus{}, ""))
}
