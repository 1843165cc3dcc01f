package tree

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// RolloutCluster is the progress of one cluster, as the read API has it.
type RolloutCluster struct {
	Cluster, Wave string
	State         v1alpha1.ClusterState
	Reason        string
	Message       string
}

// RolloutSnapshot is what the hub says of a FleetDiskImage.
type RolloutSnapshot struct {
	Now   time.Time
	Image *v1alpha1.FleetDiskImage
	// Clusters are all that it is placed in; nil where only the kinds could be read.
	Clusters []RolloutCluster
	// All: each cluster by itself.
	All bool
}

// NewRollout returns the waves of a rollout and the clusters in them.
func NewRollout(s RolloutSnapshot) *Node {
	st := &s.Image.Status
	root := &Node{Kind: "FleetDiskImage", Name: s.Image.Name, Version: s.Image.Spec.Version}
	if !rollout.IsObserved(s.Image) { // what the status says is of the spec before
		root.State, root.Words = Waiting, rollout.Unobserved
		return root
	}
	code, _ := rollout.ExitCodeOf(s.Image, rollout.WantOf(s.Image), rollout.WaitOptions{})
	root.code = &code
	root.State, root.Words = rolloutState(s.Image), rolloutWords(s.Image)
	if root.State == Failed || root.State == Attention {
		root.Message = st.Message
	}
	clusters := s.Clusters
	if clusters == nil {
		clusters = listedClusters(st)
	}
	for _, w := range st.Waves {
		wave := &Node{Name: "wave " + w.Name}
		c := w.Clusters
		switch {
		case w.DoneAt != nil:
			wave.State, wave.Words, wave.Since = Done, "done", w.DoneAt
		case w.Name == st.CurrentWave:
			wave.State = root.State
			wave.Words = numbers.Sprintf("%d of %d", c.Succeeded, c.Total)
		case c.AllFailed() > 0:
			wave.State, wave.Words = Failed, numbers.Sprintf("%d of %d", c.Succeeded, c.Total)
		default:
			wave.State, wave.Words = Waiting, numbers.Sprintf("%d of %d", c.Succeeded, c.Total)
		}
		var nodes []*Node
		for _, c := range clusters {
			if c.Wave == w.Name || (c.Wave == "" && len(st.Waves) == 1) {
				nodes = append(nodes, clusterNode(s.Image, c))
			}
		}
		if s.Clusters == nil {
			nodes = append(nodes, countedClusters(c, nodes)...)
		} else if !s.All {
			nodes = groupAlike("cluster", nodes)
		}
		wave.add(nodes...)
		root.add(wave)
	}
	return root
}

func rolloutState(i *v1alpha1.FleetDiskImage) State {
	switch rollout.SignOf(i.Status.Phase, i.Status.Reason, meta.IsStatusConditionTrue(i.Status.Conditions, v1alpha1.ConditionStalled)) {
	case render.Failed:
		return Failed
	case render.Attention:
		return Attention
	case render.Done:
		return Done
	case render.Running:
		return Running
	default:
		return Waiting
	}
}

func rolloutWords(i *v1alpha1.FleetDiskImage) string {
	st := &i.Status
	return numbers.Sprintf("%s %s  %d of %d", st.Phase, st.Reason, st.Clusters.Succeeded, st.Clusters.Total)
}

// listedClusters are those that the status names.
func listedClusters(st *v1alpha1.FleetDiskImageStatus) []RolloutCluster {
	var all []RolloutCluster
	for _, list := range [][]v1alpha1.ClusterSummary{st.Failing, st.Blocked} {
		for _, c := range list {
			all = append(all, RolloutCluster{Cluster: c.Cluster, State: c.State, Reason: c.Reason, Message: c.Message})
		}
	}
	return all
}

// countedClusters stand for clusters whose names are not known here: those of the counts that
// are not among the named ones.
func countedClusters(c v1alpha1.ClusterCounts, named []*Node) []*Node {
	var nodes []*Node
	for _, state := range v1alpha1.ClusterStates() {
		n := int(*c.CountOf(state))
		for _, one := range named {
			if word, _, _ := strings.Cut(one.Words, " "); word == string(state) {
				n--
			}
		}
		if n > 0 {
			nodes = append(nodes, &Node{Noun: "cluster", Count: n, State: stateOfCluster(state), Words: string(state)})
		}
	}
	return nodes
}

func stateOfCluster(state v1alpha1.ClusterState) State {
	switch state {
	case v1alpha1.ClusterSucceeded:
		return Done
	case v1alpha1.ClusterProgressing:
		return Running
	case v1alpha1.ClusterFailed, v1alpha1.ClusterTimedOut:
		return Failed
	case v1alpha1.ClusterDeferred:
		return Unknown
	default:
		return Waiting
	}
}

func clusterNode(i *v1alpha1.FleetDiskImage, c RolloutCluster) *Node {
	n := &Node{Name: c.Cluster, State: stateOfCluster(c.State), Words: string(c.State), Message: c.Message}
	if c.Reason != "" {
		n.Words += " " + c.Reason
	}
	if n.State == Failed && len(i.Status.Versions) > 0 {
		v := i.Status.Versions[0]
		n.add(&Node{Kind: "VMDiskImage", Namespace: v.Namespace, Name: v.Image, Words: shellword.FormatCommand("kubectl ot why image %s -n %s --cluster %s", v.Image, v.Namespace, c.Cluster)})
	}
	return n
}
