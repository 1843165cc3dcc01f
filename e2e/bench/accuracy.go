//go:build linux

package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// accuracyRun plays a member without real time: the agent's queue, rates and activity are the
// real ones, imports are played. Sizes, rates and faults are drawn from a seed.
type accuracyRun struct {
	imports, budget int
	seed            uint64
}

const (
	// maxMedianError is the median of |predicted - actual| / remaining time.
	maxMedianError = 0.20
	// minRangeHolds is how often the actual end is within the stated range.
	minRangeHolds = 0.80
	// playStep is the resolution of time; progress is stored as the agent does, activities are
	// written every activityInterval.
	playStep         = 5 * time.Second
	activityInterval = 20 * time.Second
	progressInterval = 30 * time.Second
)

// accuracyOf are the results of a journal.
type accuracyOf struct {
	imports, entries        int
	medianError, rangeHolds float64
	unknown                 int
}

// playedImport is an image with what the world has in store for it.
type playedImport struct {
	image    *v1alpha1.VMDiskImage
	arrives  time.Time
	bytes    float64
	rate     float64 // bytes per second, while nothing else disturbs
	before   time.Duration
	after    time.Duration
	fails    bool // its first attempt, halfway
	done     float64
	started  time.Time
	received time.Time // the end of the download
	endedAt  time.Time
}

// journalEntry is one prediction.
type journalEntry struct {
	of       *playedImport
	at       time.Time
	estimate eta.Estimate
}

type accuracyWorld struct {
	accuracyRun
	random  *rand.Rand
	now     time.Time
	policy  policy.Policy
	queue   *ledger.Queue
	rates   *report.RateTracker
	status  v1alpha1.SyncLedgerStatus
	images  map[types.UID]*playedImport
	waiting []*playedImport // not arrived yet
	journal []journalEntry
	// network is by how much all downloads are slower or faster, which changes slowly.
	network float64
	unknown int
}

func (r accuracyRun) newWorld() *accuracyWorld {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := &accuracyWorld{
		accuracyRun: r, random: rand.New(rand.NewPCG(r.seed, 7)), now: start, policy: policy.Default(), queue: ledger.NewQueue(), rates: report.NewRateTracker(start),
		status: v1alpha1.SyncLedgerStatus{Budget: int32(r.budget)}, images: map[types.UID]*playedImport{}, network: 1,
	}
	w.policy.Sources = policy.Sources{{Name: "bucket", Hosts: []string{"bucket.example.com"}}, {Name: "mirror", Hosts: []string{"mirror.example.com"}}}
	medians := map[string]float64{"bucket": 80 << 20, "mirror": 25 << 20, "edge": 8 << 20}
	hosts := []string{"bucket", "bucket", "bucket", "mirror", "mirror", "edge"}
	arrives := start
	for i := range r.imports {
		host := hosts[w.random.IntN(len(hosts))]
		p := &playedImport{
			bytes: w.drawAround(6<<30, 0.9), rate: w.drawAround(medians[host], 0.4), before: w.drawTime(15*time.Second, 0.4), after: w.drawTime(25*time.Second, 0.5),
			fails: w.random.IntN(50) == 0,
		}
		if i%25 != 0 { // they come in batches
			p.arrives = arrives
		} else {
			arrives = arrives.Add(w.drawTime(50*time.Minute, 0.5))
			p.arrives = arrives
		}
		name := fmt.Sprintf("image-%d", i)
		p.image = &v1alpha1.VMDiskImage{
			ObjectMeta: metav1.ObjectMeta{Namespace: "farm", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(p.arrives)},
			Spec:       v1alpha1.VMDiskImageSpec{SourceType: v1alpha1.SourceHTTP, URL: "https://" + host + ".example.com/" + name, DiskSize: *resource.NewQuantity(128<<30, resource.BinarySI)},
			Status: v1alpha1.VMDiskImageStatus{
				Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonWaitingForSlot, Revision: "r1", BytesTotal: int64(p.bytes),
				Revisions: []v1alpha1.RevisionStatus{{Revision: "r1", OrderingKey: v1alpha1.OrderingKey{Time: metav1.NewTime(p.arrives), Sequence: int64(i)}}},
			},
		}
		w.images[p.image.UID] = p
		w.waiting = append(w.waiting, p)
	}
	return w
}

// drawAround draws a log-normal value around a median.
func (w *accuracyWorld) drawAround(median, deviation float64) float64 {
	return median * math.Exp(deviation*w.random.NormFloat64())
}

func (w *accuracyWorld) drawTime(median time.Duration, deviation float64) time.Duration {
	return time.Duration(w.drawAround(float64(median), deviation))
}

// play runs until everything is imported, and judges the journal.
func (r accuracyRun) play() accuracyOf {
	w := r.newWorld()
	for nextReport := w.now; ; w.now = w.now.Add(playStep) {
		// It returns to 1 within about half an hour.
		w.network = math.Exp(0.99*math.Log(w.network) + 0.02*w.random.NormFloat64())
		w.enqueueImages()
		w.freeSlots()
		w.takeSlots()
		if !w.now.Before(nextReport) {
			w.recordPredictions()
			nextReport = w.now.Add(activityInterval)
		}
		if len(w.waiting) == 0 && len(w.status.Slots) == 0 && w.queue.Stats() == (ledger.QueueStats{}) {
			return w.judgeJournal()
		}
	}
}

func (w *accuracyWorld) enqueueImages() {
	for len(w.waiting) > 0 && !w.waiting[0].arrives.After(w.now) {
		w.setQueued(w.waiting[0])
		w.waiting = w.waiting[1:]
	}
	for _, p := range w.images { // backoffs that are over
		rev := &p.image.Status.Revisions[0]
		if p.image.Status.Reason == v1alpha1.ReasonBackingOff && !w.now.Before(rev.NotBefore.Time) {
			p.image.Status.Reason = v1alpha1.ReasonWaitingForSlot
			w.setQueued(p)
		}
	}
}

func (w *accuracyWorld) setQueued(p *playedImport) {
	rev := &p.image.Status.Revisions[0]
	state := ledger.Admissible
	if p.image.Status.Reason == v1alpha1.ReasonBackingOff {
		state = ledger.Skipped
	}
	w.queue.Set(ledger.QueuedImage{Image: w.keyOf(p), Revision: rev.Revision, Key: rev.OrderingKey, State: state, Since: w.now, Host: w.hostOf(p)})
}

func (w *accuracyWorld) keyOf(p *playedImport) v1alpha1.ImageKey {
	return v1alpha1.ImageKey{Namespace: p.image.Namespace, Name: p.image.Name, UID: p.image.UID}
}

func (w *accuracyWorld) hostOf(p *playedImport) string {
	u, err := url.Parse(p.image.Spec.URL)
	if err != nil {
		panic(err) // newWorld makes it
	}
	return u.Host
}

// takeSlots starts images in the order of the queue.
func (w *accuracyWorld) takeSlots() {
	for _, queued := range w.queue.ListAdmissible(w.budget-len(w.status.Slots), nil, nil) {
		p := w.images[queued.Image.UID]
		st, rev := &p.image.Status, &p.image.Status.Revisions[0]
		w.queue.Remove(queued.Image.UID)
		p.started, p.done, p.received = w.now, 0, time.Time{}
		rev.Attempt++
		startedAt := metav1.NewTime(w.now)
		st.Phase, st.Reason, st.BytesDone, st.Attempts, st.LastAttempt = v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting, 0, rev.Attempt, rev.Attempt
		rev.StartedAt, rev.ProgressedAt = &startedAt, &startedAt
		w.status.Slots = append(w.status.Slots, v1alpha1.Slot{Image: queued.Image, Revision: rev.Revision, Attempt: rev.Attempt, StartedAt: startedAt, Host: queued.Host})
	}
}

// freeSlots moves all imports on, and frees the slots of those that have ended.
func (w *accuracyWorld) freeSlots() {
	w.status.Slots = slices.DeleteFunc(w.status.Slots, func(slot v1alpha1.Slot) bool {
		p := w.images[slot.Image.UID]
		ended := w.moveImport(p)
		w.rates.ObserveImage(p.image, w.policy.Sources.GroupOrOther(slot.Host))
		return ended
	})
}

// moveImport plays one step of an import: Pods start, it downloads, its storage is made ready.
func (w *accuracyWorld) moveImport(p *playedImport) (ended bool) {
	st, rev, at := &p.image.Status, &p.image.Status.Revisions[0], metav1.NewTime(w.now)
	if w.now.Sub(p.started) <= p.before {
		return false
	}
	p.done = min(p.bytes, p.done+p.rate*w.network*w.drawAround(1, 0.15)*playStep.Seconds())
	if stored := float64(st.BytesDone); p.done-stored >= p.bytes/10 || w.now.Sub(rev.ProgressedAt.Time) >= progressInterval {
		st.BytesDone, rev.ProgressedAt = int64(p.done), &at
	}
	switch {
	case p.fails && p.done >= p.bytes/2:
		p.fails = false
		notBefore := metav1.NewTime(w.now.Add(time.Minute))
		rev.AttemptEnded, rev.Outcome, rev.NotBefore = rev.Attempt, v1alpha1.OutcomeFailed, &notBefore
		st.Phase, st.Reason = v1alpha1.PhaseQueued, v1alpha1.ReasonBackingOff
		w.setQueued(p)
		return true
	case p.done < p.bytes:
		return false
	case p.received.IsZero():
		p.received = w.now
		return false
	case w.now.Sub(p.received) < p.after:
		return false
	}
	rev.AttemptEnded, rev.Outcome, rev.ImportedAt = rev.Attempt, v1alpha1.OutcomeSucceeded, &at
	st.Phase, st.Reason, st.BytesDone, p.endedAt = v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady, int64(p.bytes), w.now
	return true
}

// recordPredictions writes an activity, and journals what it predicts.
func (w *accuracyWorld) recordPredictions() {
	in := report.ActivityInput{
		Now: w.now, BootID: "boot", Ledger: &w.status, Waiting: w.queue.ListAdmissible(v1alpha1.MaxQueuedImports, nil, nil), Queued: w.queue.Stats().Admissible, Policy: w.policy, Rates: w.rates,
		FindImage: func(key v1alpha1.ImageKey) *v1alpha1.VMDiskImage { return w.images[key.UID].image },
	}
	activity := report.BuildActivity(in)
	s := eta.Snapshot{Activity: &activity, Now: w.now, ObservedAt: w.now}
	record := func(name string, e eta.Estimate) {
		if e.Why != "" {
			w.unknown++
			return
		}
		w.journal = append(w.journal, journalEntry{w.images[types.UID(name)], w.now, e})
	}
	for i := range activity.Active {
		record(activity.Active[i].Name, s.Active(i))
	}
	for i := range activity.Head {
		record(activity.Head[i].Name, s.Queued(i))
	}
}

// judgeJournal compares what was predicted with what was. What ends before the next activity
// is left out: its remaining time is shorter than the predictions' resolution.
func (w *accuracyWorld) judgeJournal() accuracyOf {
	result := accuracyOf{imports: w.imports, unknown: w.unknown}
	var failures []float64
	held := 0
	for _, entry := range w.journal {
		left := entry.of.endedAt.Sub(entry.at)
		if left < activityInterval {
			continue
		}
		failures = append(failures, math.Abs(float64(entry.estimate.At.Sub(entry.of.endedAt)))/float64(left))
		if end := entry.of.endedAt; !end.Before(entry.estimate.Low) && !end.After(entry.estimate.High) {
			held++
		}
	}
	slices.Sort(failures)
	result.entries = len(failures)
	result.medianError, result.rangeHolds = failures[len(failures)/2], float64(held)/float64(len(failures))
	return result
}

// measureAccuracy plays 500 imports.
func measureAccuracy(context.Context) ([]figureRow, []string, error) {
	run := accuracyRun{imports: 500, budget: 4, seed: 1}
	got := run.play()
	return []figureRow{
			figureJudged("expected time of an image: median error / remaining time", fmt.Sprintf("%.2f", got.medianError), fmt.Sprintf("at most %.2f", maxMedianError), got.medianError <= maxMedianError),
			figureJudged("the stated range holds", fmt.Sprintf("%.0f %%", got.rangeHolds*100), fmt.Sprintf("at least %.0f %%", minRangeHolds*100), got.rangeHolds >= minRangeHolds),
		}, []string{
			fmt.Sprintf("accuracy: %d imports of mixed sizes and rates from three sources, %d at a time, played without real time; a prediction for each image that imports or is at the head of the queue, every %s: %d, and %d times none.",
				got.imports, run.budget, activityInterval, got.entries, got.unknown),
		}, nil
}
