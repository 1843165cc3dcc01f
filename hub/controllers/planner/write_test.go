package planner

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/rollout"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/plan"
)

// A cache that lags has the hub conflict with its own plan, as long as it lags. That refuses nothing.
func TestConflictWithWhatIsStoredIsNoRefusal(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	known, images := settledMember(t), &recordedImages{FleetState: rollout.NewFleetState(func() bool { return true })}
	first := decide(known).plan
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(known.Member).WithObjects(known.Member, first).Build()
	r := &Reconciler{Client: c, Live: c, Events: events.NewFakeRecorder(10), Metrics: metrics.New(prometheus.NewRegistry()), Images: images, Raises: &plan.Raises{}}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(known.Member), known.Member))
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(known.Member)}
	d := decide(known) // on a cache without the plan
	for n := range 10 {
		_, err := r.write(t.Context(), known.Member, known, d)
		require.True(t, trigger.IsConflict(err), "%v", err)
		_, err = r.conflicts.Result(t.Context(), request, ctrl.Result{}, err)
		assert.Equal(t, n >= 5, err != nil, "the backoff of errors spares the API server")
	}
	assert.Empty(t, images.refused)
}

// What a member says may lead to a plan that the API server refuses. Its status must not freeze with
// that: it says whether the member is silent, and what it takes beyond its grants.
func TestRefusedPlanFreezesNoStatus(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	for name, refusal := range map[string]error{
		"invalid": apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ClusterPlan").GroupKind(), v1alpha1.MailboxName,
			field.ErrorList{field.TooMany(field.NewPath("spec", "policy"), 65, 64)}),
		"a quota":           apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("clusterplans").GroupResource(), v1alpha1.MailboxName, errors.New("exceeded quota")),
		"too large":         apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
		"a webhook is down": apierrors.NewInternalError(errors.New("failed calling webhook")),
		"a webhook's 400":   apierrors.NewBadRequest("admission webhook denied the request"),
		"too many requests": apierrors.NewTooManyRequests("try again", 1),
		"no answer":         context.DeadlineExceeded,
		"a webhook's 404":   apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("clusterplans").GroupResource(), v1alpha1.MailboxName),
		"a conflict that lasts": &apierrors.StatusError{ErrStatus: metav1.Status{
			Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: "admission webhook denied the request"}},
	} {
		t.Run(name, func(t *testing.T) {
			known, images := settledMember(t), &recordedImages{FleetState: rollout.NewFleetState(func() bool { return true })}
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(known.Member).WithObjects(known.Member).Build(), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
					if _, isPlan := o.(*v1alpha1.ClusterPlan); isPlan {
						return refusal
					}
					return c.Create(ctx, o, options...)
				},
			})
			r := &Reconciler{Client: c, Live: c, Events: events.NewFakeRecorder(10), Metrics: metrics.New(prometheus.NewRegistry()), Images: images, Raises: &plan.Raises{}}
			member := &v1alpha1.MemberCluster{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(known.Member), member))
			known.Member = member
			d := decide(known)
			require.NotNil(t, d.plan)
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(member)}
			for r.conflicts.IsPreempted(request, refusal) {
				_, err := r.write(t.Context(), member, known, d)
				require.ErrorIs(t, err, refusal)
				require.Empty(t, images.refused, "another read may solve it")
				result, err := r.conflicts.Result(t.Context(), request, ctrl.Result{}, err)
				require.NoError(t, err)
				require.Positive(t, result.RequeueAfter)
			}
			_, err := r.write(t.Context(), member, known, d)
			require.ErrorIs(t, err, refusal, "it is tried again")
			_, err = r.conflicts.Result(t.Context(), request, ctrl.Result{}, err)
			require.ErrorIs(t, err, refusal, "with the backoff of errors")

			stored := &v1alpha1.MemberCluster{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(member), stored))
			acknowledged := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged)
			require.NotNil(t, acknowledged)
			assert.Contains(t, acknowledged.Message, "the next plan cannot be written")
			assert.NotNil(t, meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.ConditionAgentHealthy))
			assert.Nil(t, stored.Status.Plan)
			assert.Equal(t, []bool{true}, images.refused)

			taken := decide(known)
			r.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(stored).WithObjects(stored).Build()
			_, err = r.write(t.Context(), stored, known, taken)
			require.NoError(t, err)
			assert.Equal(t, []bool{true, false}, images.refused)
		})
	}
}

// The member's namespace and the end of a plan are written before the status, too.
func TestRefusedMailboxFreezesNoStatus(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	for name, tt := range map[string]struct {
		change      func(*snapshot)
		refusal     error
		preempted   int
		wantType    string
		wantReason  string
		wantMessage string
	}{
		"no namespace": {
			func(s *snapshot) { s.namespace = nil }, apierrors.NewForbidden(corev1.Resource("namespaces"), "ot-member-frankfurt", errors.New("label team is missing")), 0,
			v1alpha1.ConditionReady, string(v1alpha1.ReasonNamespaceMissing), "label team is missing",
		},
		"no namespace, with the code of a conflict": {
			func(s *snapshot) { s.namespace = nil }, apierrors.NewConflict(corev1.Resource("namespaces"), "ot-member-frankfurt", errors.New("label team is missing")), 5,
			v1alpha1.ConditionReady, string(v1alpha1.ReasonNamespaceMissing), "label team is missing",
		},
		"no namespace, with the code of what is missing": {
			func(s *snapshot) { s.namespace = nil }, apierrors.NewNotFound(corev1.Resource("namespaces"), "ot-member-frankfurt"), 1,
			v1alpha1.ConditionReady, string(v1alpha1.ReasonNamespaceMissing), "not found",
		},
		"a plan that is not withdrawn": {
			func(s *snapshot) { s.Holder, s.grant = "berlin", &v1alpha1.TransferGrant{} }, apierrors.NewInternalError(errors.New("failed calling webhook")), 0,
			v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ReasonDuplicateCluster, "cannot be deleted on the hub; the hub retries: withdrawing the plan of MemberCluster frankfurt",
		},
	} {
		t.Run(name, func(t *testing.T) {
			known, images := settledMember(t), &recordedImages{FleetState: rollout.NewFleetState(func() bool { return true })}
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(known.Member).WithObjects(known.Member).Build(), interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					require.IsType(t, &corev1.Namespace{}, o)
					return tt.refusal
				},
				Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
					return tt.refusal
				},
			})
			r := &Reconciler{Client: c, Live: c, Events: events.NewFakeRecorder(10), Metrics: metrics.New(prometheus.NewRegistry()), Images: images, Raises: &plan.Raises{}}
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(known.Member), known.Member))
			tt.change(&known)
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(known.Member)}
			for range tt.preempted {
				_, err := r.write(t.Context(), known.Member, known, decide(known))
				require.ErrorIs(t, err, tt.refusal)
				require.Empty(t, images.refused, "another read may solve it")
				_, err = r.conflicts.Result(t.Context(), request, ctrl.Result{}, err)
				require.NoError(t, err)
			}
			_, err := r.write(t.Context(), known.Member, known, decide(known))
			require.ErrorIs(t, err, tt.refusal, "it is tried again")
			assert.Equal(t, []bool{true}, images.refused)

			stored := &v1alpha1.MemberCluster{}
			require.NoError(t, c.Get(t.Context(), request.NamespacedName, stored))
			have := meta.FindStatusCondition(stored.Status.Conditions, tt.wantType)
			require.NotNil(t, have)
			assert.Equal(t, tt.wantReason, have.Reason)
			assert.Contains(t, have.Message, tt.wantMessage)
			assert.NotNil(t, meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.ConditionAgentHealthy))
		})
	}
}

// recordedImages records which plans were refused.
type recordedImages struct {
	*rollout.FleetState
	refused []bool
}

func (r *recordedImages) SetPlanRefused(member string, refused bool) {
	r.refused = append(r.refused, refused)
	r.FleetState.SetPlanRefused(member, refused)
}

// What rollouts desire is one object for all members, and the held policy is that of the report.
func TestAnswerToAWriteOfThePlanChangesNothingElse(t *testing.T) {
	newState := func() snapshot {
		s := settledMember(t)
		s.root.Report.Plan, s.root.Report.PlanPolicy = &v1alpha1.PlanVersion{Epoch: 2, Sequence: 1}, map[string]string{"concurrency": "2"}
		s.images.Images = []v1alpha1.PlannedImage{{Namespace: "farm", Name: "ubuntu", Spec: v1alpha1.VMDiskImageSpec{
			ExtraHeaders: []string{"A: b"}, Publish: &v1alpha1.Publish{Name: "ubuntu"},
		}}}
		return s
	}
	s, want := newState(), newState()
	d := decide(s)
	require.NotNil(t, d.plan)
	require.Equal(t, want.root.Report.PlanPolicy, d.plan.Spec.Policy, "it is held")
	require.NoError(t, utiljson.Unmarshal([]byte(`{"spec":{
		"policy":{"concurrency":"9"},"images":[{"name":"another","spec":{"extraHeaders":["C: d"],"publish":{"name":"another"}}}]}}`), d.plan))
	assert.Equal(t, want.root.Report.PlanPolicy, s.root.Report.PlanPolicy)
	assert.Equal(t, want.images, s.images)
}
