package rollout

import (
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Status writes: expectedAt is a full minute, and a stored one stays until it is off by more
// than a tenth of the time left.
const (
	expectedPrecision = time.Minute
	expectedTolerance = 10
)

// maxExpected bounds a time ahead: a Duration ends after 292 years, a stored time with year 9999.
const maxExpected = 50 * 365 * 24 * time.Hour

// updateExpectedAt sets when the rollout will be done, or why that is unknown.
//
// Invariant: while clusters are unfinished, a stored expectedAt is in the future.
func (e *evaluation) updateExpectedAt() {
	if reason := e.untimedReason(); reason != "" {
		e.status.ExpectedReason = reason
		return
	}
	if e.counts.ToApply+e.counts.Progressing == 0 {
		return
	}
	stored := e.storedExpectedAt()
	at, reason, isOverdue := e.estimateCompletion()
	if latest := e.Now.Add(maxExpected); at.After(latest) {
		at = latest
	}
	switch {
	case reason != "":
		e.status.ExpectedReason, e.decision.EstimateAfter = reason, expectedPrecision
		return
	case stored != nil && (isOverdue || e.isClose(stored.Time, at)):
		e.status.ExpectedAt = stored
	default:
		at = at.Add(expectedPrecision - 1).Truncate(expectedPrecision)
		if !at.After(e.Now) {
			at = at.Add(expectedPrecision)
		}
		e.status.ExpectedAt = ptr.To(storedtime.Truncate(at))
	}
	// Activities change without an event, and what is overdue is pushed forward.
	left := e.status.ExpectedAt.Sub(e.Now)
	e.decision.EstimateAfter = min(left, max(expectedPrecision, left/expectedTolerance))
}

// setUntimedPhase writes a phase in which nothing is known of the clusters left.
func (e *evaluation) setUntimedPhase(v phaseVerdict) {
	e.status.ExpectedReason = v.reason
	e.setPhase(v)
}

// storedExpectedAt returns the stored time while it lies ahead.
func (e *evaluation) storedExpectedAt() *metav1.Time {
	stored := e.Image.Status.ExpectedAt
	if e.versionChanged || stored == nil || !stored.After(e.Now) {
		return nil
	}
	return stored.DeepCopy()
}

func (e *evaluation) isClose(stored, at time.Time) bool {
	return stored.Sub(at).Abs() <= max(expectedPrecision, at.Sub(e.Now)/expectedTolerance)
}

// untimedReason returns what the rollout waits for, or will, that nobody can time; empty for
// nothing.
func (e *evaluation) untimedReason() string {
	total, rollout := &e.counts, &e.Image.Spec.Rollout
	switch {
	case total.ToApply+total.Progressing+total.Deferred == 0:
		return ""
	case total.failures() > e.allowedFailures():
		return v1alpha1.ReasonMaxFailures
	case total.ToApply > 0 && rollout.Paused:
		return v1alpha1.ReasonRolloutPaused
	case total.unapproved > 0:
		return v1alpha1.ReasonAwaitingApproval
	case total.blocked > 0:
		return v1alpha1.ReasonClustersBlocked
	case total.heldBack > 0:
		return e.firstObstacle()
	case slices.ContainsFunc(e.placed, func(c placedCluster) bool { return c.PlanFull && c.state == v1alpha1.ClusterToApply }):
		return v1alpha1.ReasonPlanFull
	case total.Deferred == total.Total, rollout.OfflineClusters == v1alpha1.OfflineWait && total.Deferred > total.quarantined:
		return v1alpha1.ReasonOfflineClusters
	default:
		return ""
	}
}

// estimateCompletion estimates from what members import and queue where half of those left
// say enough, else from the pace of the clusters that succeeded. isOverdue: by that pace, it
// should be done.
func (e *evaluation) estimateCompletion() (at time.Time, reason string, isOverdue bool) {
	newImage := e.newQueuedImport(e.Image.Spec.Template.SourceHost())
	left, reason := e.estimateClusters(newImage)
	if reason == string(eta.UnknownWaitsForPerson) {
		return at, reason, false
	}
	unfinished, fleet := int(e.counts.ToApply+e.counts.Progressing), e.fleetLimit(newImage.Source)
	if fleet.slots <= 0 && len(left) < unfinished {
		return at, string(eta.UnknownNothingGranted), false
	}
	byPace, isOverdue, hasPace := e.estimateByPace()
	// The pace of an open fleet says nothing of when it is closed, or has fewer slots.
	hasPace = hasPace && !e.Budget.IsClosed() && !fleet.isLower(byPace)
	switch {
	case len(left) > 0 && (!hasPace || 2*len(left) >= unfinished):
		last, isKnown := fleet.simulate(func(fleet fleetLimit) eta.Estimate { return e.simulateWaves(left, fleet) })
		if !isKnown {
			return at, string(eta.UnknownNothingGranted), false
		}
		return last.At, "", false
	case hasPace:
		return byPace, "", isOverdue
	default:
		return at, reason, false
	}
}

// fleetLimit is how many imports from a group the fleet-wide budget allows: now, or while it is closed once
// it opens, whatever a later window raises.
type fleetLimit struct {
	slots int
	// lowerFrom is from when there may be fewer, at least the lowest number; zero for never.
	lowerFrom time.Time
	lowest    int
}

func (e *evaluation) fleetLimit(group string) fleetLimit {
	if e.Budget == nil {
		return fleetLimit{slots: math.MaxInt}
	}
	b := *e.Budget
	if b.IsClosed() {
		b.Concurrency = max(1, b.RisesTo)
	}
	lowest := b
	lowest.Concurrency = b.Least
	l := fleetLimit{slots: int(b.Slots(group)), lowest: int(lowest.Slots(group))}
	if l.lowest < l.slots { // else the group's own limit is below all of the fleet's numbers
		l.lowerFrom = b.LowerFrom
	}
	return l
}

// isLower: at a time, there may be fewer slots.
func (l fleetLimit) isLower(at time.Time) bool {
	return !l.lowerFrom.IsZero() && !at.Before(l.lowerFrom)
}

// simulate plays imports. Where one begins once there may be fewer slots, all have the lowest number of them;
// false where that is none.
//
// Invariant: each import begins within what the budget is then.
func (l fleetLimit) simulate(play func(fleetLimit) (last eta.Estimate)) (last eta.Estimate, isKnown bool) {
	switch last = play(l); {
	case !l.isLower(last.Begin):
		return last, true
	case l.lowest <= 0:
		return eta.Estimate{}, false
	default:
		l.slots = min(l.slots, l.lowest)
		return play(l), true
	}
}

// estimateClusters returns when each cluster is done, as if it started now, by name. Clusters of which
// that is unknown are left out; reason is the first one's, or that one waits for a person.
func (e *evaluation) estimateClusters(newImage v1alpha1.QueuedImport) (left map[string]eta.Turn, reason string) {
	left = map[string]eta.Turn{}
	for i := range e.placed {
		c := &e.placed[i]
		if c.state != v1alpha1.ClusterToApply && c.state != v1alpha1.ClusterProgressing {
			continue
		}
		switch estimate := e.estimateImport(c, newImage); {
		case estimate.Why == "":
			left[c.Name] = e.newTurn(c, estimate)
		case reason == "" || estimate.Why == eta.UnknownWaitsForPerson:
			reason = string(estimate.Why)
		}
	}
	return left, reason
}

// estimateImport estimates the import of one cluster.
func (e *evaluation) estimateImport(c *placedCluster, newImage v1alpha1.QueuedImport) eta.Estimate {
	activity := eta.Snapshot{Activity: c.believedActivity(e.Now), SourceLimits: c.SourceLimits, ObservedAt: c.ActivityAt, Now: e.Now}
	if c.state == v1alpha1.ClusterProgressing {
		if estimate, listed := activity.ForImage(newImage.Namespace, newImage.Name); listed {
			return estimate
		}
		// The slot is freed when the import is done.
		if r := &c.Report; r.Revision == c.effective.Revision && (r.Reason == v1alpha1.ReasonSnapshotting || r.Phase == v1alpha1.PhaseSucceeded) {
			return eta.Estimate{At: e.Now, Low: e.Now, High: e.Now}
		}
	}
	if spec := &c.effective.Spec; c.effective.Digest != e.templateDigest { // another link, or another disk
		newImage.AtMostBytes = spec.DiskSize.Value()
		if e.Budget != nil {
			newImage.Source = e.Budget.SourceGroups().GroupOrOther(spec.SourceHost())
		}
	}
	if own := listedBytes(c.Activity, newImage); own > 0 {
		newImage.Bytes = own
	}
	// Without slots, it waits for what the others there wait for.
	if e.Budget != nil {
		newImage.Reason = v1alpha1.ReasonWaitingForFleet
	}
	if c.Activity != nil && slices.ContainsFunc(c.Activity.Head, func(q v1alpha1.QueuedImport) bool { return q.Reason == v1alpha1.ReasonPaused }) {
		newImage.Reason = v1alpha1.ReasonPaused
	}
	if opensAt := c.nextOpening(e.Now); opensAt.After(e.Now) && c.Activity != nil {
		at := c.memberTime(opensAt)
		newImage.Reason, newImage.OpensAt = v1alpha1.ReasonWaitingForWindow, &at
	}
	return activity.ForNew(newImage)
}

// newQueuedImport is the image as a member would queue it. Invariant: no single member changes
// what is expected of the others: the group is that of the policy in force, and the size is
// the median of what members say, at most the disk's.
func (e *evaluation) newQueuedImport(host string) v1alpha1.QueuedImport {
	q := v1alpha1.QueuedImport{Namespace: e.version.Namespace, Name: e.version.Image, Source: v1alpha1.SourceOther, AtMostBytes: e.Image.Spec.Template.DiskSize.Value()}
	if e.Budget != nil {
		q.Source = e.Budget.SourceGroups().GroupOrOther(host)
	}
	var sizes []int64
	for i := range e.placed {
		if size := listedBytes(e.placed[i].Activity, q); size > 0 {
			sizes = append(sizes, size)
		}
	}
	if len(sizes) > 0 {
		slices.Sort(sizes)
		q.Bytes = sizes[(len(sizes)-1)/2]
	}
	return q
}

// listedBytes returns the size of an image as a member says it, at most its disk's; 0 where
// it does not.
func listedBytes(a *v1alpha1.ReportedActivity, image v1alpha1.QueuedImport) int64 {
	if a == nil {
		return 0
	}
	bytes := int64(0)
	for i := range a.Active {
		if listed := &a.Active[i]; listed.Namespace == image.Namespace && listed.Name == image.Name {
			bytes = listed.BytesTotal
		}
	}
	for i := range a.Head {
		if listed := &a.Head[i]; listed.Namespace == image.Namespace && listed.Name == image.Name {
			bytes = listed.Bytes
		}
	}
	if image.AtMostBytes > 0 {
		return min(bytes, image.AtMostBytes)
	}
	return bytes
}

// newTurn returns the import of a cluster with the window that it waits for, unless it has a slot before.
func (e *evaluation) newTurn(c *placedCluster, estimate eta.Estimate) eta.Turn {
	opens := c.nextOpening(e.Now)
	if estimate.Begin.Before(opens) {
		opens = estimate.Begin
	}
	return eta.Turn{Estimate: estimate, Opens: opens}
}

// simulateWaves returns when the last cluster begins, and is done: each wave starts when those before it
// have been done for their minSuccessTime.
func (e *evaluation) simulateWaves(left map[string]eta.Turn, fleet fleetLimit) (last eta.Estimate) {
	typical := e.findTypicalImport(left)
	byWave := make([][]*placedCluster, len(e.waves))
	for i := range e.placed {
		c := &e.placed[i]
		byWave[c.wave] = append(byWave[c.wave], c)
	}
	var startAt time.Time
	last.At = e.Now
	for i := range e.waves {
		w := &e.waves[i]
		ofWave := e.simulateWave(byWave[i], w.concurrencyLimit(), fleet, storedtime.LaterOf(e.Now, startAt), left, typical)
		doneAt := ofWave.At
		if doneAt.IsZero() && w.doneAt != nil {
			doneAt = w.doneAt.Time
		}
		startAt = storedtime.LaterOf(startAt, doneAt.Add(w.minSuccessTime))
		last.Begin, last.At = storedtime.LaterOf(last.Begin, ofWave.Begin), storedtime.LaterOf(last.At, doneAt)
	}
	return last
}

// typicalImport is the median of clusters from when their windows open: until they are done, expected,
// at the earliest and at the latest, and what of that the import takes.
type typicalImport struct{ at, low, high, takes time.Duration }

func (e *evaluation) findTypicalImport(left map[string]eta.Turn) typicalImport {
	median := func(of func(*eta.Turn) time.Duration) time.Duration {
		var all []time.Duration
		for _, t := range left {
			all = append(all, max(0, of(&t)))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	since := func(t *eta.Turn) time.Time { return storedtime.LaterOf(e.Now, t.Opens) }
	return typicalImport{
		at:    median(func(t *eta.Turn) time.Duration { return t.At.Sub(since(t)) }),
		low:   median(func(t *eta.Turn) time.Duration { return t.Low.Sub(since(t)) }),
		high:  median(func(t *eta.Turn) time.Duration { return t.High.Sub(since(t)) }),
		takes: median(func(t *eta.Turn) time.Duration { return t.Takes(e.Now) }),
	}
}

// newTypicalTurn returns the import of a cluster of which nothing is known.
func (e *evaluation) newTypicalTurn(c *placedCluster, typical typicalImport) eta.Turn {
	opens := c.nextOpening(e.Now)
	from := storedtime.LaterOf(e.Now, opens)
	at := from.Add(typical.at)
	return eta.Turn{Opens: opens, Estimate: eta.Estimate{Begin: at.Add(-typical.takes), At: at, Low: from.Add(typical.low), High: from.Add(typical.high)}}
}

// simulateWave returns when the last cluster of a wave begins, and is done; zero where all are. maxConcurrency
// of them run at a time, at most as many as the fleet has slots.
func (e *evaluation) simulateWave(clusters []*placedCluster, limit int, fleet fleetLimit, startAt time.Time, left map[string]eta.Turn, typical typicalImport) (last eta.Estimate) {
	wave, slots := eta.NewPool(limit, startAt), eta.NewPool(max(1, fleet.slots), e.Now)
	var all, running, waiting []*eta.Turn
	for _, c := range clusters {
		turn, known := left[c.Name]
		if !known {
			turn = e.newTypicalTurn(c, typical)
		}
		isStarted := c.state == v1alpha1.ClusterProgressing
		switch {
		case !isStarted && c.state != v1alpha1.ClusterToApply:
			continue
		case !isStarted: // what waits for a window holds up none whose window is open
			turn.Pools = []*eta.Pool{wave, slots}
			waiting = append(waiting, &turn)
		case turn.Opens.After(e.Now): // it has its place in the wave, which it takes up then
			wave.HoldSlotFromOpening(e.Now, &turn)
			turn.Pools = []*eta.Pool{slots}
			waiting = append(waiting, &turn)
		case known && !fleet.isLower(turn.Begin): // which includes the wait for a slot
			slots.HoldSlot(&turn.Estimate)
			running = append(running, &turn)
		default:
			turn.Pools = []*eta.Pool{slots}
			running = append(running, &turn)
		}
		all = append(all, &turn)
	}
	eta.PlayTurns(e.Now, running)
	for _, t := range running {
		wave.HoldSlot(&t.Estimate)
	}
	eta.PlayTurns(e.Now, waiting)
	for _, t := range all {
		last.Begin, last.At = storedtime.LaterOf(last.Begin, t.Begin), storedtime.LaterOf(last.At, t.At)
		last.Low, last.High = storedtime.LaterOf(last.Low, t.Low), storedtime.LaterOf(last.High, t.High)
	}
	return last
}

// estimateByPace extrapolates from the clusters that succeeded. Unless the result is overdue,
// it does not depend on the current time. The pace excludes each minSuccessTime that was
// waited for; those still ahead are added.
func (e *evaluation) estimateByPace() (at time.Time, isOverdue, ok bool) {
	left := e.counts.ToApply + e.counts.Progressing
	if e.counts.Succeeded == 0 || e.status.LastSuccessAt == nil {
		return at, false, false
	}
	lastOpen, lastStarted := 0, 0 // wave indexes
	for i := range e.waves {
		c := &e.waves[i].counts
		if c.ToApply+c.Progressing > 0 {
			lastOpen = i
		}
		if c.Succeeded > 0 {
			lastStarted = i
		}
	}
	var waited, ahead time.Duration
	for i := range e.waves[:max(lastStarted, lastOpen)] {
		if i < lastStarted {
			waited += e.waves[i].minSuccessTime
		} else {
			ahead += e.waves[i].minSuccessTime
		}
	}
	lastSuccess := e.status.LastSuccessAt.Time
	perCluster := max(0, lastSuccess.Sub(e.version.Since.Time)-waited) / time.Duration(e.counts.Succeeded)
	at = lastSuccess.Add(multiply(perCluster, left) + ahead)
	if at.After(e.Now) {
		return at, false, true
	}
	// What is late takes as long again as it is late, so that it is pushed forward rarely.
	at = e.Now.Add(min(maxExpected, max(perCluster, e.Now.Sub(at))) + multiply(perCluster, left-1))
	for i := e.currentWave; i < lastOpen; i++ {
		at = at.Add(e.waves[i].minSuccessTime)
	}
	return at, true, true
}

// multiply returns d n times, at most maxExpected.
func multiply(d time.Duration, n int32) time.Duration {
	if n > 0 && d > maxExpected/time.Duration(n) {
		return maxExpected
	}
	return d * time.Duration(n)
}
