//go:build linux

package plan

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// memberUID returns the UID that plans identify the member by.
func memberUID(t *testing.T) types.UID {
	t.Helper()
	return readClusterUID(t, env.Client())
}

func readClusterUID(t *testing.T, c client.Client) types.UID {
	t.Helper()
	ns := &corev1.Namespace{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns))
	return ns.UID
}

// planSequence is the sequence of the newest plan of all tests.
var planSequence int64

// newPlan returns a plan for the member, newer than all before.
func newPlan(t *testing.T, policy map[string]string, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	t.Helper()
	planSequence++
	p := testenv.EmptyPlan()
	p.Spec = v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: planSequence, Hash: fmt.Sprintf("hash-%d", planSequence)},
		ClusterUID:  memberUID(t), Policy: policy, PolicySource: "a test",
	}
	for _, img := range images {
		p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: img.Namespace, Name: img.Name, Spec: img.Spec})
	}
	return p
}

// storePlan writes a plan to the member, as the relay does.
func storePlan(t *testing.T, p *v1alpha1.ClusterPlan) *v1alpha1.ClusterPlan {
	t.Helper()
	got := testenv.EmptyPlan()
	if err := env.Client().Get(t.Context(), client.ObjectKeyFromObject(got), got); client.IgnoreNotFound(err) == nil && err != nil {
		got.Spec = p.Spec
		env.Create(t, got)
		return got
	}
	env.Update(t, got, func() { got.Spec = p.Spec })
	return got
}

// setPlan stores a plan and waits until the ledger acknowledges it.
func setPlan(t *testing.T, p *v1alpha1.ClusterPlan) {
	t.Helper()
	storePlan(t, p)
	awaitAcknowledged(t, p)
}

func awaitAcknowledged(t *testing.T, p *v1alpha1.ClusterPlan) {
	t.Helper()
	var st v1alpha1.SyncLedgerStatus
	require.True(t, testenv.AwaitCondition(t, func() bool {
		st = *env.Ledger(t).Status
		return st.Plan != nil && *st.Plan == p.Spec.PlanVersion
	}), "plan %+v is not acknowledged: %+v", p.Spec.PlanVersion, st)
}

// deletePlanAndAwait deletes the plan and waits until the ledger has none.
func deletePlanAndAwait(t *testing.T) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(env.Client().Delete(t.Context(), testenv.EmptyPlan())))
	env.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, v1alpha1.ReasonNoPlan)
}

// deleteOwnPolicy deletes the member's own policy, so that the plan's applies alone.
func deleteOwnPolicy(t *testing.T) {
	t.Helper()
	require.NoError(t, env.Client().Delete(t.Context(), env.PolicyConfigMap()))
	require.True(t, testenv.AwaitCondition(t, func() bool { return env.Ledger(t).Status.PolicyVersion == "" }), "the cluster's own policy is still in force")
}

// awaitPlanItem waits until an image has a state in the report as the plan has it, not as an earlier plan
// had it, and returns the state's message.
func awaitPlanItem(t *testing.T, img *v1alpha1.VMDiskImage, state v1alpha1.PlanItemState) string {
	t.Helper()
	var got v1alpha1.PlanItemReport
	require.True(t, testenv.AwaitCondition(t, func() bool {
		got = ptr.Deref(env.ReadReportedImage(t, img).Plan, v1alpha1.PlanItemReport{})
		return got.State == state && got.Revision == img.Spec.Revision()
	}), "planned image %s/%s is reported as %+v, want %s", img.Namespace, img.Name, &got, state)
	return got.Message
}

// startProxiedAgent starts an agent without leader election, behind a proxy of its own.
func startProxiedAgent(t *testing.T) (*program.Agent, *faults.Proxy) {
	t.Helper()
	p, err := faults.StartProxy(env.ControlPlane.Config())
	require.NoError(t, err)
	a, err := program.StartAgent(t.Context(), env.ControlPlane, program.Options{
		ConfigureClient: p.Redirect, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--leader-elect=false"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		killAndAwait(a)
		_ = p.Close()
	})
	return a, p
}

func killAndAwait(agents ...*program.Agent) {
	for _, a := range agents {
		a.Kill()
		<-a.Done()
	}
}

// awaitPlannedImage waits until an image exists as the plan wants it.
func awaitPlannedImage(t *testing.T, want *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return env.AwaitImage(t, want, func(got *v1alpha1.VMDiskImage) bool {
		return got.Labels[v1alpha1.LabelPlanned] == "true" && assert.ObjectsAreEqual(want.Spec, got.Spec)
	})
}

// awaitPlanProcessed stores a new plan with the same images and waits until it is processed. The image that
// shows it was in no plan before.
func awaitPlanProcessed(t *testing.T, images ...*v1alpha1.VMDiskImage) {
	t.Helper()
	probe := env.NewImage(images[0].Namespace, fmt.Sprintf("probe-%d", planSequence), "/ok/100ms/probe")
	p := newPlan(t, nil, append(images, probe)...)
	setPlan(t, p)
	awaitPlannedImage(t, probe)
	awaitPlanItem(t, probe, v1alpha1.PlanItemApplied)
	require.NoError(t, client.IgnoreNotFound(env.Client().Delete(t.Context(), probe)))
}

func TestPlanCreatesImages(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	a, b := env.NewImage(ns, "a", "/ok/100ms/a"), env.NewImage(ns, "b", "/ok/100ms/b")
	a.Spec.Priority = 5
	setPlan(t, newPlan(t, nil, a, b))
	for _, img := range []*v1alpha1.VMDiskImage{a, b} {
		awaitPlannedImage(t, img)
		env.AwaitSucceeded(t, img)
		assert.Empty(t, awaitPlanItem(t, img, v1alpha1.PlanItemApplied))
	}
	first := awaitPlannedImage(t, a)

	t.Run("are changed with the plan", func(t *testing.T) {
		a.Spec.URL += "2"
		a.Spec.Priority = 0
		setPlan(t, newPlan(t, nil, a, b))
		got := awaitPlannedImage(t, a)
		assert.Equal(t, first.UID, got.UID)
		owners := map[string]metav1.ManagedFieldsOperationType{}
		for _, f := range got.ManagedFields {
			if f.Manager == "ot-plan" {
				owners[f.Manager] = f.Operation
			}
		}
		assert.Equal(t, map[string]metav1.ManagedFieldsOperationType{"ot-plan": metav1.ManagedFieldsOperationApply}, owners)
	})
	t.Run("are restored after a change by others", func(t *testing.T) {
		got := awaitPlannedImage(t, a)
		env.Update(t, got, func() { got.Spec.DiskSize = resource.MustParse("2Gi") })
		awaitPlannedImage(t, a)
	})
	t.Run("keep what the plan does not speak of", func(t *testing.T) {
		got := awaitPlannedImage(t, a)
		env.Update(t, got, func() { got.Spec.Priority = 3; got.Annotations = map[string]string{"foreign": "stays"} })
		awaitPlanProcessed(t, a, b)
		after := &v1alpha1.VMDiskImage{}
		require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(a), after))
		assert.EqualValues(t, 3, after.Spec.Priority)
		assert.Equal(t, "stays", after.Annotations["foreign"])
		assert.Equal(t, got.Generation, after.Generation)
	})
	t.Run("are created again when they are deleted", func(t *testing.T) {
		uid := awaitPlannedImage(t, b).UID
		require.NoError(t, env.Client().Delete(t.Context(), b.DeepCopy()))
		again := env.AwaitImage(t, b, func(got *v1alpha1.VMDiskImage) bool { return got.UID != uid })
		awaitPlannedImage(t, b)
		require.True(t, testenv.AwaitCondition(t, func() bool { return env.ReadReportedImage(t, b).UID == again.UID }), "the new image is not reported")
		awaitPlanItem(t, b, v1alpha1.PlanItemApplied)
	})
	t.Run("stay when the plan no longer names them", func(t *testing.T) {
		uid := awaitPlannedImage(t, b).UID
		awaitPlanProcessed(t, a)
		assert.Equal(t, uid, awaitPlannedImage(t, b).UID)
		deletePlanAndAwait(t)
		assert.Equal(t, uid, awaitPlannedImage(t, b).UID)
	})
}

// snapshotUntouched returns an image of a person, and fails where the plan has changed it.
func snapshotUntouched(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got))
	assert.Equal(t, img.UID, got.UID)
	assert.Equal(t, img.Generation, got.Generation)
	assert.Equal(t, img.Spec, got.Spec)
	assert.Empty(t, got.Labels)
	for _, f := range got.ManagedFields {
		assert.NotEqual(t, "ot-plan", f.Manager)
	}
}

func TestForeignImagesAreNotTouched(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	foreign, same := env.NewImage(ns, "foreign", "/ok/100ms/foreign"), env.NewImage(ns, "same", "/ok/100ms/same")
	wanted, wantedSame := env.NewImage(ns, "foreign", "/ok/100ms/ours"), same.DeepCopy()
	env.Create(t, foreign, same)
	setPlan(t, newPlan(t, nil, wanted, wantedSame))
	for img, planned := range map[*v1alpha1.VMDiskImage]*v1alpha1.VMDiskImage{foreign: wanted, same: wantedSame} {
		assert.Contains(t, awaitPlanItem(t, planned, v1alpha1.PlanItemNotOurs), "was made by somebody else")
		awaitPlanProcessed(t, wanted, wantedSame)
		snapshotUntouched(t, img)
	}

	t.Run("until they hand it over", func(t *testing.T) {
		env.Update(t, foreign, func() { foreign.Labels = map[string]string{v1alpha1.LabelPlanned: "true"} })
		awaitPlannedImage(t, wanted)
		awaitPlanItem(t, wanted, v1alpha1.PlanItemApplied)
	})
	t.Run("and when they take it back", func(t *testing.T) {
		env.Update(t, foreign, func() { foreign.Labels = nil; foreign.Spec.URL += "-back" })
		awaitPlanItem(t, wanted, v1alpha1.PlanItemNotOurs)
		awaitPlanProcessed(t, wanted)
		got := &v1alpha1.VMDiskImage{}
		require.NoError(t, env.Client().Get(t.Context(), client.ObjectKeyFromObject(foreign), got))
		assert.Equal(t, foreign.Spec, got.Spec)
	})
	deletePlanAndAwait(t)
}

// TestForeignImagesMissingFromTheCache wants images of people to be left alone by an agent
// whose cache does not have them yet.
func TestForeignImagesMissingFromTheCache(t *testing.T) {
	testenv.RunInTurn(t, 2)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0"))
	ns := env.CreateHomeNamespace(t)
	deletePlanAndAwait(t)
	env.WithoutAgent(t, func() {
		blind, p := startProxiedAgent(t)
		env.SetPolicy(t, testenv.NewPolicy("concurrency", "0", "retryLimit", "5")) // it runs
		p.HoldWatches("vmdiskimages")
		foreign, same := env.NewImage(ns, "foreign", "/ok/100ms/foreign"), env.NewImage(ns, "same", "/ok/100ms/same")
		wanted, wantedSame := env.NewImage(ns, "foreign", "/ok/100ms/ours"), same.DeepCopy()
		env.Create(t, foreign, same)
		probe := env.NewImage(ns, "probe", "/ok/100ms/probe")
		setPlan(t, newPlan(t, nil, wanted, wantedSame, probe))
		awaitPlannedImage(t, probe) // it comes last
		snapshotUntouched(t, foreign)
		snapshotUntouched(t, same)
		killAndAwait(blind)
	})
	deletePlanAndAwait(t)
}

// TestStalePlanCache wants an agent whose cache has an older plan to create the images of the
// newer one only.
func TestStalePlanCache(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0"))
	ns := env.CreateHomeNamespace(t)
	deletePlanAndAwait(t)
	env.WithoutAgent(t, func() {
		blind, p := startProxiedAgent(t)
		former, later := env.NewImage(ns, "former", "/ok/100ms/former"), env.NewImage(ns, "later", "/ok/100ms/later")
		setPlan(t, newPlan(t, nil, former))
		first := awaitPlannedImage(t, former)
		p.HoldWatches("clusterplans", "syncledgers")
		storePlan(t, newPlan(t, nil, later))
		require.NoError(t, env.Client().Delete(t.Context(), first))
		awaitPlannedImage(t, later)
		env.AwaitGone(t, first)
		killAndAwait(blind)
	})
	deletePlanAndAwait(t)
}

func TestRejectedPlannedImage(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	ns := env.CreateHomeNamespace(t)
	bad, good := env.NewImage(ns, "bad", "/ok/100ms/a"), env.NewImage(ns, "good", "/ok/100ms/a")
	bad.Spec.URL = "ftp://nowhere/a"
	setPlan(t, newPlan(t, nil, bad, good))
	awaitPlannedImage(t, good)
	assert.Contains(t, awaitPlanItem(t, bad, v1alpha1.PlanItemRejected), "url must start with http:// or https://")
	assert.True(t, apierrors.IsNotFound(env.Client().Get(t.Context(), client.ObjectKeyFromObject(bad), bad.DeepCopy())))

	t.Run("the next plan is tried at once", func(t *testing.T) {
		bad.Spec.URL = env.Source.URL + "/ok/100ms/a"
		setPlan(t, newPlan(t, nil, bad, good))
		awaitPlannedImage(t, bad)
		awaitPlanItem(t, bad, v1alpha1.PlanItemApplied)
	})
	t.Run("an existing image stays as it was", func(t *testing.T) {
		former := awaitPlannedImage(t, bad)
		worse := bad.DeepCopy()
		worse.Spec.URL = "ftp://nowhere/a"
		setPlan(t, newPlan(t, nil, worse, good))
		awaitPlanItem(t, worse, v1alpha1.PlanItemRejected)
		assert.Equal(t, former.UID, awaitPlannedImage(t, bad).UID)
	})
	deletePlanAndAwait(t)
}

func TestPlannedImageWithoutNamespace(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "4"))
	const ns = "comes-later"
	img := env.NewImage(ns, "image", "/ok/100ms/a")
	other := env.NewImage(env.CreateHomeNamespace(t), "other", "/ok/100ms/a")
	setPlan(t, newPlan(t, nil, img, other))
	awaitPlannedImage(t, other)
	assert.Contains(t, awaitPlanItem(t, img, v1alpha1.PlanItemWaiting), "namespace comes-later does not exist: create it")
	assert.Equal(t, v1alpha1.ReasonNamespaceMissing, env.ReadReportedImage(t, img).Plan.Reason)
	env.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	awaitPlannedImage(t, img)
	env.AwaitSucceeded(t, img)
	awaitPlanItem(t, img, v1alpha1.PlanItemApplied)
	require.NoError(t, env.Client().Delete(t.Context(), testenv.EmptyPlan()))
	require.NoError(t, client.IgnoreNotFound(env.Client().Delete(t.Context(), img)))
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return apierrors.IsNotFound(env.Client().Get(t.Context(), client.ObjectKeyFromObject(img), img))
	}))
	deletePlanAndAwait(t)
}
