package dial

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const mine, others = types.UID("cluster-a"), types.UID("cluster-b")

var begin = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// tokenOf is a token as an API server makes it, but for its signature.
func tokenOf(account string, issued time.Time, life time.Duration) string {
	payload := fmt.Sprintf(`{"iat": %d, "exp": %d, "kubernetes.io": {"serviceaccount": {"uid": %q}}}`, issued.Unix(), issued.Add(life).Unix(), account)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".sig"
}

func accessTo(t *testing.T, namespace, token string) []byte {
	t.Helper()
	text, err := join.Access{Server: "https://hub:6443", CA: []byte("ca"), Namespace: namespace, Token: token}.Kubeconfig()
	require.NoError(t, err)
	return text
}

func invitationTo(t *testing.T, namespace, account string) *invitation {
	t.Helper()
	i := parseInvitation(map[string][]byte{join.KubeconfigKey: accessTo(t, namespace, tokenOf(account, begin, time.Hour))})
	require.Empty(t, i.fault)
	return i
}

func newKey(t *testing.T) *join.Key {
	t.Helper()
	key, err := join.NewKey(rand.Reader)
	require.NoError(t, err)
	return &key
}

func sealed(t *testing.T, key *join.Key, text []byte) []byte {
	t.Helper()
	box, err := join.Seal(key.Public(), text, rand.Reader)
	require.NoError(t, err)
	return box
}

func TestDecide(t *testing.T) {
	key, another := newKey(t), newKey(t)
	invited := invitationTo(t, "ot-member-a", "join-1")
	again := invitationTo(t, "ot-member-a", "join-2")
	held, err := readCredential(accessTo(t, "ot-member-a", tokenOf("agent-1", begin, 9*time.Hour)))
	require.NoError(t, err)
	held.received = begin
	joined := kept{cluster: mine, key: key, used: invited.hash, credential: &held}
	off := func(by time.Duration) kept { // this agent's clock, by the hub's
		c := held
		c.token.Issued, c.token.Expires = c.token.Issued.Add(-by), c.token.Expires.Add(-by)
		k := joined
		k.credential = &c
		return k
	}
	asking := kept{cluster: mine, key: key}
	issue := func(holder *join.Key, namespace string) answer {
		return answer{kind: issued, sealed: sealed(t, holder, accessTo(t, namespace, tokenOf("agent-2", begin, time.Hour)))}
	}

	for name, tt := range map[string]struct {
		view        view
		after       time.Duration
		wantStep    step
		wantCarry   string // account of the credential
		wantJoining string // reason
		wantWaits   wait
	}{
		"nothing to join with": {view: view{}, wantStep: idle},
		"a join token comes: the key is kept before anything is sent": {
			view: view{invitation: invited}, wantStep: makeKey},
		"with a key that is kept it is asked": {
			view: view{invitation: invited, kept: asking}, wantStep: ask},
		"no answer": {
			view:     view{invitation: invited, kept: asking, answer: answer{kind: noAnswer, message: "away"}},
			wantStep: idle, wantJoining: v1alpha1.ReasonUnreachable, wantWaits: forHub},
		"not trusted": {
			view:     view{invitation: invited, kept: asking, answer: answer{kind: noAnswer, fault: dial.FaultCertificate, message: "forged"}},
			wantStep: idle, wantJoining: v1alpha1.ReasonCertificate, wantWaits: forHub},
		"join token refused": {
			view:     view{invitation: invited, kept: asking, answer: answer{kind: refused}},
			wantStep: idle, wantJoining: v1alpha1.ReasonJoinTokenRefused, wantWaits: seldom},
		"join token used by another": {
			view:     view{invitation: invited, kept: asking, answer: answer{kind: taken}},
			wantStep: idle, wantJoining: v1alpha1.ReasonJoinTokenUsed, wantWaits: seldom},
		"not accepted yet": {
			view:     view{invitation: invited, kept: asking, answer: answer{kind: pending}},
			wantStep: idle, wantJoining: v1alpha1.ReasonAwaitingAcceptance, wantWaits: forPeople},
		"issued": {
			view: view{invitation: invited, kept: asking, answer: issue(key, "ot-member-a")}, wantStep: store},
		"issued for another's key": {
			view:     view{invitation: invited, kept: asking, answer: issue(another, "ot-member-a")},
			wantStep: idle, wantJoining: v1alpha1.ReasonAnswerRefused, wantWaits: seldom},
		"issued for another member": {
			view:     view{invitation: invited, kept: asking, answer: issue(key, "ot-member-b")},
			wantStep: idle, wantJoining: v1alpha1.ReasonAnswerRefused, wantWaits: seldom},
		"issued, and no kubeconfig": {
			view:     view{invitation: invited, kept: asking, answer: answer{kind: issued, sealed: sealed(t, key, []byte("hello"))}},
			wantStep: idle, wantJoining: v1alpha1.ReasonAnswerRefused, wantWaits: seldom},
		"joined": {
			view: view{invitation: invited, kept: joined}, wantStep: idle, wantCarry: "agent-1"},
		"joined, and the join Secret is gone": {
			view: view{kept: joined}, wantStep: idle, wantCarry: "agent-1"},
		"joined, and there is another join token": {
			view: view{invitation: again, kept: joined}, wantStep: ask, wantCarry: "agent-1"},
		"the next join token does not hold up what is there": {
			view:     view{invitation: again, kept: joined, answer: answer{kind: refused}},
			wantStep: idle, wantCarry: "agent-1", wantJoining: v1alpha1.ReasonJoinTokenRefused, wantWaits: seldom},
		"a faulty join Secret does not either": {
			view:     view{invitation: &invitation{fault: "empty"}, kept: joined},
			wantStep: idle, wantCarry: "agent-1", wantJoining: v1alpha1.ReasonJoinSecretInvalid},
		"the credential is lost": {
			view: view{invitation: invited, kept: kept{cluster: mine, key: key, used: invited.hash}}, wantStep: ask},
		"Secrets of another cluster are none of ours": {
			view: view{invitation: invited, kept: kept{cluster: others, key: key, used: invited.hash, credential: &held}}, wantStep: makeKey},
		"nor is a credential without a join token": {
			view: view{kept: kept{cluster: others, key: key, credential: &held}}, wantStep: idle},
		"before two thirds of its life": {
			view: view{kept: joined}, after: 6*time.Hour - time.Second, wantStep: idle, wantCarry: "agent-1"},
		"at two thirds": {
			view: view{kept: joined}, after: 6 * time.Hour, wantStep: renew, wantCarry: "agent-1"},
		"its clock is a day ahead": {
			view: view{kept: off(24 * time.Hour)}, after: 6*time.Hour - time.Second, wantStep: idle, wantCarry: "agent-1"},
		"its clock is a day ahead, and it is time": {
			view: view{kept: off(24 * time.Hour)}, after: 6 * time.Hour, wantStep: renew, wantCarry: "agent-1"},
		"its clock is a day behind": {
			view: view{kept: off(-24 * time.Hour)}, after: 6*time.Hour - time.Second, wantStep: idle, wantCarry: "agent-1"},
		"its clock is a day behind, and it is time": {
			view: view{kept: off(-24 * time.Hour)}, after: 6 * time.Hour, wantStep: renew, wantCarry: "agent-1"},
		"at the age that is asked for": {
			view: view{kept: joined, renewAfter: time.Minute}, after: time.Minute, wantStep: renew, wantCarry: "agent-1"},
		"at no age of less than a second": {
			view: view{kept: joined, renewAfter: 1}, after: time.Millisecond, wantStep: idle, wantCarry: "agent-1"},
		"the clock was put back": {
			view: view{kept: joined}, after: -time.Hour, wantStep: renew, wantCarry: "agent-1"},
		"renewing failed": {
			view: view{kept: joined, renewal: renewal{asked: true}}, after: 6 * time.Hour, wantStep: idle, wantCarry: "agent-1", wantWaits: forHub},
		"renewed": {
			view:  view{kept: joined, renewal: renewal{asked: true, token: tokenOf("agent-1", begin, time.Hour)}},
			after: 6 * time.Hour, wantStep: store, wantCarry: "agent-1"},
		"renewed while joining anew waits": {
			view: view{invitation: again, kept: joined, answer: answer{kind: pending}}, after: 6 * time.Hour,
			wantStep: renew, wantCarry: "agent-1", wantJoining: v1alpha1.ReasonAwaitingAcceptance, wantWaits: forPeople},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.now, tt.view.cluster = begin.Add(tt.after), mine
			d := decide(tt.view)
			require.Equal(t, tt.wantStep, d.step)
			account, reason := "", ""
			if d.carry != nil {
				account = string(d.carry.token.Account)
			}
			if d.joining != nil {
				reason = d.joining.reason
				require.NotEmpty(t, d.joining.message)
			}
			require.Equal(t, tt.wantCarry, account)
			require.Equal(t, tt.wantJoining, reason)
			require.Equal(t, tt.wantWaits, d.waits)
			require.Equal(t, tt.view.renewal.asked && tt.wantStep == idle, d.trouble != "")
		})
	}
}

func TestWhatIsStored(t *testing.T) {
	key := newKey(t)
	invited := invitationTo(t, "ot-member-a", "join-1")
	v := view{now: begin, cluster: mine, invitation: invited, kept: kept{cluster: mine, key: key}, answer: answer{
		kind: issued, sealed: sealed(t, key, accessTo(t, "ot-member-a", tokenOf("agent-2", begin.Add(-time.Hour), time.Hour))),
	}}
	d := decide(v)
	require.Equal(t, store, d.step)
	require.Equal(t, invited.hash, d.kept.used)
	require.Equal(t, begin, d.kept.credential.received, "by this agent's clock, whatever the hub's shows")
	require.Nil(t, d.carry, "before it is stored nothing is carried with it")

	data, err := d.kept.data()
	require.NoError(t, err)
	again := parseKept(data)
	require.Equal(t, d.kept, again)

	v.kept, v.answer, v.now = again, answer{}, begin.Add(39*time.Minute)
	require.Equal(t, idle, decide(v).step)
	v.now = begin.Add(40 * time.Minute)
	require.Equal(t, renew, decide(v).step)
	v.renewal = renewal{asked: true, token: tokenOf("agent-2", v.now, time.Hour)}
	d = decide(v)
	require.Equal(t, store, d.step)
	require.Equal(t, v.renewal.token, d.kept.credential.access.Token)
	require.Equal(t, "https://hub:6443", d.kept.credential.access.Server)
	require.Equal(t, v.now, d.kept.credential.received)
	require.Equal(t, invited.hash, d.kept.used)

	gateway := *invited
	gateway.access.Server = "https://gateway"
	other := decide(view{now: begin, cluster: mine, invitation: &gateway, kept: kept{cluster: mine, key: key}, answer: answer{
		kind: issued, sealed: sealed(t, key, accessTo(t, "ot-member-a", tokenOf("agent-2", begin, time.Hour))),
	}})
	require.Equal(t, "https://gateway", other.kept.credential.access.Server, "the way that has led there")

	delete(data, receivedKey)
	v.kept, v.renewal = parseKept(data), renewal{}
	require.Equal(t, renew, decide(v).step, "a time that is lost is long ago")
	require.Equal(t, kept{}, parseKept(nil))
	require.Equal(t, kept{cluster: mine}, parseKept(map[string][]byte{clusterKey: []byte(mine), keyKey: []byte("x"), join.KubeconfigKey: []byte("x")}))
}

func TestInvitation(t *testing.T) {
	for name, tt := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"nothing":     {nil, "Secret ot-hub-join has no key kubeconfig"},
		"another key": {map[string][]byte{"config": []byte("x")}, "has no key kubeconfig"},
		"no text":     {map[string][]byte{"kubeconfig": []byte("\x00")}, "key kubeconfig: it is no kubeconfig"},
		"no server":   {map[string][]byte{"kubeconfig": []byte("{}")}, "names no https server"},
		"no token":    {map[string][]byte{"kubeconfig": accessTo(t, "ot-member-a", "hello")}, "no token of a ServiceAccount"},
	} {
		t.Run(name, func(t *testing.T) {
			i := parseInvitation(tt.data)
			require.Contains(t, i.fault, tt.want)
			d := decide(view{cluster: mine, invitation: i})
			require.Equal(t, idle, d.step)
			require.Equal(t, v1alpha1.ReasonJoinSecretInvalid, d.joining.reason)
		})
	}
}

func TestAnswers(t *testing.T) {
	spec := v1alpha1.ClusterJoinSpec{ClusterUID: mine, PublicKey: "k", Account: "join-1", AgentVersion: "1"}
	with := func(change func(*v1alpha1.ClusterJoin)) *v1alpha1.ClusterJoin {
		j := &v1alpha1.ClusterJoin{Spec: spec}
		change(j)
		return j
	}
	for name, tt := range map[string]struct {
		there *v1alpha1.ClusterJoin
		want  answerKind
	}{
		"just made":                {with(func(*v1alpha1.ClusterJoin) {}), pending},
		"pending":                  {with(func(j *v1alpha1.ClusterJoin) { j.Status.Phase = v1alpha1.JoinPending }), pending},
		"issued":                   {with(func(j *v1alpha1.ClusterJoin) { j.Status.Phase = v1alpha1.JoinIssued }), issued},
		"by an agent before this":  {with(func(j *v1alpha1.ClusterJoin) { j.Spec.AgentVersion = "0" }), pending},
		"of another key":           {with(func(j *v1alpha1.ClusterJoin) { j.Spec.PublicKey = "other" }), taken},
		"of another cluster":       {with(func(j *v1alpha1.ClusterJoin) { j.Spec.ClusterUID = others }), taken},
		"of the join token before": {with(func(j *v1alpha1.ClusterJoin) { j.Spec.Account, j.Spec.PublicKey = "join-0", "other" }), pending},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, answerOf(tt.there, spec).kind) })
	}
	require.Equal(t, refused, unanswered(apierrors.NewUnauthorized("no")).kind)
	require.Equal(t, noAnswer, unanswered(apierrors.NewServiceUnavailable("no")).kind)
	require.Equal(t, noAnswer, unanswered(errors.New("no")).kind)
}

func TestTell(t *testing.T) {
	held := &credential{access: join.Access{Server: "https://hub"}}
	waiting := &outcome{v1alpha1.ReasonAwaitingAcceptance, "waiting"}
	up := line{known: true, connected: true, outcome: outcome{v1alpha1.ReasonConnected, "connected"}}
	down := line{known: true, outcome: outcome{v1alpha1.ReasonUnauthorized, "refused"}}
	for name, tt := range map[string]struct {
		decision      decision
		line          line
		wantConnected bool
		want          *outcome
	}{
		"nothing":                   {decision{}, line{}, false, nil},
		"joining":                   {decision{joining: waiting}, line{}, false, waiting},
		"not tried yet":             {decision{carry: held}, line{}, false, &outcome{v1alpha1.ReasonConnecting, "connecting to the hub at https://hub"}},
		"connected":                 {decision{carry: held}, up, true, &up.outcome},
		"refused":                   {decision{carry: held}, down, false, &down.outcome},
		"refused, and joining anew": {decision{carry: held, joining: waiting}, down, false, waiting},
		"connected, and joining anew": {decision{carry: held, joining: waiting}, up, true,
			&outcome{v1alpha1.ReasonConnected, "connected; Secret ot-hub-join is not taken: waiting"}},
		"connected, and not renewed":     {decision{carry: held, trouble: "not renewed"}, up, true, &outcome{v1alpha1.ReasonConnected, "connected; not renewed"}},
		"nothing to carry with or store": {decision{trouble: "not stored"}, line{}, false, &outcome{v1alpha1.ReasonCredentialNotStored, "not stored"}},
	} {
		t.Run(name, func(t *testing.T) {
			connected, o := tell(tt.decision, tt.line)
			require.Equal(t, tt.wantConnected, connected)
			require.Equal(t, tt.want, o)
		})
	}
}
