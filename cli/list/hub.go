package list

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// Cluster is a row of get clusters.
type Cluster struct {
	Name string `json:"name"`
	// State is Ready, or why it is not.
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
	Unknown bool   `json:"unknown,omitempty"`
	Slots   *int32 `json:"slots,omitempty"`
	Budget  *int32 `json:"budget,omitempty"`
	// Queued, Ready and Failed images; absent where the cluster never reported.
	Queued     *int32       `json:"queued,omitempty"`
	Ready      *int32       `json:"ready,omitempty"`
	Failed     *int32       `json:"failed,omitempty"`
	LastReport *metav1.Time `json:"lastReport,omitempty"`
	Policy     string       `json:"policy,omitempty"`
}

var clusterKind = kind[Cluster]{
	name: "Cluster", noun: "cluster",
	columns: []render.Column{
		{Title: "CLUSTER", Elastic: true, Min: 10}, {Title: "STATE", Elastic: true, Min: 8}, {Title: "SLOTS", Right: true, Drop: 2}, {Title: "QUEUED", Right: true, Drop: 1},
		{Title: "READY", Right: true, Drop: 1}, {Title: "FAILED", Right: true}, {Title: "REPORT", Right: true, Drop: 3, Age: true}, {Title: "POLICY", Wide: true}, {Title: "MESSAGE", Wide: true},
	},
	keys: map[string]func(a, b Cluster) int{
		"failed": descending(func(c Cluster) *int32 { return c.Failed }),
		"queued": descending(func(c Cluster) *int32 { return c.Queued }),
		"report": oldestFirst(func(c Cluster) *metav1.Time { return c.LastReport }),
	},
}

// NewClusters returns an empty list of clusters.
func NewClusters(now time.Time, q Query) (*List[Cluster], error) { return newList(now, clusterKind, q) }

// NewCluster returns the row of a MemberCluster.
func NewCluster(m *v1alpha1.MemberCluster) Cluster {
	st, failed := &m.Status, m.Status.CountFailedImages()
	c := Cluster{Name: m.Name, State: "Ready", Slots: st.SlotsUsed, Budget: st.Budget, LastReport: st.LastReport}
	if st.Images != nil {
		c.Queued, c.Ready, c.Failed = &st.Images.Queued, &st.Images.Ready, &failed
	}
	if st.Policy != nil {
		c.Policy = st.Policy.Source
	}
	ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Status != metav1.ConditionTrue {
		c.State, c.Message = ready.Reason, ready.Message
	} else if failed > 0 {
		c.State, c.Message = string(readapi.MemberFailing), render.Count(failed, "failed image")
	}
	switch {
	case m.Spec.Quarantine != nil:
		c.State, c.Message = "Quarantined", m.Spec.Quarantine.Reason
	case st.LastReport == nil && !meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled): // otherwise a person has to act
		c.State, c.Unknown = "NeverReported", true
	case st.SilentSince != nil:
		c.State, c.Unknown = "Silent", true
	}
	return c
}

func (c Cluster) rowName() string   { return c.Name }
func (c Cluster) reference() string { return render.Reference("MemberCluster", c.Name) }
func (c Cluster) isUnknown() bool   { return c.Unknown }
func (c Cluster) hasFailed() bool   { return c.Failed != nil && *c.Failed > 0 }
func (c Cluster) isFailing() bool   { return c.hasFailed() || c.State != "Ready" && !c.Unknown }

func (c Cluster) cells(now time.Time) []render.Line {
	state := render.Done.With("%s", c.State)
	switch {
	case c.Unknown:
		state = render.Unknown.With("%s", c.State)
	case c.State != "Ready":
		state = render.Failed.With("%s", c.State)
	case c.hasFailed():
		state = render.Attention.With("%s", c.State)
	}
	slots := "-"
	if c.Slots != nil && c.Budget != nil {
		slots = numbers.Sprintf("%d/%d", *c.Slots, *c.Budget)
	}
	return append([]render.Line{render.Words(c.Name), state},
		render.Cells(slots, countOf(c.Queued), countOf(c.Ready), countOf(c.Failed), ageOf(now, c.LastReport), c.Policy, c.Message)...)
}

// Rollout is a row of get rollouts.
type Rollout struct {
	Name    string                `json:"name"`
	Version string                `json:"version"`
	Phase   v1alpha1.RolloutPhase `json:"phase,omitempty"`
	Reason  string                `json:"reason,omitempty"`
	Message string                `json:"message,omitempty"`
	Wave    string                `json:"wave,omitempty"`
	Stalled bool                  `json:"stalled,omitempty"`
	// Clusters as the hub counts them; absent until it has looked at this version. Failed
	// are those that failed, also by their deadline.
	Clusters  *v1alpha1.ClusterCounts `json:"clusters,omitempty"`
	Failed    *int32                  `json:"failed,omitempty"`
	CreatedAt metav1.Time             `json:"createdAt"`
}

var rolloutKind = kind[Rollout]{
	name: "Rollout", noun: "rollout",
	columns: []render.Column{
		{Title: "ROLLOUT", Elastic: true, Min: 10}, {Title: "VERSION", Drop: 1}, {Title: "STATE", Elastic: true, Min: 8}, {Title: "WAVE", Drop: 3}, {Title: "DONE", Right: true},
		{Title: "FAILED", Right: true, Drop: 2}, {Title: "DEFERRED", Right: true, Drop: 3}, {Title: "AGE", Right: true, Drop: 4, Age: true}, {Title: "MESSAGE", Wide: true},
	},
	keys: map[string]func(a, b Rollout) int{
		"failed": descending(func(r Rollout) *int32 { return r.Failed }),
		"age":    oldestFirst(func(r Rollout) *metav1.Time { return &r.CreatedAt }),
	},
}

// NewRollouts returns an empty list of rollouts.
func NewRollouts(now time.Time, q Query) (*List[Rollout], error) { return newList(now, rolloutKind, q) }

// NewRollout returns the row of a FleetDiskImage. A status about a former version says nothing.
func NewRollout(i *v1alpha1.FleetDiskImage) Rollout {
	r := Rollout{Name: i.Name, Version: i.Spec.Version, CreatedAt: i.CreationTimestamp}
	if !rollout.IsObserved(i) {
		return r
	}
	failed := i.Status.Clusters.AllFailed()
	r.Phase, r.Reason, r.Message, r.Wave, r.Clusters, r.Failed = i.Status.Phase, i.Status.Reason, i.Status.Message, i.Status.CurrentWave, &i.Status.Clusters, &failed
	r.Stalled = meta.IsStatusConditionTrue(i.Status.Conditions, v1alpha1.ConditionStalled)
	return r
}

func (r Rollout) rowName() string   { return r.Name }
func (r Rollout) reference() string { return render.Reference("FleetDiskImage", r.Name) }
func (r Rollout) isUnknown() bool   { return r.Clusters != nil && r.Clusters.Deferred > 0 }
func (r Rollout) isFailing() bool {
	return r.Stalled || r.Phase == v1alpha1.RolloutFailed || r.Failed != nil && *r.Failed > 0
}

func (r Rollout) cells(now time.Time) []render.Line {
	word := cmp.Or(r.Reason, string(r.Phase), rollout.Unobserved)
	if r.Phase == v1alpha1.RolloutSucceeded {
		word = string(r.Phase)
	}
	state := rollout.SignOf(r.Phase, r.Reason, r.Stalled).With("%s", word)
	done, deferred := "-", "-"
	if r.Clusters != nil {
		done, deferred = numbers.Sprintf("%d/%d", r.Clusters.Succeeded, r.Clusters.Total), render.Number(r.Clusters.Deferred)
	}
	return []render.Line{
		render.Words(r.Name), render.Words(r.Version), state, render.Words(cmp.Or(r.Wave, "-")), render.Words(done), render.Words(countOf(r.Failed)), render.Words(deferred), render.Words(render.Age(now, r.CreatedAt.Time)), render.Words(r.Message),
	}
}

// Source is a row of get images over the whole fleet: one distinct image.
type Source struct {
	Source string `json:"source"`
	// Clusters that have it; each of Unknown may have it, too.
	Clusters   int   `json:"clusters"`
	Unknown    int   `json:"unknown"`
	Images     int   `json:"images"`
	Ready      int   `json:"ready"`
	Failed     int   `json:"failed"`
	References int64 `json:"references"`
	Bytes      int64 `json:"bytes"`
	// UnreferencedSince is when the last machine left it; absent while one uses it.
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
}

var sourceKind = kind[Source]{
	name: "Source", noun: "image",
	columns: []render.Column{
		{Title: "SOURCE", Elastic: true, Min: 14}, {Title: "CLUSTERS", Right: true}, {Title: "READY", Right: true, Drop: 2}, {Title: "FAILED", Right: true, Drop: 1},
		{Title: "MACHINES", Right: true, Drop: 3}, {Title: "BYTES", Right: true, Drop: 4}, {Title: "UNUSED", Right: true, Drop: 5, Age: true}, {Title: "UNKNOWN", Right: true, Wide: true},
	},
	keys: map[string]func(a, b Source) int{
		"failed":   descending(func(s Source) *int { return &s.Failed }),
		"bytes":    descending(func(s Source) *int64 { return &s.Bytes }),
		"machines": descending(func(s Source) *int64 { return &s.References }),
		"unused":   oldestFirst(func(s Source) *metav1.Time { return s.UnreferencedSince }),
	},
}

// NewSources returns an empty list of distinct images.
func NewSources(now time.Time, q Query) (*List[Source], error) { return newList(now, sourceKind, q) }

// NewSource returns the row of a distinct image.
func NewSource(i *readapi.Image) Source {
	return Source{
		Source: i.Source, Clusters: i.Members, Unknown: i.Unknown, Images: i.Images, Ready: i.Phases[v1alpha1.PhaseSucceeded], Failed: i.Phases[v1alpha1.PhaseFailed],
		References: i.References, Bytes: i.Bytes, UnreferencedSince: i.UnreferencedSince,
	}
}

func (s Source) rowName() string   { return s.Source }
func (s Source) reference() string { return "image/" + s.Source }
func (s Source) isUnknown() bool   { return s.Unknown > 0 }
func (s Source) isFailing() bool   { return s.Failed > 0 }

func (s Source) cells(now time.Time) []render.Line {
	return render.Cells(s.Source, render.Number(s.Clusters), render.Number(s.Ready), render.Number(s.Failed), render.Number(s.References), render.Bytes(s.Bytes), ageOf(now, s.UnreferencedSince), render.Number(s.Unknown))
}
