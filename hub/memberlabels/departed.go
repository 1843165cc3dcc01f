package memberlabels

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ConfigMap is the name of the ConfigMap in the hub's namespace with the labels of departed
// members: a key for each member. Deleting a key forgets its labels.
const ConfigMap = "ot-hub-labels"

const (
	// maxLabelBytes bounds the labels of one member, and maxTotalBytes the entries of all: a
	// ConfigMap holds 1 MiB.
	maxLabelBytes = 4 << 10
	maxTotalBytes = 512 << 10
)

// departed is what is stored of a departed member.
type departed struct {
	Labels map[string]string `json:"labels"`
	// Cluster is the Cluster of Cluster API that it was, as namespace/name.
	Cluster string      `json:"cluster,omitempty"`
	LeftAt  metav1.Time `json:"leftAt"`
}

// Remember stores the labels that outlive a member which leaves. It returns whether data has
// changed. Over the limit, those that left first are dropped.
func Remember(data map[string]string, member *v1alpha1.MemberCluster, now time.Time) (changed bool) {
	before, known := data[member.Name]
	next := departed{Labels: firstLabels(Kept(member)), Cluster: clusterOf(member), LeftAt: metav1.NewTime(now.UTC().Truncate(time.Second))}
	if len(next.Labels) == 0 {
		delete(data, member.Name)
		return known
	}
	var stored departed
	if known && json.Unmarshal([]byte(before), &stored) == nil && maps.Equal(stored.Labels, next.Labels) && stored.Cluster == next.Cluster {
		return false // the same departure again
	}
	text, err := json.Marshal(next)
	if err != nil {
		panic(err) // plain types of this package
	}
	data[member.Name] = string(text)
	dropOldest(data)
	return true
}

// Restore adds the labels that a member had when it left and does not have now, and returns
// them. Another Cluster under the same name gets none: who creates Clusters chooses no labels.
func Restore(data map[string]string, member *v1alpha1.MemberCluster) (restored map[string]string) {
	var stored departed
	if json.Unmarshal([]byte(data[member.Name]), &stored) != nil {
		return nil // there is none, or somebody has edited it
	}
	if cluster := clusterOf(member); cluster != "" && cluster != stored.Cluster {
		return nil
	}
	restored = map[string]string{}
	for key, value := range stored.Labels {
		if _, exists := member.Labels[key]; exists || IsReserved(key) {
			continue
		}
		restored[key] = value
		metav1.SetMetaDataLabel(&member.ObjectMeta, key, value)
	}
	return restored
}

func clusterOf(member *v1alpha1.MemberCluster) string {
	if ref := member.Spec.Connection.ClusterAPI; ref != nil {
		return ref.Namespace + "/" + ref.Name
	}
	return ""
}

// firstLabels drops the last labels beyond maxLabelBytes.
func firstLabels(labels map[string]string) map[string]string {
	left := maxLabelBytes
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if left -= len(key) + len(labels[key]); left < 0 {
			delete(labels, key)
		}
	}
	return labels
}

func dropOldest(data map[string]string) {
	total := 0
	for name, text := range data {
		total += len(name) + len(text)
	}
	if total <= maxTotalBytes {
		return
	}
	leftAt := make(map[string]time.Time, len(data))
	for name, text := range data {
		var stored departed
		_ = json.Unmarshal([]byte(text), &stored) // unreadable: it is dropped first
		leftAt[name] = stored.LeftAt.Time
	}
	names := slices.SortedFunc(maps.Keys(data), func(a, b string) int {
		return cmp.Or(leftAt[a].Compare(leftAt[b]), cmp.Compare(a, b))
	})
	for _, name := range names {
		if total <= maxTotalBytes {
			return
		}
		total -= len(name) + len(data[name])
		delete(data, name)
	}
}
