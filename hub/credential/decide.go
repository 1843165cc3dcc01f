// Package credential decides when the hub replaces the credential that it was given for
// a member, and what condition CredentialRotated says.
//
// The given kubeconfig is never changed: it may be under another tool's control. The
// hub stores tokens of its own beside it. Invariant: a stored token is replaced only by
// one that the member has accepted, and stays valid until it expires, so a failure or a
// crash at any step leaves a working credential in use.
package credential

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Account is the name of the hub's ServiceAccount in a member. AnchorSecret is the
// Secret beside it that its tokens are bound to: they end when it is deleted.
const (
	Account      = "ot-hub"
	AnchorSecret = "ot-hub-access"
)

// Given is the credential of the kubeconfig that somebody gave the hub.
type Given struct {
	// Kind describes it in messages.
	Kind string
	// Namespace and Account of the ServiceAccount; empty for other credentials.
	Namespace, Account string
	// Expires is zero if it never does, or if that is unknown.
	Expires time.Time
	// LegacySecret is the Secret in the member that keeps it valid; empty for none.
	LegacySecret string
}

// Issued is a token that the hub stored.
type Issued struct{ At, Expires time.Time }

// Failure is why the last attempts to get a token failed.
type Failure struct {
	At      time.Time
	Count   int
	Message string
}

// Snapshot is what is known of a member's credential. Times are by the hub's clock.
type Snapshot struct {
	Now time.Time
	// Member is the MemberCluster's name; Secret has the given kubeconfig, as
	// namespace/name.
	Member, Secret, AgentNamespace string
	// Given is nil if the Secret does not exist or has no readable kubeconfig.
	Given *Given
	// SecretExists: the Secret is there. HasKubeconfig: its key has content, readable or not.
	SecretExists, HasKubeconfig bool
	// Issued is nil if no token is stored that belongs to Given.
	Issued *Issued
	// Stored: a Secret of the hub has a token, whether or not it belongs to Given.
	Stored bool
	// Unconfirmed: Stored is valid and belongs to another kubeconfig, the member's cluster is known, and what
	// Given leads to has not reported as that.
	Unconfirmed bool
	// Refused: the member refuses the credential in use. Unreachable: it does not answer.
	Refused, Unreachable bool
	// GivenRefused: the member last refused Given, although its claims say it is valid.
	GivenRefused bool
	Failure      *Failure
}

// Options bound the decisions.
type Options struct {
	// RenewAfter is the age at which a token is replaced; 0: a third of its life.
	RenewAfter time.Duration
	// RetryRefused is the delay before Given is used in place of a refused token.
	RetryRefused time.Duration
	// RetryFailed is the delay after the first failure; it doubles up to
	// maxFailureDelay.
	RetryFailed time.Duration
}

const (
	// maxFailureDelay bounds the delay between attempts that fail.
	maxFailureDelay = 10 * time.Minute
	// ProbeInterval is how often the hub asks whether a given token without expiry is
	// still valid.
	ProbeInterval = 2 * time.Minute
)

// Source is the credential that a new token is requested with.
type Source string

const (
	SourceIssued Source = "Issued"
	SourceGiven  Source = "Given"
)

// Decision is what to do.
type Decision struct {
	// IssueWith are the credentials to request a new token with: the first that works.
	IssueWith []Source
	// Drop: delete the stored token, since somebody emptied the given Secret. One that belongs
	// to another kubeconfig is kept, unused: whoever changed that may change it back.
	Drop bool
	// ProbeGiven: find out whether the member still accepts Given.
	ProbeGiven bool
	// Wait is when to decide again if nothing happens; 0 for never.
	Wait      time.Duration
	Condition *metav1.Condition
}

// RenewalWait returns how long a token is kept, 0 if it is to be replaced. Two thirds of its life
// remain for an outage of the hub or the member.
func (i Issued) RenewalWait(now time.Time, after time.Duration) time.Duration {
	if after <= 0 {
		after = i.Expires.Sub(i.At) / 3
	}
	return i.waitSinceIssue(now, after)
}

// RefusedWait returns how long to wait before a refused token is replaced. A member's API servers may
// not all know a new token at once.
func (i Issued) RefusedWait(now time.Time, o Options) time.Duration {
	return i.waitSinceIssue(now, o.RetryRefused)
}

// waitSinceIssue returns what is left of a time since the token was issued. None is left of a token
// that was issued later than now: a clock was ahead then, and the member ends the token sooner than
// the hub expects.
func (i Issued) waitSinceIssue(now time.Time, wait time.Duration) time.Duration {
	return storedtime.Remaining(now, i.At, wait)
}

// Decide returns what to do about the credential of a member.
func Decide(s Snapshot, o Options) Decision {
	switch {
	case s.Given == nil && s.HasKubeconfig:
		return Decision{Condition: s.condition(metav1.ConditionFalse, v1alpha1.ReasonNotRotated,
			"Secret %s has no kubeconfig that the hub accepts: correct it; the hub keeps its own token, and does not use it until then", s.Secret)}
	case s.Given == nil && s.SecretExists:
		return Decision{Drop: s.Stored, Condition: s.condition(metav1.ConditionFalse, v1alpha1.ReasonNotRotated,
			"Secret %s has no kubeconfig: the hub has dropped its credential for the member", s.Secret)}
	case s.Given == nil:
		// Some tools replace a Secret by deleting it first.
		return Decision{Condition: s.condition(metav1.ConditionUnknown, v1alpha1.ReasonNotRotated,
			"Secret %s does not exist; the hub rotates no credential until it does", s.Secret)}
	case !s.rotatable():
		return Decision{Condition: s.condition(metav1.ConditionFalse, v1alpha1.ReasonNotRotated,
			"the kubeconfig in Secret %s has %s, %s; the hub rotates tokens of ServiceAccount %s/%s only: for one, run %s again",
			s.Secret, s.Given.Kind, describeExpiry(s.Given.Expires), s.AgentNamespace, Account, s.joinCommand())}
	}
	d := Decision{IssueWith: s.sources(o)}
	if s.Unconfirmed {
		d.Wait = ProbeInterval
	}
	if s.Issued != nil {
		d.Wait = s.Issued.RenewalWait(s.Now, o.RenewAfter)
		d.ProbeGiven = s.Given.Expires.IsZero() && !s.Refused && !s.Unreachable
		if d.ProbeGiven && !s.GivenRefused {
			d.Wait = min(d.Wait, ProbeInterval)
		}
	}
	if s.Refused && s.Issued != nil && !s.givenExpired() {
		d.Wait = s.Issued.RefusedWait(s.Now, o)
	}
	if f := s.Failure; f != nil && len(d.IssueWith) > 0 {
		if wait := f.At.Add(FailureDelay(f.Count, o)).Sub(s.Now); wait > 0 {
			d.IssueWith, d.Wait = nil, wait
		}
	}
	d.Condition = s.rotationCondition()
	return d
}

func (s *Snapshot) rotatable() bool {
	return s.Given.Account == Account && s.Given.Namespace == s.AgentNamespace
}

func (s *Snapshot) givenExpired() bool {
	return !s.Given.Expires.IsZero() && !s.Now.Before(s.Given.Expires)
}

func (s *Snapshot) givenUsable() bool { return !s.givenExpired() && !s.GivenRefused }

// sources returns what to request a token with now; nothing if none is due.
func (s *Snapshot) sources(o Options) (all []Source) {
	switch {
	case s.Unreachable, s.Unconfirmed:
		return nil
	case s.Issued == nil:
	case s.Refused:
		if s.Issued.RefusedWait(s.Now, o) > 0 {
			return nil
		}
	case s.Issued.RenewalWait(s.Now, o.RenewAfter) > 0:
		return nil
	default:
		all = append(all, SourceIssued)
	}
	// Also one that was refused: the member may have answered in the middle of a restore.
	if !s.givenExpired() {
		all = append(all, SourceGiven)
	}
	return all
}

// FailureDelay returns how long to wait after the last of some failures in a row.
func FailureDelay(count int, o Options) time.Duration {
	delay := o.RetryFailed
	for range min(count, 16) - 1 {
		delay = min(2*delay, maxFailureDelay)
	}
	return delay
}

func (s *Snapshot) rotationCondition() *metav1.Condition {
	rejoin := "run " + s.joinCommand() + " again"
	switch {
	case s.Issued == nil && !s.givenUsable() && s.Unconfirmed:
		return s.condition(metav1.ConditionFalse, v1alpha1.ReasonCredentialRefused,
			"Secret %s has another kubeconfig than before, whose token %s, or was revoked: put the former kubeconfig back, of which the hub still has a valid token, or %s",
			s.Secret, describeExpiry(s.Given.Expires), rejoin)
	case s.Issued == nil && !s.givenUsable():
		return s.condition(metav1.ConditionFalse, v1alpha1.ReasonCredentialRefused,
			"the token in Secret %s %s, or the member revoked it, before the hub replaced it: %s", s.Secret, describeExpiry(s.Given.Expires), rejoin)
	case s.Issued != nil && s.Refused && !s.givenUsable():
		return s.condition(metav1.ConditionFalse, v1alpha1.ReasonCredentialRefused,
			"the member refuses the hub's token, which %s: it was revoked there, or the hub was down for too long; %s", describeExpiry(s.Issued.Expires), rejoin)
	case s.Unconfirmed:
		return s.condition(metav1.ConditionUnknown, v1alpha1.ReasonRotationPending,
			"Secret %s has another kubeconfig than before, and the cluster that it leads to has not reported as this member's: the hub keeps its own token of the former one, and renews neither that nor the one in the Secret, which %s; before it expires, accept the cluster as IdentityConfirmed says, or put the former kubeconfig back",
			s.Secret, describeExpiry(s.Given.Expires))
	case s.Failure != nil:
		used := *s.Given
		if s.Issued != nil {
			used.Expires = s.Issued.Expires
		}
		return s.condition(metav1.ConditionFalse, v1alpha1.ReasonRotationFailed,
			"the hub has no new token, and retries; the one in use %s: %s", describeExpiry(used.Expires), s.Failure.Message)
	case s.Issued == nil:
		return s.condition(metav1.ConditionUnknown, v1alpha1.ReasonRotationPending,
			"the hub replaces the token that it was given, which %s, as soon as it reaches the member", describeExpiry(s.Given.Expires))
	case s.Given.Expires.IsZero() && !s.GivenRefused:
		return s.condition(metav1.ConditionFalse, v1alpha1.ReasonLegacyToken,
			"the hub's own token %s and is renewed, but the one in Secret %s never expires: delete it in the member with %s",
			describeExpiry(s.Issued.Expires), s.Secret, shellword.FormatCommand("kubectl --namespace %s delete secret %s", s.AgentNamespace, s.legacySecret()))
	}
	return s.condition(metav1.ConditionTrue, v1alpha1.ReasonRotated, "the hub's token %s, and the hub renews it before", describeExpiry(s.Issued.Expires))
}

func (s *Snapshot) joinCommand() string {
	return shellword.FormatCommand("kubectl ot join push %s --member CONTEXT", s.Member)
}

func (s *Snapshot) legacySecret() string {
	if s.Given.LegacySecret != "" {
		return s.Given.LegacySecret
	}
	return "<its Secret of type kubernetes.io/service-account-token>"
}

// describeExpiry continues a sentence whose subject is a credential.
func describeExpiry(at time.Time) string {
	if at.IsZero() {
		return "has no known expiry"
	}
	return "expires at " + at.UTC().Format(time.RFC3339)
}

func (s *Snapshot) condition(status metav1.ConditionStatus, reason, format string, args ...any) *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.ConditionCredentialRotated, Status: status, Reason: reason,
		Message: v1alpha1.SanitizeText(fmt.Sprintf(format, args...), 1024),
	}
}

// QuarantineCondition is the condition of a member in quarantine, of which the hub asks nothing; nil in
// pull mode.
func QuarantineCondition(c *v1alpha1.MemberConnection) *metav1.Condition {
	s := Snapshot{}
	switch {
	case c.ClusterAPI != nil:
		return s.condition(metav1.ConditionUnknown, v1alpha1.ReasonQuarantined, "the hub has deleted its token, and gets another one with Cluster API's kubeconfig once the quarantine ends")
	case c.KubeconfigSecretRef != nil:
		return s.condition(metav1.ConditionUnknown, v1alpha1.ReasonQuarantined, "the hub renews no token in quarantine: if it expires meanwhile, run kubectl ot join push once the quarantine has ended")
	}
	return nil
}

// ClusterAPICondition is the condition of a member from Cluster API. issued is nil if no
// token is valid, and failure is empty if the last request for one did not fail.
// Cluster API's own kubeconfig is Cluster API's to rotate.
func ClusterAPICondition(issued *Issued, failure string) *metav1.Condition {
	s := Snapshot{}
	switch {
	case issued == nil:
		return s.condition(metav1.ConditionFalse, v1alpha1.ReasonRotationFailed, "the hub has no valid token, and retries with Cluster API's kubeconfig: %s", failure)
	case failure != "":
		return s.condition(metav1.ConditionFalse, v1alpha1.ReasonRotationFailed, "the hub has no new token, and retries; the one in use %s: %s", describeExpiry(issued.Expires), failure)
	}
	return s.condition(metav1.ConditionTrue, v1alpha1.ReasonRotated, "the hub's token %s, and the hub renews it before; Cluster API's kubeconfig is Cluster API's to renew", describeExpiry(issued.Expires))
}
