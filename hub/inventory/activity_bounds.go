package inventory

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Bounds of the numbers of an activity, so that sums over all members do not overflow.
const (
	maxActivityImportBytes = 128 << 40 // twice the largest disk
	maxTransferredBytes    = 1 << 50
	maxActivitySeconds     = 1 << 30
	maxActivityCount       = 1 << 20
)

// Bounds of the times of an activity. Others are unknown: somebody lies, or had no clock yet.
const (
	maxTimeAhead = 24 * time.Hour
	maxTimeAgo   = 365 * 24 * time.Hour
)

// activityClock is when an activity was observed, by the member's clock, as are its times. It
// is the hub's where that is unknown.
type activityClock struct{ time.Time }

// newActivityClock ignores an observation that is ahead of the hub's clock. One of long ago
// stays: nothing may have been imported since, and readers correct a clock that is behind.
func newActivityClock(observedAt, now time.Time) activityClock {
	if observedAt.IsZero() || observedAt.After(now.Add(maxTimeAhead)) {
		return activityClock{now}
	}
	return activityClock{observedAt}
}

// bound returns a time, zero if it is too far ahead or too long ago.
func (c activityClock) bound(at metav1.Time) metav1.Time {
	if at.After(c.Add(maxTimeAhead)) || at.Time.Before(c.Add(-maxTimeAgo)) {
		return metav1.Time{}
	}
	return at
}

// boundEnd returns the end of a backoff, which may be days ahead; nil if it cannot be one.
func (c activityClock) boundEnd(at *metav1.Time) *metav1.Time {
	if at == nil || at.After(c.Add(maxTimeAgo)) || at.Time.Before(c.Add(-maxTimeAgo)) {
		return nil
	}
	end := *at
	return &end
}

// boundActivity returns a copy of an activity within all limits. A member in pull mode writes
// it itself, and may write anything that the API server admits: entries that no agent writes
// are left out, and so are times.
func boundActivity(in *v1alpha1.ReportedActivity, now time.Time) (out *v1alpha1.ReportedActivity, oversized bool) {
	if in == nil {
		return nil, false
	}
	if text, err := json.Marshal(in); err != nil || len(text) > v1alpha1.MaxActivityBytes {
		return nil, true
	}
	out = &v1alpha1.ReportedActivity{
		BootID: v1alpha1.SanitizeText(in.BootID, 64),
		Budget: boundNumber(in.Budget, v1alpha1.MaxSlots), Slots: boundNumber(in.Slots, v1alpha1.MaxSlots),
		Queued: boundNumber(in.Queued, maxActivityCount),
	}
	clock := newActivityClock(in.ObservedAt.Time, now)
	if clock.Equal(in.ObservedAt.Time) {
		out.ObservedAt = in.ObservedAt
	}
	for _, i := range in.Active {
		if len(out.Active) < v1alpha1.MaxActiveImports && isImageName(i.Namespace, i.Name) {
			out.Active = append(out.Active, boundActiveImport(i, clock))
		}
	}
	for _, i := range in.Head {
		if len(out.Head) < v1alpha1.MaxQueuedImports && isImageName(i.Namespace, i.Name) {
			out.Head = append(out.Head, boundQueuedImport(i, clock))
		}
	}
	listed := map[string]bool{}
	for _, rate := range in.Rates {
		if len(out.Rates) < v1alpha1.MaxSourceRates && isGroupName(rate.Name) && !listed[rate.Name] {
			listed[rate.Name] = true
			out.Rates = append(out.Rates, boundSourceRate(rate, clock))
		}
	}
	// What is listed exists.
	out.Slots = max(out.Slots, int32(len(out.Active)))
	out.Queued = max(out.Queued, int32(len(out.Head)))
	return out, false
}

func boundActiveImport(i v1alpha1.ActiveImport, clock activityClock) v1alpha1.ActiveImport {
	i.Source = boundGroup(i.Source)
	i.BytesTotal, i.AtMostBytes = boundSize(i.BytesTotal, i.AtMostBytes)
	i.BytesDone = boundNumber(i.BytesDone, maxActivityImportBytes)
	if size := max(i.BytesTotal, i.AtMostBytes); size > 0 {
		i.BytesDone = min(i.BytesDone, size)
	}
	i.BytesPerSecond = boundNumber(i.BytesPerSecond, maxActivityImportBytes)
	i.StartedAt = clock.bound(i.StartedAt)
	i.Attempt, i.MaxAttempts = boundNumber(i.Attempt, maxActivityCount), boundNumber(i.MaxAttempts, maxActivityCount)
	return i
}

func boundQueuedImport(i v1alpha1.QueuedImport, clock activityClock) v1alpha1.QueuedImport {
	i.Source = boundGroup(i.Source)
	i.Bytes, i.AtMostBytes = boundSize(i.Bytes, i.AtMostBytes)
	i.Priority = max(-maxActivityCount, min(i.Priority, maxActivityCount))
	i.Attempts = boundNumber(i.Attempts, maxActivityCount)
	if !isReason(string(i.Reason)) {
		i.Reason = ""
	}
	i.QueuedAt = clock.bound(i.QueuedAt)
	i.NotBefore = clock.boundEnd(i.NotBefore)
	return i
}

func boundSourceRate(r v1alpha1.SourceRate, clock activityClock) v1alpha1.SourceRate {
	r.P20 = boundNumber(r.P20, maxActivityImportBytes)
	r.P50 = max(r.P20, boundNumber(r.P50, maxActivityImportBytes))
	r.P80 = max(r.P50, boundNumber(r.P80, maxActivityImportBytes))
	r.OverheadSeconds = boundNumber(r.OverheadSeconds, maxActivitySeconds)
	r.Samples = boundNumber(r.Samples, maxActivityCount)
	r.TransferredBytes = boundNumber(r.TransferredBytes, maxTransferredBytes)
	if r.Since != nil {
		since := clock.bound(*r.Since)
		r.Since = &since
		if since.IsZero() {
			r.Since = nil
		}
	}
	return r
}

func boundNumber[T int32 | int64](n, limit T) T { return max(0, min(n, limit)) }

// boundSize returns a size or an upper bound of it, never both.
func boundSize(bytes, atMost int64) (int64, int64) {
	if bytes > 0 {
		return min(bytes, maxActivityImportBytes), 0
	}
	return 0, boundNumber(atMost, maxActivityImportBytes)
}

// boundGroup returns the name of a group of sources; SourceOther for what is none.
func boundGroup(name string) string {
	if !isGroupName(name) {
		return v1alpha1.SourceOther
	}
	return name
}

// The checks below are on characters: they are made for every line of every activity.

func isImageName(namespace, name string) bool {
	return hasOnly(namespace, 63, isNameCharacter) && hasOnly(name, 253, isNameCharacter)
}

func isGroupName(name string) bool { return hasOnly(name, 63, isNameCharacter) }

func isReason(reason string) bool {
	return reason == "" || hasOnly(reason, 64, func(c byte) bool { return 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' })
}

func isNameCharacter(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '.'
}

// hasOnly reports whether a text has 1 to limit bytes, which all are allowed.
func hasOnly(text string, limit int, allowed func(byte) bool) bool {
	for i := range len(text) {
		if !allowed(text[i]) {
			return false
		}
	}
	return text != "" && len(text) <= limit
}
