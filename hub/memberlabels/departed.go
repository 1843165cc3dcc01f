package memberlabels

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ConfigMap is the name of the ConfigMap in the hub's namespace with the labels of departed
// members: a key for each member. Deleting a key forgets its labels.
const ConfigMap = "ot-hub-labels"

const (
	// maxAge is how long labels are kept: later, another cluster may have taken the name.
	maxAge = 30 * 24 * time.Hour
	// maxLabelBytes bounds the labels of one member, and maxTotalBytes the entries of all: a
	// ConfigMap holds 1 MiB.
	maxLabelBytes = 4 << 10
	maxTotalBytes = 512 << 10
)

// departed is what is stored of a departed member.
type departed struct {
	Labels map[string]string `json:"labels"`
	// Cluster is the Cluster of Cluster API that it was, as namespace/name, and ClusterUID its
	// UID; empty in an entry of an earlier version of the hub.
	Cluster    string      `json:"cluster,omitempty"`
	ClusterUID string      `json:"clusterUID,omitempty"`
	LeftAt     metav1.Time `json:"leftAt"`
}

// parse returns what is stored of a member; zero, which is expired, where somebody has
// damaged it.
func parse(text string) (stored departed) {
	if json.Unmarshal([]byte(text), &stored) != nil {
		return departed{}
	}
	return stored
}

func (d *departed) isExpired(now time.Time) bool { return now.Sub(d.LeftAt.Time) > maxAge }

// isFor reports whether a member may replace and remove what is stored under its name.
// Invariant: another Cluster under that name may not, since who creates Clusters chooses no
// labels.
func (d *departed) isFor(member *v1alpha1.MemberCluster) bool {
	cluster := clusterOf(member)
	return cluster == "" || cluster == d.Cluster
}

// isOfFormerCluster reports whether a Cluster that was deleted since had the name of a member's.
func (d *departed) isOfFormerCluster(member *v1alpha1.MemberCluster) bool {
	uid := member.Annotations[AnnotationClusterUID]
	return clusterOf(member) != "" && uid != "" && d.ClusterUID != "" && uid != d.ClusterUID
}

// Remember stores the labels that outlive a member which leaves, and drops expired entries.
// It returns whether data has changed. Over the limit, those that left first are dropped.
func Remember(data map[string]string, member *v1alpha1.MemberCluster, now time.Time) (changed bool) {
	before := maps.Clone(data)
	maps.DeleteFunc(data, func(_, text string) bool { stored := parse(text); return stored.isExpired(now) })
	if _, known := data[member.Name]; known && !Forget(data, member) {
		return !maps.Equal(before, data)
	}
	next := departed{Labels: firstLabels(Kept(member)), Cluster: clusterOf(member), ClusterUID: member.Annotations[AnnotationClusterUID], LeftAt: storedtime.Truncate(now)}
	if len(next.Labels) > 0 {
		text, err := json.Marshal(next)
		if err != nil {
			panic(err) // plain types of this package
		}
		data[member.Name] = string(text)
		dropOldest(data)
	}
	return !maps.Equal(before, data)
}

// Forget removes what is stored of a member, and returns whether it has.
func Forget(data map[string]string, member *v1alpha1.MemberCluster) (changed bool) {
	text, known := data[member.Name]
	if stored := parse(text); !known || !stored.isFor(member) {
		return false
	}
	delete(data, member.Name)
	return true
}

// Restore adds the labels that a member had when it left and does not have now, and returns
// them; nil where what is stored is not for the member, or has expired. Labels that people have written into the ConfigMap are checked: the API server would
// refuse the MemberCluster with them.
func Restore(data map[string]string, member *v1alpha1.MemberCluster, now time.Time) (restored map[string]string) {
	stored := parse(data[member.Name])
	if stored.isExpired(now) || !stored.isFor(member) || stored.isOfFormerCluster(member) {
		return nil
	}
	restored = map[string]string{}
	for key, value := range stored.Labels {
		if _, exists := member.Labels[key]; exists || !outlivesMember(key) || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
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
		leftAt[name] = parse(text).LeftAt.Time
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
