package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

const worldDeadline = 2 * time.Minute

// world is a fleet with one FleetDiskImage, whose hub may lose its memory at any point.
type world struct {
	t   *rapid.T
	now time.Time
	// img is the stored object.
	img     *v1alpha1.FleetDiskImage
	members map[string]*worldMember
	joined  int
	// recordsUptime: the hub records when members are online; an older one did not.
	recordsUptime bool

	// The hub's memory: the last decided status, nil after a restart, and the starts that
	// no plan shows yet.
	decided *v1alpha1.FleetDiskImageStatus
	pending map[string]pendingStart

	// The model's memory: since when waves are done, or were first done, of which revision,
	// and all of it as of the last stored status.
	done, doneStored   map[string]time.Time
	first, firstStored map[string]time.Time
	// away are the clusters that were in progress and offline when a wave was done first.
	away, awayStored     map[string][]string
	doneOf, doneOfStored string
}

// pendingStart is a start that no plan shows yet.
type pendingStart struct {
	digest, retry string
	since         time.Time
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: now, recordsUptime: rapid.Bool().Draw(t, "recordsUptime"), members: map[string]*worldMember{}, pending: map[string]pendingStart{}, done: map[string]time.Time{}, doneStored: map[string]time.Time{}, first: map[string]time.Time{}, firstStored: map[string]time.Time{}, away: map[string][]string{}}
	img := apitest.FleetDiskImage("ubuntu").WithVersion("0").WithProgressDeadline(worldDeadline).
		WithPlacement(v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"placed": "yes"}}}).
		WithRetention(2, rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "keepUnreferencedFor"))
	for _, wave := range []string{"canary", "eu"} {
		soak := metav1.Duration{Duration: rapid.SampledFrom([]time.Duration{0, 0, 30 * time.Second, 2 * time.Minute}).Draw(t, "soak")}
		img.WithWaves(v1alpha1.Wave{
			Name: wave, ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": wave}},
			MinSuccessTime: &soak, RequireApproval: rapid.IntRange(0, 3).Draw(t, "approval") == 0,
		})
	}
	w.img = img.Obj()
	w.drawOverrides()
	w.drawLimits()
	for range rapid.IntRange(0, 10).Draw(t, "members") {
		w.addMember()
	}
	return w
}

// drawLimits changes the limits, as people do.
func (w *world) drawLimits() {
	r := &w.img.Spec.Rollout
	r.MaxConcurrency, r.MaxFailures = nil, nil
	if value := rapid.SampledFrom([]string{"", "1", "2", "30%", "100%"}).Draw(w.t, "maxConcurrency"); value != "" {
		most := intstr.Parse(value)
		r.MaxConcurrency = &most
	}
	if value := rapid.SampledFrom([]string{"", "0", "1", "3", "20%", "100%"}).Draw(w.t, "maxFailures"); value != "" {
		most := intstr.Parse(value)
		r.MaxFailures = &most
	}
	r.OfflineClusters = rapid.SampledFrom([]v1alpha1.OfflineClusters{"", v1alpha1.OfflineDefer, v1alpha1.OfflineWait}).Draw(w.t, "offline")
	w.img.Generation++
}

func (w *world) addMember() {
	name := fmt.Sprintf("m%02d", w.joined)
	w.joined++
	w.members[name] = &worldMember{
		labels: map[string]string{"placed": "yes", "wave": w.drawWave(), "site": w.drawSite()}, onlineSince: w.now,
		knowsRetry: rapid.Bool().Draw(w.t, "knowsRetry"), plan: map[string]v1alpha1.PlannedImage{}, images: map[string]*worldImage{}, report: map[string]rollout.Report{},
	}
}

func (w *world) drawWave() string {
	return rapid.SampledFrom([]string{"canary", "eu", "others"}).Draw(w.t, "wave")
}

func (w *world) drawMember() *worldMember {
	if len(w.members) == 0 {
		w.t.Skip("no members")
	}
	return w.members[rapid.SampledFrom(slices.Sorted(maps.Keys(w.members))).Draw(w.t, "member")]
}

func (w *world) currentName() string { return rollout.CurrentImage(w.img).Name }

// gatherView returns the view of the hub: plans and last reports.
func (w *world) gatherView() rollout.View {
	v := rollout.View{Image: w.img.DeepCopy(), Now: w.now}
	if w.decided != nil {
		v.Image.Status = *w.decided.DeepCopy()
	}
	for _, name := range slices.Sorted(maps.Keys(w.members)) {
		m := w.members[name]
		c := rollout.Cluster{Name: name, Labels: m.labels, PlanFull: m.full, OnlineSince: m.onlineSince, KnowsRetry: m.knowsRetry, Report: m.report[w.currentName()]}
		if w.recordsUptime {
			c.Online = m.recordedStretches()
		}
		if m.offline {
			c.OfflineReason, c.OnlineSince = v1alpha1.ReasonSilent, time.Time{}
		}
		if p, planned := m.plan[w.currentName()]; planned {
			c.PlannedDigest, c.PlannedAt, c.PlannedRetry = p.Spec.SourceDigest(), p.PlannedAt.Time, p.Retry
		}
		if p, started := w.pending[name]; started {
			if p.digest == w.expectedSpec(name, m.labels).SourceDigest() {
				c.PlannedDigest, c.PlannedAt, c.PlannedRetry = p.digest, p.since, p.retry
			} else { // another source was asked for meanwhile
				delete(w.pending, name)
			}
		}
		w.setEffective(&c, m)
		v.Clusters = append(v.Clusters, c)
	}
	return v
}

// runHub is one reconcile; its writes may be lost.
func (w *world) runHub(storesStatus, writesPlans bool) rollout.Decision {
	w.dropOldVersion()
	v := w.gatherView()
	d := decideAndCheck(w.t, v)
	w.checkStarts(v, d)
	w.checkDecision(v, d)

	w.decided = &d.Status
	if storesStatus {
		w.img.Status = *roundTripStatus(w.t, &d.Status)
		w.doneStored, w.firstStored, w.awayStored, w.doneOfStored = maps.Clone(w.done), maps.Clone(w.first), maps.Clone(w.away), w.doneOf
	}
	for _, p := range d.Placed {
		if slices.Contains(d.Start, p.Cluster) {
			w.pending[p.Cluster] = pendingStart{p.Effective.Digest, p.Retry, w.now}
		}
	}
	if writesPlans && !d.Freeze {
		w.writePlans(d)
	}
	return d
}

// dropOldVersion drops starts and done waves of another revision.
func (w *world) dropOldVersion() {
	version := w.currentName() + "/" + w.img.Spec.Template.Revision()
	if name, _, _ := strings.Cut(w.doneOf, "/"); name != w.currentName() {
		w.pending = map[string]pendingStart{}
	}
	if version != w.doneOf {
		w.doneOf, w.done, w.first, w.away = version, map[string]time.Time{}, map[string]time.Time{}, map[string][]string{}
	}
}

func (w *world) writePlans(d rollout.Decision) {
	placed := map[string]rollout.PlacedCluster{}
	for _, p := range d.Placed {
		placed[p.Cluster] = p
	}
	img := w.img.DeepCopy()
	img.Status = d.Status
	for name, m := range w.members {
		p, isPlaced := placed[name]
		var current *v1alpha1.PlannedImage
		if at, planned := m.plan[w.currentName()]; planned {
			current = &at
		}
		if pending, started := w.pending[name]; started && isPlaced {
			former := v1alpha1.PlannedImage{Namespace: img.Spec.TargetNamespace, Name: w.currentName(), Spec: *w.expectedSpec(name, m.labels), Retry: pending.retry, PlannedAt: toStoredTime(pending.since)}
			current = &former
		}
		in := rollout.ClusterProgress{Placed: isPlaced, Started: p.Started, KeepsItem: p.KeepsItem, Succeeded: p.State == v1alpha1.ClusterSucceeded, Retry: p.Retry, Effective: p.Effective}
		var desired rollout.DesiredImages
		if d.NoneSelected {
			desired = rollout.ComputeDesiredInConflict(img, current, w.now)
			require.Empty(w.t, desired.Retired)
		} else {
			desired = rollout.ComputeDesiredImages(img, in, current, w.now)
			w.checkDesired(name, desired, in, current)
		}
		before := (*v1alpha1.PlannedImage)(nil)
		if at, planned := m.plan[w.currentName()]; planned {
			before = &at
		}
		w.checkItem(name, before, desired.Images)
		m.plan = map[string]v1alpha1.PlannedImage{}
		for _, i := range desired.Images {
			m.plan[i.Name] = i
		}
		delete(w.pending, name)
	}
}

// restartHub drops the memory and the status that was not stored.
func (w *world) restartHub() {
	w.decided, w.pending = nil, map[string]pendingStart{}
	w.done, w.first, w.away, w.doneOf = maps.Clone(w.doneStored), maps.Clone(w.firstStored), maps.Clone(w.awayStored), w.doneOfStored
	if w.away == nil {
		w.away = map[string][]string{}
	}
}

func TestRolloutEndsUnderFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.runHub(true, true)
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { w.runHub(rapid.Bool().Draw(t, "stored"), rapid.Bool().Draw(t, "written")) },
			"time": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			},
			"agent": func(*rapid.T) { w.drawMember().runAgent() },
			"agents": func(*rapid.T) {
				for range rapid.IntRange(1, 6).Draw(t, "for") { // images succeed or fail
					w.runAllAgents()
					w.runHub(true, true)
				}
			},
			"calm spell": func(*rapid.T) {
				for range 3 {
					w.runAllAgents()
					w.runHub(true, true)
				}
			},
			"fault": func(*rapid.T) {
				m := w.drawMember()
				m.fault = rapid.SampledFrom([]string{"", "fails", "hangs", "rejects"}).Draw(t, "fault")
			},
			"foreign image": func(*rapid.T) {
				if m := w.drawMember(); m.images[w.currentName()] == nil {
					m.images[w.currentName()] = &worldImage{revision: w.img.Spec.Template.Revision(), phase: v1alpha1.PhaseSucceeded, foreign: true}
				}
			},
			"foreign image deleted": func(*rapid.T) {
				if m := w.drawMember(); m.images[w.currentName()] != nil && m.images[w.currentName()].foreign {
					delete(m.images, w.currentName())
				}
			},
			"offline": func(*rapid.T) { w.drawMember().takeOffline(w.now) },
			"back":    func(*rapid.T) { w.drawMember().bringOnline(w.now) },
			"blink": func(t *rapid.T) { // before another can start in its place
				m := w.drawMember()
				m.takeOffline(w.now)
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 9).Draw(t, "seconds")) * time.Second)
				m.bringOnline(w.now)
			},
			"comes and goes": func(t *rapid.T) { // its image makes no progress meanwhile
				m := w.drawMember()
				for range rapid.IntRange(2, 6).Draw(t, "times") {
					m.takeOffline(w.now)
					w.now = w.now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
					m.bringOnline(w.now)
					w.now = w.now.Add(time.Duration(rapid.IntRange(10, 60).Draw(t, "seconds")) * time.Second)
					w.runHub(true, true)
				}
			},
			"loses its image": func(*rapid.T) { w.drawMember().loseImage(w.currentName()) },
			"blinks and loses its image": func(*rapid.T) {
				m := w.drawMember()
				m.takeOffline(w.now)
				w.now = w.now.Add(time.Second)
				m.bringOnline(w.now)
				w.runHub(true, true)
				m.loseImage(w.currentName())
				m.runAgent()
				w.runHub(true, true)
			},
			"full": func(*rapid.T) { m := w.drawMember(); m.full = !m.full },
			"relabel": func(*rapid.T) {
				w.drawMember().labels = map[string]string{"placed": rapid.SampledFrom([]string{"yes", "yes", "no"}).Draw(t, "placed"), "wave": w.drawWave(), "site": w.drawSite()}
			},
			"another site": func(*rapid.T) {
				m := w.drawMember()
				m.labels = maps.Clone(m.labels)
				m.labels["site"] = w.drawSite()
			},
			"overrides": func(*rapid.T) { w.drawOverrides() },
			"secret": func(t *rapid.T) { // another source of the same revision
				w.img.Spec.Template.SecretRef = rapid.SampledFrom([]string{"", "rotated"}).Draw(t, "secret")
				w.img.Generation++
			},
			"priority": func(t *rapid.T) {
				w.img.Spec.Template.Priority = rapid.SampledFrom([]int32{0, 1}).Draw(t, "priority")
				w.img.Generation++
			},
			"another agent": func(t *rapid.T) {
				m := w.drawMember()
				m.unknown = rapid.SampledFrom([]string{"", "secretRef", "priority"}).Draw(t, "unknown")
			},
			"join": func(*rapid.T) { w.addMember() },
			"leave": func(*rapid.T) {
				if len(w.members) > 0 {
					name := rapid.SampledFrom(slices.Sorted(maps.Keys(w.members))).Draw(t, "leaves")
					delete(w.members, name)
					delete(w.pending, name)
				}
			},
			"version": func(*rapid.T) {
				w.img.Spec.Version = rapid.SampledFrom([]string{"0", "1", "2", "3"}).Draw(t, "version")
				w.img.Generation++
			},
			"source": func(*rapid.T) {
				w.img.Spec.Template.URL = "https://images.example.com/" + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "url")
				w.img.Generation++
			},
			"pause": func(*rapid.T) { w.img.Spec.Rollout.Paused = !w.img.Spec.Rollout.Paused; w.img.Generation++ },
			"approve": func(*rapid.T) {
				w.approveWave(rapid.SampledFrom([]string{"canary", "eu"}).Draw(t, "approved"), w.drawSources())
			},
			"limits":  func(*rapid.T) { w.drawLimits() },
			"restart": func(*rapid.T) { w.restartHub() },
		})
		w.stopFaults(rapid.Bool().Draw(t, "some keep failing"))
	})
}

// approveWave replaces the approval of the current version.
func (w *world) approveWave(wave string, sources []string) {
	w.img.Spec.Approvals = slices.DeleteFunc(w.img.Spec.Approvals, func(a v1alpha1.Approval) bool { return a.Wave == wave && a.Version == w.img.Spec.Version })
	w.img.Spec.Approvals = append(w.img.Spec.Approvals, v1alpha1.Approval{Wave: wave, Version: w.img.Spec.Version, Sources: sources, By: "operator"})
	w.img.Generation++
}

func (w *world) runAllAgents() (changed bool) {
	for _, m := range w.members {
		changed = m.runAgent() || changed
	}
	return changed
}

// stopFaults stops the faults, but those of members if faulty, and requires the rollout to
// end with reconciles only after events and Decision.RequeueAfter.
func (w *world) stopFaults(faulty bool) {
	w.restartHub()
	w.img.Spec.Rollout.Paused = false
	w.img.Spec.Overrides = slices.DeleteFunc(slices.Clone(w.img.Spec.Overrides), func(o v1alpha1.ImageOverride) bool { return o.Checksum != nil })
	for _, m := range w.members {
		m.bringOnline(w.now)
		m.full, m.unknown = false, ""
		if m.labels["site"] == "" {
			m.labels = maps.Clone(m.labels)
			m.labels["site"] = "north"
		}
		if i := m.images[w.currentName()]; i != nil && i.foreign {
			delete(m.images, w.currentName())
		}
		if !faulty {
			m.fault = ""
		}
	}
	var d rollout.Decision
	for range 500 {
		d = w.runHub(true, true)
		changed := w.runAllAgents()
		if p := d.Status.PendingApproval; p != nil { // what the status says is enough
			sources := p.Sources
			for _, a := range w.img.Spec.Approvals {
				if a.Wave == p.Wave && a.Version == w.img.Spec.Version {
					sources = append(sources, a.Sources...)
				}
			}
			w.approveWave(p.Wave, slices.Compact(slices.Sorted(slices.Values(sources))))
			continue
		}
		switch {
		case changed || len(d.Start) > 0:
			w.now = w.now.Add(time.Second)
		case d.RequeueAfter > 0:
			w.now = w.now.Add((d.RequeueAfter + time.Second - 1).Truncate(time.Second)) // stored times have no fractions
		default:
			w.checkOutcome(d, faulty)
			return
		}
	}
	w.t.Fatalf("the rollout does not end: %s %s %s: %s", d.Status.Phase, d.Status.Reason, formatStates(d), d.Status.Message)
}

// checkOutcome checks the end of a rollout.
func (w *world) checkOutcome(d rollout.Decision, faulty bool) {
	switch {
	case d.Status.Clusters.Total == 0:
		require.Equal(w.t, v1alpha1.ReasonNoClusters, d.Status.Reason)
	case !faulty:
		require.Equal(w.t, v1alpha1.RolloutSucceeded, d.Status.Phase, "%s: %s", formatStates(d), d.Status.Message)
	default:
		require.Contains(w.t, []v1alpha1.RolloutPhase{v1alpha1.RolloutSucceeded, v1alpha1.RolloutFailed}, d.Status.Phase, "%s: %s", formatStates(d), d.Status.Message)
	}
	if d.Status.Phase != v1alpha1.RolloutSucceeded {
		return
	}
	for name, m := range w.members {
		if m.labels["placed"] == "yes" && m.fault == "" {
			i, spec := m.images[w.currentName()], w.expectedSpec(name, m.labels)
			require.NotNil(w.t, i, name)
			require.Equal(w.t, worldImage{revision: spec.Revision(), serving: spec.Revision(), phase: v1alpha1.PhaseSucceeded, retry: i.retry}, *i, name)
			require.Equal(w.t, *spec, m.arrived[w.currentName()].Spec, name)
		}
	}
	require.Empty(w.t, strings.Trim(formatStates(d), "canryeust= SFT"))
}
