package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
)

// Goal is what a client waits for.
type Goal struct {
	// Kind is ready, finished, wave or in.
	Kind string
	// Target is the wave, or the cluster.
	Target string
}

// Kinds of goals.
const (
	GoalReady    = "ready"
	GoalFinished = "finished"
	GoalWave     = "wave"
	GoalIn       = "in"
)

// ParseGoal parses --for.
func ParseGoal(text string) (Goal, error) {
	kind, target, hasTarget := strings.Cut(text, "=")
	switch kind {
	case GoalReady, GoalFinished:
		if !hasTarget {
			return Goal{Kind: kind}, nil
		}
	case GoalWave, GoalIn:
		if target != "" {
			return Goal{kind, target}, nil
		}
	}
	return Goal{}, fmt.Errorf("--for %s: must be ready, finished, wave=NAME or in=CLUSTER", text)
}

// InCluster is what one cluster reports of the version, for Goal in.
type InCluster struct {
	// Known: the cluster reports. WhyUnknown says why not.
	Known      bool
	WhyUnknown string
	// Placed: the FleetDiskImage selects it. Image is nil where the cluster has none.
	Placed bool
	Image  *v1alpha1.ReportedImage
	// Effective is what the cluster is to have; nil: the template.
	Effective *override.Effective
}

// Want is the version that is waited for: another one may replace it meanwhile.
type Want struct{ Version, Revision string }

// WantOf returns the version that a FleetDiskImage asks for. Revision is that of the template, with
// what overrides change of it.
func WantOf(img *v1alpha1.FleetDiskImage) Want {
	return Want{img.Spec.Version, img.Spec.Template.Revision() + overridesOfRevisions(img)}
}

// overridesOfRevisions are the overrides that make other revisions, with their clusters; empty for
// none.
func overridesOfRevisions(img *v1alpha1.FleetDiskImage) string {
	var making []v1alpha1.ImageOverride
	for _, o := range img.Spec.Overrides {
		o := v1alpha1.ImageOverride{
			SourceType: o.SourceType, URL: o.URL, Checksum: o.Checksum, StorageClass: o.StorageClass,
			DiskSize: o.DiskSize, Architecture: o.Architecture, DataSource: o.DataSource, ClusterSelector: o.ClusterSelector, ClusterNames: o.ClusterNames,
		}
		if fields := o; !isEmptyOverride(&fields) {
			making = append(making, o)
		}
	}
	if len(making) == 0 {
		return ""
	}
	text, err := json.Marshal(making)
	if err != nil {
		panic(err) // the type holds only strings, numbers and quantities
	}
	return string(text)
}

func isEmptyOverride(o *v1alpha1.ImageOverride) bool {
	o.ClusterSelector, o.ClusterNames = nil, nil
	return equality.Semantic.DeepEqual(o, &v1alpha1.ImageOverride{})
}

// WaitOptions are flags.
type WaitOptions struct{ UntilHold, AllowUnknown bool }

// Verdict ends a wait, or says why it goes on.
type Verdict struct {
	End     bool
	Code    exit.Code
	Message string
}

// ExitCodeOf returns what commands end with that show a rollout as it is now.
func ExitCodeOf(img *v1alpha1.FleetDiskImage, want Want, o WaitOptions) (code exit.Code, ended bool) {
	v := JudgeWait(img, want, Goal{Kind: GoalReady}, nil, o)
	if !v.End {
		v.Code = exit.NotYet
	}
	return v.Code, v.End
}

// JudgeWait decides whether a wait ends. A status about an earlier spec decides nothing: a
// pipeline publishes, then waits. A wait for a version that was replaced or taken back has failed.
func JudgeWait(img *v1alpha1.FleetDiskImage, want Want, goal Goal, in *InCluster, o WaitOptions) Verdict {
	st := &img.Status
	subject := fmt.Sprintf("%s %s", img.Name, img.Spec.Version)
	if img.DeletionTimestamp != nil {
		return Verdict{true, exit.No, subject + " is being deleted"}
	}
	switch {
	case img.Spec.Version != want.Version:
		return Verdict{true, exit.No, fmt.Sprintf("FleetDiskImage %s is at version %s now, and %s was waited for", img.Name, img.Spec.Version, want.Version)}
	case WantOf(img) != want:
		return Verdict{true, exit.No, fmt.Sprintf("version %s of FleetDiskImage %s has another source now than the one that was waited for", want.Version, img.Name)}
	}
	if goal.Kind == GoalWave && goal.Target != v1alpha1.WaveRest && !slices.ContainsFunc(img.Spec.Rollout.Waves, func(w v1alpha1.Wave) bool { return w.Name == goal.Target }) {
		return Verdict{true, exit.Unanswered, fmt.Sprintf("%s has no wave %s: it has %s", img.Name, goal.Target, strings.Join(waveNames(img), ", "))}
	}
	if !IsObserved(img) {
		return Verdict{Message: subject + ": the hub has not processed it yet"}
	}
	message := fmt.Sprintf("%s is %s, %s: %s", subject, st.Phase, st.Reason, st.Message)
	if reached, ended := judgeGoal(img, goal, in, o); ended {
		if reached.Message == "" {
			reached.Message = message
		}
		return reached
	}
	stalled := meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled)
	switch {
	case st.Phase == v1alpha1.RolloutFailed, st.Phase == v1alpha1.RolloutSucceeded && goal.Kind != GoalIn:
		return Verdict{true, exit.No, message}
	case st.Phase == v1alpha1.RolloutWaiting && v1alpha1.IsHeldReason(st.Reason): // clusters in progress are waited for
		code := exit.Held
		if o.UntilHold {
			code = exit.Yes
		}
		return Verdict{true, code, message}
	case stalled && goal.Kind != GoalFinished:
		return Verdict{true, exit.No, message}
	case st.Phase == v1alpha1.RolloutWaiting && st.Reason == v1alpha1.ReasonOfflineClusters && !o.AllowUnknown:
		return Verdict{true, exit.Unknown, message}
	default:
		return Verdict{Message: message}
	}
}

func judgeGoal(img *v1alpha1.FleetDiskImage, goal Goal, in *InCluster, o WaitOptions) (v Verdict, ended bool) {
	st := &img.Status
	switch goal.Kind {
	case GoalWave:
		i := slices.IndexFunc(st.Waves, func(w v1alpha1.WaveStatus) bool { return w.Name == goal.Target })
		if i < 0 || st.Waves[i].DoneAt == nil {
			return Verdict{}, false
		}
		c := st.Waves[i].Clusters
		return Verdict{true, exit.Yes, numbers.Sprintf("%s %s: wave %s is done: %d ready, %d failed, %d offline of %d clusters",
			img.Name, img.Spec.Version, goal.Target, c.Succeeded, c.AllFailed(), c.Deferred, c.Total)}, true
	case GoalIn:
		return judgeIn(img, goal.Target, in, o)
	default:
		return Verdict{End: true, Code: exit.Yes}, st.Phase == v1alpha1.RolloutSucceeded
	}
}

func judgeIn(img *v1alpha1.FleetDiskImage, cluster string, in *InCluster, o WaitOptions) (Verdict, bool) {
	subject := fmt.Sprintf("%s %s in %s", img.Name, img.Spec.Version, cluster)
	if in == nil {
		return Verdict{}, false
	}
	revision, unusable := img.Spec.Template.Revision(), ""
	if in.Effective != nil {
		revision, unusable = in.Effective.Revision, in.Effective.WhyUnusable()
	}
	r := in.Image
	switch {
	case !in.Known && !o.AllowUnknown:
		return Verdict{true, exit.Unknown, fmt.Sprintf("%s: %s", subject, in.WhyUnknown)}, true
	case !in.Placed:
		return Verdict{true, exit.No, subject + ": spec.placement does not select this cluster"}, true
	case unusable != "":
		return Verdict{true, exit.No, subject + " cannot begin: " + unusable}, true
	case r == nil:
		return Verdict{}, false
	case r.Revision == revision && r.Phase == v1alpha1.PhaseSucceeded && (r.ServingRevision == "" || r.ServingRevision == revision):
		return Verdict{true, exit.Yes, subject + " is ready"}, true
	case r.Plan != nil && (r.Plan.Revision == "" || r.Plan.Revision == revision) && (r.Plan.State == v1alpha1.PlanItemNotOurs || r.Plan.State == v1alpha1.PlanItemRejected):
		return Verdict{true, exit.No, fmt.Sprintf("%s is %s: %s", subject, r.Plan.State, r.Plan.Message)}, true
	case r.Revision == revision && r.Phase == v1alpha1.PhaseFailed && hasFailed(&img.Status, cluster):
		return Verdict{true, exit.No, fmt.Sprintf("%s is Failed, %s: %s", subject, r.Reason, r.Message)}, true
	default:
		return Verdict{}, false
	}
}

// hasFailed reports whether the hub counts a cluster as failed. One that reports a failure may
// be about to start over, or may have before the hub has looked.
func hasFailed(st *v1alpha1.FleetDiskImageStatus, cluster string) bool {
	return int(st.Clusters.AllFailed()) > len(st.Failing) ||
		slices.ContainsFunc(st.Failing, func(c v1alpha1.ClusterSummary) bool { return c.Cluster == cluster })
}

func waveNames(img *v1alpha1.FleetDiskImage) (names []string) {
	for i := range img.Spec.Rollout.Waves {
		names = append(names, img.Spec.Rollout.Waves[i].Name)
	}
	return append(names, v1alpha1.WaveRest)
}
