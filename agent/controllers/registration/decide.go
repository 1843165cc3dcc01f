package registration

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// minRenewalAge bounds RenewAfter from below.
const minRenewalAge = time.Second

// joinAnswerKind is the hub's answer to a join token.
type joinAnswerKind uint8

const (
	// joinNotAsked: the hub was not asked in this reconcile.
	joinNotAsked joinAnswerKind = iota
	// joinUnanswered: the hub did not answer.
	joinUnanswered
	// joinRefused: the join token is not valid, or no longer valid.
	joinRefused
	// joinTaken: another agent has presented the join token.
	joinTaken
	// joinPending: the platform team has not accepted the key yet.
	joinPending
	// joinIssued: there is a sealed credential.
	joinIssued
)

// joinAnswer is the result of asking the hub. failure and message are those of
// joinUnanswered and joinRefused.
type joinAnswer struct {
	kind    joinAnswerKind
	sealed  []byte
	message string
	failure hubclient.FailureKind
}

// renewalResult is the result of asking for the next token; token is empty on failure.
type renewalResult struct {
	attempted bool
	token     string
	failure   string
}

// decisionInput is all that a decision rests on.
type decisionInput struct {
	now        time.Time
	clusterUID types.UID
	joinSecret *joinSecret // nil: there is none
	stored     storedCredential
	answer     joinAnswer
	renewal    renewalResult
	// renewAfter replaces two thirds of a token's lifetime if it is shorter; 0: it does not.
	renewAfter time.Duration
}

// step is what Reconcile does next; after it, it decides again.
type step uint8

const (
	// stepNone: nothing is left to do now.
	stepNone step = iota
	// stepCreateKey: create a key pair and store it.
	stepCreateKey
	// stepAskHub: present the join token, and read the answer.
	stepAskHub
	// stepStore: write the Secret.
	stepStore
	// stepRenew: request the next token.
	stepRenew
)

// retryClass is which wait ends a reconcile.
type retryClass uint8

const (
	// retryNever: an event or the next renewal comes first.
	retryNever retryClass = iota
	// retryHub: the hub did not answer; the wait grows.
	retryHub
	// retryAcceptance: the platform team has to accept the key; the wait grows a little.
	retryAcceptance
	// retryRejected: a refusal is most likely final.
	retryRejected
)

type decision struct {
	step step
	// stored is what stepCreateKey and stepStore write.
	stored storedCredential
	// active is the credential to sync with; nil for none. It is set in every decision: a
	// new registration does not interrupt the connection of the former.
	active *credential
	// joinStatus is what the registration waits for; nil for nothing.
	joinStatus *outcome
	// credentialProblem is what is wrong with the credential itself, whether there is a
	// connection or not; empty for nothing.
	credentialProblem string
	retry             retryClass
}

// decide decides about registration and renewal. It is pure.
func decide(in decisionInput) decision {
	stored := in.stored
	if stored.clusterUID != in.clusterUID {
		// The Secret was copied from another cluster: its key may be in use there, and its
		// credential belongs to that member.
		stored = storedCredential{clusterUID: in.clusterUID}
	}
	d := decision{stored: stored, active: stored.credential}
	if in.joinSecret == nil || stored.credential != nil && stored.usedJoinHash == in.joinSecret.hash {
		return in.decideRenewal(d)
	}
	if in.joinSecret.invalid != "" {
		d.joinStatus = &outcome{Reason: v1alpha1.ReasonJoinSecretInvalid, Message: in.joinSecret.invalid + ": create the Secret as the hub provides it"}
		return in.decideRenewal(d)
	}
	if stored.key == nil {
		d.step = stepCreateKey
		return d
	}
	return in.decideJoin(d)
}

// decideJoin continues a registration with a join token that is not used up.
func (in decisionInput) decideJoin(d decision) decision {
	answer := in.answer
	switch answer.kind {
	case joinNotAsked:
		d.step = stepAskHub
		return d
	case joinUnanswered:
		d.joinStatus, d.retry = &outcome{Reason: unreachableReason(answer.failure), Message: answer.message}, retryHub
	case joinRefused:
		d.joinStatus, d.retry = &outcome{Reason: v1alpha1.ReasonJoinTokenRefused, Message: answer.message + ": it has expired, was used, or was replaced. Have the hub make another (annotation " + v1alpha1.AnnotationJoinToken +
			" of the MemberCluster) and put it into Secret " + registration.JoinSecret}, retryRejected
	case joinTaken:
		d.joinStatus, d.retry = &outcome{Reason: v1alpha1.ReasonJoinTokenUsed, Message: "another agent has presented this join token. Unless you know that agent, the token is stolen: revoke it (annotation " +
			v1alpha1.AnnotationJoinToken + " of the MemberCluster) and put the next one into Secret " + registration.JoinSecret}, retryRejected
	case joinPending:
		fingerprint, _ := registration.Fingerprint(d.stored.key.PublicKey())
		d.joinStatus, d.retry = &outcome{Reason: v1alpha1.ReasonAwaitingAcceptance, Message: fmt.Sprintf("waiting for the platform team to accept key %s in the MemberCluster (spec.connection.pull.acceptedKey)", fingerprint)}, retryAcceptance
	case joinIssued:
		next, problem := in.openIssuedCredential(d.stored)
		if problem != "" {
			d.joinStatus, d.retry = &outcome{Reason: v1alpha1.ReasonAnswerRefused, Message: problem}, retryRejected
			break
		}
		d.step, d.stored = stepStore, next
		return d
	}
	return in.decideRenewal(d)
}

// openIssuedCredential opens the issued credential; problem is why it is not for this agent.
func (in decisionInput) openIssuedCredential(stored storedCredential) (next storedCredential, problem string) {
	text, err := stored.key.OpenSealed(in.answer.sealed)
	if err != nil {
		return stored, "the credential that the hub has issued is sealed for another agent's key"
	}
	c, err := parseCredential(text)
	if err != nil {
		return stored, "the credential that the hub has issued cannot be used: " + err.Error()
	}
	if expected := in.joinSecret.Access.Namespace; c.Access.Namespace != expected {
		return stored, fmt.Sprintf("the credential that the hub has issued is for namespace %s, and the join token is for %s", c.Access.Namespace, expected)
	}
	// Keep the address that has worked: this cluster may reach the hub by one of its own.
	c.Access.Server, c.Access.CA = in.joinSecret.Access.Server, in.joinSecret.Access.CA
	c.receivedAt = in.now
	stored.credential, stored.usedJoinHash = &c, in.joinSecret.hash
	return stored, ""
}

// decideRenewal renews the token when it is due.
func (in decisionInput) decideRenewal(d decision) decision {
	c := d.stored.credential
	if c == nil || in.now.Before(in.renewalDue(*c)) {
		return d
	}
	switch {
	case !in.renewal.attempted:
		d.step = stepRenew
	case in.renewal.token == "":
		d.credentialProblem, d.retry = describeRenewalFailure(*c, in.renewal.failure), retryHub
	default:
		next := *c
		next.Access.Token = in.renewal.token
		claims, err := registration.ParseTokenClaims(next.Access.Token)
		if err != nil {
			d.credentialProblem, d.retry = describeRenewalFailure(*c, err.Error()), retryHub
			return d
		}
		next.Claims, next.receivedAt = claims, in.now
		d.step, d.stored.credential = stepStore, &next
	}
	return d
}

// renewalDue is when a token is renewed. It counts from receivedAt, by the same clock; if
// that clock was set back since, the token is due.
func (in decisionInput) renewalDue(c credential) time.Time {
	if in.now.Before(c.receivedAt) {
		return in.now
	}
	after := c.Claims.Expires.Sub(c.Claims.Issued) * 2 / 3
	if in.renewAfter > 0 {
		after = min(after, in.renewAfter)
	}
	return c.receivedAt.Add(max(after, minRenewalAge))
}

// describeRenewalFailure returns the same text for the same cause until the token expires.
func describeRenewalFailure(c credential, cause string) string {
	return fmt.Sprintf("failed to renew the credential, which expires at %s by the hub's clock; retrying: %s", c.Claims.Expires.UTC().Format(time.RFC3339), cause)
}

func unreachableReason(failure hubclient.FailureKind) string {
	switch failure {
	case hubclient.CertificateFailure:
		return v1alpha1.ReasonCertificateNotTrusted
	case hubclient.LimitFailure:
		return v1alpha1.ReasonOverLimits
	}
	return v1alpha1.ReasonUnreachable
}
