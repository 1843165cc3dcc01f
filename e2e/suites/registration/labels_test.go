//go:build linux

package registration_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/memberlabels"
)

// awaitEvent waits for an event of the hub about the member.
func (s *testFleet) awaitEvent(t *testing.T, reason, note string) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var list eventsv1.EventList
		require.NoError(t, s.List(t.Context(), &list))
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == reason && e.Regarding.Name == s.memberName && strings.Contains(e.Note, note) {
				return true
			}
		}
		return false
	}), "no event %s with %q", reason, note)
}

// TestLabelsSurviveLeaving shows, in both modes, that a member which leaves and joins again has
// the labels that people gave it, and that labels removed by people stay away.
func TestLabelsSurviveLeaving(t *testing.T) {
	testenv.RunInTurn(t, 14)
	s := shared
	for mode, join := range map[string]func(t *testing.T){
		"pull": func(t *testing.T) {
			s.createMemberWith(t, v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}})
		},
		// The hub makes the MemberCluster, and makes it again as often as it is deleted.
		"push": func(t *testing.T) {
			s.nameMember(t)
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: s.memberName, Labels: labelSet{v1alpha1.LabelMember: s.memberName, "origin": "secret"}},
			}
			s.CreateForTest(t, secret)
		},
	} {
		t.Run(mode, func(t *testing.T) {
			join(t)
			term := s.openTerminal(t)
			var before *v1alpha1.MemberCluster
			require.True(t, testenv.AwaitCondition(t, func() bool {
				before = &v1alpha1.MemberCluster{}
				return s.Get(t.Context(), client.ObjectKey{Name: s.memberName}, before) == nil && len(before.Finalizers) > 0
			}))
			term.MustRun(t, "kubectl label membercluster "+s.memberName+" edge=true ring=canary")
			again := func() *v1alpha1.MemberCluster {
				t.Helper()
				left := testenv.GetMember(t, s, s.memberName)
				require.NoError(t, s.Delete(t.Context(), left.DeepCopy()))
				if mode == "pull" {
					s.AwaitGone(t, left.DeepCopy())
					require.NoError(t, s.Create(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: s.memberName, Labels: labelSet{"ring": "production"}}, Spec: left.Spec}))
				}
				back := &v1alpha1.MemberCluster{}
				require.True(t, testenv.AwaitCondition(t, func() bool {
					back = &v1alpha1.MemberCluster{}
					return s.Get(t.Context(), client.ObjectKeyFromObject(left), back) == nil && back.UID != left.UID && len(back.Finalizers) > 0
				}))
				return back
			}
			back := again()
			assert.Equal(t, "true", back.Labels["edge"])
			s.awaitEvent(t, "LabelsRestored", "edge=true")
			if mode == "pull" {
				assert.Equal(t, "production", back.Labels["ring"], "its own value is newer")
			} else {
				assert.Equal(t, "canary", back.Labels["ring"])
				assert.Equal(t, "secret", back.Labels["origin"])
				s.awaitEvent(t, "CreatedFromSecret", "To remove the member, delete the Secret")
			}
			store := &corev1.ConfigMap{}
			require.True(t, testenv.AwaitCondition(t, func() bool {
				store = &corev1.ConfigMap{}
				require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: program.HubNamespace, Name: memberlabels.ConfigMap}, store))
				return store.Data[s.memberName] == ""
			}), "what was given back is forgotten: %v", &store.Data)
			term.MustRun(t, "kubectl label membercluster "+s.memberName+" edge-")
			assert.NotContains(t, again().Labels, "edge", "what people remove stays away")
		})
	}
}
