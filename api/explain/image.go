package explain

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ImageSnapshot is what is known of an image of one cluster, from the cluster itself or from
// the hub.
type ImageSnapshot struct {
	Now       time.Time
	Cluster   string
	Namespace string
	Name      string
	// Missing: the cluster has no such image.
	Missing bool
	// Unknown is why all this may be out of date; empty if it is not.
	Unknown string
	// ObservedAt is when it was so, by the clock of Now; zero for now.
	ObservedAt time.Time
	Phase      v1alpha1.Phase
	// Plan is the state of the plan's item of an image that is not created; else empty. Then Reason and
	// Message are the item's.
	Plan     v1alpha1.PlanItemState
	Reason   v1alpha1.Reason
	Message  string
	Stalled  bool
	QueuedAt *metav1.Time
	Holders  []string
	HolderN  int32
	Bytes    int64
	Budget   Budget
	// Activity is what the cluster imports and queues; nil where that is unknown.
	Activity     *v1alpha1.ReportedActivity
	SourceLimits map[string]int32
	// Expected is the hub's estimate; nil where the activity is to be asked.
	Expected *readapi.Estimate
}

// Budget is why as many imports may run as may.
type Budget struct {
	Slots             *int32 `json:"slots,omitempty"`
	Budget            *int32 `json:"budget,omitempty"`
	PolicyConcurrency *int32 `json:"policyConcurrency,omitempty"`
	PolicySource      string `json:"policySource,omitempty"`
	OwnConcurrency    *int32 `json:"ownConcurrency,omitempty"`
	Granted           *int32 `json:"granted,omitempty"`
	FleetConcurrency  *int64 `json:"fleetConcurrency,omitempty"`
	SourceConcurrency *int64 `json:"sourceConcurrency,omitempty"`
	MaxPriority       *int32 `json:"maxPriority,omitempty"`
}

// Image is why an image is where it is.
type Image struct {
	Cluster   string             `json:"cluster"`
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	Verdict   readapi.WhyVerdict `json:"verdict"`
	Phase     v1alpha1.Phase     `json:"phase,omitempty"`
	// Plan is Waiting or Rejected for a planned image that is not created, which has no phase.
	Plan       v1alpha1.PlanItemState `json:"plan,omitempty"`
	Reason     v1alpha1.Reason        `json:"reason,omitempty"`
	Message    string                 `json:"message,omitempty"`
	Unknown    string                 `json:"unknown,omitempty"`
	ObservedAt metav1.Time            `json:"observedAt"`
	QueuedAt   *metav1.Time           `json:"queuedAt,omitempty"`
	// GoFirst is how many images of the queue go first; absent if it does not wait in the
	// listed part of the queue.
	GoFirst  *int              `json:"goFirst,omitempty"`
	Expected *readapi.Estimate `json:"expected,omitempty"`
	// Queue is what runs and what goes first, the image among them.
	Queue []Import `json:"queue"`
	// Behind is how many images wait behind those listed.
	Behind  int      `json:"behind,omitempty"`
	Budget  Budget   `json:"budget"`
	Holders []string `json:"holders,omitempty"`
	// HolderCount counts those too that Holders does not name.
	HolderCount int32 `json:"holderCount"`
	// Sooner is what would bring it sooner.
	Sooner *readapi.WhySooner `json:"sooner,omitempty"`
}

// Import is one that runs or waits.
type Import struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// This: it is the image that is asked about.
	This bool `json:"this,omitempty"`
	// Place in the queue, from 1; 0 for one that runs.
	Place     int     `json:"place,omitempty"`
	BytesDone int64   `json:"bytesDone,omitempty"`
	Bytes     int64   `json:"bytes,omitempty"`
	AtMost    bool    `json:"atMost,omitempty"`
	Share     float64 `json:"share,omitempty"`

	BytesPerSecond int64             `json:"bytesPerSecond,omitempty"`
	Source         string            `json:"source,omitempty"`
	Attempt        int32             `json:"attempt,omitempty"`
	MaxAttempts    int32             `json:"maxAttempts,omitempty"`
	Reason         v1alpha1.Reason   `json:"reason,omitempty"`
	NotBefore      *metav1.Time      `json:"notBefore,omitempty"`
	Expected       *readapi.Estimate `json:"expected,omitempty"`
}

// maxListed is how many images of the queue are listed.
const maxListed = v1alpha1.MaxQueuedImports

// NewImage decides why an image is where it is.
func NewImage(s ImageSnapshot) *Image {
	w := &Image{
		Cluster: s.Cluster, Namespace: s.Namespace, Name: s.Name,
		Phase: s.Phase, Plan: s.Plan, Reason: s.Reason, Message: s.Message, Unknown: s.Unknown, ObservedAt: metav1.NewTime(s.observedAt()),
		QueuedAt: s.QueuedAt, Budget: s.Budget, Holders: s.Holders, HolderCount: max(s.HolderN, int32(len(s.Holders))), Queue: []Import{},
	}
	w.Verdict = s.verdict()
	if w.Verdict == readapi.WhyReady || w.Verdict == readapi.WhyFailed || s.Missing {
		return w
	}
	w.addQueue(s)
	if s.Expected != nil {
		w.Expected = s.Expected
	} else if estimate, listed := s.eta().ForImage(s.Namespace, s.Name); s.Unknown == "" && (listed || AwaitsImport(s.Phase)) {
		w.Expected = readapi.NewEstimate(estimate)
	}
	w.addSooner(s)
	return w
}

// AwaitsImport reports whether an image of this phase is still to be imported. One without a phase is in no
// queue yet: no estimate is about it.
func AwaitsImport(phase v1alpha1.Phase) bool {
	return phase == v1alpha1.PhaseQueued || phase == v1alpha1.PhaseSyncing
}

func (s ImageSnapshot) observedAt() time.Time {
	if s.ObservedAt.IsZero() {
		return s.Now
	}
	return s.ObservedAt
}

func (s ImageSnapshot) eta() eta.Snapshot {
	return eta.Snapshot{Activity: s.Activity, SourceLimits: s.SourceLimits, ObservedAt: s.observedAt(), Now: s.Now}
}

func (s ImageSnapshot) verdict() readapi.WhyVerdict {
	switch {
	case s.Unknown != "", s.Missing && s.Phase == "" && s.Reason == "":
		return readapi.WhyUnknown
	case s.Phase == v1alpha1.PhaseSucceeded, s.Phase == v1alpha1.PhaseTerminating, s.Phase == v1alpha1.PhasePrunePending:
		return readapi.WhyReady // they serve
	case s.Phase == v1alpha1.PhaseFailed, s.Phase == v1alpha1.PhaseDeleting, s.Plan == v1alpha1.PlanItemRejected:
		return readapi.WhyFailed
	case s.Plan == v1alpha1.PlanItemWaiting && s.Reason != "":
		return readapi.WhyHeld // an item has a reason while a person is waited for
	case s.Stalled, s.Reason.NeedsUserAction(), s.Reason == v1alpha1.ReasonPaused:
		return readapi.WhyHeld
	default:
		return readapi.WhyWaits
	}
}

// addQueue lists what runs, and the queue until the image, at least its head.
func (w *Image) addQueue(s ImageSnapshot) {
	a := s.Activity
	if a == nil {
		return
	}
	estimates := s.eta()
	for i := range a.Active {
		r := &a.Active[i]
		entry := Import{
			Namespace: r.Namespace, Name: r.Name, This: r.Namespace == s.Namespace && r.Name == s.Name, BytesDone: r.BytesDone, Bytes: r.BytesTotal,
			BytesPerSecond: r.BytesPerSecond, Source: r.Source, Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Expected: readapi.NewEstimate(estimates.Active(i)),
		}
		if entry.Bytes > 0 {
			entry.Share = min(1, float64(r.BytesDone)/float64(entry.Bytes))
		} else {
			entry.Bytes, entry.AtMost = r.AtMostBytes, true
		}
		w.Queue = append(w.Queue, entry)
	}
	target := slices.IndexFunc(a.Head, func(q v1alpha1.QueuedImport) bool { return q.Namespace == s.Namespace && q.Name == s.Name })
	if target >= 0 {
		w.GoFirst = &target
	}
	listed := 0
	for i := range a.Head {
		// Those right ahead of it matter most.
		if i >= maxListed/2 && i != target && (target < 0 || i > target || i < target-maxListed/2) {
			continue
		}
		listed++
		q := &a.Head[i]
		entry := Import{
			Namespace: q.Namespace, Name: q.Name, This: i == target, Place: i + 1, Bytes: q.Bytes, Source: q.Source,
			Attempt: q.Attempts, Reason: q.Reason, NotBefore: q.NotBefore, Expected: readapi.NewEstimate(estimates.Queued(i)),
		}
		if entry.Bytes <= 0 {
			entry.Bytes, entry.AtMost = q.AtMostBytes, true
		}
		w.Queue = append(w.Queue, entry)
	}
	w.Behind = max(int(a.Queued), len(a.Head)) - listed
}

// addSooner asks what one more slot would bring, where the policy is what limits them.
func (w *Image) addSooner(s ImageSnapshot) {
	if !w.waitsForSlot() || s.Activity == nil || !s.Budget.isPolicyLimit(s.Activity.Budget) || w.Expected == nil || w.Expected.At == nil {
		return
	}
	more := *s.Activity
	more.Budget++
	estimates := s.eta()
	estimates.Activity = &more
	sooner, _ := estimates.ForImage(s.Namespace, s.Name)
	gain := w.Expected.At.Sub(sooner.At)
	if sooner.Why != "" || gain < time.Minute {
		return
	}
	at := metav1.NewTime(sooner.At)
	w.Sooner = &readapi.WhySooner{Concurrency: more.Budget, At: &at, Seconds: int64(gain.Seconds()), Command: shellword.FormatCommand("kubectl ot policy diff --set %s", "cluster="+s.Cluster+",concurrency="+fmt.Sprint(more.Budget))}
}

// isPolicyLimit reports whether the policy's concurrency alone makes the budget what it is. A
// member requests at most that many slots, so a grant of as many does not limit it.
func (b *Budget) isPolicyLimit(budget int32) bool {
	return b.PolicyConcurrency != nil && *b.PolicyConcurrency == budget && (b.OwnConcurrency == nil || *b.OwnConcurrency > budget)
}
