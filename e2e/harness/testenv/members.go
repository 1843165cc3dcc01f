//go:build linux

package testenv

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/heartbeat"
)

// NewScheme returns a scheme with Kubernetes' kinds and the product's.
func NewScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
}

// GetMember returns a MemberCluster as stored; the zero value for none.
func GetMember(t *testing.T, c client.Reader, name string) *v1alpha1.MemberCluster {
	t.Helper()
	m := &v1alpha1.MemberCluster{}
	require.NoError(t, client.IgnoreNotFound(c.Get(t.Context(), client.ObjectKey{Name: name}, m)))
	return m
}

// GetReceivedRoot returns the root of a member's report as the hub has received it: its copy,
// as of the latest heartbeat that a replica publishes of it. Without a copy it is empty.
func GetReceivedRoot(t *testing.T, c client.Reader, member string) *v1alpha1.ClusterReport {
	t.Helper()
	copied := &v1alpha1.ClusterReport{}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}
	require.NoError(t, client.IgnoreNotFound(c.Get(t.Context(), key, copied)))
	leases, annotations := &coordinationv1.LeaseList{}, map[string]map[string]string{}
	require.NoError(t, c.List(t.Context(), leases))
	for i := range leases.Items {
		annotations[leases.Items[i].Name] = leases.Items[i].Annotations
	}
	received := heartbeat.NewReceived()
	received.SetReplicas(annotations)
	return received.FindHeartbeat(member, copied.ResourceVersion).ApplyTo(copied)
}

// AwaitMember waits until a MemberCluster meets all conditions.
func AwaitMember(t *testing.T, c client.WithWatch, name, wanted string, holds ...func(*v1alpha1.MemberCluster) bool) *v1alpha1.MemberCluster {
	t.Helper()
	m, held := AwaitObject(t, c, client.ObjectKey{Name: name}, func(m *v1alpha1.MemberCluster) bool {
		return !slices.ContainsFunc(holds, func(hold func(*v1alpha1.MemberCluster) bool) bool { return !hold(m) })
	})
	if !held {
		require.Failf(t, "MemberCluster "+name+" is not as wanted: "+wanted, "%s", DescribeMember(m))
	}
	return m
}

// DescribeMember formats a MemberCluster's status for the message of a failed test.
func DescribeMember(m *v1alpha1.MemberCluster) string {
	text := fmt.Sprintf("cluster %s, policy %+v, plan %+v, acknowledged %+v, images %+v",
		m.Status.ClusterUID, m.Status.Policy, m.Status.Plan, m.Status.AcknowledgedPlan, m.Status.Images)
	for _, c := range m.Status.Conditions {
		text += fmt.Sprintf("\n%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

// AwaitLedgerCondition waits for status and reason of a ledger condition and returns it.
func (s *Env) AwaitLedgerCondition(t *testing.T, kind string, status metav1.ConditionStatus, reason string) *metav1.Condition {
	t.Helper()
	var c *metav1.Condition
	require.True(t, AwaitCondition(t, func() bool {
		c = meta.FindStatusCondition(s.Ledger(t).Status.Conditions, kind)
		return c != nil && c.Status == status && c.Reason == reason
	}), "condition %s is %+v, want %s %s", kind, c, status, reason)
	return c
}

// AwaitEvent waits for an event about an object with words in its note.
func (s *Env) AwaitEvent(t *testing.T, about client.Object, reason, says string) {
	t.Helper()
	var notes []string
	require.True(t, AwaitCondition(t, func() bool {
		notes = nil
		var list eventsv1.EventList
		require.NoError(t, s.Client().List(t.Context(), &list, client.InNamespace(about.GetNamespace())))
		for i := range list.Items {
			e := &list.Items[i]
			if e.Regarding.UID != about.GetUID() {
				continue
			}
			notes = append(notes, e.Reason+": "+e.Note)
			if e.Reason == reason && strings.Contains(e.Note, says) {
				return true
			}
		}
		return false
	}), "no event %s with %q about %s: %q", reason, says, about.GetName(), notes)
}
