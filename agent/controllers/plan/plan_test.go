package plan

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	policycontroller "github.com/pelotech/ot-fleet/agent/controllers/policy"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// fakeCache implements the part of a cache that the reconciler uses.
type fakeCache struct {
	cache.Cache
	from client.Reader
}

func (c fakeCache) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.from.Get(ctx, key, obj, opts...)
}

// planFixture is a reconciler with a fake API server.
type planFixture struct {
	*Reconciler
	t *testing.T
	// enqueuedImages of the last reconcile, by name.
	enqueuedImages []string
	resultChanges  int
}

func newPlanFixture(t *testing.T, objects ...client.Object) *planFixture {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "this"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, system)...).Build()
	b := &planFixture{t: t, Reconciler: &Reconciler{
		Client: c, Live: c, Mailbox: fakeCache{from: c}, Cluster: apidiscovery.NewClusterIdentity(c), Namespace: "ot-agent",
		Policy: knownPolicy(nil), Results: &plan.Results{}, applied: map[plan.Key]plan.AppliedState{}, backoffs: map[plan.Key]itemBackoff{},
	}}
	b.EnqueueImages = func(keys ...v1alpha1.ImageKey) {
		for _, key := range keys {
			b.enqueuedImages = append(b.enqueuedImages, key.Name)
		}
	}
	b.Results.OnChange(func() { b.resultChanges++ })
	return b
}

// knownPolicy is a policy that allows these namespaces.
func knownPolicy(allowed policy.Namespaces) *policycontroller.InForce {
	p := &policycontroller.InForce{}
	p.SetInitial(&policy.Policy{AllowedNamespaces: allowed}, nil)
	return p
}

// storePlan replaces the plan by one that prunes images, and reconciles it.
func (b *planFixture) storePlan(sequence int64, cluster types.UID, prunes ...string) {
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}
	require.NoError(b.t, client.IgnoreNotFound(b.Delete(b.t.Context(), p)))
	p.ResourceVersion = ""
	p.Spec = v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: sequence}, ClusterUID: cluster}
	for _, name := range prunes {
		p.Spec.Prunes = append(p.Spec.Prunes, v1alpha1.PlannedPrune{Namespace: "lab", Name: name, ImageUID: apitest.Image("lab/" + name).Obj().UID, UID: "prune"})
	}
	require.NoError(b.t, b.Create(b.t.Context(), p))
	b.mustReconcile()
}

func (b *planFixture) mustReconcile() {
	b.enqueuedImages = nil
	_, err := b.Reconcile(b.t.Context(), ctrl.Request{})
	require.NoError(b.t, err)
	slices.Sort(b.enqueuedImages)
	b.enqueuedImages = slices.Compact(b.enqueuedImages)
}

// prunedNames returns the names of the prunes whose image is reported as gone.
func (b *planFixture) prunedNames() []string {
	var names []string
	for key, prune := range b.Results.Prunes() {
		assert.Equal(b.t, v1alpha1.ReportedPrune{
			ImageUID:    apitest.Image("lab/" + key.Name).Obj().UID,
			PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePruned},
		}, prune)
		names = append(names, key.Name)
	}
	slices.Sort(names)
	return names
}

func TestDeletedImageOfPruneIsReported(t *testing.T) {
	existing := apitest.Image("lab/existing").Obj()
	recreated := apitest.Image("lab/recreated").WithUID("another").Obj()
	b := newPlanFixture(t, existing, recreated)
	b.storePlan(1, "this", "existing", "gone", "recreated")
	assert.Equal(t, []string{"gone", "recreated"}, b.prunedNames())
	assert.True(t, b.Results.Known())

	require.NoError(t, b.Delete(t.Context(), existing))
	changes := b.resultChanges
	b.mustReconcile()
	assert.Equal(t, []string{"existing", "gone", "recreated"}, b.prunedNames())
	assert.Equal(t, changes+1, b.resultChanges, "the report is notified")

	b.storePlan(2, "another", "gone")
	assert.Equal(t, []string{"existing", "gone", "recreated"}, b.prunedNames(), "a refused plan changes no results")
	b.storePlan(3, "this", "gone")
	assert.Equal(t, []string{"gone"}, b.prunedNames())
	require.NoError(t, b.Delete(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}))
	b.mustReconcile()
	assert.Empty(t, b.prunedNames())
}

func TestPruneEnqueuesItsImage(t *testing.T) {
	b := newPlanFixture(t, apitest.Image("lab/a").Obj(), apitest.Image("lab/b").Obj(), apitest.Image("lab/c").Obj(), apitest.Image("lab/d").Obj())
	b.storePlan(1, "this", "a", "b", "gone")
	assert.Equal(t, []string{"a", "b"}, b.enqueuedImages, "new prunes")
	b.mustReconcile()
	assert.Empty(t, b.enqueuedImages, "once per plan")
	b.storePlan(2, "this", "b", "c")
	assert.Equal(t, []string{"a", "b", "c"}, b.enqueuedImages, "withdrawn prunes too")
	b.storePlan(3, "another", "d")
	assert.Empty(t, b.enqueuedImages, "a refused plan")
	b.storePlan(4, "this", "c")
	assert.Equal(t, []string{"b", "c"}, b.enqueuedImages)
	b.storePlan(5, "another")
	b.storePlan(4, "this", "c")
	assert.Equal(t, []string{"c"}, b.enqueuedImages, "images that were reconciled while the plan was refused")
	require.NoError(t, b.Delete(t.Context(), &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}))
	b.mustReconcile()
	assert.Equal(t, []string{"c"}, b.enqueuedImages, "the plan is deleted")
	b.mustReconcile()
	assert.Empty(t, b.enqueuedImages)
}

// An image that the plan starts over has no event of its own.
func TestRetryEnqueuesItsImage(t *testing.T) {
	failed, foreign := apitest.Image("lab/failed").Obj(), apitest.Image("lab/foreign").Obj()
	failed.Labels = map[string]string{v1alpha1.LabelPlanned: image.PlannedLabelValue}
	b := newPlanFixture(t, failed, foreign, apitest.Image("lab/another").Obj())
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}
	p.Spec = v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: "this"}
	for _, name := range []string{"failed", "foreign"} {
		p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: "lab", Name: name, Spec: failed.Spec, Retry: "1"})
	}
	p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: "lab", Name: "another", Spec: failed.Spec})
	require.NoError(t, b.Create(t.Context(), p))
	b.mustReconcile()
	assert.Equal(t, []string{"failed"}, b.enqueuedImages)
	b.mustReconcile()
	assert.Empty(t, b.enqueuedImages, "once per plan")
}

// A refusal that quotes a header becomes part of the report to the hub.
func TestRefusalsOfPlannedImagesHaveNoHeaders(t *testing.T) {
	const token = "s3cr3t-of-ours"
	want := &v1alpha1.PlannedImage{Namespace: "images", Name: "a", Spec: apitest.Image("images/a").WithExtraHeaders("Authorization: Bearer " + token).Obj().Spec}
	existing := plan.NewImage(want)
	existing.Spec.ExtraHeaders = nil
	b := newPlanFixture(t, existing)
	b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return apierrors.NewBadRequest(`admission webhook "headers.example.com" denied the request: no header Bearer ` + token)
		},
	})
	p := &planPass{Reconciler: b.Reconciler, plan: &v1alpha1.ClusterPlan{}, confirmed: true, now: time.Now(), reports: map[plan.Key]v1alpha1.PlanItemReport{}}

	require.NoError(t, p.reconcileImage(t.Context(), want))

	report := p.reports[plan.KeyForImage(want)]
	assert.Equal(t, v1alpha1.PlanItemRejected, report.State)
	assert.Contains(t, report.Message, "denied the request: no header")
	assert.NotContains(t, report.Message, token)
}

// TestFailingNamespaceHoldsUpNoOther has a webhook of one namespace that does not answer.
func TestFailingNamespaceHoldsUpNoOther(t *testing.T) {
	b := newPlanFixture(t)
	fails := true
	b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if fails && o.GetNamespace() == "farm" {
				return apierrors.NewInternalError(errors.New("failed calling webhook"))
			}
			return c.Create(ctx, o, opts...)
		},
	})
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}
	p.Spec = v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: "this"}
	for _, key := range []plan.Key{{Namespace: "farm", Name: "a"}, {Namespace: "farm", Name: "b"}, {Namespace: "lab", Name: "c"}} {
		p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: key.Namespace, Name: key.Name, Spec: apitest.Image("lab/c").Obj().Spec})
	}
	require.NoError(t, b.Create(t.Context(), p))
	items := func() (states []v1alpha1.PlanItemState, messages []string) {
		for i := range p.Spec.Images {
			report := b.Results.Items()[plan.KeyForImage(&p.Spec.Images[i])]
			states, messages = append(states, report.State), append(messages, report.Message)
		}
		return states, messages
	}

	_, err := b.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "writing VMDiskImage farm/a as planned: Internal error occurred: failed calling webhook")
	states, messages := items()
	assert.Equal(t, []v1alpha1.PlanItemState{v1alpha1.PlanItemWaiting, v1alpha1.PlanItemWaiting, v1alpha1.PlanItemApplied}, states)
	assert.Contains(t, messages[0], "failed calling webhook")
	assert.Contains(t, messages[1], "the agent tries this image after a pause")
	require.NoError(t, b.Get(t.Context(), client.ObjectKey{Namespace: "lab", Name: "c"}, &v1alpha1.VMDiskImage{}))

	fails, b.writes = false, trigger.NamespaceBackoff{} // its wait is over
	b.mustReconcile()
	states, _ = items()
	assert.Equal(t, slices.Repeat([]v1alpha1.PlanItemState{v1alpha1.PlanItemApplied}, 3), states)
}

func TestNamedImagePredicate(t *testing.T) {
	r := &Reconciler{}
	image := func(name string) *v1alpha1.VMDiskImage { return apitest.Image("lab/" + name).Obj() }
	events := r.namedImagePredicate()
	assert.False(t, events.Delete(event.DeleteEvent{Object: image("pruned")}), "no plan has been read")
	r.updateNamedImages(&v1alpha1.ClusterPlanSpec{
		Images: []v1alpha1.PlannedImage{{Namespace: "lab", Name: "planned"}},
		Prunes: []v1alpha1.PlannedPrune{{Namespace: "lab", Name: "pruned"}},
	})
	for name, tt := range map[string]struct{ wantReplaced, wantEdited bool }{
		"planned": {true, true},
		"pruned":  {true, false},
		"another": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.wantReplaced, events.Create(event.CreateEvent{Object: image(name)}))
			assert.Equal(t, tt.wantReplaced, events.Delete(event.DeleteEvent{Object: image(name)}))
			replacement := image(name)
			replacement.UID = "another"
			assert.Equal(t, tt.wantReplaced, events.Update(event.UpdateEvent{ObjectOld: image(name), ObjectNew: replacement}))
			edited := image(name)
			edited.Generation++
			assert.Equal(t, tt.wantEdited, events.Update(event.UpdateEvent{ObjectOld: image(name), ObjectNew: edited}))
			assert.False(t, events.Update(event.UpdateEvent{ObjectOld: image(name), ObjectNew: image(name)}))
		})
	}
}

func TestPlannedStatesAreParsedOncePerPlan(t *testing.T) {
	var c plannedStateCache
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{UID: "plan", ResourceVersion: "1"}}
	key := plan.Key{Namespace: "lab", Name: "a"}
	change := func() { p.Spec.Kept = append(p.Spec.Kept, v1alpha1.KeptImage{Namespace: "lab", Name: "a"}) }
	assert.False(t, c.forPlan(p)[key].Keep)
	change()
	assert.False(t, c.forPlan(p)[key].Keep, "it is not parsed again")
	p.ResourceVersion = "2"
	assert.True(t, c.forPlan(p)[key].Keep)
	for name, mutate := range map[string]func(){
		"resourceVersion": func() { p.ResourceVersion = "3" },
		"UID":             func() { p.UID = "another" },
		"version":         func() { p.Spec.Sequence++ },
	} {
		t.Run(name, func(t *testing.T) {
			before := c.forPlan(p)[key]
			if p.Spec.Kept = nil; !before.Keep {
				change()
			}
			mutate()
			assert.NotEqual(t, before, c.forPlan(p)[key])
		})
	}
}

// TestImagesWaitForThePolicy: before it is read, any namespace may be one that is not allowed.
func TestImagesWaitForThePolicy(t *testing.T) {
	b := newPlanFixture(t)
	b.Policy = &policycontroller.InForce{}
	p := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-agent", Name: v1alpha1.MailboxName}}
	p.Spec = v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: "this"}
	for _, namespace := range []string{"lab", "farm"} {
		p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: namespace, Name: "ubuntu", Spec: apitest.Image("lab/ubuntu").Obj().Spec})
	}
	require.NoError(t, b.Create(t.Context(), p))
	namespaces := func() (created []string) {
		images := &v1alpha1.VMDiskImageList{}
		require.NoError(t, b.List(t.Context(), images))
		for i := range images.Items {
			created = append(created, images.Items[i].Namespace)
		}
		return created
	}
	result, err := b.Reconcile(t.Context(), ctrl.Request{})
	require.NoError(t, err)
	assert.Equal(t, policyReadDelay, result.RequeueAfter)
	assert.Empty(t, namespaces())
	assert.False(t, b.Results.Known())

	b.Policy = knownPolicy(policy.Namespaces{"farm"})
	b.mustReconcile()
	assert.Equal(t, []string{"farm"}, namespaces())
	assert.Equal(t, v1alpha1.PlanItemRejected, b.Results.Items()[plan.Key{Namespace: "lab", Name: "ubuntu"}].State)

	b.Policy = knownPolicy(policy.Namespaces{"lab"})
	b.mustReconcile()
	assert.Equal(t, []string{"farm", "lab"}, namespaces(), "what exists stays")
	assert.Equal(t, v1alpha1.PlanItemRejected, b.Results.Items()[plan.Key{Namespace: "farm", Name: "ubuntu"}].State)
}
