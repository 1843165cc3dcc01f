//go:build linux

package light

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

// pageOfPlanned holds the images that plans have asked for.
const pageOfPlanned = "planned"

// imports are what a stand-in plays of the images that plans have asked for. The
// member's mutex guards them.
type imports struct {
	images  map[types.NamespacedName]*v1alpha1.ReportedImage
	queue   []types.NamespacedName
	running int
}

// PlayImports has the members take so long, from now on, to import an image that a
// plan asks for, as many at a time as their budget is, and report what becomes of
// it. Nothing is downloaded, none fails, and none goes again. It is first called
// before there are plans with images; a member can have 128.
func (all *Members) PlayImports(takes time.Duration) {
	for _, m := range all.List {
		m.mu.Lock()
		m.takes = takes
		m.mu.Unlock()
	}
}

// plan queues what is planned anew and begins what the budget has room for.
func (m *Member) plan(ctx context.Context, plan *v1alpha1.ClusterPlanSpec) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.takes == 0 || plan.Compare(*m.root.Root.Plan) < 0 { // plans are taken up beside each other
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
		m.imports.queue = append(m.imports.queue, key)
	}
	for key, img := range m.imports.images {
		changed = changed || planned[key] != (img.Plan != nil)
		img.Plan = nil
		if planned[key] {
			img.Plan = &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied}
		}
	}
	m.begin(ctx)
	if !changed && len(m.imports.queue) == before {
		return nil
	}
	return m.setPlanned(ctx)
}

// begin starts as many imports as there is room for.
func (m *Member) begin(ctx context.Context) {
	for len(m.imports.queue) > 0 && m.imports.running < int(m.root.Root.Budget) {
		key := m.imports.queue[0]
		m.imports.queue = m.imports.queue[1:]
		m.imports.running++
		img := m.imports.images[key]
		img.Phase, img.Reason = v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting
		m.members.done.Go(func() { m.end(ctx, key, img.Revision) })
	}
}

// end waits until an import is over.
func (m *Member) end(ctx context.Context, key types.NamespacedName, revision string) {
	m.mu.Lock()
	takes := m.takes
	m.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.imports.running--
	if img := m.imports.images[key]; img.Revision == revision {
		now := metav1.Now()
		img.Phase, img.Reason, img.ServingRevision, img.SyncedAt = v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady, revision, &now
	}
	m.begin(ctx)
	_ = m.setPlanned(ctx) // the API server is gone; whoever waits for the image says so
}

func (m *Member) setPlanned(ctx context.Context) error {
	images := make([]v1alpha1.ReportedImage, 0, len(m.imports.images))
	for _, img := range slices.SortedFunc(maps.Values(m.imports.images), func(a, b *v1alpha1.ReportedImage) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		images = append(images, *img.DeepCopy())
	}
	return m.set(ctx, pageOfPlanned, images)
}
