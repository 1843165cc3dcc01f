//go:build linux

package fakemember

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// plannedPage is the report page of planned images.
const plannedPage = "page-1111111111111111"

// playedImports are the played imports of planned images. The member's mutex guards them.
type playedImports struct {
	images map[types.NamespacedName]*v1alpha1.ReportedImage
	queue  []queuedImport
	slots  []v1alpha1.Slot
}

// queuedImport is a queued image and the host of its source.
type queuedImport struct {
	types.NamespacedName
	host string
	spec v1alpha1.VMDiskImageSpec
}

// PlayImports plays the imports of planned images with a duration, as many at a time as policy and
// grants allow, and reports them. None fails, none is deleted. Call it before there are plans with
// images; a member can have 128 of them.
func (all *Members) PlayImports(takes time.Duration) {
	all.PlayImportsWith(func(ctx context.Context, _ string, _ v1alpha1.VMDiskImageSpec) {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
		}
	})
}

// PlayImportsWith is PlayImports with imports that end when do returns.
func (all *Members) PlayImportsWith(do func(ctx context.Context, member string, spec v1alpha1.VMDiskImageSpec)) {
	for _, m := range all.List {
		m.mu.Lock()
		m.importImage = do
		m.mu.Unlock()
	}
}

// queuePlannedImages queues newly planned images and starts imports.
func (m *Member) queuePlannedImages(ctx context.Context, plan *v1alpha1.ClusterPlanSpec) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.importImage == nil || m.disconnected || plan.Compare(*m.root.Root.Plan) < 0 { // plans are acknowledged concurrently
		return nil
	}
	planned, before := map[types.NamespacedName]bool{}, len(m.imports.queue)
	changed := false
	for i := range plan.Images {
		img := &plan.Images[i]
		key, revision := types.NamespacedName{Namespace: img.Namespace, Name: img.Name}, img.Spec.Revision()
		planned[key] = true
		if was := m.imports.images[key]; was != nil && was.Revision == revision {
			continue
		}
		if m.imports.images == nil {
			m.imports.images = map[types.NamespacedName]*v1alpha1.ReportedImage{}
		}
		m.imports.images[key] = &v1alpha1.ReportedImage{
			Namespace: img.Namespace, Name: img.Name, UID: types.UID(m.Name + "-" + img.Name), Origin: v1alpha1.OriginPlan,
			Source: string(img.Spec.SourceType) + " " + img.Spec.URL, Revision: revision, Phase: v1alpha1.PhaseQueued,
			Reason: v1alpha1.ReasonWaitingForSlot, Bytes: img.Spec.DiskSize.Value(),
		}
		m.imports.queue = append(m.imports.queue, queuedImport{key, hostOf(img.Spec.URL), img.Spec})
	}
	for key, img := range m.imports.images {
		changed = changed || planned[key] != (img.Plan != nil)
		img.Plan = nil
		if planned[key] {
			img.Plan = &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied}
		}
	}
	m.startImports(ctx)
	if !changed && len(m.imports.queue) == before {
		return nil
	}
	return m.writePlannedPage(ctx)
}

// startImports starts as many imports as allowed and records the demand for the others.
func (m *Member) startImports(ctx context.Context) {
	may, left := m.currentAllowance(), m.imports.queue[:0]
	running := map[string]int32{}
	for _, slot := range m.imports.slots {
		running[may.groupOf(slot.Host)]++
	}
	for _, next := range m.imports.queue {
		group := may.groupOf(next.host)
		room, limited := may.SourceGroupLimits[group]
		if len(m.imports.slots) >= int(may.Budget) || limited && running[group] >= room {
			left = append(left, next)
			continue
		}
		running[group]++
		img := m.imports.images[next.NamespacedName]
		m.imports.slots = append(m.imports.slots, v1alpha1.Slot{DataVolume: next.String() + img.Revision, Host: next.host})
		img.Phase, img.Reason = v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting
		m.members.running.Go(func() { m.finishImport(ctx, next, img.Revision) })
	}
	m.imports.queue = left
	m.recordDemand(may)
}

// finishImport waits for an import's end and records it.
func (m *Member) finishImport(ctx context.Context, started queuedImport, revision string) {
	key := started.NamespacedName
	m.mu.Lock()
	do := m.importImage
	m.mu.Unlock()
	if do(ctx, m.Name, started.spec); ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.imports.slots = slices.DeleteFunc(m.imports.slots, func(s v1alpha1.Slot) bool { return s.DataVolume == key.String()+revision })
	if img := m.imports.images[key]; img.Revision == revision {
		now := metav1.Now()
		img.Phase, img.Reason, img.ServingRevision, img.SyncedAt = v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady, revision, &now
	}
	m.startImports(ctx)
	_ = m.writePlannedPage(ctx) // the API server is gone; who waits for the image fails
}

// RunningImports returns the number of running imports.
func (m *Member) RunningImports() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.imports.slots)
}

func (m *Member) writePlannedPage(ctx context.Context) error {
	images := make([]v1alpha1.ReportedImage, 0, len(m.imports.images))
	for _, img := range slices.SortedFunc(maps.Values(m.imports.images), func(a, b *v1alpha1.ReportedImage) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		images = append(images, *img.DeepCopy())
	}
	return m.writePage(ctx, plannedPage, images)
}
