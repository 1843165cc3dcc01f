package registration

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// While an agent divides its report anew, both divisions exist, beside root and activity.
func TestQuotaHasRoomForEachObjectOfAReport(t *testing.T) {
	hard := newQuota(&v1alpha1.MemberCluster{}).Spec.Hard["count/clusterreports.pelotech.ot"]
	assert.EqualValues(t, len([]string{v1alpha1.MailboxName, v1alpha1.ActivityName})+2*v1alpha1.MaxReportPages, hard.Value())
}
