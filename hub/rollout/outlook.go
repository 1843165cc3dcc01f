package rollout

import (
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Outlook is a placed cluster, since when it has the current version in its plan, and when it
// is expected to be ready.
type Outlook struct {
	PlacedCluster
	// PlannedAt is zero where that is unknown.
	PlannedAt time.Time
	// Expected of a cluster in progress; nil for others.
	Expected *eta.Estimate
}

// ListOutlooks returns the placed clusters, by wave, then name.
func ListOutlooks(v View) []Outlook {
	e := evaluate(v)
	placed := make(map[string]*placedCluster, len(e.placed))
	for i := range e.placed {
		placed[e.placed[i].Name] = &e.placed[i]
	}
	newImage := e.newQueuedImport(e.Image.Spec.Template.SourceHost())
	outlooks := make([]Outlook, len(e.decision.Placed))
	for i := range e.decision.Placed {
		o := &outlooks[i]
		o.PlacedCluster = e.decision.Placed[i]
		c := placed[o.Cluster]
		if c.PlannedDigest == c.effective.Digest {
			o.PlannedAt = c.PlannedAt
		}
		if o.State == v1alpha1.ClusterProgressing {
			estimate := e.estimateImport(c, newImage)
			o.Expected = &estimate
		}
	}
	return outlooks
}

// Reach is what starts when a wave is approved.
type Reach struct {
	// Starting clusters, by name: those to apply, and those that are offline.
	Starting []PlacedCluster
	// EachBytes is what one of them downloads. AtMost: no size of the download is known, and
	// that of the disk was taken.
	EachBytes int64
	AtMost    bool
	// Takes is how long it takes from the start of the wave until the last cluster that is
	// online is done; 9 of 10 take between Low and High. They are zero with Why.
	Takes, Low, High time.Duration
	// Why no time is given; empty where one is.
	Why eta.Unknown
}

// EstimateReach returns what the approval of a wave starts; false where the rollout has no such
// wave. downloadBytes is the size of the download, 0 where that is unknown.
func EstimateReach(v View, name string, downloadBytes int64) (reach Reach, found bool) {
	e := evaluate(v)
	index := slices.IndexFunc(e.waves, func(w wave) bool { return w.name == name })
	if index < 0 {
		return Reach{}, false
	}
	w := &e.waves[index]
	image := e.newQueuedImport(e.Image.Spec.Template.SourceHost())
	// Where the source gives no size, agents report that of the disk.
	isKnown := func(bytes int64) bool { return bytes > 0 && bytes < image.AtMostBytes }
	switch {
	case isKnown(image.Bytes):
	case isKnown(downloadBytes):
		image.Bytes = downloadBytes
	default:
		image.Bytes = 0
	}
	reach.EachBytes = image.Bytes
	if reach.EachBytes == 0 {
		reach.EachBytes, reach.AtMost = image.AtMostBytes, true
	}
	for i := range e.decision.Placed {
		if p := &e.decision.Placed[i]; p.Wave == name && (p.State == v1alpha1.ClusterToApply || p.State == v1alpha1.ClusterDeferred) {
			reach.Starting = append(reach.Starting, *p)
		}
	}
	reach.Takes, reach.Low, reach.High, reach.Why = e.estimateWave(index, w, image)
	return reach, true
}

// estimateWave returns how long the clusters of a wave take that have not started. Those of
// which nothing is known take as long as the median of the others.
func (e *evaluation) estimateWave(index int, w *wave, image v1alpha1.QueuedImport) (takes, low, high time.Duration, why eta.Unknown) {
	var starting []*placedCluster
	left := map[string]eta.Turn{}
	for i := range e.placed {
		c := &e.placed[i]
		if int(c.wave) != index || c.state != v1alpha1.ClusterToApply {
			continue
		}
		starting = append(starting, c)
		switch estimate := e.estimateImport(c, image); {
		case estimate.Why == "":
			left[c.Name] = e.newTurn(c, estimate)
		case why == "" || estimate.Why == eta.UnknownWaitsForPerson:
			why = estimate.Why
		}
	}
	fleet := e.fleetLimit(image.Source)
	switch {
	case len(starting) == 0:
		return 0, 0, 0, ""
	case why == eta.UnknownWaitsForPerson:
		return 0, 0, 0, why
	case fleet.slots <= 0:
		return 0, 0, 0, eta.UnknownNothingGranted
	case len(left) == 0:
		return 0, 0, 0, why
	}
	typical := e.findTypicalImport(left)
	last, isKnown := fleet.simulate(func(fleet fleetLimit) eta.Estimate {
		return e.simulateWave(starting, w.concurrencyLimit(), fleet, e.Now, left, typical)
	})
	if !isKnown {
		return 0, 0, 0, eta.UnknownNothingGranted
	}
	return last.At.Sub(e.Now), last.Low.Sub(e.Now), last.High.Sub(e.Now), ""
}
