package mailbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestOnlyWritesOfTheHubNeedASync(t *testing.T) {
	link := func(uid types.UID, generation int64, carrier string) *v1alpha1.MemberLink {
		return &v1alpha1.MemberLink{ObjectMeta: metav1.ObjectMeta{UID: uid, Generation: generation}, Status: v1alpha1.MemberLinkStatus{Carrier: carrier}}
	}
	var events eventFilter
	for _, step := range []struct {
		name    string
		object  client.Object
		deleted bool
		want    bool
	}{
		{name: "the first event", object: link("a", 1, ""), want: true},
		{name: "the agent's own status", object: link("a", 1, "agent/one")},
		{name: "the status of another agent with this credential", object: link("a", 1, "agent/two")},
		{name: "another challenge", object: link("a", 2, "agent/two"), want: true},
		{name: "a hub that was restored", object: link("a", 1, "agent/one"), want: true},
		{name: "created again before the deletion was seen", object: link("b", 1, ""), want: true},
		{name: "deleted", object: link("b", 1, ""), deleted: true, want: true},
		{name: "its own report", object: &metav1.PartialObjectMetadata{}},
		{name: "a copy of the report that was deleted", object: &metav1.PartialObjectMetadata{}, deleted: true, want: true},
		{name: "a plan", object: &v1alpha1.ClusterPlan{}, want: true},
		{name: "a grant", object: &v1alpha1.TransferGrant{}, want: true},
	} {
		assert.Equal(t, step.want, events.needsSync(step.object, step.deleted), step.name)
	}
}
