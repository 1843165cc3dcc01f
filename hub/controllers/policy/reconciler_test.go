package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

var policyKey = types.NamespacedName{Namespace: "sync-operator", Name: "sync-operator-policy"}

// laggingClient reads from a stale cache.
type laggingClient struct {
	client.Client
	cache client.Reader
}

func (l laggingClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return l.cache.Get(ctx, key, o, options...)
}

func newPolicyConfigMap(uid, version, concurrency string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: policyKey.Namespace, Name: policyKey.Name, UID: types.UID(uid), ResourceVersion: version},
		Data:       map[string]string{"concurrency": concurrency},
	}
}

// A new leader with a stale cache does not revert what the last leader took into force.
func TestOlderPolicyIsNotTakenIntoForce(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	with := func(objects ...client.Object) client.Client {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	}
	// lead has a new leader reconcile the policy, and returns the policy in force.
	lead := func(live client.Client, cached ...client.Object) map[string]string {
		t.Helper()
		r := &Reconciler{
			Client: laggingClient{Client: live, cache: with(cached...)}, Live: live, Events: events.NewFakeRecorder(8),
			Metrics: metrics.New(prometheus.NewRegistry()), InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey,
		}
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: policyKey})
		require.NoError(t, err)
		state := r.InForce.Current()
		require.True(t, state.Known)
		require.NotNil(t, state.Policy)
		data, _, errs := state.Policy.ForMember("frankfurt", nil)
		require.Empty(t, errs)
		kept := &corev1.ConfigMap{}
		require.NoError(t, live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: InForceConfigMap}, kept))
		assert.Equal(t, data["concurrency"], kept.Data["concurrency"], "it is kept")
		return data
	}

	live := with(newPolicyConfigMap("u", "20", "2"))
	assert.Equal(t, "2", lead(live, newPolicyConfigMap("u", "20", "2"))["concurrency"])
	assert.Equal(t, "2", lead(live, newPolicyConfigMap("u", "10", "9"))["concurrency"], "the cache shows an older one")
	assert.Equal(t, "2", lead(live)["concurrency"], "the cache shows none")
	assert.Equal(t, "2", lead(live, newPolicyConfigMap("deleted", "15", "9"))["concurrency"], "the cache shows the one before it")
	assert.Equal(t, "7", lead(live, newPolicyConfigMap("u", "30", "7"))["concurrency"], "the cache shows a newer one")

	binary := newPolicyConfigMap("u", "40", "0")
	binary.Data, binary.BinaryData = nil, map[string][]byte{"concurrency": []byte("\xff\xfe0\x00")}
	assert.Equal(t, "7", lead(live, binary)["concurrency"], "PowerShell has written the file")

	// Versions of another API server have no order with those here, and are forgotten.
	require.NoError(t, live.Delete(t.Context(), newPolicyConfigMap("u", "", "")))
	require.NoError(t, live.Create(t.Context(), newPolicyConfigMap("restored", "", "7")))
	assert.Equal(t, "7", lead(live, newPolicyConfigMap("restored", "1", "7"))["concurrency"])
	kept := &corev1.ConfigMap{}
	require.NoError(t, live.Get(t.Context(), client.ObjectKey{Namespace: "ot-hub", Name: InForceConfigMap}, kept))
	assert.Equal(t, "restored", kept.Annotations[annotationUID])
}

// A refused ConfigMap is in the state that members' statuses are computed from, in an event and
// in the log, once each.
func TestRefusedPolicyIsSaid(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(newPolicyConfigMap("u", "20", "2")).Build()
	recorder := events.NewFakeRecorder(8)
	r := &Reconciler{
		Client: c, Live: c, Events: recorder, Metrics: metrics.New(prometheus.NewRegistry()), InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey,
	}
	var logged []string
	ctx := ctrl.LoggerInto(t.Context(), funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}))
	reconcile := func() State {
		t.Helper()
		_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: policyKey})
		require.NoError(t, err)
		return r.InForce.Current()
	}
	assert.False(t, reconcile().Refused)
	cm := &corev1.ConfigMap{}
	require.NoError(t, c.Get(t.Context(), policyKey, cm))
	cm.Data["concurrency"] = "four"
	require.NoError(t, c.Update(t.Context(), cm))
	for range 2 {
		state := reconcile()
		assert.True(t, state.Refused)
		require.NotNil(t, state.Policy, "the last valid one")
		assert.Contains(t, state.Message, `concurrency: "four" is not a whole number from 0 to 256`)
	}
	require.Len(t, logged, 1)
	assert.Contains(t, logged[0], "four")
	require.Len(t, recorder.Events, 1)
	assert.Contains(t, <-recorder.Events, "PolicyInvalid")

	require.NoError(t, c.Delete(t.Context(), cm))
	state := reconcile()
	assert.True(t, state.Refused)
	assert.Contains(t, state.Message, "does not exist: create it")
}

// An answer that is larger than what annotations may be would be refused each time.
func TestPreviewIsBounded(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	for name, data := range map[string]map[string]string{
		"unknown keys": func() map[string]string {
			data := map[string]string{}
			for i := range 3000 {
				data[fmt.Sprintf("%s%d", strings.Repeat("k", 90), i)] = ""
			}
			return data
		}(),
		"overrides with short timeouts": {"overrides": strings.Repeat("- {selector: {matchLabels: {a: b}}, attemptTimeout: 1s}\n", 3000)},
	} {
		t.Run(name, func(t *testing.T) {
			preview := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "preview", Labels: map[string]string{v1alpha1.LabelPolicyPreview: ""}}, Data: data,
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(preview).Build()
			r := &Reconciler{Client: c, Live: c, InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey}
			r.InForce.publish(State{Known: true})
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(preview)})
			require.NoError(t, err)
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(preview), preview))
			assert.Contains(t, preview.Annotations[v1alpha1.AnnotationPreview], "0 of 0 members would change")
			assert.LessOrEqual(t, len(preview.Annotations[v1alpha1.AnnotationPreview]), maxAnswerBytes)
		})
	}
}

// A comparison as long as an answer may be hides nothing that the preview warns of.
func TestPreviewWarnsBesideALongComparison(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	var sites []string
	for i := range 140 {
		sites = append(sites, fmt.Sprintf("%s%d", strings.Repeat("s", 50), i))
	}
	unmatched := ""
	for i := range 10 {
		unmatched += fmt.Sprintf("- {selector: {matchExpressions: [{key: site-%d, operator: In, values: [%s]}]}, concurrency: 3}\n", i, strings.Join(sites, ", "))
	}
	preview := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: "preview", Labels: map[string]string{v1alpha1.LabelPolicyPreview: ""}},
		Data:       map[string]string{"overrides": unmatched, "concurency": "2", "fleetWeight": "2"},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(preview).Build()
	r := &Reconciler{Client: c, Live: c, InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey}
	r.InForce.publish(State{Known: true})
	_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(preview)})
	require.NoError(t, err)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(preview), preview))
	answer := preview.Annotations[v1alpha1.AnnotationPreview]
	assert.Greater(t, len(answer), maxAnswerBytes-16, "it is cut: %.300s", answer)
	assert.LessOrEqual(t, len(answer), maxAnswerBytes)
	assert.Regexp(t, "\nwithout fleetConcurrency, these keys have no effect: fleetWeight\nunknown keys: concurency$", answer)
}

// A policy that cannot be stored is not in force, and that is said once. What is stored stays in force,
// also for a hub that starts then.
func TestPolicyThatCannotBeStored(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	var refusal error
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(newPolicyConfigMap("u", "20", "2")).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if refusal != nil {
				return refusal
			}
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if o.GetName() == InForceConfigMap && refusal != nil {
				return refusal
			}
			return c.Update(ctx, o, options...)
		},
	})
	var r *Reconciler
	var recorder *events.FakeRecorder
	start := func() {
		recorder = events.NewFakeRecorder(8)
		r = &Reconciler{Client: c, Live: c, Events: recorder, Metrics: metrics.New(prometheus.NewRegistry()), InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey}
	}
	edit := func(change func(*corev1.ConfigMap)) {
		t.Helper()
		cm := &corev1.ConfigMap{}
		require.NoError(t, c.Get(t.Context(), policyKey, cm))
		change(cm)
		require.NoError(t, c.Update(t.Context(), cm))
	}
	// reconcile returns the state, and the concurrency in force, empty for none.
	reconcile := func() (State, string) {
		t.Helper()
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: policyKey})
		require.ErrorIs(t, err, refusal, "it is tried again")
		state := r.InForce.Current()
		if state.Policy == nil {
			return state, ""
		}
		data, _, errs := state.Policy.ForMember("bergen", nil)
		require.Empty(t, errs)
		return state, data["concurrency"]
	}
	down := apierrors.NewInternalError(errors.New("failed calling webhook"))

	start()
	refusal = apierrors.NewForbidden(corev1.Resource("configmaps"), InForceConfigMap, errors.New("exceeded quota"))
	state, concurrency := reconcile()
	assert.False(t, state.Known, "members may have it: nobody plans without it")
	assert.True(t, state.Refused)
	assert.Empty(t, concurrency)
	assert.Contains(t, state.Message, "exceeded quota")

	start()
	refusal = nil
	state, concurrency = reconcile()
	assert.True(t, state.Known && !state.Refused)
	assert.Equal(t, "2", concurrency)

	edit(func(cm *corev1.ConfigMap) { cm.Data["concurrency"] = "0" })
	refusal = down
	for _, restart := range []bool{false, true} {
		if restart {
			start()
		}
		for range 2 {
			state, concurrency = reconcile()
			assert.True(t, state.Known && state.Refused)
			assert.Equal(t, "2", concurrency)
			assert.Contains(t, state.Message, "failed calling webhook")
		}
		require.Len(t, recorder.Events, 1)
		assert.Contains(t, <-recorder.Events, "PolicyNotStored")
	}
	for port := range 3 {
		refusal = fmt.Errorf("read tcp 10.1.2.3:%d->10.96.0.1:443: connection reset by peer", 40000+port)
		state, _ = reconcile()
		assert.Contains(t, state.Message, "connection reset by peer")
	}
	require.Len(t, recorder.Events, 1, "an error whose text differs each time is the same")
	assert.Contains(t, <-recorder.Events, "connection reset by peer")
	for used := range 3 {
		refusal = apierrors.NewForbidden(corev1.Resource("configmaps"), InForceConfigMap, fmt.Errorf("exceeded quota: used %d", 20+used))
		state, _ = reconcile()
		assert.Contains(t, state.Message, "exceeded quota")
	}
	require.Len(t, recorder.Events, 1)
	assert.Contains(t, <-recorder.Events, "exceeded quota")
	refusal = down
	state, _ = reconcile()
	assert.Contains(t, state.Message, "failed calling webhook")
	assert.Contains(t, <-recorder.Events, "failed calling webhook")
	edit(func(cm *corev1.ConfigMap) { cm.Data["concurrency"] = "four" })
	state, concurrency = reconcile()
	assert.Contains(t, state.Message, `concurrency: "four" is not a whole number`, "that it is refused cannot be stored either")
	assert.Equal(t, "2", concurrency)
	assert.Contains(t, <-recorder.Events, "PolicyInvalid")

	start()
	edit(func(cm *corev1.ConfigMap) { cm.Data["concurrency"] = "2" })
	refusal = nil
	reconcile()
	refusal = down
	require.NoError(t, c.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: InForceConfigMap}}))
	edit(func(cm *corev1.ConfigMap) { cm.Data["concurrency"] = "0" })
	state, concurrency = reconcile()
	assert.True(t, state.Known && state.Refused)
	assert.Equal(t, "2", concurrency, "members have it, whatever somebody deletes")

	edit(func(cm *corev1.ConfigMap) { cm.Data["concurrency"] = "2" })
	refusal = nil
	reconcile()
	start()
	edit(func(cm *corev1.ConfigMap) { cm.UID = "restored" })
	refusal = down
	state, concurrency = reconcile()
	assert.False(t, state.Refused, "what is stored is in force, whatever else cannot be stored")
	assert.Equal(t, "2", concurrency)

	edit(func(cm *corev1.ConfigMap) { cm.Data["concurrency"] = "0" })
	lasting := apierrors.NewConflict(corev1.Resource("configmaps"), InForceConfigMap, errors.New("changed"))
	refusal = lasting
	for r.conflicts.IsPreempted(ctrl.Request{NamespacedName: policyKey}, lasting) {
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: policyKey})
		require.NoError(t, err)
		assert.False(t, r.InForce.Current().Refused, "another read may solve it")
	}
	require.Empty(t, recorder.Events)
	state, _ = reconcile()
	assert.True(t, state.Refused)
	assert.Contains(t, <-recorder.Events, "PolicyNotStored")
	refusal = nil
	state, concurrency = reconcile()
	assert.False(t, state.Refused)
	assert.Equal(t, "0", concurrency)
	assert.Contains(t, <-recorder.Events, "PolicyAccepted")
}

// Each announcement has all members planned: causes that alternate, or texts of one that differ, give few.
func TestCausesOfUnstoredPolicyAreAnnouncedSeldom(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	down := func(int) error { return apierrors.NewInternalError(errors.New("failed calling webhook")) }
	lost := func(int) error { return errors.New("connection reset by peer") }
	quota := func(int) error {
		return apierrors.NewForbidden(corev1.Resource("configmaps"), InForceConfigMap, errors.New("exceeded quota"))
	}
	denied := func(retry int) error {
		return apierrors.NewInternalError(fmt.Errorf("admission webhook denied request %x-%x", uint64(retry+1)*0x9e3779b97f4a7c15, 0xbeef+retry))
	}
	for name, test := range map[string]struct {
		causes []func(retry int) error // in turns
		want   int                     // announcements of 60 retries
	}{
		"one":                {[]func(int) error{down}, 1},
		"two in turns":       {[]func(int) error{down, lost}, 1 + storeCauseBurst + 2},
		"three in turns":     {[]func(int) error{down, down, lost, quota, quota}, 1 + storeCauseBurst + 2},
		"UIDs in the answer": {[]func(int) error{denied}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var refusal error
				c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(newPolicyConfigMap("u", "20", "2")).Build(), interceptor.Funcs{
					Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return refusal },
				})
				var logged []string
				ctx := ctrl.LoggerInto(t.Context(), funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}))
				recorder := events.NewFakeRecorder(100)
				r := &Reconciler{Client: c, Live: c, Events: recorder, Metrics: metrics.New(prometheus.NewRegistry()), InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey}
				published := 0
				r.InForce.OnChange(func() { published++ })
				retry := func() {
					t.Helper()
					_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: policyKey})
					require.ErrorIs(t, err, refusal, "whatever is announced")
					<-time.After(trigger.MaxRetryDelay)
				}
				for i := range 60 {
					refusal = test.causes[i%len(test.causes)](i)
					retry()
				}
				assert.Equal(t, test.want, published)
				assert.Len(t, recorder.Events, test.want)
				assert.Len(t, logged, test.want)

				refusal = apierrors.NewForbidden(corev1.Resource("configmaps"), InForceConfigMap, errors.New("it lasts"))
				for range storeCauseInterval / trigger.MaxRetryDelay {
					retry()
				}
				assert.Contains(t, r.InForce.Current().Message, "it lasts")
				assert.Equal(t, test.want+1, published)
				assert.Len(t, recorder.Events, test.want+1)
			})
		})
	}
}

// A member that joins, or gets a label, makes the policy in force no other one: it is not refused,
// and an edit that pauses the fleet comes into force.
func TestMembersDoNotRefuseThePolicyInForce(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	cm := newPolicyConfigMap("u", "20", "2")
	cm.Data["fleetConcurrency"], cm.Data["safeConcurrency"] = "1", "1"
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cm, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "bergen"}}).Build()
	recorder := events.NewFakeRecorder(8)
	r := &Reconciler{
		Client: c, Live: c, Events: recorder, Metrics: metrics.New(prometheus.NewRegistry()), InForce: &InForce{}, Namespace: "ot-hub", PolicyKey: policyKey,
	}
	reconcile := func() State {
		t.Helper()
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: policyKey})
		require.NoError(t, err)
		return r.InForce.Current()
	}
	assert.Empty(t, reconcile().Standing)
	require.NoError(t, c.Create(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}}))
	for range 2 {
		state := reconcile()
		assert.False(t, state.Refused)
		assert.Len(t, state.Standing, 1)
		assert.Contains(t, state.Message, "in force, but it contradicts itself for these members: safeConcurrency: the safe shares of all 2 members are 2 together")
	}
	require.Len(t, recorder.Events, 1)
	assert.Contains(t, <-recorder.Events, "PolicyContradicted")

	change := func(key, value string) {
		t.Helper()
		current := &corev1.ConfigMap{}
		require.NoError(t, c.Get(t.Context(), policyKey, current))
		current.Data[key] = value
		require.NoError(t, c.Update(t.Context(), current))
	}
	change("concurrency", "0")
	state := reconcile()
	assert.False(t, state.Refused)
	written, _, errs := state.Policy.ForMember("oslo", nil)
	require.Empty(t, errs)
	assert.Equal(t, "0", written["concurrency"])
	change("safeConcurrency", "2")
	assert.True(t, reconcile().Refused, "it makes what is wrong worse")
}
