package install

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/install"
)

func newOptedIn() *v1alpha1.MemberCluster {
	return &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "frankfurt", UID: "uid", Labels: map[string]string{v1alpha1.LabelInstallAgent: "true"}}}
}

// In quarantine nothing is read from the member, whatever was known before; afterwards what was said
// meanwhile is not known of it.
func TestConditionInQuarantine(t *testing.T) {
	installed := metav1.Condition{Type: v1alpha1.ConditionAgentInstalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInstalled}
	for name, tt := range map[string]struct {
		stored, published *metav1.Condition
		quarantined       bool
		want              string
	}{
		"installed before":                 {&installed, &installed, true, v1alpha1.ReasonQuarantined},
		"never read":                       {nil, nil, true, v1alpha1.ReasonQuarantined},
		"no quarantine":                    {nil, &installed, false, v1alpha1.ReasonInstalled},
		"it has ended, and the hub is new": {&metav1.Condition{Type: v1alpha1.ConditionAgentInstalled, Reason: v1alpha1.ReasonQuarantined}, nil, false, v1alpha1.ReasonInstalling},
	} {
		t.Run(name, func(t *testing.T) {
			c, member := &Conditions{}, newOptedIn()
			c.enabled.Store(true)
			if tt.stored != nil {
				member.Status.Conditions = []metav1.Condition{*tt.stored}
			}
			if tt.published != nil {
				c.Publish(member, tt.published)
			}
			if tt.quarantined {
				member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "it lies"}
			}
			got := c.ForMember(member)
			assert.Equal(t, tt.want, got.Reason)
			assert.Equal(t, tt.want == v1alpha1.ReasonInstalled, got.Status == metav1.ConditionTrue)
		})
	}
}

// The live object decides: the cache may not show a quarantine yet.
func TestNothingIsInstalledInQuarantine(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	member := newOptedIn()
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(member.DeepCopy()).Build()
	member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "it lies"}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(member.DeepCopy()).Build()
	r := &Reconciler{Client: cached, Live: live, Conditions: &Conditions{}, Namespace: "ot-hub"}
	result, err := r.reconcile(t.Context(), trigger.Requests(member.Name)[0])
	require.NoError(t, err, "nothing more is read")
	assert.Zero(t, result)
	r.Client = live
	err = r.storeAttempts(t.Context(), member, &install.Attempts{}, install.Attempts{Target: "1.0", Count: 1})
	assert.ErrorIs(t, err, errAttemptsChanged)
}
