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

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const ownClusterUID, foreignClusterUID = types.UID("cluster-a"), types.UID("cluster-b")

var testStart = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// newToken is a token as an API server makes it, but for its signature.
func newToken(account string, issued time.Time, life time.Duration) string {
	payload := fmt.Sprintf(`{"iat": %d, "exp": %d, "kubernetes.io": {"serviceaccount": {"uid": %q}}}`, issued.Unix(), issued.Add(life).Unix(), account)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".sig"
}

func newKubeconfig(t *testing.T, namespace, token string) []byte {
	t.Helper()
	text, err := registration.HubAccess{Server: "https://hub:6443", CA: []byte("ca"), Namespace: namespace, Token: token}.MarshalKubeconfig()
	require.NoError(t, err)
	return text
}

func newJoinSecret(t *testing.T, namespace, account string) *joinSecret {
	t.Helper()
	i := parseJoinSecret(map[string][]byte{registration.KubeconfigKey: newKubeconfig(t, namespace, newToken(account, testStart, time.Hour))})
	require.Empty(t, i.fault)
	return i
}

func newKey(t *testing.T) *registration.KeyPair {
	t.Helper()
	key, err := registration.NewKeyPair(rand.Reader)
	require.NoError(t, err)
	return &key
}

func sealText(t *testing.T, key *registration.KeyPair, text []byte) []byte {
	t.Helper()
	box, err := registration.Seal(key.PublicKey(), text, rand.Reader)
	require.NoError(t, err)
	return box
}

func TestDecide(t *testing.T) {
	key, another := newKey(t), newKey(t)
	invited := newJoinSecret(t, "ot-member-a", "join-1")
	again := newJoinSecret(t, "ot-member-a", "join-2")
	held, err := parseCredential(newKubeconfig(t, "ot-member-a", newToken("agent-1", testStart, 9*time.Hour)))
	require.NoError(t, err)
	held.receivedAt = testStart
	joined := storedCredential{clusterUID: ownClusterUID, key: key, usedJoinHash: invited.hash, credential: &held}
	off := func(by time.Duration) storedCredential { // this agent's clock, by the hub's
		c := held
		c.token.Issued, c.token.Expires = c.token.Issued.Add(-by), c.token.Expires.Add(-by)
		k := joined
		k.credential = &c
		return k
	}
	asking := storedCredential{clusterUID: ownClusterUID, key: key}
	issue := func(holder *registration.KeyPair, namespace string) joinAnswer {
		return joinAnswer{kind: joinIssued, sealed: sealText(t, holder, newKubeconfig(t, namespace, newToken("agent-2", testStart, time.Hour)))}
	}

	for name, tt := range map[string]struct {
		view        decisionInput
		after       time.Duration
		wantStep    step
		wantCarry   string // account of the credential
		wantJoining string // reason
		wantWaits   retryClass
	}{
		"nothing to join with": {view: decisionInput{}, wantStep: stepNone},
		"a join token comes: the key is kept before anything is sent": {
			view: decisionInput{joinSecret: invited}, wantStep: stepCreateKey},
		"with a key that is kept it is asked": {
			view: decisionInput{joinSecret: invited, stored: asking}, wantStep: stepAskHub},
		"no answer": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: joinAnswer{kind: joinUnanswered, message: "away"}},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonUnreachable, wantWaits: retryHub},
		"not trusted": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: joinAnswer{kind: joinUnanswered, fault: hubclient.CertificateFailure, message: "forged"}},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonCertificateNotTrusted, wantWaits: retryHub},
		"join token refused": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: joinAnswer{kind: joinRefused}},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonJoinTokenRefused, wantWaits: retryRejected},
		"join token used by another": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: joinAnswer{kind: joinTaken}},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonJoinTokenUsed, wantWaits: retryRejected},
		"not accepted yet": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: joinAnswer{kind: joinPending}},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonAwaitingAcceptance, wantWaits: retryAcceptance},
		"issued": {
			view: decisionInput{joinSecret: invited, stored: asking, answer: issue(key, "ot-member-a")}, wantStep: stepStore},
		"issued for another's key": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: issue(another, "ot-member-a")},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonAnswerRefused, wantWaits: retryRejected},
		"issued for another member": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: issue(key, "ot-member-b")},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonAnswerRefused, wantWaits: retryRejected},
		"issued, and no kubeconfig": {
			view:     decisionInput{joinSecret: invited, stored: asking, answer: joinAnswer{kind: joinIssued, sealed: sealText(t, key, []byte("hello"))}},
			wantStep: stepNone, wantJoining: v1alpha1.ReasonAnswerRefused, wantWaits: retryRejected},
		"joined": {
			view: decisionInput{joinSecret: invited, stored: joined}, wantStep: stepNone, wantCarry: "agent-1"},
		"joined, and the join Secret is gone": {
			view: decisionInput{stored: joined}, wantStep: stepNone, wantCarry: "agent-1"},
		"joined, and there is another join token": {
			view: decisionInput{joinSecret: again, stored: joined}, wantStep: stepAskHub, wantCarry: "agent-1"},
		"the next join token does not hold up what is there": {
			view:     decisionInput{joinSecret: again, stored: joined, answer: joinAnswer{kind: joinRefused}},
			wantStep: stepNone, wantCarry: "agent-1", wantJoining: v1alpha1.ReasonJoinTokenRefused, wantWaits: retryRejected},
		"a faulty join Secret does not either": {
			view:     decisionInput{joinSecret: &joinSecret{fault: "empty"}, stored: joined},
			wantStep: stepNone, wantCarry: "agent-1", wantJoining: v1alpha1.ReasonJoinSecretInvalid},
		"the credential is lost": {
			view: decisionInput{joinSecret: invited, stored: storedCredential{clusterUID: ownClusterUID, key: key, usedJoinHash: invited.hash}}, wantStep: stepAskHub},
		"Secrets of another cluster are none of ours": {
			view: decisionInput{joinSecret: invited, stored: storedCredential{clusterUID: foreignClusterUID, key: key, usedJoinHash: invited.hash, credential: &held}}, wantStep: stepCreateKey},
		"nor is a credential without a join token": {
			view: decisionInput{stored: storedCredential{clusterUID: foreignClusterUID, key: key, credential: &held}}, wantStep: stepNone},
		"before two thirds of its life": {
			view: decisionInput{stored: joined}, after: 6*time.Hour - time.Second, wantStep: stepNone, wantCarry: "agent-1"},
		"at two thirds": {
			view: decisionInput{stored: joined}, after: 6 * time.Hour, wantStep: stepRenew, wantCarry: "agent-1"},
		"its clock is a day ahead": {
			view: decisionInput{stored: off(24 * time.Hour)}, after: 6*time.Hour - time.Second, wantStep: stepNone, wantCarry: "agent-1"},
		"its clock is a day ahead, and it is time": {
			view: decisionInput{stored: off(24 * time.Hour)}, after: 6 * time.Hour, wantStep: stepRenew, wantCarry: "agent-1"},
		"its clock is a day behind": {
			view: decisionInput{stored: off(-24 * time.Hour)}, after: 6*time.Hour - time.Second, wantStep: stepNone, wantCarry: "agent-1"},
		"its clock is a day behind, and it is time": {
			view: decisionInput{stored: off(-24 * time.Hour)}, after: 6 * time.Hour, wantStep: stepRenew, wantCarry: "agent-1"},
		"at the age that is asked for": {
			view: decisionInput{stored: joined, renewAfter: time.Minute}, after: time.Minute, wantStep: stepRenew, wantCarry: "agent-1"},
		"at no age of less than a second": {
			view: decisionInput{stored: joined, renewAfter: 1}, after: time.Millisecond, wantStep: stepNone, wantCarry: "agent-1"},
		"the clock was put back": {
			view: decisionInput{stored: joined}, after: -time.Hour, wantStep: stepRenew, wantCarry: "agent-1"},
		"renewing failed": {
			view: decisionInput{stored: joined, renewal: renewalResult{attempted: true}}, after: 6 * time.Hour, wantStep: stepNone, wantCarry: "agent-1", wantWaits: retryHub},
		"renewed": {
			view:  decisionInput{stored: joined, renewal: renewalResult{attempted: true, token: newToken("agent-1", testStart, time.Hour)}},
			after: 6 * time.Hour, wantStep: stepStore, wantCarry: "agent-1"},
		"renewed while joining anew waits": {
			view: decisionInput{joinSecret: again, stored: joined, answer: joinAnswer{kind: joinPending}}, after: 6 * time.Hour,
			wantStep: stepRenew, wantCarry: "agent-1", wantJoining: v1alpha1.ReasonAwaitingAcceptance, wantWaits: retryAcceptance},
	} {
		t.Run(name, func(t *testing.T) {
			tt.view.now, tt.view.clusterUID = testStart.Add(tt.after), ownClusterUID
			d := decide(tt.view)
			require.Equal(t, tt.wantStep, d.step)
			account, reason := "", ""
			if d.activeCredential != nil {
				account = string(d.activeCredential.token.AccountUID)
			}
			if d.joinProblem != nil {
				reason = d.joinProblem.reason
				require.NotEmpty(t, d.joinProblem.message)
			}
			require.Equal(t, tt.wantCarry, account)
			require.Equal(t, tt.wantJoining, reason)
			require.Equal(t, tt.wantWaits, d.retry)
			require.Equal(t, tt.view.renewal.attempted && tt.wantStep == stepNone, d.credentialProblem != "")
		})
	}
}

func TestStoredCredentialRoundTrip(t *testing.T) {
	key := newKey(t)
	invited := newJoinSecret(t, "ot-member-a", "join-1")
	v := decisionInput{now: testStart, clusterUID: ownClusterUID, joinSecret: invited, stored: storedCredential{clusterUID: ownClusterUID, key: key}, answer: joinAnswer{
		kind: joinIssued, sealed: sealText(t, key, newKubeconfig(t, "ot-member-a", newToken("agent-2", testStart.Add(-time.Hour), time.Hour))),
	}}
	d := decide(v)
	require.Equal(t, stepStore, d.step)
	require.Equal(t, invited.hash, d.stored.usedJoinHash)
	require.Equal(t, testStart, d.stored.credential.receivedAt, "by this agent's clock, whatever the hub's shows")
	require.Nil(t, d.activeCredential, "before it is stored nothing is carried with it")

	data, err := d.stored.secretData()
	require.NoError(t, err)
	again := parseStoredCredential(data)
	require.Equal(t, d.stored, again)

	v.stored, v.answer, v.now = again, joinAnswer{}, testStart.Add(39*time.Minute)
	require.Equal(t, stepNone, decide(v).step)
	v.now = testStart.Add(40 * time.Minute)
	require.Equal(t, stepRenew, decide(v).step)
	v.renewal = renewalResult{attempted: true, token: newToken("agent-2", v.now, time.Hour)}
	d = decide(v)
	require.Equal(t, stepStore, d.step)
	require.Equal(t, v.renewal.token, d.stored.credential.access.Token)
	require.Equal(t, "https://hub:6443", d.stored.credential.access.Server)
	require.Equal(t, v.now, d.stored.credential.receivedAt)
	require.Equal(t, invited.hash, d.stored.usedJoinHash)

	gateway := *invited
	gateway.access.Server = "https://gateway"
	other := decide(decisionInput{now: testStart, clusterUID: ownClusterUID, joinSecret: &gateway, stored: storedCredential{clusterUID: ownClusterUID, key: key}, answer: joinAnswer{
		kind: joinIssued, sealed: sealText(t, key, newKubeconfig(t, "ot-member-a", newToken("agent-2", testStart, time.Hour))),
	}})
	require.Equal(t, "https://gateway", other.stored.credential.access.Server, "the way that has led there")

	delete(data, receivedAtKey)
	v.stored, v.renewal = parseStoredCredential(data), renewalResult{}
	require.Equal(t, stepRenew, decide(v).step, "a time that is lost is long ago")
	require.Equal(t, storedCredential{}, parseStoredCredential(nil))
	require.Equal(t, storedCredential{clusterUID: ownClusterUID}, parseStoredCredential(map[string][]byte{clusterUIDKey: []byte(ownClusterUID), privateKeyKey: []byte("x"), registration.KubeconfigKey: []byte("x")}))
}

func TestParseJoinSecret(t *testing.T) {
	for name, tt := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"nothing":     {nil, "Secret ot-hub-join has no key kubeconfig"},
		"another key": {map[string][]byte{"config": []byte("x")}, "has no key kubeconfig"},
		"no text":     {map[string][]byte{"kubeconfig": []byte("\x00")}, "key kubeconfig: it is no kubeconfig"},
		"no server":   {map[string][]byte{"kubeconfig": []byte("{}")}, "names no https server"},
		"no token":    {map[string][]byte{"kubeconfig": newKubeconfig(t, "ot-member-a", "hello")}, "no token of a ServiceAccount"},
	} {
		t.Run(name, func(t *testing.T) {
			i := parseJoinSecret(tt.data)
			require.Contains(t, i.fault, tt.want)
			d := decide(decisionInput{clusterUID: ownClusterUID, joinSecret: i})
			require.Equal(t, stepNone, d.step)
			require.Equal(t, v1alpha1.ReasonJoinSecretInvalid, d.joinProblem.reason)
		})
	}
}

func TestEvaluateJoin(t *testing.T) {
	spec := v1alpha1.ClusterJoinSpec{ClusterUID: ownClusterUID, PublicKey: "k", Account: "join-1", AgentVersion: "1"}
	with := func(change func(*v1alpha1.ClusterJoin)) *v1alpha1.ClusterJoin {
		j := &v1alpha1.ClusterJoin{Spec: spec}
		change(j)
		return j
	}
	for name, tt := range map[string]struct {
		there *v1alpha1.ClusterJoin
		want  joinAnswerKind
	}{
		"just made":                {with(func(*v1alpha1.ClusterJoin) {}), joinPending},
		"pending":                  {with(func(j *v1alpha1.ClusterJoin) { j.Status.Phase = v1alpha1.JoinPending }), joinPending},
		"issued":                   {with(func(j *v1alpha1.ClusterJoin) { j.Status.Phase = v1alpha1.JoinIssued }), joinIssued},
		"by an agent before this":  {with(func(j *v1alpha1.ClusterJoin) { j.Spec.AgentVersion = "0" }), joinPending},
		"of another key":           {with(func(j *v1alpha1.ClusterJoin) { j.Spec.PublicKey = "other" }), joinTaken},
		"of another cluster":       {with(func(j *v1alpha1.ClusterJoin) { j.Spec.ClusterUID = foreignClusterUID }), joinTaken},
		"of the join token before": {with(func(j *v1alpha1.ClusterJoin) { j.Spec.Account, j.Spec.PublicKey = "join-0", "other" }), joinPending},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, evaluateJoin(tt.there, spec).kind) })
	}
	require.Equal(t, joinRefused, joinFailure(apierrors.NewUnauthorized("no")).kind)
	require.Equal(t, joinUnanswered, joinFailure(apierrors.NewServiceUnavailable("no")).kind)
	require.Equal(t, joinUnanswered, joinFailure(errors.New("no")).kind)
}

func TestSummarizeConnection(t *testing.T) {
	held := &credential{access: registration.HubAccess{Server: "https://hub"}}
	waiting := &outcome{v1alpha1.ReasonAwaitingAcceptance, "waiting"}
	up := connectionState{attempted: true, connected: true, outcome: outcome{v1alpha1.ReasonConnected, "connected"}}
	down := connectionState{attempted: true, outcome: outcome{v1alpha1.ReasonUnauthorized, "refused"}}
	for name, tt := range map[string]struct {
		decision      decision
		line          connectionState
		wantConnected bool
		want          *outcome
	}{
		"nothing":                   {decision{}, connectionState{}, false, nil},
		"joining":                   {decision{joinProblem: waiting}, connectionState{}, false, waiting},
		"not tried yet":             {decision{activeCredential: held}, connectionState{}, false, &outcome{v1alpha1.ReasonConnecting, "connecting to the hub at https://hub"}},
		"connected":                 {decision{activeCredential: held}, up, true, &up.outcome},
		"refused":                   {decision{activeCredential: held}, down, false, &down.outcome},
		"refused, and joining anew": {decision{activeCredential: held, joinProblem: waiting}, down, false, waiting},
		"connected, and joining anew": {decision{activeCredential: held, joinProblem: waiting}, up, true,
			&outcome{v1alpha1.ReasonConnected, "connected; Secret ot-hub-join is not taken: waiting"}},
		"connected, and not renewed":     {decision{activeCredential: held, credentialProblem: "not renewed"}, up, true, &outcome{v1alpha1.ReasonConnected, "connected; not renewed"}},
		"nothing to carry with or store": {decision{credentialProblem: "not stored"}, connectionState{}, false, &outcome{v1alpha1.ReasonCredentialNotStored, "not stored"}},
	} {
		t.Run(name, func(t *testing.T) {
			connected, o := summarizeConnection(tt.decision, tt.line)
			require.Equal(t, tt.wantConnected, connected)
			require.Equal(t, tt.want, o)
		})
	}
}
