package dial

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// invitation is Secret ot-hub-join, which the platform team puts there.
type invitation struct {
	// hash of what is in it: one that was used up is known by that.
	hash   string
	access join.Access
	token  join.Token
	// fault is what is wrong with it; then the rest is of no account.
	fault string
}

// credential is what an agent carries with.
type credential struct {
	access join.Access
	token  join.Token
	// received is when this agent has stored it, by its own clock: how far apart the
	// two clocks are does not matter then.
	received time.Time
}

// kept is Secret ot-hub-credential, which is the agent's own.
type kept struct {
	// cluster that it was made in: who copies Secrets from one cluster into another
	// does not make one the other.
	cluster types.UID
	key     *join.Key
	// used is the hash of the invitation that credential has come of.
	used       string
	credential *credential
}

// answerKind is what the hub says to who presents a join token.
type answerKind uint8

const (
	// notAsked by now.
	notAsked answerKind = iota
	// noAnswer came.
	noAnswer
	// refused: the join token is worth nothing, or not any more.
	refused
	// taken: somebody else has presented it.
	taken
	// pending: the platform team has not accepted the key.
	pending
	// issued: there is a sealed credential.
	issued
)

type answer struct {
	kind   answerKind
	sealed []byte
	// message is the hub's, or of what kept it from answering; fault tells why there
	// was none.
	message string
	fault   dial.Fault
}

// view is what a decision is made of.
type view struct {
	now        time.Time
	cluster    types.UID
	invitation *invitation
	kept       kept
	answer     answer
	// renewal is the answer to having asked for the next token.
	renewal renewal
	// renewAfter replaces two thirds of a token's life, where it is not 0.
	renewAfter time.Duration
}

// renewal of the credential's token.
type renewal struct {
	asked bool
	// token is empty where it failed; then fault says why.
	token, fault string
}

// step is what is to be done next; then it is decided again.
type step uint8

const (
	// idle: nothing, for a while.
	idle step = iota
	// makeKey: a new key pair is to be made, and stored with kept.
	makeKey
	// ask the hub: present the join token, and read the answer.
	ask
	// store kept.
	store
	// renew the token.
	renew
)

// outcome is how something goes, for people.
type outcome struct{ reason, message string }

// decision about a view.
type decision struct {
	step step
	// kept is what is to be stored, with steps makeKey and store.
	kept kept
	// carry with this; nil for nothing. It is set in every decision: joining anew goes
	// on beside what is there.
	carry *credential
	// joining tells how joining goes; nil where nothing is to be joined with.
	joining *outcome
	// trouble is what is wrong with the credential itself, whatever is being carried;
	// empty for nothing.
	trouble string
	// waits: what was tried is to be tried again after a while, without anything else
	// having happened.
	waits wait
}

// wait is how long, in kind.
type wait uint8

const (
	// forNews: nothing is to be tried again.
	forNews wait = iota
	// forHub: it did not answer. The wait grows.
	forHub
	// forPeople: somebody has to accept. The wait grows a little.
	forPeople
	// seldom: what was refused stays refused, most likely.
	seldom
)

// decide what to do about joining and the credential.
func decide(v view) decision {
	k := v.kept
	if k.cluster != v.cluster {
		// Made in another cluster: its key may be in use there, and the member that its
		// credential is for is that one.
		k = kept{cluster: v.cluster}
	}
	d := decision{kept: k, carry: k.credential}
	if v.invitation == nil || k.credential != nil && k.used == v.invitation.hash {
		return v.keepAlive(d)
	}
	if v.invitation.fault != "" {
		d.joining = &outcome{v1alpha1.ReasonJoinSecretInvalid, v.invitation.fault + ": put the Secret there as the hub has made it"}
		return v.keepAlive(d)
	}
	if k.key == nil {
		d.step = makeKey
		return d
	}
	return v.join(d)
}

// join goes on with a join token that is not used up.
func (v view) join(d decision) decision {
	a := v.answer
	switch a.kind {
	case notAsked:
		d.step = ask
		return d
	case noAnswer:
		d.joining, d.waits = &outcome{unreached(a.fault), a.message}, forHub
	case refused:
		d.joining, d.waits = &outcome{v1alpha1.ReasonJoinTokenRefused,
			a.message + ": it has expired, was used, or was replaced. Have the hub make another (annotation " + v1alpha1.AnnotationJoinToken +
				" of the MemberCluster) and put it into Secret " + join.JoinSecret}, seldom
	case taken:
		d.joining, d.waits = &outcome{v1alpha1.ReasonJoinTokenUsed,
			"another agent has presented this join token. Unless that is known, somebody has stolen it: revoke it (annotation " +
				v1alpha1.AnnotationJoinToken + " of the MemberCluster) and put the next one into Secret " + join.JoinSecret}, seldom
	case pending:
		fingerprint, _ := join.Fingerprint(d.kept.key.Public())
		d.joining, d.waits = &outcome{v1alpha1.ReasonAwaitingAcceptance,
			fmt.Sprintf("waiting for the platform team to accept key %s in the MemberCluster (spec.connection.pull.acceptedKey)", fingerprint)}, forPeople
	case issued:
		next, fault := v.open(d.kept)
		if fault != "" {
			d.joining, d.waits = &outcome{v1alpha1.ReasonAnswerRefused, fault}, seldom
			break
		}
		d.step, d.kept = store, next
		return d
	}
	return v.keepAlive(d)
}

// open takes the credential that was issued, if it is for this agent.
func (v view) open(k kept) (next kept, fault string) {
	text, err := k.key.Open(v.answer.sealed)
	if err != nil {
		return k, "the credential that the hub has issued is sealed for another agent's key"
	}
	c, err := readCredential(text)
	if err != nil {
		return k, "the credential that the hub has issued cannot be used: " + err.Error()
	}
	if invited := v.invitation.access.Namespace; c.access.Namespace != invited {
		return k, fmt.Sprintf("the credential that the hub has issued is for namespace %s, and the join token is for %s", c.access.Namespace, invited)
	}
	// The way that has led to the hub is gone on with: it may be this cluster's alone.
	c.access.Server, c.access.CA = v.invitation.access.Server, v.invitation.access.CA
	c.received = v.now
	k.credential, k.used = &c, v.invitation.hash
	return k, ""
}

func readCredential(kubeconfig []byte) (credential, error) {
	access, err := join.ParseAccess(kubeconfig)
	if err != nil {
		return credential{}, err
	}
	token, err := join.ParseToken(access.Token)
	return credential{access: access, token: token}, err
}

// keepAlive renews the token when it is time.
func (v view) keepAlive(d decision) decision {
	c := d.kept.credential
	if c == nil || v.now.Before(v.due(*c)) {
		return d
	}
	switch {
	case !v.renewal.asked:
		d.step = renew
	case v.renewal.token == "":
		d.trouble, d.waits = notRenewed(*c, v.renewal.fault), forHub
	default:
		next := *c
		next.access.Token = v.renewal.token
		token, err := join.ParseToken(next.access.Token)
		if err != nil {
			d.trouble, d.waits = notRenewed(*c, err.Error()), forHub
			return d
		}
		next.token, next.received = token, v.now
		d.step, d.kept.credential = store, &next
	}
	return d
}

// due is when a token is renewed: counted from when it was received by the same
// clock. A clock that was put back before that tells nothing, and then it is due.
func (v view) due(c credential) time.Time {
	if v.now.Before(c.received) {
		return v.now
	}
	after := v.renewAfter
	if after <= 0 {
		after = c.token.Expires.Sub(c.token.Issued) * 2 / 3
	}
	return c.received.Add(max(after, hubSoon))
}

// notRenewed is the same for the same cause, until the credential has expired.
func notRenewed(c credential, why string) string {
	return fmt.Sprintf("the credential, which expires at %s by the hub's clock, could not be renewed, and that is tried again: %s", c.token.Expires.UTC().Format(time.RFC3339), why)
}

func unreached(fault dial.Fault) string {
	if fault == dial.FaultCertificate {
		return v1alpha1.ReasonCertificate
	}
	return v1alpha1.ReasonUnreachable
}

// line is how the connection to the hub is.
type line struct {
	// known: an attempt has come to an end.
	known     bool
	connected bool
	outcome
}

// tell makes of it what the ledger's condition says; nil for nothing. Where a
// connection stands, joining anew is an addition to that; where none does, joining
// is what is waited for.
func tell(d decision, l line) (connected bool, o *outcome) {
	switch {
	case d.carry == nil && d.trouble != "":
		return false, &outcome{v1alpha1.ReasonCredentialNotStored, d.trouble}
	case d.carry == nil && d.joining == nil:
		return false, nil
	case d.carry == nil:
		return false, d.joining
	case !l.known:
		o = &outcome{v1alpha1.ReasonConnecting, "connecting to the hub at " + d.carry.access.Server}
	default:
		o = &outcome{l.reason, l.message}
	}
	switch {
	case d.joining == nil:
	case l.connected:
		o.message += "; Secret " + join.JoinSecret + " is not taken: " + d.joining.message
	default:
		joining := *d.joining
		o = &joining
	}
	if d.trouble != "" {
		o.message += "; " + d.trouble
	}
	return l.connected, o
}

// fault tells why the hub is not reached and what to do about it.
func faultOf(err error) outcome {
	fault, why := dial.FaultOf(err)
	switch fault {
	case dial.FaultCertificate:
		return outcome{v1alpha1.ReasonCertificate, "the hub: " + why + ". Look at this machine's clock first; else have the hub make a new join token with the right authority and address (pull.apiURL and pull.apiCA of its chart)"}
	case dial.FaultUnauthorized, dial.FaultForbidden:
		return outcome{v1alpha1.ReasonUnauthorized, "the hub: " + why + ". Where it was revoked, or the member is gone there: have the hub make a join token (annotation " +
			v1alpha1.AnnotationJoinToken + " of the MemberCluster) and put it into Secret " + join.JoinSecret}
	}
	return outcome{v1alpha1.ReasonUnreachable, "the hub: " + why + ". It is tried again; what was planned last stays in force"}
}
