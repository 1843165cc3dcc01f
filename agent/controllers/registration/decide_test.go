package registration

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

	"github.com/pelotech/ot-fleet/agent/controllers/mailbox"
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const ownClusterUID, foreignClusterUID = types.UID("cluster-a"), types.UID("cluster-b")

var testStart = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// newToken returns a ServiceAccount token without a valid signature.
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
	s := parseJoinSecret(map[string][]byte{registration.KubeconfigKey: newKubeconfig(t, namespace, newToken(account, testStart, time.Hour))})
	require.Empty(t, s.invalid)
	return s
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
	joinSecretA := newJoinSecret(t, "ot-member-a", "join-1")
	joinSecretB := newJoinSecret(t, "ot-member-a", "join-2")
	current, err := parseCredential(newKubeconfig(t, "ot-member-a", newToken("agent-1", testStart, 9*time.Hour)))
	require.NoError(t, err)
	current.receivedAt = testStart
	registered := storedCredential{clusterUID: ownClusterUID, key: key, usedJoinHash: joinSecretA.hash, credential: &current}
	clockOffset := func(by time.Duration) storedCredential { // this agent's clock is ahead of the hub's
		c := current
		c.Claims.Issued, c.Claims.Expires = c.Claims.Issued.Add(-by), c.Claims.Expires.Add(-by)
		k := registered
		k.credential = &c
		return k
	}
	withKey := storedCredential{clusterUID: ownClusterUID, key: key}
	issue := func(holder *registration.KeyPair, namespace string) joinAnswer {
		return joinAnswer{kind: joinIssued, sealed: sealText(t, holder, newKubeconfig(t, namespace, newToken("agent-2", testStart, time.Hour)))}
	}

	for name, tt := range map[string]struct {
		input      decisionInput
		after      time.Duration
		wantStep   step
		wantActive string // account of the credential
		wantReason string // reason
		wantRetry  retryClass
	}{
		"no join Secret": {input: decisionInput{}, wantStep: stepNone},
		"a new join token: the key is stored before it is sent": {
			input: decisionInput{joinSecret: joinSecretA}, wantStep: stepCreateKey},
		"the key is stored": {
			input: decisionInput{joinSecret: joinSecretA, stored: withKey}, wantStep: stepAskHub},
		"no answer": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: joinAnswer{kind: joinUnanswered, message: "away"}},
			wantStep: stepNone, wantReason: v1alpha1.ReasonUnreachable, wantRetry: retryHub},
		"certificate not trusted": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: joinAnswer{kind: joinUnanswered, failure: hubclient.CertificateFailure, message: "forged"}},
			wantStep: stepNone, wantReason: v1alpha1.ReasonCertificateNotTrusted, wantRetry: retryHub},
		"join token refused": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: joinAnswer{kind: joinRefused}},
			wantStep: stepNone, wantReason: v1alpha1.ReasonJoinTokenRefused, wantRetry: retryRejected},
		"join token used by another": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: joinAnswer{kind: joinTaken}},
			wantStep: stepNone, wantReason: v1alpha1.ReasonJoinTokenUsed, wantRetry: retryRejected},
		"not accepted yet": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: joinAnswer{kind: joinPending}},
			wantStep: stepNone, wantReason: v1alpha1.ReasonAwaitingAcceptance, wantRetry: retryAcceptance},
		"issued": {
			input: decisionInput{joinSecret: joinSecretA, stored: withKey, answer: issue(key, "ot-member-a")}, wantStep: stepStore},
		"issued for another's key": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: issue(another, "ot-member-a")},
			wantStep: stepNone, wantReason: v1alpha1.ReasonAnswerRefused, wantRetry: retryRejected},
		"issued for another member": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: issue(key, "ot-member-b")},
			wantStep: stepNone, wantReason: v1alpha1.ReasonAnswerRefused, wantRetry: retryRejected},
		"issued, and no kubeconfig": {
			input:    decisionInput{joinSecret: joinSecretA, stored: withKey, answer: joinAnswer{kind: joinIssued, sealed: sealText(t, key, []byte("hello"))}},
			wantStep: stepNone, wantReason: v1alpha1.ReasonAnswerRefused, wantRetry: retryRejected},
		"registered": {
			input: decisionInput{joinSecret: joinSecretA, stored: registered}, wantStep: stepNone, wantActive: "agent-1"},
		"registered, and the join Secret is deleted": {
			input: decisionInput{stored: registered}, wantStep: stepNone, wantActive: "agent-1"},
		"registered, and there is a new join token": {
			input: decisionInput{joinSecret: joinSecretB, stored: registered}, wantStep: stepAskHub, wantActive: "agent-1"},
		"a refused new join token does not interrupt the connection": {
			input:    decisionInput{joinSecret: joinSecretB, stored: registered, answer: joinAnswer{kind: joinRefused}},
			wantStep: stepNone, wantActive: "agent-1", wantReason: v1alpha1.ReasonJoinTokenRefused, wantRetry: retryRejected},
		"an invalid join Secret does not interrupt the connection": {
			input:    decisionInput{joinSecret: &joinSecret{invalid: "empty"}, stored: registered},
			wantStep: stepNone, wantActive: "agent-1", wantReason: v1alpha1.ReasonJoinSecretInvalid},
		"the credential is lost": {
			input: decisionInput{joinSecret: joinSecretA, stored: storedCredential{clusterUID: ownClusterUID, key: key, usedJoinHash: joinSecretA.hash}}, wantStep: stepAskHub},
		"the Secret of another cluster is ignored": {
			input: decisionInput{joinSecret: joinSecretA, stored: storedCredential{clusterUID: foreignClusterUID, key: key, usedJoinHash: joinSecretA.hash, credential: &current}}, wantStep: stepCreateKey},
		"the Secret of another cluster is ignored without a join token": {
			input: decisionInput{stored: storedCredential{clusterUID: foreignClusterUID, key: key, credential: &current}}, wantStep: stepNone},
		"before two thirds of the lifetime": {
			input: decisionInput{stored: registered}, after: 6*time.Hour - time.Second, wantStep: stepNone, wantActive: "agent-1"},
		"at two thirds of the lifetime": {
			input: decisionInput{stored: registered}, after: 6 * time.Hour, wantStep: stepRenew, wantActive: "agent-1"},
		"the clock is a day ahead": {
			input: decisionInput{stored: clockOffset(24 * time.Hour)}, after: 6*time.Hour - time.Second, wantStep: stepNone, wantActive: "agent-1"},
		"the clock is a day ahead, and renewal is due": {
			input: decisionInput{stored: clockOffset(24 * time.Hour)}, after: 6 * time.Hour, wantStep: stepRenew, wantActive: "agent-1"},
		"the clock is a day behind": {
			input: decisionInput{stored: clockOffset(-24 * time.Hour)}, after: 6*time.Hour - time.Second, wantStep: stepNone, wantActive: "agent-1"},
		"the clock is a day behind, and renewal is due": {
			input: decisionInput{stored: clockOffset(-24 * time.Hour)}, after: 6 * time.Hour, wantStep: stepRenew, wantActive: "agent-1"},
		"at RenewAfter": {
			input: decisionInput{stored: registered, renewAfter: time.Minute}, after: time.Minute, wantStep: stepRenew, wantActive: "agent-1"},
		"RenewAfter is longer than the token lives": {
			input: decisionInput{stored: registered, renewAfter: 24 * time.Hour}, after: 6 * time.Hour, wantStep: stepRenew, wantActive: "agent-1"},
		"RenewAfter is at least a second": {
			input: decisionInput{stored: registered, renewAfter: 1}, after: time.Millisecond, wantStep: stepNone, wantActive: "agent-1"},
		"the clock was set back": {
			input: decisionInput{stored: registered}, after: -time.Hour, wantStep: stepRenew, wantActive: "agent-1"},
		"renewal failed": {
			input: decisionInput{stored: registered, renewal: renewalResult{attempted: true}}, after: 6 * time.Hour, wantStep: stepNone, wantActive: "agent-1", wantRetry: retryHub},
		"renewed": {
			input: decisionInput{stored: registered, renewal: renewalResult{attempted: true, token: newToken("agent-1", testStart, time.Hour)}},
			after: 6 * time.Hour, wantStep: stepStore, wantActive: "agent-1"},
		"renewal while a new registration waits": {
			input: decisionInput{joinSecret: joinSecretB, stored: registered, answer: joinAnswer{kind: joinPending}}, after: 6 * time.Hour,
			wantStep: stepRenew, wantActive: "agent-1", wantReason: v1alpha1.ReasonAwaitingAcceptance, wantRetry: retryAcceptance},
	} {
		t.Run(name, func(t *testing.T) {
			tt.input.now, tt.input.clusterUID = testStart.Add(tt.after), ownClusterUID
			d := decide(tt.input)
			require.Equal(t, tt.wantStep, d.step)
			account, reason := "", ""
			if d.active != nil {
				account = string(d.active.Claims.AccountUID)
			}
			if d.joinStatus != nil {
				reason = d.joinStatus.Reason
				require.NotEmpty(t, d.joinStatus.Message)
			}
			require.Equal(t, tt.wantActive, account)
			require.Equal(t, tt.wantReason, reason)
			require.Equal(t, tt.wantRetry, d.retry)
			require.Equal(t, tt.input.renewal.attempted && tt.wantStep == stepNone, d.credentialProblem != "")
		})
	}
}

func TestStoredCredentialRoundTrip(t *testing.T) {
	key := newKey(t)
	joinSecretA := newJoinSecret(t, "ot-member-a", "join-1")
	v := decisionInput{now: testStart, clusterUID: ownClusterUID, joinSecret: joinSecretA, stored: storedCredential{clusterUID: ownClusterUID, key: key}, answer: joinAnswer{
		kind: joinIssued, sealed: sealText(t, key, newKubeconfig(t, "ot-member-a", newToken("agent-2", testStart.Add(-time.Hour), time.Hour))),
	}}
	d := decide(v)
	require.Equal(t, stepStore, d.step)
	require.Equal(t, joinSecretA.hash, d.stored.usedJoinHash)
	require.Equal(t, testStart, d.stored.credential.receivedAt, "by this agent's clock")
	require.Nil(t, d.active, "it is used only once it is stored")

	data, err := d.stored.secretData()
	require.NoError(t, err)
	joinSecretB := parseStoredCredential(data)
	require.Equal(t, d.stored, joinSecretB)

	v.stored, v.answer, v.now = joinSecretB, joinAnswer{}, testStart.Add(39*time.Minute)
	require.Equal(t, stepNone, decide(v).step)
	v.now = testStart.Add(40 * time.Minute)
	require.Equal(t, stepRenew, decide(v).step)
	v.renewal = renewalResult{attempted: true, token: newToken("agent-2", v.now, time.Hour)}
	d = decide(v)
	require.Equal(t, stepStore, d.step)
	require.Equal(t, v.renewal.token, d.stored.credential.Access.Token)
	require.Equal(t, "https://hub:6443", d.stored.credential.Access.Server)
	require.Equal(t, v.now, d.stored.credential.receivedAt)
	require.Equal(t, joinSecretA.hash, d.stored.usedJoinHash)

	gateway := *joinSecretA
	gateway.Access.Server = "https://gateway"
	other := decide(decisionInput{now: testStart, clusterUID: ownClusterUID, joinSecret: &gateway, stored: storedCredential{clusterUID: ownClusterUID, key: key}, answer: joinAnswer{
		kind: joinIssued, sealed: sealText(t, key, newKubeconfig(t, "ot-member-a", newToken("agent-2", testStart, time.Hour))),
	}})
	require.Equal(t, "https://gateway", other.stored.credential.Access.Server, "the address that has worked")

	delete(data, receivedAtKey)
	v.stored, v.renewal = parseStoredCredential(data), renewalResult{}
	require.Equal(t, stepRenew, decide(v).step, "a missing time makes renewal due")
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
		"no text":     {map[string][]byte{"kubeconfig": []byte("\x00")}, "key kubeconfig: it is not a kubeconfig"},
		"no server":   {map[string][]byte{"kubeconfig": []byte("{}")}, "has no https server"},
		"no token":    {map[string][]byte{"kubeconfig": newKubeconfig(t, "ot-member-a", "hello")}, "not a ServiceAccount token"},
	} {
		t.Run(name, func(t *testing.T) {
			s := parseJoinSecret(tt.data)
			require.Contains(t, s.invalid, tt.want)
			d := decide(decisionInput{clusterUID: ownClusterUID, joinSecret: s})
			require.Equal(t, stepNone, d.step)
			require.Equal(t, v1alpha1.ReasonJoinSecretInvalid, d.joinStatus.Reason)
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
		join *v1alpha1.ClusterJoin
		want joinAnswerKind
	}{
		"just created":                {with(func(*v1alpha1.ClusterJoin) {}), joinPending},
		"pending":                     {with(func(j *v1alpha1.ClusterJoin) { j.Status.Phase = v1alpha1.JoinPending }), joinPending},
		"issued":                      {with(func(j *v1alpha1.ClusterJoin) { j.Status.Phase = v1alpha1.JoinIssued }), joinIssued},
		"of an earlier agent version": {with(func(j *v1alpha1.ClusterJoin) { j.Spec.AgentVersion = "0" }), joinPending},
		"of another key":              {with(func(j *v1alpha1.ClusterJoin) { j.Spec.PublicKey = "other" }), joinTaken},
		"of another cluster":          {with(func(j *v1alpha1.ClusterJoin) { j.Spec.ClusterUID = foreignClusterUID }), joinTaken},
		"of the former join token":    {with(func(j *v1alpha1.ClusterJoin) { j.Spec.Account, j.Spec.PublicKey = "join-0", "other" }), joinPending},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, evaluateJoin(tt.join, spec).kind) })
	}
	require.Equal(t, joinRefused, joinFailure(apierrors.NewUnauthorized("no")).kind)
	require.Equal(t, joinUnanswered, joinFailure(apierrors.NewServiceUnavailable("no")).kind)
	require.Equal(t, joinUnanswered, joinFailure(errors.New("no")).kind)
}

func TestSummarizeConnection(t *testing.T) {
	current := &credential{Credential: mailbox.Credential{Access: registration.HubAccess{Server: "https://hub"}}}
	waiting := &outcome{Reason: v1alpha1.ReasonAwaitingAcceptance, Message: "waiting"}
	up := mailbox.ConnectionState{Attempted: true, Connected: true, Outcome: outcome{Reason: v1alpha1.ReasonConnected, Message: "connected"}}
	down := mailbox.ConnectionState{Attempted: true, Outcome: outcome{Reason: v1alpha1.ReasonUnauthorized, Message: "refused"}}
	for name, tt := range map[string]struct {
		decision      decision
		state         mailbox.ConnectionState
		wantConnected bool
		want          *outcome
	}{
		"no credential and no join Secret":  {decision{}, mailbox.ConnectionState{}, false, nil},
		"registration waits":                {decision{joinStatus: waiting}, mailbox.ConnectionState{}, false, waiting},
		"not attempted yet":                 {decision{active: current}, mailbox.ConnectionState{}, false, &outcome{Reason: v1alpha1.ReasonConnecting, Message: "connecting to the hub at https://hub"}},
		"connected":                         {decision{active: current}, up, true, &up.Outcome},
		"refused":                           {decision{active: current}, down, false, &down.Outcome},
		"refused, and a registration waits": {decision{active: current, joinStatus: waiting}, down, false, waiting},
		"connected, and a registration waits": {decision{active: current, joinStatus: waiting}, up, true,
			&outcome{Reason: v1alpha1.ReasonConnected, Message: "connected; Secret ot-hub-join is not used: waiting"}},
		"connected, and renewal failed":   {decision{active: current, credentialProblem: "not renewed"}, up, true, &outcome{Reason: v1alpha1.ReasonConnected, Message: "connected; not renewed"}},
		"the credential cannot be stored": {decision{credentialProblem: "not stored"}, mailbox.ConnectionState{}, false, &outcome{Reason: v1alpha1.ReasonCredentialNotStored, Message: "not stored"}},
	} {
		t.Run(name, func(t *testing.T) {
			connected, o := summarizeConnection(tt.decision, tt.state)
			require.Equal(t, tt.wantConnected, connected)
			require.Equal(t, tt.want, o)
		})
	}
}
