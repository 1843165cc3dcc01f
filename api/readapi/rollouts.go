package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// RolloutList is a page of FleetDiskImages, by name. Next is the after of the next page;
// empty at the end.
type RolloutList struct {
	Rollouts []Rollout `json:"rollouts"`
	Next     string    `json:"next,omitempty"`
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
}

// RolloutClusters is a page of the clusters that a FleetDiskImage is placed in, by name.
// Next is the after of the next page; empty at the end.
type RolloutClusters struct {
	Clusters []RolloutCluster `json:"clusters"`
	Next     string           `json:"next,omitempty"`
}

// RolloutCluster is the progress of one cluster with the current version.
type RolloutCluster struct {
	Cluster string                `json:"cluster"`
	Wave    string                `json:"wave"`
	State   v1alpha1.ClusterState `json:"state"`
	Reason  string                `json:"reason,omitempty"`
	Message string                `json:"message,omitempty"`
}
