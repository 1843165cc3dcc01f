package playedfleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/plan"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

const (
	heartbeat    = 20 * time.Second
	agentVersion = "v0.3.0"
	maxAttempts  = 4
	// joinedFor is how long ago members joined.
	joinedFor = 40 * 24 * time.Hour
)

// image is a VMDiskImage of a member.
type image struct {
	v1alpha1.ReportedImage
	spec v1alpha1.VMDiskImageSpec
	// group of sources that it comes from.
	group       string
	queuedAt    time.Time
	startedAt   time.Time
	notBefore   time.Time
	done, total int64
	rate        float64
	// fails: its next attempt ends with this reason and message.
	fails    v1alpha1.Reason
	failure  string
	priority int32
}

// item is what the plan of a member has of a FleetDiskImage.
type item struct {
	revision  string
	plannedAt time.Time
	retry     string
}

// member is one played cluster.
type member struct {
	object *v1alpha1.MemberCluster
	uid    types.UID
	images []*image
	byName map[types.NamespacedName]*image
	items  map[string]item
	// silentSince is when a silent member was last heard.
	silentSince time.Time
	// neverReported: nothing of it has arrived yet.
	neverReported bool
	// unreachable is why the hub cannot connect; empty if it can.
	unreachable string
	agent       string
	own         *int32
	concurrency int32
	policy      map[string]string
	source      string
	transferred map[string]int64
	samples     int32

	dirty    bool
	sequence int64
	root     *v1alpha1.ReportRoot
	pages    [][]v1alpha1.ReportedImage
	heardAt  time.Time
	queued   int
	active   int
}

func newMember(name string, labels map[string]string) *member {
	m := &member{
		object: &v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, UID: types.UID("member-" + name), Generation: 1},
			Spec:       v1alpha1.MemberClusterSpec{Connection: v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: name + "-kubeconfig"}}},
		},
		uid: types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", hashOf(name), hashOf(name+"/uid"))), agent: agentVersion,
		byName: map[types.NamespacedName]*image{}, items: map[string]item{}, transferred: map[string]int64{}, dirty: true, samples: 12,
	}
	return m
}

func (m *member) name() string { return m.object.Name }

// speaks reports whether the member does anything that the hub sees.
func (m *member) speaks() bool {
	return !m.neverReported && m.silentSince.IsZero() && m.object.Spec.Quarantine == nil
}

func (m *member) add(img *image) *image {
	key := types.NamespacedName{Namespace: img.Namespace, Name: img.Name}
	if before := m.byName[key]; before != nil {
		return before
	}
	if img.UID == "" {
		img.UID = types.UID(fmt.Sprintf("%08x", hashOf(m.name()+img.Namespace+img.Name)))
	}
	m.byName[key] = img
	m.images = append(m.images, img)
	m.dirty = true
	return img
}

// newImage returns an image that is not there yet.
func (f *Fleet) newImage(namespace, name string, spec *v1alpha1.VMDiskImageSpec, origin v1alpha1.ImageOrigin) *image {
	revision := spec.Revision()
	if f.sources[revision] == "" {
		f.sources[revision] = sourceOf(spec)
	}
	return &image{
		ReportedImage: v1alpha1.ReportedImage{
			Namespace: namespace, Name: name, Source: f.sources[revision], Revision: revision, Origin: origin,
			Bytes: spec.DiskSize.Value(), DownloadBytes: spec.DiskSize.Value() / 7,
		},
		spec: *spec, group: groupOf(spec.URL), total: spec.DiskSize.Value() / 7,
	}
}

func sourceOf(spec *v1alpha1.VMDiskImageSpec) string {
	return v1alpha1.RedactSource(strings.TrimSpace(string(spec.SourceType) + " " + spec.URL + " " + spec.Checksum))
}

func (img *image) setReady(at time.Time) {
	synced := storedtime.Truncate(at)
	img.Phase, img.Reason, img.Message, img.Stalled = v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady, "", false
	img.ServingRevision, img.SyncedAt, img.done = img.Revision, &synced, img.total
	img.Attempts = max(1, img.Attempts)
}

func (img *image) setQueued(at time.Time) {
	img.Phase, img.Reason, img.queuedAt, img.done, img.startedAt = v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForSlot, at, 0, time.Time{}
	img.Message = "it waits for a slot"
}

func (img *image) setFailed(reason v1alpha1.Reason, message string) {
	img.Phase, img.Reason, img.Message, img.Stalled = v1alpha1.PhaseFailed, reason, message, true
	img.Attempts = maxAttempts
}

// report writes what the member says now, and computes its MemberCluster.
func (f *Fleet) report(m *member, at time.Time) {
	if m.neverReported {
		f.Index.AddMember(m.name())
		f.setStatus(m, at)
		return
	}
	heard := at
	if !m.silentSince.IsZero() {
		heard = m.silentSince
	}
	m.heardAt = heard
	m.sequence++
	slices.SortFunc(m.images, func(a, b *image) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	m.root = f.newRoot(m, heard)
	m.pages = nil
	for page := range slices.Chunk(m.images, v1alpha1.MaxReportedImages) {
		reported := make([]v1alpha1.ReportedImage, len(page))
		for i, img := range page {
			reported[i] = img.ReportedImage
		}
		ref := v1alpha1.PageRef{Name: fmt.Sprintf("page-%03d", len(m.pages)), Sequence: m.sequence, Images: int32(len(page))}
		m.root.Pages, m.pages = append(m.root.Pages, ref), append(m.pages, reported)
		f.Index.SetPage(m.name(), ref.Name, ref.Sequence, reported)
	}
	f.Index.SetRoot(m.name(), m.root)
	f.reportActivity(m, heard)
	f.setStatus(m, at)
	m.dirty = false
}

func (f *Fleet) newRoot(m *member, at time.Time) *v1alpha1.ReportRoot {
	p := m.plan()
	root := &v1alpha1.ReportRoot{
		ObservedAt: storedtime.Truncate(at), HeartbeatSeconds: int32(heartbeat / time.Second), BootID: "boot-" + m.name(), AgentVersion: m.agent,
		ImageFields: v1alpha1.ImageFields(), PlanFields: []string{v1alpha1.PlanFieldRetry}, PolicyKeys: policy.PlanKeys(),
		Plan: &p.PlanVersion, AnsweredPlan: &p.PlanVersion, PlanPolicy: p.Policy, PlanPolicySource: p.PolicySource, Policy: p.Policy,
		Budget: m.concurrency, Images: int32(len(m.images)), Phases: map[v1alpha1.Phase]int32{}, OwnConcurrency: m.own, OwnConcurrencyUnset: m.own == nil,
	}
	m.queued, m.active = 0, 0
	for _, img := range m.images {
		root.Phases[img.Phase]++
		root.References += img.References
		switch img.Phase {
		case v1alpha1.PhaseSyncing:
			m.active++
		case v1alpha1.PhaseQueued:
			m.queued++
		}
	}
	root.Slots = int32(m.active)
	return root
}

func (m *member) plan() *v1alpha1.ClusterPlanSpec {
	p := &v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 17}, ClusterUID: m.uid, Policy: m.policy, PolicySource: m.source}
	p.Hash = plan.Hash(p)
	return p
}

// reportActivity writes what the member imports.
func (f *Fleet) reportActivity(m *member, at time.Time) {
	a := &v1alpha1.ReportedActivity{ObservedAt: storedtime.Truncate(at), BootID: m.root.BootID, Budget: m.concurrency, Slots: m.root.Slots, Queued: int32(m.queued)}
	for _, img := range m.queue() {
		if len(a.Head) == v1alpha1.MaxQueuedImports {
			break
		}
		q := v1alpha1.QueuedImport{
			Namespace: img.Namespace, Name: img.Name, Source: img.group, Priority: img.priority, Bytes: img.total,
			QueuedAt: storedtime.Truncate(img.queuedAt), Reason: img.Reason, Attempts: img.Attempts,
		}
		if img.notBefore.After(at) {
			until := storedtime.Truncate(img.notBefore)
			q.NotBefore, q.Reason = &until, v1alpha1.ReasonBackingOff
		}
		a.Head = append(a.Head, q)
	}
	for _, img := range m.images {
		if img.Phase == v1alpha1.PhaseSyncing && len(a.Active) < v1alpha1.MaxActiveImports {
			a.Active = append(a.Active, v1alpha1.ActiveImport{
				Namespace: img.Namespace, Name: img.Name, Source: img.group, BytesDone: img.done, BytesTotal: img.total,
				BytesPerSecond: int64(img.rate), StartedAt: storedtime.Truncate(img.startedAt), Attempt: img.Attempts, MaxAttempts: maxAttempts,
			})
		}
	}
	slices.SortFunc(a.Active, func(x, y v1alpha1.ActiveImport) int {
		return cmp.Compare(x.BytesTotal-x.BytesDone, y.BytesTotal-y.BytesDone)
	})
	for _, group := range f.groups() {
		since := storedtime.Truncate(at.Add(-26 * time.Hour))
		speed := groupSpeed(group) * m.speed()
		a.Rates = append(a.Rates, v1alpha1.SourceRate{
			Name: group, P20: int64(speed * 0.7), P50: int64(speed), P80: int64(speed * 1.3), OverheadSeconds: 40, Samples: m.samples,
			Since: &since, TransferredBytes: m.transferred[group],
		})
	}
	f.Index.SetActivity(m.name(), a, at)
}

// queue returns the waiting images, the next first.
func (m *member) queue() (waiting []*image) {
	for _, img := range m.images {
		if img.Phase == v1alpha1.PhaseQueued {
			waiting = append(waiting, img)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *image) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), a.queuedAt.Compare(b.queuedAt), strings.Compare(a.Name, b.Name))
	})
	return waiting
}

// setStatus computes the MemberCluster as the hub does.
func (f *Fleet) setStatus(m *member, at time.Time) {
	in := memberstatus.Input{
		Now: at, Member: m.object, HubVersion: agentVersion, Shard: "ot-hub-0", WatchedSince: at.Add(-joinedFor),
		Connection: memberstatus.Connection{Known: true, Reachable: m.unreachable == "", Reason: m.unreachable},
		Plan:       m.plan(), DesiredPolicy: m.policy, PolicySource: m.source, Transfers: f.transfers(m),
	}
	if m.unreachable != "" {
		in.Connection.Message = "the member's API server does not answer (dial tcp 10.40.3.7:6443: i/o timeout): check that it is up and that the kubeconfig has the right address"
	}
	if m.neverReported {
		in.Connection = memberstatus.Connection{}
	}
	if m.root != nil {
		heard := m.heardAt
		in.Report, in.ReportClusterUID, in.ReceivedAt = m.root, m.uid, &heard
		if totals, ok := f.Index.Totals(m.name()); ok {
			in.Totals = &totals
		}
	}
	next := m.object.DeepCopy()
	next.Status, _ = memberstatus.Compute(in)
	m.object = next
	f.store.put(next)
	f.Index.SetStaleReason(m.name(), memberstatus.StaleReason(next))
	f.changedMembers = true
}

// transfers returns the member's share of the fleet-wide budget.
func (f *Fleet) transfers(m *member) *v1alpha1.MemberTransfers {
	t := &v1alpha1.MemberTransfers{Reason: v1alpha1.TransfersIdle, Message: "the member requests no slots"}
	switch {
	case m.neverReported:
		return &v1alpha1.MemberTransfers{Reason: v1alpha1.TransfersUnknown, Message: "the member has never reported"}
	case m.object.Spec.Quarantine != nil:
		return &v1alpha1.MemberTransfers{Reason: v1alpha1.TransfersQuarantined, Message: "the member is in quarantine; what it may be running is not counted"}
	case !m.silentSince.IsZero():
		until := storedtime.Truncate(f.at.Add(3*time.Hour + 20*time.Minute))
		t.Held, t.HeldUntil, t.Reason = int32(m.active), &until, v1alpha1.TransfersReserved
		t.Message = "the member is silent; what it may be running stays reserved"
		return t
	case m.active+m.queued == 0:
		return t
	}
	t.Wanted = min(m.concurrency, int32(m.active+m.queued))
	t.Granted, t.Held = int32(m.active), int32(m.active)
	t.Reason, t.Message = v1alpha1.TransfersGranted, "the member has all the slots it requested"
	if t.Granted < t.Wanted {
		t.Reason, t.Message = v1alpha1.TransfersWaiting, "the member requests more slots than are free"
	}
	return t
}

// view returns what a rollout's decision depends on of the member.
func (f *Fleet) view(m *member, img *v1alpha1.FleetDiskImage, current types.NamespacedName) rollout.Cluster {
	c := rollout.Cluster{Name: m.name(), Labels: m.object.Labels, AgentVersion: m.agent, KnowsRetry: true}
	c.OfflineReason, c.OnlineSince = rollout.Availability(m.object)
	if u := m.object.Status.Uptime; u != nil {
		c.Online, c.Open = u.Online, u.Open
	}
	if w := m.object.Status.Window; w != nil {
		c.WindowOpensAt, c.WindowOpenedAt = timeOrZero(w.OpensAt), timeOrZero(w.OpenedAt)
	}
	planned := m.items[img.Name]
	c.PlannedRevision, c.PlannedAt, c.PlannedRetry = planned.revision, planned.plannedAt, planned.retry
	if planned.revision == img.Spec.Template.Revision() {
		c.PlannedDigest = img.Spec.Template.SourceDigest()
	}
	if have := m.byName[current]; have != nil {
		c.Report = rollout.NewReport(&have.ReportedImage)
	}
	if a := f.Index.Activity(m.name()); a.Unknown == "" {
		c.Activity, c.ActivityAt = a.Reported, m.heardAt
	}
	return c
}

func timeOrZero(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
