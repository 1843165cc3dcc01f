package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PruneReportList is a page of PruneReports, by name. Next is the after of the next page;
// empty at the end.
type PruneReportList struct {
	Reports []PruneReport `json:"reports"`
	Next    string        `json:"next,omitempty"`
}

// PruneReport is the summary of a PruneReport's status.
type PruneReport struct {
	Name string `json:"name"`
	// Schedule is set where it creates reports and is none itself.
	Schedule string                    `json:"schedule,omitempty"`
	Phase    v1alpha1.PruneReportPhase `json:"phase,omitempty"`
	Reason   string                    `json:"reason,omitempty"`
	Message  string                    `json:"message,omitempty"`
	// LastReport and NextScheduleTime of a schedule.
	LastReport       string                    `json:"lastReport,omitempty"`
	NextScheduleTime *metav1.Time              `json:"nextScheduleTime,omitempty"`
	StartedAt        *metav1.Time              `json:"startedAt,omitempty"`
	CompletedAt      *metav1.Time              `json:"completedAt,omitempty"`
	Digest           string                    `json:"digest,omitempty"`
	Clusters         v1alpha1.AnswerCounts     `json:"clusters"`
	UnknownClusters  []v1alpha1.UnknownCluster `json:"unknownClusters,omitempty"`
	Candidates       v1alpha1.PruneTotal       `json:"candidates"`
	Others           v1alpha1.PruneTotal       `json:"others"`
	Undeclared       v1alpha1.PruneTotal       `json:"undeclared"`
	Kept             []v1alpha1.KeptTotal      `json:"kept,omitempty"`
	Orphans          v1alpha1.PruneTotal       `json:"orphans"`
}

// PruneTargets is a page of the targets of an ImagePrune, by cluster, namespace and name.
// Next is the after of the next page; empty at the end.
type PruneTargets struct {
	Targets []PruneTarget `json:"targets"`
	Next    string        `json:"next,omitempty"`
}

// PruneTarget is the progress of one target.
type PruneTarget struct {
	Cluster   string              `json:"cluster"`
	Namespace string              `json:"namespace"`
	Name      string              `json:"name"`
	UID       types.UID           `json:"uid"`
	Revision  string              `json:"revision,omitempty"`
	Bytes     int64               `json:"bytes"`
	State     v1alpha1.PruneState `json:"state"`
	Reason    string              `json:"reason,omitempty"`
	Message   string              `json:"message,omitempty"`
	// Until is the end of its undo window, by its cluster's clock.
	Until *metav1.Time `json:"until,omitempty"`
}

// Verdict is the kind of a row.
type Verdict string

// PruneRows is a page of the rows of a PruneReport, by cluster. Next is the after of the
// next page; empty at the end.
type PruneRows struct {
	Report string     `json:"report"`
	Digest string     `json:"digest"`
	Rows   []PruneRow `json:"rows"`
	Next   string     `json:"next,omitempty"`
}

// PruneRow is about one image, one storage object, or one unknown cluster. Unknown values
// are omitted.
type PruneRow struct {
	Cluster    string    `json:"cluster"`
	ClusterUID types.UID `json:"clusterUID,omitempty"`
	Verdict    Verdict   `json:"verdict"`
	// Reason why an image is kept, or a cluster is unknown; Detail explains it.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Kind is VMDiskImage, or the kind of an orphan; empty for a cluster.
	Kind      string               `json:"kind,omitempty"`
	Namespace string               `json:"namespace,omitempty"`
	Name      string               `json:"name,omitempty"`
	UID       types.UID            `json:"uid,omitempty"`
	Revision  string               `json:"revision,omitempty"`
	Phase     v1alpha1.Phase       `json:"phase,omitempty"`
	Origin    v1alpha1.ImageOrigin `json:"origin,omitempty"`
	// DeclaredBy is the FleetDiskImage that an image is a version of.
	DeclaredBy string `json:"declaredBy,omitempty"`
	// Image and ImageUID are the image that an orphan was created for.
	Image    string    `json:"image,omitempty"`
	ImageUID types.UID `json:"imageUID,omitempty"`
	// Bytes are unknown for single kept images.
	Bytes             *int64       `json:"bytes,omitempty"`
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// ObservedAt is the time of the cluster's report, by its own clock.
	ObservedAt *metav1.Time `json:"observedAt,omitempty"`
}

// Verdicts of rows.
const (
	// VerdictCandidate: the image can be pruned.
	VerdictCandidate Verdict = "candidate"
	// VerdictKept: the image stays, for the row's reason.
	VerdictKept Verdict = "kept"
	// VerdictOrphan: storage that belongs to no image.
	VerdictOrphan Verdict = "orphan"
	// VerdictUnknown: the cluster has not answered.
	VerdictUnknown Verdict = "unknown"
)

// Verdicts lists all verdicts.
func Verdicts() []Verdict {
	return []Verdict{VerdictCandidate, VerdictKept, VerdictOrphan, VerdictUnknown}
}

// PruneBy says what the candidates of a PruneReport are grouped by.
type PruneBy string

// Groupings of candidates.
const (
	PruneByImage   PruneBy = "image"
	PruneByCluster PruneBy = "cluster"
	PruneByAge     PruneBy = "age"
)

// PruneBys lists all groupings.
func PruneBys() []PruneBy { return []PruneBy{PruneByImage, PruneByCluster, PruneByAge} }

// PruneGroup counts candidates of a PruneReport.
type PruneGroup struct {
	// Name of the image as namespace/name, of the cluster, or the range of ages.
	Name     string `json:"name"`
	Clusters int    `json:"clusters"`
	Images   int    `json:"images"`
	Bytes    int64  `json:"bytes"`
	// Others of the images were made by people, not by a plan.
	Others int `json:"others,omitempty"`
	// DeclaredBy is the FleetDiskImage that the images are versions of.
	DeclaredBy string `json:"declaredBy,omitempty"`
	// OldestUnreferencedSince is when the last machine left the image that is unreferenced
	// for longest.
	OldestUnreferencedSince *metav1.Time `json:"oldestUnreferencedSince,omitempty"`
	// YoungestUnreferencedSince is the same of the image that is unreferenced for the shortest
	// time; absent where that is unknown of one.
	YoungestUnreferencedSince *metav1.Time `json:"youngestUnreferencedSince,omitempty"`
}

// PruneGroups are the candidates of a PruneReport that an ImagePrune would select, by group,
// those that take most storage first; ages by age.
type PruneGroups struct {
	Report string  `json:"report"`
	Digest string  `json:"digest"`
	By     PruneBy `json:"by"`
	// Total of what is selected, which an ImagePrune with the same images, clusters and
	// includeOthers deletes.
	Total PruneGroup `json:"total"`
	// LeftOut were made by people, and stay without includeOthers.
	LeftOut v1alpha1.PruneTotal `json:"leftOut"`
	// Groups are the first of GroupsTotal, without those that TooRecent counts. Omitted are the
	// images of the others.
	Groups      []PruneGroup        `json:"groups"`
	GroupsTotal int                 `json:"groupsTotal"`
	Omitted     v1alpha1.PruneTotal `json:"omitted"`
	// TooRecent are the images of groups of which one image was referenced within
	// unreferencedFor, or it is not known when: an ImagePrune selects by name, not by age.
	TooRecent v1alpha1.PruneTotal `json:"tooRecent"`
	// Warnings are names that match nothing, and clusters with more images than fit into a plan.
	Warnings []string `json:"warnings,omitempty"`
}

// PruneProgressList is a page of ImagePrunes. Next is the after of the next page; empty at the
// end.
type PruneProgressList struct {
	Prunes []PruneProgress `json:"prunes"`
	Next   string          `json:"next,omitempty"`
}

// PruneProgress is an ImagePrune and how far it is.
type PruneProgress struct {
	Name      string      `json:"name"`
	CreatedAt metav1.Time `json:"createdAt"`
	Report    string      `json:"report"`
	Digest    string      `json:"digest"`
	// Images and Clusters that it names, and how many; absent for all.
	Images        []string `json:"images,omitempty"`
	ImagesTotal   int      `json:"imagesTotal,omitempty"`
	Clusters      []string `json:"clusters,omitempty"`
	ClustersTotal int      `json:"clustersTotal,omitempty"`
	IncludeOthers bool     `json:"includeOthers,omitempty"`
	ApprovedBy    string   `json:"approvedBy"`
	Undo          bool     `json:"undo,omitempty"`

	UndoWindowSeconds int64                    `json:"undoWindowSeconds"`
	Phase             v1alpha1.ImagePrunePhase `json:"phase,omitempty"`
	Reason            string                   `json:"reason,omitempty"`
	Message           string                   `json:"message,omitempty"`
	StartedAt         *metav1.Time             `json:"startedAt,omitempty"`
	FinishedAt        *metav1.Time             `json:"finishedAt,omitempty"`
	PendingUntil      *metav1.Time             `json:"pendingUntil,omitempty"`
	InClusters        int32                    `json:"inClusters"`
	Targets           v1alpha1.TargetCounts    `json:"targets"`
	Bytes             int64                    `json:"bytes"`
	PrunedBytes       int64                    `json:"prunedBytes"`
	Skipped           []v1alpha1.TargetSummary `json:"skipped,omitempty"`
}
