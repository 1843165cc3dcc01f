package rollout_test

import (
	"maps"
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// worldMember is a member with its agent.
type worldMember struct {
	labels        map[string]string
	offline, full bool
	onlineSince   time.Time
	// stretches are those in which it was online before.
	stretches []v1alpha1.MemberStretch
	// fault is "fails", "hangs" or "rejects" for every import.
	fault string
	// unknown is a field that its agent does not know.
	unknown string
	// knowsRetry: its agent follows tokens. taken are the sources that its last report is about.
	knowsRetry bool
	taken      map[string]string
	// plan on the hub, and its copy in the member.
	plan, arrived map[string]v1alpha1.PlannedImage
	images        map[string]*worldImage
	// report as the hub has it.
	report map[string]rollout.Report
}

type worldImage struct {
	revision, serving string
	phase             v1alpha1.Phase
	foreign           bool // not created by the plan
	retry             string
}

func (m *worldMember) takeOffline(now time.Time) {
	if !m.offline {
		m.offline = true
		m.stretches = append(m.stretches, v1alpha1.MemberStretch{From: *toStoredTime(m.onlineSince), Until: toStoredTime(now)})
	}
}

func (m *worldMember) bringOnline(now time.Time) {
	if m.offline {
		m.offline, m.onlineSince = false, now
	}
}

// recordedStretches returns what the member's status has: nothing before the first interruption.
func (m *worldMember) recordedStretches() []v1alpha1.MemberStretch {
	all := slices.Clone(m.stretches)
	if len(all) > 0 && !m.offline {
		all = append(all, v1alpha1.MemberStretch{From: *toStoredTime(m.onlineSince)})
	}
	for i := range all[:max(0, len(all)-1)] {
		all[i+1].SecondsBefore = all[i].SecondsBefore + int64(all[i].Until.Sub(all[i].From.Time)/time.Second)
	}
	return all
}

// expectedUse states again what a deadline has used since a time: all time online.
func (m *worldMember) expectedUse(since, now time.Time) (used time.Duration) {
	for at := since; at.Before(now); at = at.Add(time.Second) {
		isIn := func(s v1alpha1.MemberStretch) bool { return !at.Before(s.From.Time) && at.Before(s.Until.Time) }
		if !m.offline && !at.Before(m.onlineSince) || slices.ContainsFunc(m.stretches, isIn) {
			used += time.Second
		}
	}
	return used
}

// runAgent is one step of the agent: it applies its plan, advances each image by one
// phase, and reports. An offline member works on with its copy. It returns whether anything
// changed.
func (m *worldMember) runAgent() (changed bool) {
	if !m.offline {
		changed = !maps.EqualFunc(m.arrived, m.plan, func(a, b v1alpha1.PlannedImage) bool { return a.Spec.Equal(&b.Spec) && a.Retry == b.Retry })
		m.arrived = maps.Clone(m.plan)
	}
	items := map[string]v1alpha1.PlanItemState{}
	for _, name := range slices.Sorted(maps.Keys(m.arrived)) {
		wanted := revisionOf(m.arrived[name])
		i := m.images[name]
		before := worldImage{}
		if i != nil {
			before = *i
		}
		switch {
		case i != nil && i.foreign:
			items[name] = v1alpha1.PlanItemNotOurs
			continue
		case m.fault == "rejects" && (i == nil || i.revision != wanted):
			items[name] = v1alpha1.PlanItemRejected
			continue
		case i == nil:
			i = &worldImage{revision: wanted, phase: v1alpha1.PhaseQueued}
			m.images[name] = i
		case i.revision != wanted: // the phase is that of the former one for a step
			i.revision = wanted
		default:
			m.advanceImage(i)
		}
		if token := m.arrived[name].Retry; m.knowsRetry && token != "" && token != i.retry {
			i.retry = token
			if i.phase == v1alpha1.PhaseFailed {
				i.phase = v1alpha1.PhaseQueued
			}
		}
		items[name] = v1alpha1.PlanItemApplied
		changed = changed || *i != before
	}
	if m.offline {
		return changed
	}
	report := map[string]rollout.Report{}
	for name, i := range m.images {
		report[name] = rollout.Report{Exists: true, Revision: i.revision, ServingRevision: i.serving, Phase: i.phase, ItemState: items[name], Retry: i.retry}
	}
	for name, item := range items {
		if _, there := report[name]; !there {
			report[name] = rollout.Report{ItemState: item}
		}
	}
	m.taken = map[string]string{}
	for name, item := range m.arrived {
		m.taken[name] = item.Spec.SourceDigest()
	}
	changed = changed || !maps.Equal(m.report, report)
	m.report = report
	return changed
}

// loseImage deletes what an image has imported: it is imported again.
func (m *worldMember) loseImage(name string) {
	if i := m.images[name]; i != nil && !i.foreign && i.phase == v1alpha1.PhaseSucceeded {
		i.phase, i.serving = v1alpha1.PhaseQueued, ""
	}
}

func revisionOf(p v1alpha1.PlannedImage) string { return p.Spec.Revision() }

func (m *worldMember) advanceImage(i *worldImage) {
	switch {
	case i.serving == i.revision && i.phase == v1alpha1.PhaseSucceeded:
	case i.phase == v1alpha1.PhaseQueued:
		i.phase = v1alpha1.PhaseSyncing
	case i.phase == v1alpha1.PhaseSyncing && m.fault == "fails":
		i.phase = v1alpha1.PhaseFailed
	case i.phase == v1alpha1.PhaseSyncing && m.fault == "hangs":
	case i.phase == v1alpha1.PhaseSyncing:
		i.phase, i.serving = v1alpha1.PhaseSucceeded, i.revision
	case i.phase == v1alpha1.PhaseFailed && m.fault == "fails":
	default: // retried, or another revision
		i.phase = v1alpha1.PhaseQueued
	}
}
