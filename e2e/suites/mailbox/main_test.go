//go:build linux

// Package mailbox tests the member's end of what hub and agent meet in: the agent
// goes by the ClusterPlan that a hub would put there, and reports. Nothing here
// is a hub: the tests write the plan and read the report.
package mailbox

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var testScene *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &testScene, member.Options{Name: "mailbox", LogDir: os.Getenv("OT_FLEET_LOG_DIR")}, true)
}

// createHomeNamespace is a namespace whose images go when the test ends, and the plan before
// them: it would have them made again.
func createHomeNamespace(t *testing.T) string {
	t.Helper()
	ns := testScene.CreateNamespace(t)
	t.Cleanup(func() {
		ctx := context.Background()
		assert.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(ctx, emptyPlan())))
		assert.NoError(t, testScene.Client().DeleteAllOf(ctx, &v1alpha1.VMDiskImage{}, client.InNamespace(ns)))
	})
	return ns
}

// newPolicy is a quick one, with some of its keys changed.
func newPolicy(keysAndValues ...string) map[string]string {
	data := map[string]string{"concurrency": "4", "retryLimit": "1", "retryBackoffDuration": "100ms"}
	for i := 0; i < len(keysAndValues); i += 2 {
		data[keysAndValues[i]] = keysAndValues[i+1]
	}
	return data
}

// emptyPlan is the one ClusterPlan, empty.
func emptyPlan() *v1alpha1.ClusterPlan {
	return &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: program.AgentNamespace, Name: v1alpha1.MailboxName}}
}

// memberUID is how the member is known.
func memberUID(t *testing.T) types.UID {
	t.Helper()
	return readClusterUID(t, testScene.Client())
}

func readClusterUID(t *testing.T, c client.Client) types.UID {
	t.Helper()
	ns := &corev1.Namespace{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns))
	return ns.UID
}

// planSequence is that of the newest plan that any test has made.
var planSequence int64

// newPlan is a plan for the member, newer than all before.
func newPlan(t *testing.T, policy map[string]string, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	t.Helper()
	planSequence++
	p := emptyPlan()
	p.Spec = v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: planSequence, Hash: fmt.Sprintf("hash-%d", planSequence)},
		ClusterUID:  memberUID(t), Policy: policy, PolicySource: "a test",
	}
	for _, img := range images {
		p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: img.Namespace, Name: img.Name, Spec: img.Spec})
	}
	return p
}

// storePlan puts a plan into the member, as the relay does.
func storePlan(t *testing.T, p *v1alpha1.ClusterPlan) *v1alpha1.ClusterPlan {
	t.Helper()
	got := emptyPlan()
	if err := testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(got), got); client.IgnoreNotFound(err) == nil && err != nil {
		got.Spec = p.Spec
		testScene.Create(t, got)
		return got
	}
	testScene.Update(t, got, func() { got.Spec = p.Spec })
	return got
}

// setPlan stores a plan and waits until the ledger was written under it.
func setPlan(t *testing.T, p *v1alpha1.ClusterPlan) {
	t.Helper()
	storePlan(t, p)
	awaitAcknowledged(t, p)
}

func awaitAcknowledged(t *testing.T, p *v1alpha1.ClusterPlan) {
	t.Helper()
	var st v1alpha1.SyncLedgerStatus
	require.True(t, testenv.Await(t, func() bool {
		st = *testScene.Ledger(t).Status
		return st.Plan != nil && *st.Plan == p.Spec.PlanVersion
	}), "plan %+v is not acknowledged: %+v", p.Spec.PlanVersion, st)
}

// deletePlanAndAwait removes the plan and waits until the ledger was written without.
func deletePlanAndAwait(t *testing.T) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(testScene.Client().Delete(t.Context(), emptyPlan())))
	testScene.AwaitLedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, v1alpha1.ReasonNoPlan)
}

// deleteOwnPolicy has the plan's policy hold alone.
func deleteOwnPolicy(t *testing.T) {
	t.Helper()
	require.NoError(t, testScene.Client().Delete(t.Context(), testScene.PolicyConfigMap()))
	require.True(t, testenv.Await(t, func() bool { return testScene.Ledger(t).Status.PolicyVersion == "" }), "the cluster's own policy stays in force")
}

// awaitSucceeded waits until an image is in the cluster.
func awaitSucceeded(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return testScene.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseSucceeded))
}

// awaitPlanItem waits until the report says what became of a planned image, and
// returns what it says about why.
func awaitPlanItem(t *testing.T, img *v1alpha1.VMDiskImage, state v1alpha1.PlanItemState) string {
	t.Helper()
	var got *v1alpha1.PlanItemReport
	require.True(t, testenv.Await(t, func() bool {
		got = nil
		var reports v1alpha1.ClusterReportList
		require.NoError(t, testScene.Client().List(t.Context(), &reports, client.InNamespace(program.AgentNamespace)))
		for i := range reports.Items {
			if reports.Items[i].Page == nil {
				continue
			}
			for _, entry := range reports.Items[i].Page.Images {
				if entry.Namespace == img.Namespace && entry.Name == img.Name {
					got = entry.Plan
				}
			}
		}
		return got != nil && got.State == state
	}), "what became of planned image %s/%s is %+v, want %s", img.Namespace, img.Name, got, state)
	return got.Message
}

// startProxiedAgent starts an agent that needs no Lease, behind a proxy of its own.
func startProxiedAgent(t *testing.T) (*program.Agent, *faults.Proxy) {
	t.Helper()
	p, err := faults.StartProxy(testScene.ControlPlane.Config())
	require.NoError(t, err)
	a, err := program.StartAgent(t.Context(), testScene.ControlPlane, program.Options{
		ConfigureClient: p.Redirect, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--leader-elect=false"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Kill()
		<-a.Done()
		_ = p.Close()
	})
	return a, p
}
