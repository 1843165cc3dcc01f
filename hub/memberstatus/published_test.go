package memberstatus

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A member that was deleted and created again has nothing of the former one, and who listens
// hears of changes only.
func TestPublishedConditions(t *testing.T) {
	var p PublishedConditions
	changes := 0
	p.OnChange(func(string) { changes++ })
	first := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "1"}}
	second := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "2"}}
	joined := &metav1.Condition{Type: v1alpha1.ConditionJoined, Status: metav1.ConditionTrue}
	later := joined.DeepCopy()
	later.LastTransitionTime = metav1.Now()

	_, known := p.Published(first)
	assert.False(t, known)
	assert.Nil(t, p.Publish(first, joined))
	assert.Equal(t, joined, p.Publish(first, later))
	assert.Equal(t, 1, changes, "only the time differs")
	published, known := p.Published(first)
	assert.True(t, known)
	assert.Equal(t, later, published)

	_, known = p.Published(second)
	assert.False(t, known, "it is of the member that was deleted")
	assert.Nil(t, p.Publish(second, nil))
	assert.Equal(t, 2, changes)
	published, known = p.Published(second)
	assert.True(t, known)
	assert.Nil(t, published, "it has none")
	p.Forget("edge")
	_, known = p.Published(second)
	assert.False(t, known)
}
