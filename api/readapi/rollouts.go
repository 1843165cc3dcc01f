package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What a RolloutList is sorted by, beside its name. What is unknown is last.
const (
	// RolloutsByName: by name, the default.
	RolloutsByName = "name"
	// RolloutsByPhase: those that wait for a person or failed first.
	RolloutsByPhase = "phase"
	// RolloutsByExpected: what is expected first.
	RolloutsByExpected = "expected"
	// RolloutsByFailed: those with the most failed clusters last.
	RolloutsByFailed = "failed"
	// RolloutsByClusters: those with the most clusters last.
	RolloutsByClusters = "clusters"
)

// RolloutOrders lists what a RolloutList can be sorted by, the default first.
func RolloutOrders() []string {
	return []string{RolloutsByName, RolloutsByPhase, RolloutsByExpected, RolloutsByFailed, RolloutsByClusters}
}

// RolloutsInAttention is a phase to ask for: those that wait for a person, or have failed
// clusters.
const RolloutsInAttention = "attention"

// RolloutList is a page of FleetDiskImages. Next is the after of the next page, by name; empty
// at the end, and in another order.
type RolloutList struct {
	Rollouts []Rollout `json:"rollouts"`
	Next     string    `json:"next,omitempty"`
	// Total is how many match, and All how many there are.
	Total int `json:"total"`
	All   int `json:"all"`
	// Phases counts all of them; those whose phase is unknown are not in it.
	Phases map[v1alpha1.RolloutPhase]int `json:"phases,omitempty"`
	// Attention is how many wait for a person, or have failed clusters.
	Attention int `json:"attention,omitempty"`
}

// Rollout is the summary of a FleetDiskImage's status.
type Rollout struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Observed: the status is about this version, not the one before.
	Observed    bool                      `json:"observed"`
	Phase       v1alpha1.RolloutPhase     `json:"phase,omitempty"`
	Reason      string                    `json:"reason,omitempty"`
	Message     string                    `json:"message,omitempty"`
	CurrentWave string                    `json:"currentWave,omitempty"`
	Clusters    v1alpha1.ClusterCounts    `json:"clusters"`
	Waves       []v1alpha1.WaveStatus     `json:"waves,omitempty"`
	Failing     []v1alpha1.ClusterSummary `json:"failing,omitempty"`
	Blocked     []v1alpha1.ClusterSummary `json:"blocked,omitempty"`
	ExpectedAt  *metav1.Time              `json:"expectedAt,omitempty"`
	// ExpectedReason is why ExpectedAt is absent while clusters are unfinished.
	ExpectedReason string `json:"expectedReason,omitempty"`
	// Attention: it waits for a person, or has failed clusters.
	Attention bool `json:"attention,omitempty"`
}

// RolloutDetail is a FleetDiskImage: what it rolls out, in which order, who has decided what,
// and which versions there were.
type RolloutDetail struct {
	Rollout
	// UID and Generation identify what this is about.
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	// Since is when the version became the current one.
	Since *metav1.Time `json:"since,omitempty"`
	// Namespace and Image name the VMDiskImage in the members.
	Namespace string `json:"namespace"`
	Image     string `json:"image"`
	// Source that it is downloaded from, and DiskBytes the size of the disk.
	Source    string `json:"source"`
	DiskBytes int64  `json:"diskBytes"`
	// Lanes are the waves in order, with what the spec says of them.
	Lanes []RolloutLane `json:"lanes"`
	// MaxFailures is how many clusters may fail before the others are held back, as in 5%.
	MaxFailures string `json:"maxFailures,omitempty"`
	// ProgressDeadline is how long a cluster may take, as in 6h0m0s.
	ProgressDeadline string                   `json:"progressDeadline,omitempty"`
	OfflineClusters  v1alpha1.OfflineClusters `json:"offlineClusters,omitempty"`
	// Paused says who paused it; absent where it is not.
	Paused        *RolloutPause `json:"paused,omitempty"`
	LastSuccessAt *metav1.Time  `json:"lastSuccessAt,omitempty"`
	BlockedSince  *metav1.Time  `json:"blockedSince,omitempty"`
	// RetryRequested: clusters that have failed are about to start over.
	RetryRequested bool `json:"retryRequested,omitempty"`
	// Changes since the version before; absent for the first one.
	Changes  *VersionChanges  `json:"changes,omitempty"`
	Versions []RolloutVersion `json:"versions"`
}

// RolloutLane is a wave: what the spec says of it, and when it ran.
type RolloutLane struct {
	Name     string                 `json:"name"`
	Clusters v1alpha1.ClusterCounts `json:"clusters"`
	// AtATime is how many clusters import together, as in 25%; absent: all.
	AtATime string `json:"atATime,omitempty"`
	// MinSuccessTime is how long it must have been done before the next one starts.
	MinSuccessTime  string `json:"minSuccessTime,omitempty"`
	RequireApproval bool   `json:"requireApproval,omitempty"`
	// Approval of the wave; absent also where PendingSources wait for another one.
	Approval       *ApprovalGiven `json:"approval,omitempty"`
	PendingSources int            `json:"pendingSources,omitempty"`
	// StartedAt is when its first cluster that is known to have started did, and DoneAt when
	// it became done.
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	DoneAt    *metav1.Time `json:"doneAt,omitempty"`
}

// ApprovalGiven is who approved a version for a wave.
type ApprovalGiven struct {
	Wave string       `json:"wave"`
	By   string       `json:"by"`
	At   *metav1.Time `json:"at,omitempty"`
}

// RolloutPause is who paused a rollout, where kubectl ot or the dashboard did.
type RolloutPause struct {
	By      string `json:"by,omitempty"`
	Because string `json:"because,omitempty"`
}

// RolloutOwners are the GitOps controllers that have fields which people change of a rollout,
// and would write their own values again.
type RolloutOwners struct {
	// Approvals, Paused and Retry are who has spec.approvals, spec.rollout.paused and
	// spec.retry, as in Flux (Kustomization flux-system/images); absent for nobody.
	Approvals string `json:"approvals,omitempty"`
	Paused    string `json:"paused,omitempty"`
	Retry     string `json:"retry,omitempty"`
}

// RolloutVersion is a version that a FleetDiskImage remembers.
type RolloutVersion struct {
	Version   string      `json:"version"`
	Since     metav1.Time `json:"since"`
	Namespace string      `json:"namespace"`
	Image     string      `json:"image"`
	Revision  string      `json:"revision"`
	// CanGoBack: kubectl ot rollout abort --back-to can; NotRecorded is why it cannot.
	CanGoBack   bool            `json:"canGoBack,omitempty"`
	NotRecorded string          `json:"notRecorded,omitempty"`
	Approvals   []ApprovalGiven `json:"approvals,omitempty"`
}

// VersionChanges is what differs from a version before.
type VersionChanges struct {
	Since  string   `json:"since"`
	Fields []Change `json:"fields,omitempty"`
	// NotRecorded is why Fields are not known.
	NotRecorded string `json:"notRecorded,omitempty"`
}

// Change is a field that differs between two versions.
type Change struct {
	Field string `json:"field"`
	From  string `json:"from,omitempty"`
	To    string `json:"to,omitempty"`
}

// MaxReachClusters bounds the clusters that a RolloutReach names.
const MaxReachClusters = 20

// RolloutReach is what the approval of a wave would start. UID, Generation and Version are
// what it is about.
type RolloutReach struct {
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
	Version    string    `json:"version"`
	Wave       string    `json:"wave"`
	// Observed: the counts are of this version.
	Observed bool `json:"observed"`
	// Approval that the wave has already; absent for none, and where Sources are to be added:
	// then Extends is the one that another would replace.
	Approval *ApprovalGiven `json:"approval,omitempty"`
	Extends  *ApprovalGiven `json:"extends,omitempty"`
	// ApproveSources is what spec.approvals[].sources has to be, Extends included; absent where
	// no cluster gets another source than the template's. Sources are those of them that no
	// approval covers yet, the first MaxReachSources described.
	ApproveSources []string      `json:"approveSources,omitempty"`
	Sources        []ReachSource `json:"sources,omitempty"`
	// Waiting clusters of those that start cannot begin, for a missing label or an invalid
	// override: the rollout says which.
	Waiting int32 `json:"waiting,omitempty"`
	// Clusters that start, Offline of these are offline. Named are the first, by name.
	Clusters int32         `json:"clusters"`
	Offline  int32         `json:"offline"`
	Named    []NamedReach  `json:"named"`
	Before   []RolloutLane `json:"before,omitempty"`
	AtATime  string        `json:"atATime,omitempty"`
	// EachBytes is what one of them downloads that gets the template. AtMost: no size of the
	// download is known, and that of the disk was taken.
	EachBytes int64 `json:"eachBytes"`
	AtMost    bool  `json:"atMost,omitempty"`
	// Downloads are those of the clusters that get another revision, by host, the largest
	// MaxReachHosts: Bytes of all, AtMostBytes as AtMost. Unchanged clusters download nothing:
	// only the way to the source changes.
	Downloads   []ReachDownload `json:"downloads"`
	Bytes       int64           `json:"bytes"`
	AtMostBytes bool            `json:"atMostBytes,omitempty"`
	Unchanged   int32           `json:"unchanged,omitempty"`
	// Seconds from its start until the last of them is done, with a range. Without them,
	// UnknownReason and UnknownMessage say why.
	Seconds         *int64          `json:"seconds,omitempty"`
	EarliestSeconds *int64          `json:"earliestSeconds,omitempty"`
	LatestSeconds   *int64          `json:"latestSeconds,omitempty"`
	UnknownReason   string          `json:"unknownReason,omitempty"`
	UnknownMessage  string          `json:"unknownMessage,omitempty"`
	Changes         *VersionChanges `json:"changes,omitempty"`
}

// Bounds of what a RolloutReach describes.
const (
	MaxReachSources = 20
	MaxReachHosts   = 20
)

// ReachSource is what some clusters of a wave are to have.
type ReachSource struct {
	// Digest as approvals name it.
	Digest string `json:"digest"`
	// Source without credentials, and From the overrides that it comes from, as in overrides[2];
	// none for the template alone. Both are absent where no cluster has it by its labels now.
	Source   string   `json:"source,omitempty"`
	From     []string `json:"from,omitempty"`
	Clusters int32    `json:"clusters"`
}

// ReachDownload is what clusters download from one host.
type ReachDownload struct {
	// Host of the sources; absent where they name none.
	Host     string `json:"host,omitempty"`
	Clusters int    `json:"clusters"`
	Bytes    int64  `json:"bytes"`
	AtMost   bool   `json:"atMost,omitempty"`
}

// NamedReach is a cluster that would start. Offline is why it is not reachable now.
type NamedReach struct {
	Cluster string `json:"cluster"`
	Offline string `json:"offline,omitempty"`
}

// RolloutClusters is a page of the clusters that a FleetDiskImage is placed in, by name.
// Next is the after of the next page; empty at the end.
type RolloutClusters struct {
	Clusters []RolloutCluster `json:"clusters"`
	// Total is how many match.
	Total int    `json:"total"`
	Next  string `json:"next,omitempty"`
}

// RolloutCluster is the progress of one cluster with the current version.
type RolloutCluster struct {
	Cluster string                `json:"cluster"`
	Wave    string                `json:"wave"`
	State   v1alpha1.ClusterState `json:"state"`
	Reason  string                `json:"reason,omitempty"`
	Message string                `json:"message,omitempty"`
	// StartedAt is when the hub planned it; absent where that is unknown.
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// Expected is when it will be ready, for clusters in progress.
	Expected *Estimate `json:"expected,omitempty"`
}
