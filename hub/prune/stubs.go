package prune

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Cluster is one cluster when a PruneReport is made.
type Cluster struct {
	Name       string
	ClusterUID types.UID
	// Unknown and Message say why nothing of it counts; empty: it has answered.
	Unknown, Message string
	Root             *v1alpha1.ReportRoot
	// Images of all pages that the root lists.
	Images []v1alpha1.ReportedImage
	// Wanted are the images that a plan or a FleetDiskImage wants, and by whom.
	Wanted map[types.NamespacedName]string
	// Declared names the FleetDiskImage that an image is a version of.
	Declared map[types.NamespacedName]string
}

// Judge says of each image whether it could go, or why it is kept.
func Judge(spec *v1alpha1.PruneReportSpec, c Cluster) v1alpha1.ReportedCluster {
	panic("not there yet")
}

// Placed reads spec.placement. The error says what is wrong with it.
func Placed(spec *v1alpha1.PruneReportSpec) (func(name string, labels map[string]string) bool, error) {
	panic("not there yet")
}

// Asked is what is known of a cluster that was asked.
type Asked struct {
	Inquiry        types.UID
	Plan           *v1alpha1.ClusterPlanSpec
	Root           *v1alpha1.ReportRoot
	RootClusterUID types.UID
	Doubt          string
	Offline        bool
}

// Answer tells why a cluster has not answered; empty: it has.
func Answer(a Asked) (unknown, message string) { panic("not there yet") }

// Standing is how a cluster stands with a report.
type Standing struct {
	Cluster, Unknown, Message string
	Offline                   bool
}

// CollectView is all that a decision about a PruneReport rests on.
type CollectView struct {
	Now      time.Time
	Report   *v1alpha1.PruneReport
	Clusters []Standing
	Invalid  string // the selector cannot be read
}

// CollectDecision is what is to be done about it.
type CollectDecision struct {
	Status  v1alpha1.PruneReportStatus
	Collect bool
	After   time.Duration
}

// Collect decides when a report is collected.
func Collect(v CollectView) CollectDecision { panic("not there yet") }

// Complete is the status of a report whose pages are written.
func Complete(report *v1alpha1.PruneReport, clusters []v1alpha1.ReportedCluster, pages int, digest string, now time.Time) v1alpha1.PruneReportStatus {
	panic("not there yet")
}

// TooLarge is the status of a report for which Paginate returns ErrTooLarge.
func TooLarge(report *v1alpha1.PruneReport, now time.Time) v1alpha1.PruneReportStatus {
	panic("not there yet")
}

// ErrTooLarge says that a report has more rows than it may have pages for.
var ErrTooLarge error

// Paginate spreads clusters over pages.
func Paginate(report types.UID, clusters []v1alpha1.ReportedCluster) (pages [][]v1alpha1.ReportedCluster, digest string, err error) {
	panic("not there yet")
}

// Digest of the pages of a report.
func Digest(report types.UID, pages [][]v1alpha1.ReportedCluster) string { panic("not there yet") }

// PageName is the name of a page, from 0.
func PageName(report, digest string, n int) string { panic("not there yet") }

// ScheduleView is all that a decision about a schedule rests on.
type ScheduleView struct {
	Now      time.Time
	Report   *v1alpha1.PruneReport
	Children []v1alpha1.PruneReport
	InUse    map[string]bool // by ImagePrunes that have not ended
}

// ScheduleDecision is what is to be done: Create first, then the status.
type ScheduleDecision struct {
	Create *v1alpha1.PruneReport
	Delete []string
	Status v1alpha1.PruneReportStatus
	After  time.Duration
}

// Schedule decides whether a report is made.
func Schedule(v ScheduleView) ScheduleDecision { panic("not there yet") }

// Target is an image that is to be pruned.
type Target struct {
	Cluster    string
	ClusterUID types.UID
	v1alpha1.PruneCandidate
}

// Targets are the candidates that an ImagePrune selects, by cluster, namespace and
// name.
func Targets(spec *v1alpha1.ImagePruneSpec, clusters []v1alpha1.ReportedCluster) []Target {
	panic("not there yet")
}

// Planned is what plans are to carry, by cluster.
func Planned(p *v1alpha1.ImagePrune, targets []Target) map[string][]v1alpha1.PlannedPrune {
	panic("not there yet")
}

// Member is a MemberCluster.
type Member struct {
	ClusterUID types.UID
	Offline    bool
}

// PruneView is all that a decision about an ImagePrune rests on.
type PruneView struct {
	Now      time.Time
	Prune    *v1alpha1.ImagePrune
	Report   *v1alpha1.PruneReport // nil: there is none
	Targets  []Target              // as the function Targets sorts them
	Loaded   bool                  // the pages are read
	Changed  string                // why they are not as they were reviewed
	Members  map[string]Member
	Reported func(Target) (v1alpha1.PruneStatus, bool)
	Held     func(Target) (reason string) // AnotherPrune, PlanFull; empty: it is in the plan
}

// PruneDecision is what is to be done: with Load, pages are to be read.
type PruneDecision struct {
	Status v1alpha1.ImagePruneStatus
	Load   bool
	After  time.Duration
}

// Decide says how far an ImagePrune is.
func Decide(v PruneView) PruneDecision { panic("not there yet") }

// StateOf says how far one target is.
func StateOf(v PruneView, t Target) v1alpha1.PruneStatus { panic("not there yet") }
