package mailbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Only of a page is it known that another event follows.
func TestSyncDelay(t *testing.T) {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	assert.Zero(t, SyncDelay(&v1alpha1.ClusterReport{ObjectMeta: named(v1alpha1.MailboxName)}))
	assert.Zero(t, SyncDelay(&v1alpha1.ClusterReport{ObjectMeta: named(v1alpha1.ActivityName)}))
	assert.Zero(t, SyncDelay(&v1alpha1.ClusterPlan{ObjectMeta: named(v1alpha1.MailboxName)}))
	assert.Equal(t, pageDelay, SyncDelay(&metav1.PartialObjectMetadata{ObjectMeta: named("page-01")}))
}
