package join

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	frankfurt = Access{Server: "https://frankfurt.example:6443", Authority: []byte("a CA")}
	hubKey    = "SHA256:" + strings.Repeat("A", 43)
	otherKey  = "SHA256:" + strings.Repeat("B", 43)
)

func memberWith(connection v1alpha1.MemberConnection, conditions ...metav1.Condition) *v1alpha1.MemberCluster {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo", Labels: map[string]string{}}}
	m.Spec.Connection, m.Status.Conditions = connection, conditions
	return m
}

func pullMember(reason, message string) *v1alpha1.MemberCluster {
	m := memberWith(v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}})
	if reason != "" {
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionJoined, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
	}
	return m
}

func pushMember(rotated metav1.ConditionStatus) *v1alpha1.MemberCluster {
	return memberWith(v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "oslo"}},
		metav1.Condition{Type: v1alpha1.ConditionCredentialRotated, Status: rotated})
}

func kubeconfigSecret(t *testing.T, access Access, labels map[string]string) *corev1.Secret {
	t.Helper()
	text, err := access.Kubeconfig("given")
	require.NoError(t, err)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "oslo", Labels: labels}, Data: map[string][]byte{"kubeconfig": text}}
}

func actions(steps []Step) (all []Action) {
	for _, s := range steps {
		all = append(all, s.Action)
	}
	return all
}

func with[T any](object *T, change func(*T)) *T {
	change(object)
	return object
}

func TestPlanPush(t *testing.T) {
	ours := map[string]string{v1alpha1.LabelMember: "oslo"}
	there := MemberState{UID: "1", Access: frankfurt, HasAccount: true, HasAccessSecret: true}
	request := Request{Mode: Push, Name: "oslo", MemberContext: "oslo"}
	for name, test := range map[string]struct {
		request Request
		hub     HubState
		member  MemberState
		want    []Action
		wantErr string
	}{
		"new, with the agent": {
			request: Request{Mode: Push, Name: "oslo", Install: true, Labels: map[string]string{"edge": "true"}}, member: MemberState{UID: "1", Access: frankfurt},
			want: []Action{InstallAgent, GiveCredential, AwaitReady, SetLabels, AwaitRotated},
		},
		"new, the agent is there": {request: request, member: there, want: []Action{GiveCredential, AwaitReady, AwaitRotated}},
		"all is there": {
			request: request, hub: HubState{Member: pushMember(metav1.ConditionTrue), Secret: kubeconfigSecret(t, frankfurt, ours)}, member: there,
			want: []Action{Keep, AwaitReady},
		},
		"the hub's own token is not there yet": {
			request: request, hub: HubState{Member: pushMember(metav1.ConditionFalse), Secret: kubeconfigSecret(t, frankfurt, ours)}, member: there,
			want: []Action{GiveCredential, AwaitReady, AwaitRotated},
		},
		"another server": {
			request: with(&Request{}, func(r *Request) { *r = request; r.Server = "https://other.example" }).self(), member: there,
			hub:  HubState{Member: pushMember(metav1.ConditionTrue), Secret: kubeconfigSecret(t, frankfurt, ours)},
			want: []Action{GiveCredential, AwaitReady, AwaitRotated},
		},
		"the same server by --server": {
			request: with(&Request{}, func(r *Request) { *r = request; r.Server = frankfurt.Server }).self(), member: there,
			hub:  HubState{Member: pushMember(metav1.ConditionTrue), Secret: kubeconfigSecret(t, frankfurt, ours)},
			want: []Action{Keep, AwaitReady},
		},
		"labels that are there, one that is not": {
			request: Request{Mode: Push, Name: "oslo", Labels: map[string]string{"edge": "true", "ring": "a"}}, member: there,
			hub: HubState{
				Member: with(pushMember(metav1.ConditionTrue), func(m *v1alpha1.MemberCluster) { m.Labels = map[string]string{"edge": "true", "ring": "by-hand"} }),
				Secret: kubeconfigSecret(t, frankfurt, map[string]string{v1alpha1.LabelMember: "oslo", "edge": "true", "ring": "a"}),
			},
			want: []Action{Keep, AwaitReady, SetLabels},
		},
		"a label that the Secret has not": {
			request: Request{Mode: Push, Name: "oslo", Labels: map[string]string{"edge": "true"}}, member: there,
			hub:  HubState{Member: pushMember(metav1.ConditionTrue), Secret: kubeconfigSecret(t, frankfurt, ours)},
			want: []Action{Keep, LabelSecret, AwaitReady, SetLabels},
		},
		"a token of earlier versions": {
			request: request, hub: HubState{Member: pushMember(metav1.ConditionTrue), Secret: kubeconfigSecret(t, frankfurt, ours)},
			member: with(&MemberState{}, func(m *MemberState) { *m = there; m.HasLegacyToken = true }).self(),
			want:   []Action{Keep, AwaitReady, DeleteLegacyToken},
		},
		"no account":            {request: request, member: MemberState{UID: "1"}, wantErr: "no ServiceAccount ot-agent/ot-hub: have this install chart ot-agent"},
		"an old chart":          {request: request, member: MemberState{UID: "1", HasAccount: true}, wantErr: "no Secret ot-agent/ot-hub-access"},
		"somebody's own Secret": {request: request, hub: HubState{Namespace: "ot-hub", Secret: kubeconfigSecret(t, frankfurt, nil)}, member: there, wantErr: "there is a Secret ot-hub/oslo that is no member's"},
		"pull mode":             {request: request, hub: HubState{Member: pullMember("", "")}, member: there, wantErr: "is not reached by Secret oslo"},
		"another Secret": {
			request: request, hub: HubState{Member: memberWith(v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: "another"}})},
			member: there, wantErr: "is not reached by Secret oslo",
		},
		"another cluster": {
			request: request, hub: HubState{Member: with(pushMember(metav1.ConditionTrue), func(m *v1alpha1.MemberCluster) { m.Status.ClusterUID = "2" })},
			member: there, wantErr: "MemberCluster oslo is another cluster, 2",
		},
		"another cluster, accepted": {
			request: request, hub: HubState{Member: with(pushMember(metav1.ConditionFalse), func(m *v1alpha1.MemberCluster) {
				m.Status.ClusterUID, m.Annotations = "2", map[string]string{v1alpha1.AnnotationAcceptCluster: "1"}
			})},
			member: there, want: []Action{GiveCredential, AwaitReady, AwaitRotated},
		},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := PlanPush(test.request, test.hub, test.member)
			assertPlanned(t, test.want, test.wantErr, steps, err)
		})
	}
	steps, err := PlanPush(Request{Mode: Push, Name: "oslo", Install: true}, HubState{}, MemberState{Audiences: []string{"https://a", "b"}})
	require.NoError(t, err)
	assert.Equal(t, []string{"--set", "hub.serviceAccount.create=true", "--set", "hub.join.kubeconfig=", "--set-json", `hub.serviceAccount.audiences=["https://a","b"]`}, steps[0].Values)
}

// assertPlanned checks the actions of a plan, or why there is none.
func assertPlanned(t *testing.T, want []Action, wantErr string, steps []Step, err error) {
	t.Helper()
	if wantErr != "" {
		require.ErrorContains(t, err, wantErr)
		assert.Empty(t, steps)
		return
	}
	require.NoError(t, err)
	assert.Equal(t, want, actions(steps))
}

func (r *Request) self() Request         { return *r }
func (m *MemberState) self() MemberState { return *m }

func TestPlanPull(t *testing.T) {
	install := Request{Mode: Pull, Name: "oslo", MemberContext: "oslo", Install: true}
	automatic := install
	automatic.AutoAccept = true
	file := Request{Mode: Pull, Name: "oslo", Output: "join.kubeconfig"}
	joined := with(pullMember(v1alpha1.ReasonJoined, ""), func(m *v1alpha1.MemberCluster) { m.Status.ClusterUID = "1" })
	for name, test := range map[string]struct {
		request Request
		hub     HubState
		member  *MemberState
		want    []Action
		wantErr string
	}{
		"new, the token to a file": {request: file, want: []Action{CreateMember, AwaitToken, WriteFile}},
		"new, with the agent": {
			request: install, member: &MemberState{UID: "1"},
			want: []Action{CreateMember, AwaitToken, InstallAgent, StoreToken, AwaitAgent, AwaitReady},
		},
		"new, accepted at once": {
			request: automatic, member: &MemberState{UID: "1"},
			want: []Action{CreateMember, AwaitToken, InstallAgent, StoreToken, AwaitReady},
		},
		"a Secret made by hand is in the place of the token": {
			request: automatic, hub: HubState{Member: pullMember(v1alpha1.ReasonAwaitingAgent, "")}, member: &MemberState{UID: "1", HasJoinSecret: true, JoinToken: []byte("by hand")},
			want: []Action{SetAutoAccept, AwaitToken, InstallAgent, StoreToken, AwaitReady},
		},
		"accepts by itself since before": {
			request: install, hub: HubState{Member: with(pullMember("", ""), func(m *v1alpha1.MemberCluster) { m.Spec.Connection.Pull.AutoAccept = true })}, member: &MemberState{UID: "1"},
			want: []Action{Keep, AwaitToken, InstallAgent, StoreToken, AwaitReady},
		},
		"expired": {request: file, hub: HubState{Member: pullMember(v1alpha1.ReasonJoinTokenExpired, "")}, want: []Action{Keep, RequestToken, AwaitToken, WriteFile}},
		"the agent asks": {
			request: install, hub: HubState{Member: pullMember(v1alpha1.ReasonAwaitingAcceptance, "key")}, member: &MemberState{UID: "1"},
			want: []Action{Keep, InstallAgent, AwaitAgent, AwaitReady},
		},
		"the agent asks, elsewhere": {request: file, hub: HubState{Member: pullMember(v1alpha1.ReasonAwaitingAcceptance, "the key")}, wantErr: "an agent has presented the join token of oslo: the key"},
		"registered, the same cluster": {
			request: install, hub: HubState{Member: joined}, member: &MemberState{UID: "1"}, want: []Action{Keep, InstallAgent, AwaitAgent, AwaitReady},
		},
		"registered, a used token is left": {
			request: automatic, hub: HubState{Member: joined.DeepCopy()}, member: &MemberState{UID: "1", HasJoinSecret: true},
			want: []Action{SetAutoAccept, InstallAgent, DeleteUsedToken, AwaitReady},
		},
		"registered, another cluster":   {request: install, hub: HubState{Member: joined}, member: &MemberState{UID: "2"}, wantErr: "the agent of oslo is registered already"},
		"registered, unknown cluster":   {request: file, hub: HubState{Member: joined}, wantErr: "the agent of oslo is registered already"},
		"registered, a new token":       {request: file, hub: HubState{Member: joined, JoinToken: []byte("next")}, want: []Action{Keep, AwaitToken, WriteFile}},
		"revoked":                       {request: file, hub: HubState{Member: pullMember(v1alpha1.ReasonRevoked, "all is revoked")}, wantErr: "MemberCluster oslo: all is revoked"},
		"a reason of a newer hub":       {request: file, hub: HubState{Member: pullMember("SomethingNew", "wait")}, wantErr: "MemberCluster oslo: wait"},
		"push mode":                     {request: file, hub: HubState{Member: pushMember(metav1.ConditionTrue)}, wantErr: "its agent is not in pull mode"},
		"labels of one that is there":   {request: with(&Request{}, func(r *Request) { *r = file; r.Labels = map[string]string{"edge": "true"} }).self(), hub: HubState{Member: pullMember("", "")}, want: []Action{Keep, SetLabels, AwaitToken, WriteFile}},
		"labels of one that is created": {request: with(&Request{}, func(r *Request) { *r = file; r.Labels = map[string]string{"edge": "true"} }).self(), want: []Action{CreateMember, AwaitToken, WriteFile}},
	} {
		t.Run(name, func(t *testing.T) {
			steps, err := PlanPull(test.request, test.hub, test.member)
			assertPlanned(t, test.want, test.wantErr, steps, err)
			for _, s := range steps {
				assert.NotContains(t, strings.Join(s.Values, " "), "--set-file", "the token never goes through Helm")
			}
		})
	}
}

func TestDecideAcceptance(t *testing.T) {
	asks := func() HubState {
		return HubState{
			Member: pullMember(v1alpha1.ReasonAwaitingAcceptance, "key "+hubKey),
			Join:   &v1alpha1.ClusterJoin{Status: v1alpha1.ClusterJoinStatus{Fingerprint: hubKey}},
		}
	}
	says := func(key string) *MemberState {
		return &MemberState{HubConnected: &metav1.Condition{Message: "waiting for the platform team to accept key " + key + " in the MemberCluster"}}
	}
	for name, test := range map[string]struct {
		hub          HubState
		member       *MemberState
		given        string
		wantKey      string
		wantCompared bool
		wantErr      string
	}{
		"the same":                       {hub: asks(), member: says(hubKey), wantKey: hubKey, wantCompared: true},
		"by --key":                       {hub: asks(), given: hubKey, wantKey: hubKey, wantCompared: true},
		"not compared":                   {hub: asks(), wantKey: hubKey},
		"an agent that says nothing":     {hub: asks(), member: &MemberState{}, wantKey: hubKey},
		"another agent":                  {hub: asks(), member: says(otherKey), wantErr: "another agent has presented the join token"},
		"another key by --key":           {hub: asks(), given: otherKey, wantErr: "another agent has presented the join token"},
		"--key against the agent's word": {hub: asks(), member: says(hubKey), given: otherKey, wantErr: "--key is not what the agent says"},
		"--key that is none":             {hub: asks(), given: "SHA256:short", wantErr: "--key is a fingerprint"},
		"no request but a message":       {hub: HubState{Member: asks().Member}, wantKey: hubKey},
		"no agent asks":                  {hub: HubState{Member: pullMember(v1alpha1.ReasonAwaitingAgent, "a join token waits")}, wantErr: "no agent asks to be let in as oslo: a join token waits"},
		"the hub said nothing":           {hub: HubState{Member: pullMember("", "")}, wantErr: "the hub has not said what it waits for"},
		"registered":                     {hub: HubState{Member: pullMember(v1alpha1.ReasonJoined, "")}},
		"accepted already": {hub: with(&HubState{}, func(h *HubState) {
			*h = asks()
			h.Member.Spec.Connection.Pull.AcceptedKey = hubKey
		}).self()},
		"revoked": {hub: with(&HubState{}, func(h *HubState) {
			*h = asks()
			h.Member.Spec.Connection.Pull.Revoked = true
		}).self(), wantErr: "is revoked"},
		"push mode": {hub: HubState{Member: pushMember(metav1.ConditionTrue)}, wantErr: "not in pull mode"},
		"no member": {wantErr: "there is no MemberCluster oslo"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := DecideAcceptance("oslo", test.hub, test.member, test.given)
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
				assert.Empty(t, a.Key)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.wantKey, a.Key)
			assert.Equal(t, test.wantCompared, a.Compared)
			assert.NotEmpty(t, a.Text)
		})
	}
}

func (h *HubState) self() HubState { return *h }

func withUID(m *v1alpha1.MemberCluster, uid types.UID) *v1alpha1.MemberCluster {
	m.Status.ClusterUID = uid
	return m
}

func TestPlanLeave(t *testing.T) {
	secret := func(labels map[string]string) corev1.Secret { return *kubeconfigSecret(t, frankfurt, labels) }
	byLabel := secret(map[string]string{v1alpha1.LabelMember: "oslo"})
	discovered := with(pushMember(metav1.ConditionTrue), func(m *v1alpha1.MemberCluster) { m.Labels[v1alpha1.LabelDiscovered] = "secret" })
	cluster := func(label string) *v1alpha1.MemberCluster {
		m := memberWith(v1alpha1.MemberConnection{ClusterAPI: &v1alpha1.ClusterAPIRef{Namespace: "clusters", Name: "oslo-1"}})
		if label != "" {
			m.Labels[v1alpha1.LabelDiscovered] = label
		}
		return m
	}
	inMember := &MemberState{HasAccessSecret: true}
	for name, test := range map[string]struct {
		leaving    Leaving
		want       []Action
		wantByHand string
		wantStays  string
		wantErr    string
	}{
		"made of a Secret": {
			leaving: Leaving{Member: discovered, Secrets: []corev1.Secret{byLabel}, InMember: inMember},
			want:    []Action{DeleteHubSecret, AwaitGone, RevokeTokens},
		},
		"made of a Secret, which is gone": {leaving: Leaving{Member: discovered, InMember: inMember}, want: []Action{DeleteMember, AwaitGone, RevokeTokens}},
		"all gone but in the member":      {leaving: Leaving{InMember: inMember}, want: []Action{RevokeTokens}},
		"made by hand": {
			leaving: Leaving{Member: pushMember(metav1.ConditionTrue), Secrets: []corev1.Secret{secret(nil)}, InMember: inMember},
			want:    []Action{DeleteMember, AwaitGone, DeleteHubSecret, RevokeTokens},
		},
		"made by hand, of a Secret with the label": {
			leaving: Leaving{Member: pushMember(metav1.ConditionTrue), Secrets: []corev1.Secret{byLabel}, InMember: inMember},
			want:    []Action{DeleteHubSecret, DeleteMember, AwaitGone, RevokeTokens},
		},
		"a Secret that another names": {
			leaving: Leaving{
				Member: pushMember(metav1.ConditionTrue), Secrets: []corev1.Secret{secret(nil)}, InMember: &MemberState{},
				Others: []v1alpha1.MemberCluster{*with(pushMember(metav1.ConditionTrue), func(m *v1alpha1.MemberCluster) { m.Name = "bergen" })},
			},
			want: []Action{DeleteMember, AwaitGone}, wantStays: "MemberCluster bergen names it, too",
		},
		"push, not reached from here": {
			leaving: Leaving{Member: discovered, Secrets: []corev1.Secret{byLabel}}, want: []Action{DeleteHubSecret, AwaitGone},
			wantByHand: "kubectl --context oslo -n ot-agent delete secret ot-hub-access",
		},
		"pull": {
			leaving: Leaving{Member: pullMember(v1alpha1.ReasonJoined, ""), InMember: &MemberState{HasCredential: true}},
			want:    []Action{DeleteMember, AwaitGone, DeleteCredential},
		},
		"pull, not reached from here": {
			leaving: Leaving{Member: pullMember(v1alpha1.ReasonJoined, "")}, want: []Action{DeleteMember, AwaitGone},
			wantByHand: "delete secret ot-hub-join ot-hub-credential --ignore-not-found",
		},
		"a context of another cluster": {
			leaving: Leaving{Member: withUID(discovered.DeepCopy(), "1"), InMember: &MemberState{UID: "2", HasAccessSecret: true}},
			wantErr: "--member leads to cluster 2, and MemberCluster oslo is cluster 1",
		},
		"a context of another member": {
			leaving: Leaving{
				Member: discovered, InMember: &MemberState{UID: "2", HasAccessSecret: true},
				Others: []v1alpha1.MemberCluster{*withUID(with(pushMember(metav1.ConditionTrue), func(m *v1alpha1.MemberCluster) { m.Name = "bergen" }), "2")},
			},
			wantErr: "--member leads to the cluster of MemberCluster bergen",
		},
		"a misspelt name": {
			leaving: Leaving{
				InMember: &MemberState{UID: "2", HasAccessSecret: true},
				Others:   []v1alpha1.MemberCluster{*withUID(with(pushMember(metav1.ConditionTrue), func(m *v1alpha1.MemberCluster) { m.Name = "oslo-1" }), "2")},
			},
			wantErr: "--member leads to the cluster of MemberCluster oslo-1",
		},
		"its own cluster": {
			leaving: Leaving{Member: withUID(discovered.DeepCopy(), "1"), InMember: &MemberState{UID: "1", HasAccessSecret: true}}, want: []Action{DeleteMember, AwaitGone, RevokeTokens},
		},
		"Cluster API":          {leaving: Leaving{Member: cluster("cluster-api")}, wantErr: "kubectl -n clusters label clusters.cluster.x-k8s.io oslo-1 pelotech.ot/fleet-"},
		"Cluster API, by hand": {leaving: Leaving{Member: cluster(""), InMember: inMember}, want: []Action{DeleteMember, AwaitGone, RevokeTokens}},
		"nothing there":        {wantErr: "there is no MemberCluster oslo"},
	} {
		t.Run(name, func(t *testing.T) {
			test.leaving.Name, test.leaving.Namespace = "oslo", "ot-hub"
			d, err := PlanLeave(test.leaving)
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, actions(d.Steps))
			assert.Contains(t, strings.Join(d.ByHand, "\n"), test.wantByHand)
			assert.Contains(t, strings.Join(d.Stays, "\n"), test.wantStays)
			assert.Equal(t, test.wantByHand == "", len(d.ByHand) == 0)
			for _, s := range d.Steps {
				assert.NotEmpty(t, s.Commands, "%s can be done by hand", s.Action)
			}
			credentials := slices.IndexFunc(d.Steps, func(s Step) bool { return s.Side == OnMember })
			gone := slices.IndexFunc(d.Steps, func(s Step) bool { return s.Action == AwaitGone })
			assert.True(t, credentials < 0 || credentials > gone, "the hub removes its plan with its credential")
		})
	}
}

// A command about a Secret does not say by its kind whose it is.
func TestLeavingNamesTheHubOfItsSecrets(t *testing.T) {
	leaving := Leaving{Name: "oslo", Namespace: "ot-hub", Secrets: []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: "oslo", Labels: map[string]string{v1alpha1.LabelMember: "oslo"}}}}}
	for kubectl, want := range map[string]string{
		"":                       "kubectl -n ot-hub delete secret oslo",
		"kubectl --context prod": "kubectl --context prod -n ot-hub delete secret oslo",
	} {
		leaving.HubKubectl = kubectl
		d, err := PlanLeave(leaving)
		require.NoError(t, err)
		assert.Equal(t, []string{want}, CommandsOf(d.Steps))
	}
}
