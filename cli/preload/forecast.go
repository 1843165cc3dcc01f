package preload

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// Expected is when a cluster is expected to have an image, or why that is not known.
type Expected struct {
	Cluster string `json:"cluster"`
	readapi.Estimate
	// Shortage is why there may be no room for it: it waits for storage there, or the cluster's API server
	// says so with --live.
	Shortage string `json:"shortage,omitempty"`
	// AtBest is when it would be there at today's fleetConcurrency, where no time is given since that is lower
	// by then.
	AtBest *metav1.Time `json:"atBest,omitempty"`

	// source is the group of sources that it is imported from, and begins when it gets its slot; zero where that
	// is not known, and while it is imported.
	source string
	begins time.Time
}

// Reasons beside those of eta why no time is given.
const (
	reasonNotObserved = "NotObserved"
	reasonWavesBefore = "WavesBefore"
)

// Forecast estimates when the clusters that are to have images have them, also those that get them anyway:
// items[n] is of images[n]. An image that its cluster does not list yet joins the end of the queue, and is in
// the queue of targets for images that follow.
func Forecast(f Fleet, items []Image, images []*v1alpha1.FleetDiskImage, targets []Target) error {
	members := make([]*eta.Pool, len(targets))
	for i := range targets {
		t := &targets[i]
		if t.refreshBudget(); t.Activity != nil {
			members[i] = t.snapshot(f.Now).NewPool()
		}
	}
	var joined []*joining
	for n := range items {
		joins, err := items[n].forecast(f, images[n], targets, members)
		if err != nil {
			return err
		}
		joined = append(joined, joins...)
	}
	f.paceImports(joined)
	f.dropUnsure(items, joined)
	for n := range items {
		items[n].ExpectedBy = lastOf(items[n].Expected)
	}
	return nil
}

// forecast estimates one image without others, and returns those that join a queue. members are the
// slots of targets.
func (i *Image) forecast(f Fleet, img *v1alpha1.FleetDiskImage, targets []Target, members []*eta.Pool) (joined []*joining, err error) {
	overrides, err := override.Parse(img)
	if err != nil {
		return nil, err
	}
	waves, err := newWaves(f.Now, img, targets, i.Download)
	if err != nil {
		return nil, err
	}
	i.Expected = make([]Expected, 0, len(targets)) // of a fixed place
	for at := range targets {
		t := &targets[at]
		if !slices.Contains(i.Download, t.Member.Name) && !slices.Contains(i.Placed, t.Member.Name) {
			continue
		}
		effective := overrides.For(t.Member.Name, t.Member.Labels)
		q, opensAt := f.newQueued(img, effective, t, i.knownBytes)
		i.Expected = append(i.Expected, Expected{Cluster: t.Member.Name, source: q.Source})
		e := &i.Expected[len(i.Expected)-1]
		why := rollout.WhyUnknown(t.Member)
		own := rollout.FindReported(t.Reported, img.Spec.TargetNamespace, img.ImageNameForVersion(img.Spec.Version))
		listed, isListed := t.snapshot(f.Now).ForImage(img.Spec.TargetNamespace, img.ImageNameForVersion(img.Spec.Version))
		if !isListed || listed.Position > 0 { // one that is imported has taken its room
			e.Shortage = t.Shortages[img.Name]
		}
		if own != nil && own.Reason == v1alpha1.ReasonInsufficientStorage {
			e.Shortage = own.Message
		}
		waits := t.findWaitingForStorage(effective)
		switch {
		case e.Shortage != "":
			e.Reason, e.Message = string(v1alpha1.ReasonInsufficientStorage), "there may be no room for it"
		case why != "":
			e.Reason, e.Message = string(eta.UnknownNotReported), why
		case effective.WhyUnusable() != "":
			e.Reason, e.Message = string(eta.UnknownWaitsForPerson), effective.WhyUnusable()
		case own != nil && own.Phase == v1alpha1.PhaseFailed:
			e.Reason, e.Message = string(eta.UnknownWaitsForPerson), "it failed there, and waits for a retry"
		case isListed:
			e.Estimate, e.begins = *readapi.NewEstimate(listed), listed.Begin
		case waits != nil:
			e.Reason, e.Message = string(v1alpha1.ReasonInsufficientStorage), fmt.Sprintf("there may be no room for it: image %s/%s waits for storage there: %s", waits.Namespace, waits.Name, waits.Message)
		case !f.Live && waves.holdBack(&e.Estimate, t.Member):
		default:
			j := &joining{Turn: eta.Turn{Estimate: t.joinQueue(f.Now, q), Opens: opensAt}, expected: e, member: t.Member}
			j.Pools = append(j.Pools, waves.findWave(t.Member).pool)
			if members[at] != nil {
				j.Pools = append(j.Pools, members[at])
			}
			joined = append(joined, j)
		}
	}
	return joined, nil
}

// findWaitingForStorage returns an image of the cluster that waits for storage; nil for none, and where
// its queue says that it is larger.
func (t *Target) findWaitingForStorage(effective *override.Effective) *v1alpha1.ReportedImage {
	for j := range t.Reported {
		r := &t.Reported[j]
		if r.Reason != v1alpha1.ReasonInsufficientStorage {
			continue
		}
		isLarger := t.Activity != nil && slices.ContainsFunc(t.Activity.Head, func(q v1alpha1.QueuedImport) bool {
			return q.Namespace == r.Namespace && q.Name == r.Name && q.AtMostBytes > effective.Spec.DiskSize.Value()
		})
		if !isLarger {
			return r
		}
	}
	return nil
}

// newQueued returns the image as the cluster would queue it, and when the window opens that it waits for; zero
// for none.
func (f Fleet) newQueued(img *v1alpha1.FleetDiskImage, effective *override.Effective, t *Target, knownBytes int64) (q v1alpha1.QueuedImport, opensAt time.Time) {
	q = v1alpha1.QueuedImport{
		Namespace: img.Spec.TargetNamespace, Name: img.ImageNameForVersion(img.Spec.Version), Source: v1alpha1.SourceOther, AtMostBytes: effective.Spec.DiskSize.Value(),
	}
	if effective.Spec.URL == img.Spec.Template.URL {
		q.Bytes = knownBytes
	}
	if f.Budget != nil {
		q.Source, q.Reason = f.Budget.SourceGroups().GroupOrOther(effective.Spec.SourceHost()), v1alpha1.ReasonWaitingForFleet
	}
	if w := t.Member.Status.Window; w != nil && w.OpensAt != nil && w.OpensAt.After(f.Now) {
		q.Reason, opensAt = v1alpha1.ReasonWaitingForWindow, w.OpensAt.Time
		if t.Activity != nil {
			// As the activity's clock will show it: an idle cluster wrote its own long ago.
			at := metav1.NewTime(opensAt.Add(t.Activity.ObservedAt.Sub(t.ObservedAt)))
			q.OpensAt = &at
		}
	}
	return q, opensAt
}

// snapshot returns what the cluster imports and queues.
func (t *Target) snapshot(now time.Time) eta.Snapshot {
	return eta.Snapshot{Activity: t.Activity, SourceLimits: t.SourceLimits, ObservedAt: t.ObservedAt, Now: now}
}

// refreshBudget sets the budget of an idle member, which does not tell that it has changed.
func (t *Target) refreshBudget() {
	if budget := t.Member.Status.Budget; budget != nil && t.Activity != nil && t.Activity.Slots == 0 && t.Activity.Queued == 0 {
		a := *t.Activity
		a.Budget = *budget
		t.Activity = &a
	}
}

// joinQueue estimates an image at the end of the cluster's queue, and has it wait there.
func (t *Target) joinQueue(now time.Time, q v1alpha1.QueuedImport) eta.Estimate {
	if t.Activity == nil {
		return eta.Estimate{Why: eta.UnknownNotReported}
	}
	a := *t.Activity
	t.Activity = &a
	estimate := t.snapshot(now).ForNew(q)
	if int(a.Queued) <= len(a.Head) {
		a.Head = slices.Concat(a.Head, []v1alpha1.QueuedImport{q})
	}
	a.Queued++
	return estimate
}

// lastOf returns when the last cluster is expected; nil where that of one is not known.
func lastOf(all []Expected) *readapi.Estimate {
	var last *readapi.Estimate
	for i := range all {
		e := &all[i].Estimate
		if e.At == nil {
			return nil
		}
		if last == nil {
			last = &readapi.Estimate{At: e.At, Earliest: e.Earliest, Latest: e.Latest}
		}
		last.At, last.Earliest, last.Latest = storedtime.LaterTime(last.At, e.At), storedtime.LaterTime(last.Earliest, e.Earliest), storedtime.LaterTime(last.Latest, e.Latest)
		last.AtMost = last.AtMost || e.AtMost
	}
	return last
}

// wave is one of the rollout, in order.
type wave struct {
	name     string
	selector labels.Selector
	// isHeld: it needs an approval. isOpen: clusters of it are not done, or get the image by the preload.
	isHeld, isOpen bool
	// left are the clusters before the preload that are to begin, or in progress, of total.
	left, total    int32
	maxConcurrency *intstr.IntOrString
	// pool of its maxConcurrency.
	pool *eta.Pool
}

type waves struct {
	all []wave
	// isNew: the hub has not processed the spec. isStalled: a person has to correct something.
	paused, isNew, isStalled bool
}

// newWaves returns the waves, with how far they are.
func newWaves(now time.Time, img *v1alpha1.FleetDiskImage, targets []Target, download []string) (*waves, error) {
	isStalled := img.Status.Phase == v1alpha1.RolloutFailed || meta.IsStatusConditionTrue(img.Status.Conditions, v1alpha1.ConditionStalled)
	ws := &waves{paused: img.Spec.Rollout.Paused, isNew: !rollout.IsObserved(img), isStalled: isStalled}
	for i := range img.Spec.Rollout.Waves {
		w := &img.Spec.Rollout.Waves[i]
		selector, err := v1alpha1.ParseSelector(&w.ClusterSelector)
		if err != nil {
			return nil, fmt.Errorf("spec.rollout.waves[%s].clusterSelector: %w", w.Name, err)
		}
		limit := w.MaxConcurrency
		if limit == nil {
			limit = img.Spec.Rollout.MaxConcurrency
		}
		ws.all = append(ws.all, wave{name: w.Name, selector: selector, maxConcurrency: limit, isHeld: approval.IsRequired(img, w.Name) && approval.FindApproval(img, w.Name, img.Spec.Version) == nil})
	}
	ws.all = append(ws.all, wave{name: v1alpha1.WaveRest, selector: labels.Everything(), maxConcurrency: img.Spec.Rollout.MaxConcurrency})
	for i := range ws.all {
		w := &ws.all[i]
		for _, st := range img.Status.Waves {
			if st.Name == w.name {
				w.left, w.total = st.Clusters.ToApply+st.Clusters.Progressing, st.Clusters.Total
				w.isOpen = st.Clusters.Total > 0 && st.DoneAt == nil
			}
		}
	}
	for i := range targets {
		if m := targets[i].Member; slices.Contains(download, m.Name) {
			w := ws.findWave(m)
			w.isOpen, w.total = true, w.total+1
		}
	}
	for i := range ws.all {
		ws.all[i].pool = eta.NewPool(ws.all[i].limit(), now)
	}
	return ws, nil
}

func (ws *waves) findWave(m *v1alpha1.MemberCluster) *wave {
	for i := range ws.all {
		if ws.all[i].selector.Matches(labels.Set(m.Labels)) {
			return &ws.all[i]
		}
	}
	return &ws.all[len(ws.all)-1]
}

// limit is maxConcurrency as a number of clusters, at least one.
func (w *wave) limit() int {
	if w.maxConcurrency == nil {
		return math.MaxInt
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(w.maxConcurrency, int(w.total), false)
	if err != nil {
		return 1
	}
	return max(1, n)
}

// holdBack says in an estimate what the rollout waits for before a cluster begins; false for nothing.
func (ws *waves) holdBack(e *readapi.Estimate, m *v1alpha1.MemberCluster) bool {
	own := ws.findWave(m)
	switch {
	case ws.isNew:
		e.Reason, e.Message = reasonNotObserved, "the hub has not processed the newest spec yet"
	case ws.paused:
		e.Reason, e.Message = string(eta.UnknownWaitsForPerson), "the rollout is paused"
	case ws.isStalled:
		e.Reason, e.Message = string(eta.UnknownWaitsForPerson), "the rollout is stalled"
	case own.isHeld:
		e.Reason, e.Message = string(eta.UnknownWaitsForPerson), fmt.Sprintf("wave %s needs approval", own.name)
	case own.left > 0 && own.maxConcurrency != nil:
		e.Reason, e.Message = v1alpha1.ReasonMaxConcurrency, fmt.Sprintf("other clusters of wave %s go first", own.name)
	}
	for i := 0; &ws.all[i] != own && e.Reason == ""; i++ {
		if ws.all[i].isOpen {
			e.Reason, e.Message = reasonWavesBefore, fmt.Sprintf("wave %s comes first", ws.all[i].name)
		}
	}
	return e.Reason != ""
}
