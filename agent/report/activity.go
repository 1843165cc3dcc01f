package report

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ActivityInput is the input of BuildActivity.
type ActivityInput struct {
	Now    time.Time
	BootID string
	// Ledger of the member; nil where there is none yet.
	Ledger *v1alpha1.SyncLedgerStatus
	// Waiting are the first images that wait for a slot, in the order in which they get one;
	// Queued is how many wait.
	Waiting []ledger.QueuedImage
	Queued  int
	Policy  policy.Policy
	// FindImage returns an image; nil if it does not exist.
	FindImage func(v1alpha1.ImageKey) *v1alpha1.VMDiskImage
	Rates     *RateTracker
}

// Images returns the images that FindImage is called for.
func (in *ActivityInput) Images() (keys []v1alpha1.ImageKey) {
	if in.Ledger != nil {
		for i := range in.Ledger.Slots {
			keys = append(keys, in.Ledger.Slots[i].Image)
		}
	}
	for i := range in.Waiting {
		keys = append(keys, in.Waiting[i].Image)
	}
	return keys
}

// BuildActivity returns what a member imports and what waits. It has at most
// MaxActivityBytes: the ends of the lists are left out.
func BuildActivity(in ActivityInput) v1alpha1.ReportedActivity {
	out := v1alpha1.ReportedActivity{
		ObservedAt: storedtime.Truncate(in.Now), BootID: in.BootID,
		Queued: int32(in.Queued), Rates: in.Rates.Rates(),
	}
	var slots []v1alpha1.Slot
	if in.Ledger != nil {
		out.Budget, slots = in.Ledger.Budget, in.Ledger.Slots
	}
	out.Slots = int32(len(slots))
	var active []v1alpha1.ActiveImport
	for _, slot := range slots {
		active = append(active, newActiveImport(in, slot))
	}
	sortByEnd(active, out.Rates)
	var head []v1alpha1.QueuedImport
	for i := range in.Waiting {
		head = append(head, newQueuedImport(in, &in.Waiting[i]))
	}
	fitActivity(&out, active[:min(len(active), v1alpha1.MaxActiveImports)], head[:min(len(head), v1alpha1.MaxQueuedImports)])
	return out
}

// IsBusy reports whether something is imported or waits. The activity of a member that is not
// busy stays as it is.
func IsBusy(a *v1alpha1.ReportedActivity) bool { return a.Slots > 0 || a.Queued > 0 }

func newActiveImport(in ActivityInput, slot v1alpha1.Slot) v1alpha1.ActiveImport {
	out := v1alpha1.ActiveImport{
		Namespace: slot.Image.Namespace, Name: slot.Image.Name, Source: in.Policy.Sources.GroupOrOther(slot.Host),
		StartedAt: slot.StartedAt, Attempt: slot.Attempt, MaxAttempts: in.Policy.RetryLimit + 1,
	}
	img := in.FindImage(slot.Image)
	if img == nil {
		return out
	}
	out.BytesTotal, out.AtMostBytes = downloadSize(img)
	for i := range img.Status.Revisions {
		rev := &img.Status.Revisions[i]
		if rev.Revision != slot.Revision {
			continue
		}
		// As in the image's message: an attempt before a restart counts as the first.
		out.Attempt = max(1, slot.Attempt-rev.AttemptsBefore)
		// The bytes are those of this attempt only once its start is stored, and until its
		// failure is. One that has succeeded waits for its storage, or for its slot to be freed.
		if rev.Attempt == slot.Attempt && (rev.AttemptEnded < slot.Attempt || rev.Outcome == v1alpha1.OutcomeSucceeded) {
			out.BytesDone = img.Status.BytesDone
			out.BytesPerSecond = in.Rates.RateOf(Key{Namespace: img.Namespace, Name: img.Name}, in.Now)
		}
	}
	return out
}

func newQueuedImport(in ActivityInput, queued *ledger.QueuedImage) v1alpha1.QueuedImport {
	out := v1alpha1.QueuedImport{
		Namespace: queued.Image.Namespace, Name: queued.Image.Name, Source: in.Policy.Sources.GroupOrOther(queued.Host),
		Priority: queued.Priority, QueuedAt: queued.Key.Time,
	}
	img := in.FindImage(queued.Image)
	if img == nil {
		return out
	}
	out.Bytes, out.AtMostBytes = downloadSize(img)
	out.Reason, out.Attempts, out.OpensAt = img.Status.Reason, img.Status.Attempts, img.Status.OpensAt
	for i := range img.Status.Revisions {
		if rev := &img.Status.Revisions[i]; rev.Revision == queued.Revision {
			out.NotBefore = rev.NotBefore
		}
	}
	return out
}

// downloadSize returns the size of an image's download, or else what it is at most. One that
// has no source downloads nothing.
func downloadSize(img *v1alpha1.VMDiskImage) (bytes, atMost int64) {
	switch {
	case img.Spec.SourceHost() == "" && img.Spec.SourceType == v1alpha1.SourceBlank:
		return 0, 0
	case knowsDownloadSize(img):
		return img.Status.BytesTotal, 0
	default:
		return 0, img.Spec.DiskSize.Value()
	}
}

// sortByEnd sorts imports by when they will end. An import without a rate of its own has the
// median of its group; those whose end is unknown come last, the longest running ones first.
func sortByEnd(active []v1alpha1.ActiveImport, rates []v1alpha1.SourceRate) {
	median := map[string]int64{}
	for _, r := range rates {
		median[r.Name] = r.P50
	}
	left := func(i v1alpha1.ActiveImport) float64 {
		rate := cmp.Or(i.BytesPerSecond, median[i.Source])
		if rate <= 0 {
			return math.Inf(1)
		}
		return float64(max(0, max(i.BytesTotal, i.AtMostBytes)-i.BytesDone)) / float64(rate)
	}
	slices.SortFunc(active, func(a, b v1alpha1.ActiveImport) int {
		return cmp.Or(cmp.Compare(left(a), left(b)), a.StartedAt.Compare(b.StartedAt.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// fitActivity sets the lists, each from its beginning and in turn, as far as they fit.
func fitActivity(out *v1alpha1.ReportedActivity, active []v1alpha1.ActiveImport, head []v1alpha1.QueuedImport) {
	const listNames = len(`"active":[],"head":[],`)
	left := v1alpha1.MaxActivityBytes - v1alpha1.EncodedSize(out) - listNames
	shownActive, shownHead := 0, 0
	for more := true; more; {
		more = false
		if shownActive < len(active) {
			if size := v1alpha1.EncodedSize(active[shownActive]) + 1; size <= left {
				left, shownActive, more = left-size, shownActive+1, true
			}
		}
		if shownHead < len(head) {
			if size := v1alpha1.EncodedSize(head[shownHead]) + 1; size <= left {
				left, shownHead, more = left-size, shownHead+1, true
			}
		}
	}
	out.Active, out.Head = active[:shownActive], head[:shownHead]
}
