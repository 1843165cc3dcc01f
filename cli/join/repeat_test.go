package join

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// world is a hub and a member that do what steps ask of them.
type world struct {
	t      *rapid.T
	hub    HubState
	member MemberState
	tokens int
}

func (w *world) makeToken() {
	w.tokens++
	w.hub.JoinToken = fmt.Appendf(nil, "token %d", w.tokens)
	w.setCondition(v1alpha1.ConditionJoined, metav1.ConditionFalse, v1alpha1.ReasonAwaitingAgent)
}

func (w *world) setCondition(name string, status metav1.ConditionStatus, reason string) {
	m := w.hub.Member
	m.Status.Conditions = slices.DeleteFunc(m.Status.Conditions, func(c metav1.Condition) bool { return c.Type == name })
	m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: name, Status: status, Reason: reason})
}

// do does one step, and then what hub and agent do by themselves.
func (w *world) do(r Request, s Step) {
	switch s.Action {
	case CreateMember:
		w.hub.Member = pullMember("", "")
		w.hub.Member.Labels, w.hub.Member.Spec.Connection.Pull.AutoAccept = r.Labels, r.AutoAccept
		w.makeToken()
	case SetAutoAccept:
		w.hub.Member.Spec.Connection.Pull.AutoAccept = true
	case SetLabels:
		w.hub.Member.Labels = r.Labels
	case RequestToken:
		w.makeToken()
	case AwaitToken:
		require.NotEmpty(w.t, w.hub.JoinToken)
	case InstallAgent:
		w.member.HasAccount, w.member.HasAccessSecret = true, true
	case StoreToken:
		w.member.HasJoinSecret, w.member.JoinToken = true, w.hub.JoinToken
	case AwaitReady:
		if r.Mode == Pull && len(w.hub.JoinToken) > 0 {
			require.Equal(w.t, string(w.hub.JoinToken), string(w.member.JoinToken), "the agent has no token that the hub knows")
			w.hub.JoinToken = nil
			w.setCondition(v1alpha1.ConditionJoined, metav1.ConditionTrue, v1alpha1.ReasonJoined)
		}
		w.hub.Member.Status.ClusterUID = w.member.UID
	case GiveCredential:
		require.True(w.t, w.member.HasAccount && w.member.HasAccessSecret, "a token of an account that is not there")
		text, err := r.Access(w.member).Kubeconfig("given")
		require.NoError(w.t, err)
		w.hub.Secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: map[string]string{v1alpha1.LabelMember: r.Name}}, Data: map[string][]byte{"kubeconfig": text}}
		for key, value := range r.Labels {
			w.hub.Secret.Labels[key] = value
		}
		if w.hub.Member == nil {
			w.hub.Member = pushMember(metav1.ConditionFalse)
			w.hub.Member.Labels = w.hub.Secret.Labels
		}
	case LabelSecret:
		for key, value := range r.Labels {
			w.hub.Secret.Labels[key] = value
		}
	case AwaitRotated:
		w.setCondition(v1alpha1.ConditionCredentialRotated, metav1.ConditionTrue, "")
	case DeleteUsedToken:
		w.member.HasJoinSecret = false
	case DeleteLegacyToken:
		w.member.HasLegacyToken = false
	}
}

func (w *world) plan(r Request) []Step {
	var steps []Step
	var err error
	if r.Mode == Push {
		steps, err = PlanPush(r, w.hub, w.member)
	} else {
		steps, err = PlanPull(r, w.hub, &w.member)
	}
	require.NoError(w.t, err)
	return steps
}

// TestJoinCanBeRepeated interrupts a join after any number of its steps, again and again: in the
// end the cluster has joined, and another run changes nothing.
func TestJoinCanBeRepeated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Request{
			Mode: rapid.SampledFrom([]Mode{Push, Pull}).Draw(t, "mode"), Name: "oslo", MemberContext: "oslo", Install: true,
			AutoAccept: rapid.Bool().Draw(t, "auto-accept"), Labels: map[string]string{},
		}
		if rapid.Bool().Draw(t, "label") {
			r.Labels["edge"] = "true"
		}
		w := &world{t: t, hub: HubState{Namespace: "ot-hub"}, member: MemberState{
			UID: "1", Access: frankfurt, HasLegacyToken: rapid.Bool().Draw(t, "legacy token"), HasJoinSecret: rapid.Bool().Draw(t, "by hand"),
		}}
		for range rapid.IntRange(0, 4).Draw(t, "interruptions") {
			steps := w.plan(r)
			for _, s := range steps[:rapid.IntRange(0, len(steps)-1).Draw(t, "steps")] {
				w.do(r, s)
			}
			if r.Mode == Pull && len(w.hub.JoinToken) > 0 && rapid.Bool().Draw(t, "expires") {
				w.setCondition(v1alpha1.ConditionJoined, metav1.ConditionFalse, v1alpha1.ReasonJoinTokenExpired)
			}
		}
		for _, s := range w.plan(r) {
			w.do(r, s)
		}
		require.Equal(t, w.member.UID, w.hub.Member.Status.ClusterUID)
		for _, s := range w.plan(r) {
			w.do(r, s)
			require.Contains(t, []Action{Keep, InstallAgent, DeleteUsedToken, AwaitAgent, AwaitReady}, s.Action, "done before")
		}
	})
}
