package install

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Status of a release, in Helm's words.
type Status string

// Known statuses. Any other one blocks the installation.
const (
	StatusDeployed        Status = "deployed"
	StatusFailed          Status = "failed"
	StatusSuperseded      Status = "superseded"
	StatusUninstalled     Status = "uninstalled"
	StatusPendingInstall  Status = "pending-install"
	StatusPendingUpgrade  Status = "pending-upgrade"
	StatusPendingRollback Status = "pending-rollback"
)

// IsPending reports whether a Helm operation is running or was interrupted.
func (s Status) IsPending() bool {
	return s == StatusPendingInstall || s == StatusPendingUpgrade || s == StatusPendingRollback
}

// Installer of a release is a hub, for one of its members. The zero Installer is not a
// hub.
type Installer struct {
	// Hub is the UID of the hub's cluster, Member the name of the MemberCluster.
	Hub, Member string
}

// Release is the newest release of the agent's chart in a member.
type Release struct {
	// Number is Helm's revision of the release.
	Name   string
	Number int
	Status Status
	// Version is the agent's, Chart that of the chart, which brings the CRDs: values may
	// name another agent than the chart's. Chart is empty if the chart has no version.
	Version, Chart string
	// Installer of this Number. A manual upgrade has none.
	Installer Installer
	// Revision identifies chart and values of a release that a hub made.
	Revision string
}

// Desired is the release that a member should have.
type Desired struct {
	// Version of the agent and of the Chart, Revision of chart and values.
	Version, Chart, Revision string
}

// Problem is why something cannot be done, and what to do about it.
type Problem struct{ Reason, Message string }

// Lease of the process that installs in a member.
type Lease struct {
	Holder string
	// Until is when the Lease expires unless it is renewed, by the hub's own clock.
	Until time.Time
}

// Snapshot is everything that a decision depends on.
type Snapshot struct {
	Now time.Time
	// OptedIn by label.
	OptedIn bool
	// PullMode: the hub does not reach the member.
	PullMode bool
	// Self is this hub, for this member.
	Self    Installer
	Desired Desired
	// ValuesProblem is what is wrong with the values; nil for nothing.
	ValuesProblem *Problem
	// Adopt and Downgrade are the values of the annotations.
	Adopt     bool
	Downgrade string
	Attempts  Attempts
	// Backoff is the wait after the first attempt; it doubles with each.
	Backoff time.Duration

	// ProbeProblem is why the member could not be read; with nil, the fields below are
	// live. FailedProbes counts the failures in a row before this one.
	ProbeProblem *Problem
	FailedProbes int
	// ClusterHolder is the other MemberCluster that the cluster belongs to; empty for
	// none.
	ClusterHolder string
	// OtherClusterUID is the UID of the cluster that answered, if it is not the member's;
	// otherwise empty.
	OtherClusterUID string
	// Release is the newest release; nil for none.
	Release *Release
	// ForeignAgent names parts of an agent that belong to no release; empty for none.
	ForeignAgent string
	// OtherNamespace is the namespace of an agent outside of spec.agentNamespace; empty
	// for none.
	OtherNamespace string
	// AgentVersions are versions of the agent beside the release's: of the report, and of
	// a Deployment without a release.
	AgentVersions []string
	// KindsVersion is the version of the chart that installed the CRDs; empty if there
	// are none, or if it is unknown.
	KindsVersion string
	// Lease of another process in the member; nil for none.
	Lease *Lease
}

// Action to take in a member.
type Action string

const (
	ActionNone Action = "nothing"
	// ActionInstall makes the first release.
	ActionInstall Action = "install"
	// ActionUpgrade makes the next release.
	ActionUpgrade Action = "upgrade"
	// ActionRecover ends a release that a hub left pending, then makes the next one.
	ActionRecover Action = "recover"
)

// Decision is the action and the condition to publish.
type Decision struct {
	Action Action
	// TakeOwnership of existing objects with the same names.
	TakeOwnership bool
	// Condition AgentInstalled with Type, Status, Reason and Message; nil for none.
	Condition *metav1.Condition
	// RecheckAfter is when to read the member again; 0: only after a change.
	RecheckAfter time.Duration
}

// The member is polled: the hub does not watch these objects in it.
const (
	// recheckInterval finds a deleted or changed release.
	recheckInterval = 10 * time.Minute
	// blockedRecheckInterval is for obstacles that a person removes.
	blockedRecheckInterval = time.Minute
	// leaseRecheckInterval finds a Lease that was released early, or shortened. Its holder, or the
	// member, says how long it lasts.
	leaseRecheckInterval = 10 * time.Second
	// probeRetryDelay is the retry delay for a member that does not answer. It doubles up
	// to recheckInterval: each try occupies a worker until its requests time out.
	probeRetryDelay = 30 * time.Second
)

// Decide returns the action for a member.
func Decide(s Snapshot) Decision {
	if !s.OptedIn {
		return Decision{Action: ActionNone}
	}
	if blocked, ok := s.decideBlocked(); ok {
		return blocked
	}
	return s.decideAttempt()
}

// decideBlocked returns the decision to do nothing; false if something may be done.
func (s Snapshot) decideBlocked() (Decision, bool) {
	switch {
	case s.PullMode:
		return s.notInstalled(v1alpha1.ReasonAgentDialsIn, 0, "the hub does not reach a member in pull mode: install chart ot-agent there yourself, "+
			"set a kubeconfig in spec.connection, or remove label %s", v1alpha1.LabelInstallAgent), true
	case s.ValuesProblem != nil:
		return s.notInstalled(s.ValuesProblem.Reason, 0, "%s", s.ValuesProblem.Message), true
	case s.ProbeProblem != nil:
		return s.unreachableDecision(), true
	case s.ClusterHolder != "":
		return s.notInstalled(v1alpha1.ReasonDuplicateCluster, blockedRecheckInterval, "the cluster belongs to MemberCluster %s, and the agent is installed for that one; see IdentityConfirmed", s.ClusterHolder), true
	case s.OtherClusterUID != "":
		return s.notInstalled(v1alpha1.ReasonAnotherCluster, blockedRecheckInterval, "cluster %s answers, but this member is another one: it was rebuilt, or the kubeconfig points elsewhere. "+
			"To accept the new cluster: %s", shellword.Quote(s.OtherClusterUID),
			shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s", s.Self.Member, v1alpha1.AnnotationAcceptCluster+"="+s.OtherClusterUID)), true
	}
	if r := s.Release; r != nil && r.Status == StatusDeployed && r.Installer == s.Self && r.Revision == s.Desired.Revision {
		return s.newDecision(metav1.ConditionTrue, v1alpha1.ReasonInstalled, recheckInterval, "release %s has agent %s, as desired", r.Name, r.Version), true
	}
	if s.OtherNamespace != "" {
		return s.notInstalled(v1alpha1.ReasonForeignAgent, blockedRecheckInterval, "an agent is installed in namespace %s, and a cluster can have only one: set spec.agentNamespace to that namespace, or uninstall that agent", s.OtherNamespace), true
	}
	if theirs := s.foreignInstall(); theirs != "" && !s.Adopt {
		return s.notInstalled(v1alpha1.ReasonForeignAgent, blockedRecheckInterval, "%s, which this hub did not install for this member; the hub does not change it. "+
			"To have the hub adopt and upgrade it, with the values of the hub's namespace in place of its own: %s",
			theirs, shellword.FormatCommand("kubectl annotate membercluster %s %s", s.Self.Member, v1alpha1.AnnotationAdoptAgent+"=true")), true
	}
	// A pending release of this hub is recovered; Helm cannot continue from any other
	// one.
	if r := s.Release; r != nil && !isFinal(r.Status) && (r.Installer != s.Self || !r.Status.IsPending()) {
		return s.notInstalled(v1alpha1.ReasonReleasePending, blockedRecheckInterval, "release %s is %s, and this hub did not start that: wait for it to finish, or end it with helm rollback or helm uninstall", r.Name, r.Status), true
	}
	return s.refuseDowngrade()
}

// unreachableDecision distinguishes a member that refuses the hub, which a person has to
// fix, from one that does not answer and may come back.
func (s Snapshot) unreachableDecision() Decision {
	const text = "the hub cannot read which agent the member has: %s"
	if s.ProbeProblem.Reason == v1alpha1.ReasonCredentialsMissing || s.ProbeProblem.Reason == v1alpha1.ReasonUnauthorized {
		return s.notInstalled(s.ProbeProblem.Reason, blockedRecheckInterval, text, s.ProbeProblem.Message)
	}
	wait := probeRetryDelay
	for range s.FailedProbes {
		wait = min(2*wait, recheckInterval)
	}
	return s.newDecision(metav1.ConditionUnknown, s.ProbeProblem.Reason, wait, text, s.ProbeProblem.Message)
}

// refuseDowngrade blocks a downgrade of CRDs or agent, unless the annotation allows that
// version. Allowing a chart allows the agent that its values name.
func (s Snapshot) refuseDowngrade() (Decision, bool) {
	var charts, agents []string
	if r := s.Release; r != nil && r.Status != StatusUninstalled {
		charts, agents = append(charts, r.Chart), append(agents, r.Version)
	}
	refuse := func(what, than, want string) (Decision, bool) {
		return s.notInstalled(v1alpha1.ReasonDowngradeRefused, blockedRecheckInterval, "the member has %s %s, and the hub would install %s, which is not known to be newer: upgrade the hub. "+
			"To install %s anyway: %s",
			what, than, want, want, shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s", s.Self.Member, v1alpha1.AnnotationDowngradeAgent+"="+want)), true
	}
	want := s.Desired
	if than := findDowngraded(want.Chart, append(charts, s.KindsVersion)); than != "" && s.Downgrade != want.Chart {
		return refuse("the CRDs of agent", than, want.Chart)
	}
	if than := findDowngraded(want.Version, append(agents, s.AgentVersions...)); than != "" && s.Downgrade != want.Version && s.Downgrade != want.Chart {
		return refuse("agent", than, want.Version)
	}
	return Decision{}, false
}

// decideAttempt returns the action, or the wait for the next attempt.
func (s Snapshot) decideAttempt() Decision {
	attempts := s.currentAttempts()
	// An attempt without an error may have died with its process.
	last := cmp.Or(attempts.Error, "it did not finish: the hub ended or lost its connection")
	if s.Lease != nil && s.Now.Before(s.Lease.Until) {
		return s.newDecision(metav1.ConditionUnknown, v1alpha1.ReasonInstalling, min(s.Lease.Until.Sub(s.Now), leaseRecheckInterval),
			"%s is installing, or was when it ended; waiting for its Lease %s to be released or to expire", s.Lease.Holder, LeaseName)
	}
	if attempts.Count >= MaxAttempts {
		return s.notInstalled(v1alpha1.ReasonInstallAttemptsExhausted, recheckInterval, "%d attempts to install agent %s have failed; there is no retry until version, values or annotations change. "+
			"To retry: %s. Last error: %s", attempts.Count, s.Desired.Version, shellword.FormatCommand("kubectl annotate membercluster %s %s", s.Self.Member, v1alpha1.AnnotationInstallAttempts+"-"), last)
	}
	if wait := s.nextAttemptWait(); wait > 0 {
		return s.notInstalled(v1alpha1.ReasonInstallFailed, wait, "attempt %d of %d to install agent %s failed; retrying: %s", attempts.Count, MaxAttempts, s.Desired.Version, last)
	}
	d := s.newDecision(metav1.ConditionUnknown, v1alpha1.ReasonInstalling, 0, "agent %s is being installed, attempt %d of %d", s.Desired.Version, attempts.Count+1, MaxAttempts)
	d.TakeOwnership = s.Adopt
	switch {
	case s.Release == nil || s.Release.Status == StatusUninstalled:
		d.Action = ActionInstall
	case s.Release.Status.IsPending():
		d.Action = ActionRecover
	default:
		d.Action = ActionUpgrade
	}
	return d
}

// isFinal reports whether Helm can continue from a release.
func isFinal(s Status) bool {
	return s == StatusDeployed || s == StatusFailed || s == StatusSuperseded || s == StatusUninstalled
}

// foreignInstall names what somebody else installed; empty for nothing.
func (s Snapshot) foreignInstall() string {
	r := s.Release
	switch {
	case r != nil && r.Status != StatusUninstalled && r.Installer == (Installer{}):
		return fmt.Sprintf("there is release %s, revision %d", r.Name, r.Number)
	case r != nil && r.Status != StatusUninstalled && r.Installer.Hub != s.Self.Hub:
		return fmt.Sprintf("there is release %s of another hub (%s)", r.Name, r.Installer.Hub)
	case r != nil && r.Status != StatusUninstalled && r.Installer != s.Self:
		return fmt.Sprintf("there is release %s of MemberCluster %s", r.Name, r.Installer.Member)
	case s.ForeignAgent != "":
		return "there is " + s.ForeignAgent
	}
	return ""
}

func (s Snapshot) notInstalled(reason string, after time.Duration, format string, args ...any) Decision {
	return s.newDecision(metav1.ConditionFalse, reason, after, format, args...)
}

// maxMessageBytes bounds the condition's message, which may quote Helm and the member.
const maxMessageBytes = 1024

func (s Snapshot) newDecision(status metav1.ConditionStatus, reason string, after time.Duration, format string, args ...any) Decision {
	return Decision{
		Action: ActionNone, RecheckAfter: after,
		Condition: &metav1.Condition{
			Type: v1alpha1.ConditionAgentInstalled, Status: status, Reason: reason,
			Message: v1alpha1.SanitizeText(fmt.Sprintf(format, args...), maxMessageBytes),
		},
	}
}

// LeaseName names the Lease in the agent's namespace of a member under which a hub
// installs.
const LeaseName = "ot-hub-install"
