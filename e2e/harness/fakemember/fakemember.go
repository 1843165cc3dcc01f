//go:build linux

// Package fakemember runs many fake members on one API server, for tests of the hub. Each is a
// namespace with a service account for the hub and a fake agent. The fake agent acknowledges every
// plan at once and reports the images that a test sets, or plays the imports of planned images. It
// downloads nothing.
package fakemember

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/clock"
	"github.com/pelotech/ot-fleet/agent/grant"
	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/hub/credential"
)

const hubAccount = "ot-hub"

// HeartbeatInterval of fake agents, as of real ones.
const HeartbeatInterval = 20 * time.Second

// maxConcurrentCreates bounds how many members are created at a time.
const maxConcurrentCreates = 8

// Members are the fake members on one API server.
type Members struct {
	List []*Member

	plane     *controlplane.ControlPlane
	client    client.WithWatch
	heartbeat time.Duration
	beats     atomic.Int64
	cancel    context.CancelFunc
	running   sync.WaitGroup
}

// CountHeartbeats returns how many heartbeats the members have written.
func (all *Members) CountHeartbeats() int64 { return all.beats.Load() }

// Member is a fake member.
type Member struct {
	Name string
	// UID is the cluster UID that it reports.
	UID types.UID

	members      *Members
	mu           sync.Mutex
	skew         time.Duration
	oldAgent     bool
	ignoresPlans bool
	// claimedSlots is what the member reports instead of what it runs; 0 for the truth.
	claimedSlots int32
	disconnected bool
	grants       *grant.RequestTracker
	elapsed      func() time.Duration
	root         v1alpha1.ClusterReport
	pages        map[string]*v1alpha1.ClusterReport
	rootStored   chan struct{} // closed and replaced with every stored root
	// importImage plays an import; nil ignores planned images.
	importImage func(ctx context.Context, member string, spec v1alpha1.VMDiskImageSpec)
	imports     playedImports
}

// Start creates n members, called prefix-0 and so on, on an API server with the mailbox CRDs.
func Start(ctx context.Context, plane *controlplane.ControlPlane, prefix string, n int) (*Members, error) {
	return StartWithHeartbeat(ctx, plane, prefix, n, HeartbeatInterval)
}

// StartWithHeartbeat is Start with another heartbeat.
func StartWithHeartbeat(ctx context.Context, plane *controlplane.ControlPlane, prefix string, n int, heartbeat time.Duration) (_ *Members, err error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := client.NewWithWatch(plane.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", plane.Name(), err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	all := &Members{plane: plane, client: c, cancel: cancel, heartbeat: heartbeat}
	defer func() {
		if err != nil {
			all.Stop()
		}
	}()
	byNamespace := map[string]*Member{}
	for i := range n {
		m := &Member{
			Name: fmt.Sprintf("%s-%d", prefix, i), members: all, pages: map[string]*v1alpha1.ClusterReport{}, rootStored: make(chan struct{}),
			elapsed: clock.New().Elapsed,
		}
		m.grants = grant.NewRequestTracker(fmt.Sprintf("%s-%x", m.Name, time.Now().UnixNano()))
		m.UID = types.UID("fake-" + m.Name)
		all.List = append(all.List, m)
		byNamespace[m.Name] = m
	}
	making, creating := errgroup.WithContext(ctx)
	making.SetLimit(maxConcurrentCreates)
	for _, m := range all.List {
		making.Go(func() error {
			if err := m.createObjects(creating); err != nil {
				return fmt.Errorf("creating fake member %s: %w", m.Name, err)
			}
			return nil
		})
	}
	if err := making.Wait(); err != nil {
		return nil, err
	}
	if err := all.watchMailboxes(running, byNamespace); err != nil {
		return nil, err
	}
	all.running.Go(func() { all.sendHeartbeats(running) })
	all.running.Go(func() { all.renewGrants(running) })
	return all, nil
}

// createObjects creates the namespace, the hub's service account with the permissions of the
// agent's chart, and the first report.
func (m *Member) createObjects(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: m.Name, Name: hubAccount}
	write := []string{"get", "list", "watch", "create", "update", "delete"}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.Name}},
		&corev1.ServiceAccount{ObjectMeta: meta},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.Name, Name: credential.AnchorSecret}},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterplans", "transfergrants"}, Verbs: write},
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterreports"}, Verbs: write[:3]},
			{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{hubAccount}, Verbs: []string{"create"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: hubAccount},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: m.Name, Name: hubAccount}},
		},
	} {
		if err := m.members.client.Create(ctx, object); err != nil {
			return err
		}
	}
	return m.updateRoot(ctx, func(*v1alpha1.ReportRoot) {})
}

// Config returns the client configuration by which the hub reaches the member.
func (m *Member) Config(ctx context.Context) (*rest.Config, error) {
	return m.members.plane.ServiceAccountConfig(ctx, m.Name, hubAccount)
}

// SetClockSkew sets how far the member's clock is ahead; negative for behind.
func (m *Member) SetClockSkew(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew = by
}

// ActAsOldAgent makes the fake agent one from before prunes and grants: its report does not say
// which plan it answers.
func (m *Member) ActAsOldAgent() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.oldAgent = true
}

// IgnorePlans stops acknowledging plans; reports continue.
func (m *Member) IgnorePlans() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ignoresPlans = true
}

// Stop ends the fake agents; their objects stay.
func (all *Members) Stop() {
	all.cancel()
	all.running.Wait()
}

// watchMailboxes acknowledges every plan and applies every grant that the hub syncs.
func (all *Members) watchMailboxes(ctx context.Context, byNamespace map[string]*Member) error {
	if err := all.watchEach(ctx, &v1alpha1.ClusterPlanList{}, func(obj client.Object, deleted bool) {
		plan, m := obj.(*v1alpha1.ClusterPlan), byNamespace[obj.GetNamespace()]
		switch {
		case m == nil:
		case deleted:
			all.running.Go(func() { m.forgetPlan(ctx, plan.Spec.PlanVersion) })
		default:
			all.running.Go(func() { m.acknowledgePlan(ctx, &plan.Spec) })
		}
	}); err != nil {
		return err
	}
	return all.watchEach(ctx, &v1alpha1.TransferGrantList{}, func(obj client.Object, deleted bool) {
		if m := byNamespace[obj.GetNamespace()]; m != nil && !deleted {
			all.running.Go(func() { m.applyGrant(ctx, &obj.(*v1alpha1.TransferGrant).Spec) })
		}
	})
}

// watchEach calls do with every created, changed or deleted object of a kind.
func (all *Members) watchEach(ctx context.Context, list client.ObjectList, do func(object client.Object, deleted bool)) error {
	stop, err := controlplane.WatchObjects(ctx, all.client, list, func(c controlplane.Change[client.Object]) {
		if !c.Preexisting {
			do(c.Object, c.Type == watch.Deleted)
		}
	})
	if err != nil {
		return fmt.Errorf("on %s: %w", all.plane.Name(), err)
	}
	all.running.Go(func() { <-ctx.Done(); stop() })
	return nil
}

// acknowledgePlan acknowledges a plan, as an agent does after writing its ledger.
func (m *Member) acknowledgePlan(ctx context.Context, plan *v1alpha1.ClusterPlanSpec) {
	err := m.updateRoot(ctx, func(root *v1alpha1.ReportRoot) {
		if m.ignoresPlans || m.disconnected || root.Plan != nil && plan.Compare(*root.Plan) < 0 {
			return
		}
		root.Plan = &plan.PlanVersion
		root.Policy, root.PlanPolicy, root.PlanPolicySource = plan.Policy, plan.Policy, plan.PolicySource
	})
	if err == nil { // otherwise the next heartbeat acknowledges it
		_ = m.queuePlannedImages(ctx, plan)
	}
}

// forgetPlan drops the policy of a deleted plan, as an agent does: otherwise a hub that adopts
// the member again would take itself for restored, and hold it to that policy.
func (m *Member) forgetPlan(ctx context.Context, plan v1alpha1.PlanVersion) {
	_ = m.updateRoot(ctx, func(root *v1alpha1.ReportRoot) { // the next heartbeat retries
		if root.Plan != nil && *root.Plan == plan {
			root.PlanPolicy, root.PlanPolicySource = nil, ""
		}
	})
}

// AwaitPlan waits until the member's report meets a condition, for a while.
func (m *Member) AwaitPlan(ctx context.Context, condition func(*v1alpha1.ReportRoot) bool) error {
	ctx, cancel := context.WithTimeout(ctx, controlplane.Patience)
	defer cancel()
	for {
		m.mu.Lock()
		met, stored, last := condition(m.root.Root), m.rootStored, fmt.Sprintf("plan %+v with policy %v", m.root.Root.Plan, m.root.Root.Policy)
		m.mu.Unlock()
		if met {
			return nil
		}
		select {
		case <-stored:
		case <-ctx.Done():
			return fmt.Errorf("waiting for a plan of %s, which acknowledged %s: %w", m.Name, last, ctx.Err())
		}
	}
}

// sendHeartbeats sends the members' heartbeats spread over the interval, without waiting for any.
func (all *Members) sendHeartbeats(ctx context.Context) {
	if len(all.List) == 0 {
		return
	}
	ticker := time.NewTicker(all.heartbeat / time.Duration(len(all.List)))
	defer ticker.Stop()
	for next := 0; ; next = (next + 1) % len(all.List) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m := all.List[next]
			all.running.Go(func() {
				if m.SendHeartbeat(ctx) == nil { // otherwise the next heartbeat retries
					all.beats.Add(1)
				}
			})
		}
	}
}

// SendHeartbeat writes the member's report again, as every member does once per heartbeat.
func (m *Member) SendHeartbeat(ctx context.Context) error {
	return m.updateRoot(ctx, func(*v1alpha1.ReportRoot) {})
}

// LastReport returns when the member last observed what it reported, by its own clock.
func (m *Member) LastReport() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.root.Root.ObservedAt.Time
}

// SetImages replaces a page of the member's report; images are sorted by namespace and name.
func (m *Member) SetImages(ctx context.Context, page string, images []v1alpha1.ReportedImage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writePage(ctx, page, images)
}

// writePage writes a page and then the root that lists it.
func (m *Member) writePage(ctx context.Context, page string, images []v1alpha1.ReportedImage) error {
	if len(images) > v1alpha1.MaxReportedImages {
		return fmt.Errorf("%d images for page %s of %s: %w", len(images), page, m.Name, errPageFull)
	}
	r := m.pages[page]
	if r == nil {
		r = &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: m.Name, Name: page}, ClusterUID: m.UID}
		m.pages[page] = r
	}
	r.Page = &v1alpha1.ReportPage{Images: images}
	if err := m.writeReport(ctx, r); err != nil {
		return err
	}
	return m.writeRoot(ctx, func(*v1alpha1.ReportRoot) {})
}

var errPageFull = errors.New("more images than a page can hold")

// updateRoot changes and writes the root.
func (m *Member) updateRoot(ctx context.Context, change func(*v1alpha1.ReportRoot)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writeRoot(ctx, change)
}

func (m *Member) writeRoot(ctx context.Context, change func(*v1alpha1.ReportRoot)) error {
	if m.root.Root == nil {
		m.root = v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Namespace: m.Name, Name: v1alpha1.MailboxName}, ClusterUID: m.UID,
			Root: &v1alpha1.ReportRoot{HeartbeatSeconds: int32(m.members.heartbeat.Seconds()), BootID: m.grants.BootID(), AgentVersion: "fake"},
		}
	}
	root := m.root.Root
	change(root)
	m.fillTransfers(root)
	root.ObservedAt = metav1.NewTime(time.Now().Add(m.skew))
	// Invariant: all pages are written before the root.
	root.AnsweredPlan, root.ImageFields, root.PolicyKeys = root.Plan, v1alpha1.ImageFields(), policy.PlanKeys()
	if m.oldAgent {
		root.AnsweredPlan, root.ImageFields, root.PolicyKeys = nil, nil, nil
	}
	root.Pages, root.Images, root.Phases, root.References = nil, 0, map[v1alpha1.Phase]int32{}, 0
	for _, name := range slices.Sorted(maps.Keys(m.pages)) {
		page := m.pages[name]
		root.Pages = append(root.Pages, v1alpha1.PageRef{Name: name, Sequence: page.Sequence, Images: int32(len(page.Page.Images))})
		root.Images += int32(len(page.Page.Images))
		for i := range page.Page.Images {
			root.Phases[page.Page.Images[i].Phase]++
			root.References += page.Page.Images[i].References
		}
	}
	if err := m.writeReport(ctx, &m.root); err != nil {
		return err
	}
	close(m.rootStored)
	m.rootStored = make(chan struct{})
	return nil
}

// writeReport stores an object with a higher sequence.
func (m *Member) writeReport(ctx context.Context, r *v1alpha1.ClusterReport) error {
	if m.disconnected {
		return nil
	}
	r.Sequence = max(r.Sequence+1, time.Now().Add(m.skew).UnixMilli())
	err := m.storeReport(ctx, r)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// Nobody else writes it: an earlier write was stored, and its answer was lost.
		var stored v1alpha1.ClusterReport
		if err = m.members.client.Get(ctx, client.ObjectKeyFromObject(r), &stored); err == nil {
			r.UID, r.ResourceVersion = stored.UID, stored.ResourceVersion
			err = m.storeReport(ctx, r)
		}
	}
	if err != nil {
		return fmt.Errorf("writing report %s of %s: %w", r.Name, m.Name, err)
	}
	return nil
}

func (m *Member) storeReport(ctx context.Context, r *v1alpha1.ClusterReport) error {
	if r.ResourceVersion == "" {
		return m.members.client.Create(ctx, r)
	}
	ownership.Untrack(r) // as real agents do
	return m.members.client.Update(ctx, r)
}
