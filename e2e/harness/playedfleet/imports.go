package playedfleet

import (
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/history"
)

const (
	mebibyte         = 1 << 20
	importingMessage = "the importer downloads it"
)

// Groups of sources of the played policy.
const (
	groupBucket = "eu-bucket"
	groupVendor = "vendor-cdn"
	hostBucket  = "images.eu.example.com"
	hostVendor  = "cdn.vendor.example.com"
)

// groupOf returns the group of a URL, as an agent does by the policy.
func groupOf(url string) string {
	switch {
	case strings.Contains(url, "://"+hostBucket+"/"):
		return groupBucket
	case strings.Contains(url, "://"+hostVendor+"/"):
		return groupVendor
	default:
		return v1alpha1.SourceOther
	}
}

// groups returns the groups of the policy, and SourceOther.
func (f *Fleet) groups() []string { return append(f.policyGroups(), v1alpha1.SourceOther) }

func (f *Fleet) policyGroups() (names []string) {
	if b := f.policy.Budget(f.at); b != nil {
		for _, s := range b.Sources {
			names = append(names, s.Name)
		}
	}
	return names
}

// groupSpeed is how many bytes per second an import from a group takes.
func groupSpeed(group string) float64 {
	switch group {
	case groupBucket:
		return 52 * mebibyte
	case groupVendor:
		return 31 * mebibyte
	default:
		return 14 * mebibyte
	}
}

// speed of a member against the others.
func (m *member) speed() float64 {
	if m.object.Labels["edge"] == "true" {
		return 0.12
	}
	return 0.75 + float64(hashOf(m.name())%50)/100
}

// playImports has the imports of a member proceed.
func (f *Fleet) playImports(m *member, elapsed time.Duration) {
	if m.active == 0 {
		return
	}
	for _, img := range m.images {
		if img.Phase != v1alpha1.PhaseSyncing {
			continue
		}
		wanted := groupSpeed(img.group) * m.speed() * (0.85 + 0.3*f.random.Float64())
		img.rate = img.rate*0.7 + wanted*0.3
		done := min(img.total-img.done, int64(img.rate*elapsed.Seconds()))
		img.done += done
		m.transferred[img.group] += done
		switch {
		case img.fails != "" && img.done > img.total/3:
			img.setFailed(img.fails, img.failure)
		case img.done >= img.total:
			img.setReady(f.at)
			m.samples++
		default:
			continue
		}
		m.dirty = true
		f.markDirty(img.Namespace, img.Name)
	}
}

// markDirty has the rollout of an image decide again.
func (f *Fleet) markDirty(namespace, name string) {
	for _, img := range f.images {
		if img.current == (types.NamespacedName{Namespace: namespace, Name: name}) {
			img.dirty = true
		}
	}
}

// held returns how many slots are taken, by group and, with "", of all; what silent members
// may be running counts.
func (f *Fleet) held() map[string]int64 {
	held := map[string]int64{"": 0}
	for _, group := range f.groups() {
		held[group] = 0
	}
	for _, m := range f.members {
		if m.active == 0 || m.object.Spec.Quarantine != nil {
			continue
		}
		for _, img := range m.images {
			if img.Phase == v1alpha1.PhaseSyncing {
				held[img.group]++
				held[""]++
			}
		}
	}
	return held
}

// startImports gives free slots to those that wait, one to each member in turn.
func (f *Fleet) startImports() {
	held := f.held()
	limits := map[string]int64{"": math.MaxInt32}
	if b := f.policy.Budget(f.at); b != nil {
		limits[""] = int64(b.Concurrency)
		for _, s := range b.Sources {
			limits[s.Name] = int64(*s.Concurrency)
		}
	}
	f.next++
	for i := range f.members {
		m := f.members[(i+f.next)%len(f.members)]
		if m.speaks() && m.queued > 0 {
			f.startImport(m, held, limits)
		}
	}
}

func (f *Fleet) startImport(m *member, held, limits map[string]int64) {
	for _, img := range m.queue() {
		limit, limited := limits[img.group]
		reason := v1alpha1.ReasonWaitingForSlot
		switch {
		case img.notBefore.After(f.at):
			reason = v1alpha1.ReasonBackingOff
		case m.active >= int(m.concurrency):
		case held[""] >= limits[""]:
			reason = v1alpha1.ReasonWaitingForFleet
		case limited && held[img.group] >= limit:
			reason = v1alpha1.ReasonWaitingForSource
		default:
			m.active++
			held[""]++
			held[img.group]++
			img.Phase, img.Reason, img.Message = v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting, importingMessage
			img.Attempts = max(1, img.Attempts)
			img.startedAt, img.rate = f.at, groupSpeed(img.group)*m.speed()
			m.dirty = true
			f.markDirty(img.Namespace, img.Name)
			return
		}
		if img.Reason != reason {
			img.Reason, m.dirty = reason, true
		}
	}
}

// churn has now and then a ready image imported anew, so that the fleet never stands still.
func (f *Fleet) churn(elapsed time.Duration) {
	if len(f.members) == 0 || f.random.Float64() > f.scenario.churn*elapsed.Seconds() {
		return
	}
	m := f.members[f.random.IntN(len(f.members))]
	if !m.speaks() || m.active+m.queued > 2 {
		return
	}
	ready := slices.DeleteFunc(slices.Clone(m.images), func(img *image) bool {
		return img.Phase != v1alpha1.PhaseSucceeded || img.Origin != "" || img.References > 0
	})
	if len(ready) == 0 {
		return
	}
	img := ready[f.random.IntN(len(ready))]
	img.setQueued(f.at)
	m.dirty = true
	m.queued++
}

// sample adds to the History what all members import.
func (f *Fleet) sample(at time.Time) {
	f.sampledAt = at
	samples := make([]history.MemberSample, len(f.members))
	for i, m := range f.members {
		samples[i] = history.MemberSample{Member: m.name(), Known: m.speaks(), BootID: "boot", Slots: m.active, Queued: m.queued}
		slots, queued := map[string]int{}, map[string]int{}
		if m.active+m.queued > 0 {
			for _, img := range m.images {
				switch img.Phase {
				case v1alpha1.PhaseSyncing:
					slots[img.group]++
				case v1alpha1.PhaseQueued:
					queued[img.group]++
				}
			}
		}
		for _, group := range f.groups() {
			samples[i].Sources = append(samples[i].Sources, history.SourceSample{
				Name: group, TransferredBytes: m.transferred[group], Slots: slots[group], Queued: queued[group],
			})
		}
	}
	f.history.AddSample(at, f.policyGroups(), samples)
}

// playHistory fills the History with a day of downloads: nights are quiet.
func (f *Fleet) playHistory() {
	past := min(f.scenario.past, f.scenario.electedFor)
	for at := f.at.Add(-past); at.Before(f.at); at = at.Add(history.Step) {
		hour := float64(at.Hour()) + float64(at.Minute())/60
		load := 0.18 + 0.5*math.Pow(math.Sin(math.Pi*(hour-1)/24), 4)
		samples := make([]history.MemberSample, len(f.members))
		for i, m := range f.members {
			samples[i] = f.playSample(m, at, load)
		}
		f.history.AddSample(at, f.policyGroups(), samples)
	}
	f.sampledAt = f.at
}

func (f *Fleet) playSample(m *member, at time.Time, load float64) history.MemberSample {
	known := !m.neverReported && (m.silentSince.IsZero() || at.Before(m.silentSince)) && m.object.Spec.Quarantine == nil
	s := history.MemberSample{Member: m.name(), Known: known, BootID: "boot"}
	if !known {
		return s
	}
	// Imports take longer than a minute: what a member does changes every few.
	busy := rand01(m.name(), at.Unix()/420) < load*f.scenario.busy
	for _, group := range f.groups() {
		slots := 0
		if busy && rand01(m.name()+group, at.Unix()/420) < 0.5 {
			slots = 1
			m.transferred[group] += int64(groupSpeed(group) * m.speed() * (0.8 + 0.4*f.random.Float64()) * history.Step.Seconds())
		}
		queued := 0
		if slots > 0 && load > 0.5 {
			queued = int(3 * rand01(group+m.name(), at.Unix()/900))
		}
		s.Slots, s.Queued = s.Slots+slots, s.Queued+queued
		s.Sources = append(s.Sources, history.SourceSample{Name: group, TransferredBytes: m.transferred[group], Slots: slots, Queued: queued})
	}
	return s
}

// rand01 is a number from 0 to 1 that a name and a number stand for.
func rand01(name string, n int64) float64 {
	h := hashOf(name)*2654435761 + uint64(n)*40503
	h ^= h >> 15
	h *= 2246822519
	h ^= h >> 13
	return float64(h%10007) / 10007
}
