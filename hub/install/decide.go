package install

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Status of a release, in Helm's words.
type Status string

// Those that are told apart. Each other one is somebody's, and in the way.
const (
	StatusDeployed        Status = "deployed"
	StatusFailed          Status = "failed"
	StatusSuperseded      Status = "superseded"
	StatusUninstalled     Status = "uninstalled"
	StatusPendingInstall  Status = "pending-install"
	StatusPendingUpgrade  Status = "pending-upgrade"
	StatusPendingRollback Status = "pending-rollback"
)

// IsPending tells that an operation of Helm goes on, or died.
func (s Status) IsPending() bool {
	return s == StatusPendingInstall || s == StatusPendingUpgrade || s == StatusPendingRollback
}

// Installer of a release: a hub, for one of its members. The zero value is somebody else.
type Installer struct {
	// Hub is the UID of its cluster, Member the name of the MemberCluster.
	Hub, Member string
}

// Release is the newest one of the agent's in a member.
type Release struct {
	// Name of it, and its Number, which Helm calls revision.
	Name   string
	Number int
	Status Status
	// Version of the agent that it runs, and of the Chart, which brings the kinds: the
	// values may name another agent than the chart's. Of a chart that says nothing of its
	// version it is empty.
	Version, Chart string
	// Installer of this very number. Who upgrades it by hand makes it his own.
	Installer Installer
	// Revision says of what chart and values it was made, where a hub has.
	Revision string
}

// Desired is what a member is to have.
type Desired struct {
	// Version of the agent and of the Chart, Revision of chart and values.
	Version, Chart, Revision string
}

// Problem is why something cannot be done, and what to do about it.
type Problem struct{ Reason, Message string }

// Lease is that of who installs in a member at present.
type Lease struct {
	Holder string
	// Until is when it has not been renewed for as long as it lasts, by our own clock.
	Until time.Time
}

// Snapshot is all that is decided upon for one member.
type Snapshot struct {
	Now time.Time
	// OptedIn by label.
	OptedIn bool
	// Pull: its agent dials in, and the hub does not reach it.
	PullMode bool
	// Self is who would install.
	Self    Installer
	Desired Desired
	// ValuesProblem is what is wrong with the values; nil for nothing.
	ValuesProblem *Problem
	// Adopt and Downgrade are what the annotations say.
	Adopt     bool
	Downgrade string
	Attempts  Attempts
	// Backoff is the wait after the first attempt, doubled after each.
	Backoff time.Duration

	// ProbeProblem is why it is not known what the member has; nil: what follows is live. Looks
	// are how many in a row have found it so before.
	ProbeProblem *Problem
	FailedProbes int
	// ClusterHolder is the other MemberCluster that its cluster belongs to; empty: none.
	ClusterHolder string
	// OtherClusterUID is the UID of the cluster that answers, where it is not the one that the
	// member was; empty: it is.
	OtherClusterUID string
	// Release is the newest one there; nil for none.
	Release *Release
	// ForeignAgent names what there is of an agent and of no release of ours; empty for
	// nothing.
	ForeignAgent string
	// OtherNamespace is the namespace that an agent of the member runs in, where it is not the
	// one that the MemberCluster names; empty: none.
	OtherNamespace string
	// AgentVersions that the member has of the agent beside the release's: what reports, what a
	// Deployment of no release runs.
	AgentVersions []string
	// KindsVersion is the version of the chart that brought those that there are; empty: there are
	// none, or it is not known.
	KindsVersion string
	// Lease of another process in the member; nil for none.
	Lease *Lease
}

// Action is what is to be done in a member.
type Action string

// Actions.
const (
	ActionNone Action = "nothing"
	// ActionInstall makes the first release.
	ActionInstall Action = "install"
	// ActionUpgrade makes the next one.
	ActionUpgrade Action = "upgrade"
	// ActionRecover ends a release that a hub died over, and then makes the next one.
	ActionRecover Action = "recover"
)

// Decision is what to do, and what to say of it.
type Decision struct {
	Action Action
	// TakeOwnership: of what others have made by the same names.
	TakeOwnership bool
	// Condition AgentInstalled; nil: there is none. Of it Type, Status, Reason and
	// Message are set.
	Condition *metav1.Condition
	// RecheckAfter is when to look again; 0: not before something changes.
	RecheckAfter time.Duration
}

// How often is looked at what nobody tells of: nothing in a member is watched.
const (
	// recheckInterval finds out that a release has gone, or was changed.
	recheckInterval = 10 * time.Minute
	// blockedRecheckInterval is for what a person will change.
	blockedRecheckInterval = time.Minute
	// probeRetryDelay is for a member that does not answer, doubled for each look that found
	// nothing out, up to recheck: each takes a worker for as long as its requests last.
	probeRetryDelay = 30 * time.Second
)

// Decide says what is to be done in a member.
func Decide(s Snapshot) Decision {
	if !s.OptedIn {
		return Decision{Action: ActionNone}
	}
	if refused, is := s.decideBlocked(); is {
		return refused
	}
	return s.decideAttempt()
}

// decideBlocked is why nothing is to be done at all.
func (s Snapshot) decideBlocked() (Decision, bool) {
	switch {
	case s.PullMode:
		return s.notInstalled(v1alpha1.ReasonAgentDialsIn, 0, "its agent dials in, for the hub does not reach it: install chart ot-agent there yourself, "+
			"or give spec.connection a kubeconfig, or remove label %s", v1alpha1.LabelInstallAgent), true
	case s.ValuesProblem != nil:
		return s.notInstalled(s.ValuesProblem.Reason, 0, "%s", s.ValuesProblem.Message), true
	case s.ProbeProblem != nil:
		return s.unreachableDecision(), true
	case s.ClusterHolder != "":
		return s.notInstalled(v1alpha1.ReasonDuplicateCluster, blockedRecheckInterval, "its cluster belongs to MemberCluster %s, under whose name the agent is installed: see IdentityConfirmed", s.ClusterHolder), true
	case s.OtherClusterUID != "":
		return s.notInstalled(v1alpha1.ReasonAnotherCluster, blockedRecheckInterval, "the cluster that answers is %s, and this member was another: it was rebuilt, or the kubeconfig leads elsewhere. "+
			"If it is to take the member's place, accept it: kubectl annotate --overwrite membercluster %s %s=%s", s.OtherClusterUID, s.Self.Member, v1alpha1.AnnotationAcceptCluster, s.OtherClusterUID), true
	}
	if r := s.Release; r != nil && r.Status == StatusDeployed && r.Installer == s.Self && r.Revision == s.Desired.Revision {
		return s.newDecision(metav1.ConditionTrue, v1alpha1.ReasonInstalled, recheckInterval, "release %s has agent %s, as the hub installs it", r.Name, r.Version), true
	}
	if s.OtherNamespace != "" {
		return s.notInstalled(v1alpha1.ReasonForeignAgent, blockedRecheckInterval, "an agent is installed in namespace %s, and a cluster has one: set spec.agentNamespace to that namespace, or uninstall it", s.OtherNamespace), true
	}
	if theirs := s.foreignInstall(); theirs != "" && !s.Adopt {
		return s.notInstalled(v1alpha1.ReasonForeignAgent, blockedRecheckInterval, "%s, which this hub did not install for this member: it is left alone. "+
			"To have the hub take it over and upgrade it, with the values of the hub's namespace in place of its own: kubectl annotate membercluster %s %s=true",
			theirs, s.Self.Member, v1alpha1.AnnotationAdoptAgent), true
	}
	// What is pending of our own is recovered; nothing of Helm's goes on from the others.
	if r := s.Release; r != nil && !isFinal(r.Status) && (r.Installer != s.Self || !r.Status.IsPending()) {
		return s.notInstalled(v1alpha1.ReasonReleasePending, blockedRecheckInterval, "release %s is %s, by somebody else's doing: let that come to an end, or end it with helm rollback or helm uninstall", r.Name, r.Status), true
	}
	return s.refuseDowngrade()
}

// unreachableDecision is said of a member that could not be looked at. One that refuses the hub waits for
// a person, and says so at once; one that does not answer may come back by itself.
func (s Snapshot) unreachableDecision() Decision {
	const text = "the hub cannot look which agent it has: %s"
	if s.ProbeProblem.Reason == v1alpha1.ReasonCredentialsMissing || s.ProbeProblem.Reason == v1alpha1.ReasonUnauthorized {
		return s.notInstalled(s.ProbeProblem.Reason, blockedRecheckInterval, text, s.ProbeProblem.Message)
	}
	wait := probeRetryDelay
	for range s.FailedProbes {
		wait = min(2*wait, recheckInterval)
	}
	return s.newDecision(metav1.ConditionUnknown, s.ProbeProblem.Reason, wait, text, s.ProbeProblem.Message)
}

// refuseDowngrade is refused, of the kinds that the chart brings as of the agent, unless a
// person allows just that. Who allows the chart allows the agent that the values name
// beside it.
func (s Snapshot) refuseDowngrade() (Decision, bool) {
	var charts, agents []string
	if r := s.Release; r != nil && r.Status != StatusUninstalled {
		charts, agents = append(charts, r.Chart), append(agents, r.Version)
	}
	refuse := func(what, than, want string) (Decision, bool) {
		return s.notInstalled(v1alpha1.ReasonDowngradeRefused, blockedRecheckInterval, "the member has %s %s, and what the hub would install is %s, which is not known to be newer: upgrade the hub. "+
			"To have %s all the same: kubectl annotate --overwrite membercluster %s %s=%s",
			what, than, want, want, s.Self.Member, v1alpha1.AnnotationDowngradeAgent, want), true
	}
	want := s.Desired
	if than := findDowngraded(want.Chart, append(charts, s.KindsVersion)); than != "" && s.Downgrade != want.Chart {
		return refuse("the kinds of agent", than, want.Chart)
	}
	if than := findDowngraded(want.Version, append(agents, s.AgentVersions...)); than != "" && s.Downgrade != want.Version && s.Downgrade != want.Chart {
		return refuse("agent", than, want.Version)
	}
	return Decision{}, false
}

// decideAttempt is what there is to do, when it may be done.
func (s Snapshot) decideAttempt() Decision {
	made := s.currentAttempts()
	// An attempt without an error may have died with its process.
	last := cmp.Or(made.Error, "it did not come to an end: did the hub end meanwhile, or lose its connection?")
	if s.Lease != nil && s.Now.Before(s.Lease.Until) {
		return s.newDecision(metav1.ConditionUnknown, v1alpha1.ReasonInstalling, s.Lease.Until.Sub(s.Now),
			"%s installs, or did when it ended: it is waited for until its Lease %s is free or expires", s.Lease.Holder, LeaseName)
	}
	if made.Count >= MaxAttempts {
		return s.notInstalled(v1alpha1.ReasonInstallFailed, recheckInterval, "%d attempts at agent %s have failed, and it is not tried again before version, values or annotations change. "+
			"To try it anew: kubectl annotate membercluster %s %s-. The last one: %s", made.Count, s.Desired.Version, s.Self.Member, v1alpha1.AnnotationInstallAttempts, last)
	}
	if wait := s.nextAttemptAt().Sub(s.Now); wait > 0 {
		return s.notInstalled(v1alpha1.ReasonInstallFailed, wait, "attempt %d of %d at agent %s failed, and it is tried again: %s", made.Count, MaxAttempts, s.Desired.Version, last)
	}
	d := s.newDecision(metav1.ConditionUnknown, v1alpha1.ReasonInstalling, 0, "agent %s is being installed, attempt %d of %d", s.Desired.Version, made.Count+1, MaxAttempts)
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

// isFinal tells whether Helm can go on from a release.
func isFinal(s Status) bool {
	return s == StatusDeployed || s == StatusFailed || s == StatusSuperseded || s == StatusUninstalled
}

// foreignInstall is what somebody else has installed; empty for nothing.
func (s Snapshot) foreignInstall() string {
	r := s.Release
	switch {
	case r != nil && r.Status != StatusUninstalled && r.Installer == (Installer{}):
		return fmt.Sprintf("there is release %s, number %d", r.Name, r.Number)
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

func (s Snapshot) newDecision(status metav1.ConditionStatus, reason string, after time.Duration, format string, args ...any) Decision {
	return Decision{
		Action: ActionNone, RecheckAfter: after,
		Condition: &metav1.Condition{
			Type: v1alpha1.ConditionAgentInstalled, Status: status, Reason: reason,
			Message: strings.TrimSpace(fmt.Sprintf(format, args...)),
		},
	}
}

// LeaseName is the Lease in the agent's namespace of a member that whoever installs
// there holds.
const LeaseName = "ot-hub-install"
