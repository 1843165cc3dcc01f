package dial

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// joinSecret is Secret ot-hub-join, which the platform team puts there.
type joinSecret struct {
	// hash of what is in it: one that was used up is known by that.
	hash   string
	access registration.HubAccess
	token  registration.TokenClaims
	// fault is what is wrong with it; then the rest is of no account.
	fault string
}

// credential is what an agent carries with.
type credential struct {
	access registration.HubAccess
	token  registration.TokenClaims
	// receivedAt is when this agent has stored it, by its own clock: how far apart the
	// two clocks are does not matter then.
	receivedAt time.Time
}

// storedCredential is Secret ot-hub-credential, which is the agent's own.
type storedCredential struct {
	// clusterUID that it was made in: who copies Secrets from one cluster into another
	// does not make one the other.
	clusterUID types.UID
	key        *registration.KeyPair
	// usedJoinHash is the hash of the invitation that credential has come of.
	usedJoinHash string
	credential   *credential
}

// joinAnswerKind is what the hub says to who presents a join token.
type joinAnswerKind uint8

const (
	// joinNotAsked by now.
	joinNotAsked joinAnswerKind = iota
	// joinUnanswered came.
	joinUnanswered
	// refused: the join token is worth nothing, or not any more.
	joinRefused
	// taken: somebody else has presented it.
	joinTaken
	// pending: the platform team has not accepted the key.
	joinPending
	// issued: there is a sealed credential.
	joinIssued
)

type joinAnswer struct {
	kind   joinAnswerKind
	sealed []byte
	// message is the hub's, or of what kept it from answering; fault tells why there
	// was none.
	message string
	fault   hubclient.FailureKind
}

// decisionInput is what a decision is made of.
type decisionInput struct {
	now        time.Time
	clusterUID types.UID
	joinSecret *joinSecret
	stored     storedCredential
	answer     joinAnswer
	// renewal is the answer to having asked for the next token.
	renewal renewalResult
	// renewAfter replaces two thirds of a token's life, where it is not 0.
	renewAfter time.Duration
}

// renewalResult of the credential's token.
type renewalResult struct {
	attempted bool
	// token is empty where it failed; then fault says why.
	token, fault string
}

// step is what is to be done next; then it is decided again.
type step uint8

const (
	// idle: nothing, for a while.
	stepNone step = iota
	// stepCreateKey: a new key pair is to be made, and stored with kept.
	stepCreateKey
	// stepAskHub the hub: present the join token, and read the answer.
	stepAskHub
	// stepStore kept.
	stepStore
	// stepRenew the token.
	stepRenew
)

// outcome is how something goes, for people.
type outcome struct{ reason, message string }

// decision about a view.
type decision struct {
	step step
	// stored is what is to be stored, with steps stepCreateKey and store.
	stored storedCredential
	// activeCredential with this; nil for nothing. It is set in every decision: joining anew goes
	// on beside what is there.
	activeCredential *credential
	// joinProblem tells how joining goes; nil where nothing is to be joined with.
	joinProblem *outcome
	// credentialProblem is what is wrong with the credential itself, whatever is being carried;
	// empty for nothing.
	credentialProblem string
	// waits: what was tried is to be tried again after a while, without anything else
	// having happened.
	retry retryClass
}

// retryClass is how long, in kind.
type retryClass uint8

const (
	// retryNever: nothing is to be tried again.
	retryNever retryClass = iota
	// retryHub: it did not answer. The wait grows.
	retryHub
	// retryAcceptance: somebody has to accept. The wait grows a little.
	retryAcceptance
	// seldom: what was refused stays refused, most likely.
	retryRejected
)

// decide what to do about joining and the credential.
func decide(v decisionInput) decision {
	k := v.stored
	if k.clusterUID != v.clusterUID {
		// Made in another cluster: its key may be in use there, and the member that its
		// credential is for is that one.
		k = storedCredential{clusterUID: v.clusterUID}
	}
	d := decision{stored: k, activeCredential: k.credential}
	if v.joinSecret == nil || k.credential != nil && k.usedJoinHash == v.joinSecret.hash {
		return v.decideRenewal(d)
	}
	if v.joinSecret.fault != "" {
		d.joinProblem = &outcome{v1alpha1.ReasonJoinSecretInvalid, v.joinSecret.fault + ": put the Secret there as the hub has made it"}
		return v.decideRenewal(d)
	}
	if k.key == nil {
		d.step = stepCreateKey
		return d
	}
	return v.decideJoin(d)
}

// decideJoin goes on with a join token that is not used up.
func (v decisionInput) decideJoin(d decision) decision {
	a := v.answer
	switch a.kind {
	case joinNotAsked:
		d.step = stepAskHub
		return d
	case joinUnanswered:
		d.joinProblem, d.retry = &outcome{unreachableReason(a.fault), a.message}, retryHub
	case joinRefused:
		d.joinProblem, d.retry = &outcome{v1alpha1.ReasonJoinTokenRefused,
			a.message + ": it has expired, was used, or was replaced. Have the hub make another (annotation " + v1alpha1.AnnotationJoinToken +
				" of the MemberCluster) and put it into Secret " + registration.JoinSecret}, retryRejected
	case joinTaken:
		d.joinProblem, d.retry = &outcome{v1alpha1.ReasonJoinTokenUsed,
			"another agent has presented this join token. Unless that is known, somebody has stolen it: revoke it (annotation " +
				v1alpha1.AnnotationJoinToken + " of the MemberCluster) and put the next one into Secret " + registration.JoinSecret}, retryRejected
	case joinPending:
		fingerprint, _ := registration.Fingerprint(d.stored.key.PublicKey())
		d.joinProblem, d.retry = &outcome{v1alpha1.ReasonAwaitingAcceptance,
			fmt.Sprintf("waiting for the platform team to accept key %s in the MemberCluster (spec.connection.pull.acceptedKey)", fingerprint)}, retryAcceptance
	case joinIssued:
		next, fault := v.openIssuedCredential(d.stored)
		if fault != "" {
			d.joinProblem, d.retry = &outcome{v1alpha1.ReasonAnswerRefused, fault}, retryRejected
			break
		}
		d.step, d.stored = stepStore, next
		return d
	}
	return v.decideRenewal(d)
}

// openIssuedCredential takes the credential that was issued, if it is for this agent.
func (v decisionInput) openIssuedCredential(k storedCredential) (next storedCredential, fault string) {
	text, err := k.key.Open(v.answer.sealed)
	if err != nil {
		return k, "the credential that the hub has issued is sealed for another agent's key"
	}
	c, err := parseCredential(text)
	if err != nil {
		return k, "the credential that the hub has issued cannot be used: " + err.Error()
	}
	if invited := v.joinSecret.access.Namespace; c.access.Namespace != invited {
		return k, fmt.Sprintf("the credential that the hub has issued is for namespace %s, and the join token is for %s", c.access.Namespace, invited)
	}
	// The way that has led to the hub is gone on with: it may be this cluster's alone.
	c.access.Server, c.access.CA = v.joinSecret.access.Server, v.joinSecret.access.CA
	c.receivedAt = v.now
	k.credential, k.usedJoinHash = &c, v.joinSecret.hash
	return k, ""
}

func parseCredential(kubeconfig []byte) (credential, error) {
	access, err := registration.ParseHubAccess(kubeconfig)
	if err != nil {
		return credential{}, err
	}
	token, err := registration.ParseTokenClaims(access.Token)
	return credential{access: access, token: token}, err
}

// decideRenewal renews the token when it is time.
func (v decisionInput) decideRenewal(d decision) decision {
	c := d.stored.credential
	if c == nil || v.now.Before(v.renewalDue(*c)) {
		return d
	}
	switch {
	case !v.renewal.attempted:
		d.step = stepRenew
	case v.renewal.token == "":
		d.credentialProblem, d.retry = describeRenewalFailure(*c, v.renewal.fault), retryHub
	default:
		next := *c
		next.access.Token = v.renewal.token
		token, err := registration.ParseTokenClaims(next.access.Token)
		if err != nil {
			d.credentialProblem, d.retry = describeRenewalFailure(*c, err.Error()), retryHub
			return d
		}
		next.token, next.receivedAt = token, v.now
		d.step, d.stored.credential = stepStore, &next
	}
	return d
}

// renewalDue is when a token is renewed: counted from when it was received by the same
// clock. A clock that was put back before that tells nothing, and then it is due.
func (v decisionInput) renewalDue(c credential) time.Time {
	if v.now.Before(c.receivedAt) {
		return v.now
	}
	after := v.renewAfter
	if after <= 0 {
		after = c.token.Expires.Sub(c.token.Issued) * 2 / 3
	}
	return c.receivedAt.Add(max(after, minHubRetryDelay))
}

// describeRenewalFailure is the same for the same cause, until the credential has expired.
func describeRenewalFailure(c credential, why string) string {
	return fmt.Sprintf("the credential, which expires at %s by the hub's clock, could not be renewed, and that is tried again: %s", c.token.Expires.UTC().Format(time.RFC3339), why)
}

func unreachableReason(fault hubclient.FailureKind) string {
	if fault == hubclient.CertificateFailure {
		return v1alpha1.ReasonCertificateNotTrusted
	}
	return v1alpha1.ReasonUnreachable
}

// connectionState is how the connection to the hub is.
type connectionState struct {
	// known: an attempt has come to an end.
	attempted bool
	connected bool
	outcome
}

// summarizeConnection makes of it what the ledger's condition says; nil for nothing. Where a
// connection stands, joining anew is an addition to that; where none does, joining
// is what is waited for.
func summarizeConnection(d decision, l connectionState) (connected bool, o *outcome) {
	switch {
	case d.activeCredential == nil && d.credentialProblem != "":
		return false, &outcome{v1alpha1.ReasonCredentialNotStored, d.credentialProblem}
	case d.activeCredential == nil && d.joinProblem == nil:
		return false, nil
	case d.activeCredential == nil:
		return false, d.joinProblem
	case !l.attempted:
		o = &outcome{v1alpha1.ReasonConnecting, "connecting to the hub at " + d.activeCredential.access.Server}
	default:
		o = &outcome{l.reason, l.message}
	}
	switch {
	case d.joinProblem == nil:
	case l.connected:
		o.message += "; Secret " + registration.JoinSecret + " is not taken: " + d.joinProblem.message
	default:
		joining := *d.joinProblem
		o = &joining
	}
	if d.credentialProblem != "" {
		o.message += "; " + d.credentialProblem
	}
	return l.connected, o
}

// fault tells why the hub is not reached and what to do about it.
func explainConnectionError(err error) outcome {
	fault, why := hubclient.ClassifyError(err)
	switch fault {
	case hubclient.CertificateFailure:
		return outcome{v1alpha1.ReasonCertificateNotTrusted, "the hub: " + why + ". Look at this machine's clock first; else have the hub make a new join token with the right authority and address (pull.apiURL and pull.apiCA of its chart)"}
	case hubclient.UnauthorizedFailure, hubclient.ForbiddenFailure:
		return outcome{v1alpha1.ReasonUnauthorized, "the hub: " + why + ". Where it was revoked, or the member is gone there: have the hub make a join token (annotation " +
			v1alpha1.AnnotationJoinToken + " of the MemberCluster) and put it into Secret " + registration.JoinSecret}
	}
	return outcome{v1alpha1.ReasonUnreachable, "the hub: " + why + ". It is tried again; what was planned last stays in force"}
}
