package why

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// Member is what a member's own kinds say.
type Member struct {
	Now     time.Time
	Cluster string
	Images  []v1alpha1.VMDiskImage
	// Ledger and Reported are nil where there is none, or where they may not be read.
	Ledger   *v1alpha1.SyncLedger
	Reported *v1alpha1.ReportedActivity
}

// OfImage returns what a member's own kinds say of an image: the queue is exact, its rates are
// those that the agent reported last.
func (m Member) OfImage(namespace, name string) ImageSnapshot {
	s := ImageSnapshot{Now: m.Now, Cluster: m.Cluster, Namespace: namespace, Name: name, Missing: true}
	own := m.policy()
	for i := range m.Images {
		img := &m.Images[i]
		if img.Namespace != namespace || img.Name != name {
			continue
		}
		st := &img.Status
		s.Missing, s.Phase, s.Reason, s.Message = false, st.Phase, st.Reason, explain.DescribeMessage(string(st.Phase), st.Message)
		s.Holders, s.HolderN, s.Bytes = st.References.Holders, st.References.Count, st.BytesTotal
		s.Stalled = isTrue(st.Conditions, v1alpha1.ConditionStalled)
		if st.Phase == v1alpha1.PhaseQueued {
			s.QueuedAt = ptr.To(keyOf(img).Time)
		}
	}
	if m.Ledger == nil || m.Ledger.Status == nil {
		return s
	}
	st := m.Ledger.Status
	s.Budget = Budget{Slots: ptr.To(int32(len(st.Slots))), Budget: &st.Budget, OwnConcurrency: ownConcurrencyAt(st, m.Now), PolicySource: st.PlanPolicySource, MaxPriority: &own.MaxPriority}
	if planned, _, _ := policy.Parse(st.PlanPolicy); len(st.PlanPolicy) > 0 {
		inForce, _ := planned.At(m.Now)
		s.Budget.PolicyConcurrency = &inForce.Concurrency
	}
	if st.Grant != nil {
		s.Budget.Granted = &st.Grant.Slots
		s.SourceLimits = map[string]int32{}
		for _, source := range own.Sources {
			s.SourceLimits[source.Name] = 0
		}
		for _, source := range st.Grant.Sources {
			s.SourceLimits[source.Name] = source.Slots
		}
	}
	s.Activity = m.activity(own)
	return s
}

// ownConcurrencyAt is what the member's own ConfigMap allows at a time; nil for no limit.
func ownConcurrencyAt(st *v1alpha1.SyncLedgerStatus, now time.Time) *int32 {
	windows, err := policy.ParseWindows(st.OwnWindows)
	if err != nil || len(windows) == 0 {
		return st.OwnConcurrency
	}
	own := policy.Policy{Concurrency: ptr.Deref(st.OwnConcurrency, 0), ConcurrencyUnset: st.OwnConcurrency == nil, Windows: windows}
	if own, _ = own.At(now); own.ConcurrencyUnset {
		return nil
	}
	return &own.Concurrency
}

// policy in force in the member.
func (m Member) policy() policy.Policy {
	if m.Ledger == nil || m.Ledger.Status == nil {
		return policy.Policy{}
	}
	own, _, _ := policy.Parse(m.Ledger.Status.Policy)
	planned, _, _ := policy.Parse(m.Ledger.Status.PlanPolicy)
	switch {
	case len(m.Ledger.Status.PlanPolicy) == 0:
		return own
	case len(m.Ledger.Status.Policy) == 0:
		return planned
	default:
		return *policy.Combine(&own, &planned)
	}
}

// keyOf returns the place of an image's current revision in the queue.
func keyOf(img *v1alpha1.VMDiskImage) v1alpha1.OrderingKey {
	for i := range img.Status.Revisions {
		if r := &img.Status.Revisions[i]; r.Revision == img.Status.Revision {
			return r.OrderingKey
		}
	}
	return v1alpha1.OrderingKey{Time: img.CreationTimestamp}
}

// activity returns the whole queue, and what runs by the ledger.
func (m Member) activity(p policy.Policy) *v1alpha1.ReportedActivity {
	st := m.Ledger.Status
	a := &v1alpha1.ReportedActivity{Budget: st.Budget, Slots: int32(len(st.Slots))}
	a.ObservedAt.Time = m.Now
	byUID := make(map[types.UID]*v1alpha1.VMDiskImage, len(m.Images))
	for i := range m.Images {
		byUID[m.Images[i].UID] = &m.Images[i]
	}
	reported := newReportedImports(m.Reported)
	if m.Reported != nil {
		a.Rates = m.Reported.Rates
	}
	holders := map[types.UID]bool{}
	for i := range st.Slots {
		slot := &st.Slots[i]
		holders[slot.Image.UID] = true
		active := v1alpha1.ActiveImport{Namespace: slot.Image.Namespace, Name: slot.Image.Name, Source: p.Sources.GroupOrOther(slot.Host), StartedAt: slot.StartedAt, Attempt: slot.Attempt, MaxAttempts: p.RetryLimit + 1}
		if img := byUID[slot.Image.UID]; img != nil {
			active.BytesDone, active.Attempt = img.Status.BytesDone, img.Status.Attempts
			active.BytesTotal, active.AtMostBytes = sizeOf(img, reported.bytes[keyOfName(img.Namespace, img.Name)])
		}
		if r := reported.active[keyOfName(slot.Image.Namespace, slot.Image.Name)]; r != nil {
			active.Source, active.BytesPerSecond, active.BytesTotal = r.Source, r.BytesPerSecond, max(active.BytesTotal, r.BytesTotal)
			active.BytesDone = max(active.BytesDone, r.BytesDone)
		}
		a.Active = append(a.Active, active)
	}
	var queued []*v1alpha1.VMDiskImage
	for i := range m.Images {
		if img := &m.Images[i]; img.Status.Phase == v1alpha1.PhaseQueued && !holders[img.UID] {
			queued = append(queued, img)
		}
	}
	slices.SortFunc(queued, func(x, y *v1alpha1.VMDiskImage) int {
		kx, ky := keyOf(x), keyOf(y)
		return cmp.Or(cmp.Compare(min(y.Spec.Priority, p.MaxPriority), min(x.Spec.Priority, p.MaxPriority)), kx.Time.Compare(ky.Time.Time), cmp.Compare(kx.Sequence, ky.Sequence), cmp.Compare(x.UID, y.UID))
	})
	for _, img := range queued {
		q := v1alpha1.QueuedImport{
			Namespace: img.Namespace, Name: img.Name, Priority: min(img.Spec.Priority, p.MaxPriority), QueuedAt: keyOf(img).Time, Reason: img.Status.Reason,
			Attempts: img.Status.Attempts, OpensAt: img.Status.OpensAt, Source: v1alpha1.SourceOther,
		}
		if name, ok := p.Sources.GroupOfURL(img.Spec.URL); ok {
			q.Source = name
		}
		q.Bytes, q.AtMostBytes = sizeOf(img, reported.bytes[keyOfName(img.Namespace, img.Name)])
		for i := range img.Status.Revisions {
			if r := &img.Status.Revisions[i]; r.Revision == img.Status.Revision {
				q.NotBefore = r.NotBefore
			}
		}
		a.Head = append(a.Head, q)
	}
	a.Queued = int32(len(a.Head))
	return a
}

// sizeOf returns the size of the download; or, where only the disk's is known, that.
func sizeOf(img *v1alpha1.VMDiskImage, reported int64) (bytes, atMost int64) {
	if reported > 0 {
		return reported, 0
	}
	disk := img.Spec.DiskSize.Value()
	if total := img.Status.BytesTotal; total > 0 && total != disk {
		return total, 0
	}
	return 0, disk
}

func keyOfName(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// reportedImports are those of an activity by name.
type reportedImports struct {
	active map[types.NamespacedName]*v1alpha1.ActiveImport
	bytes  map[types.NamespacedName]int64
}

func newReportedImports(a *v1alpha1.ReportedActivity) reportedImports {
	r := reportedImports{map[types.NamespacedName]*v1alpha1.ActiveImport{}, map[types.NamespacedName]int64{}}
	if a == nil {
		return r
	}
	for i := range a.Active {
		key := keyOfName(a.Active[i].Namespace, a.Active[i].Name)
		r.active[key], r.bytes[key] = &a.Active[i], a.Active[i].BytesTotal
	}
	for i := range a.Head {
		r.bytes[keyOfName(a.Head[i].Namespace, a.Head[i].Name)] = a.Head[i].Bytes
	}
	return r
}

// FromKinds returns what the hub's kinds say of an image: the member's report and its
// MemberCluster.
func FromKinds(now time.Time, namespace, name string, member *v1alpha1.MemberCluster, reports []v1alpha1.ClusterReport) ImageSnapshot {
	st := &member.Status
	s := ImageSnapshot{Now: now, Cluster: member.Name, Namespace: namespace, Name: name}
	s.Budget = Budget{Slots: st.SlotsUsed, Budget: st.Budget, OwnConcurrency: st.OwnConcurrency}
	if st.Transfers != nil {
		s.Budget.Granted = &st.Transfers.Granted
	}
	switch {
	case st.LastReport == nil:
		s.Unknown = v1alpha1.ReasonNeverReported
	case st.SilentSince != nil:
		s.Unknown, s.ObservedAt = v1alpha1.ReasonSilent, st.SilentSince.Time
	}
	for i := range reports {
		if r := &reports[i]; r.Activity != nil {
			s.SetActivity(r.Activity)
		}
	}
	s.SetReported(rollout.FindReported(rollout.ListReported(reports), namespace, name), false)
	return s
}
