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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

var place *scene.Scene

func TestMain(m *testing.M) {
	scene.Main(m, &place, member.Options{Name: "mailbox", LogDir: os.Getenv("OT_FLEET_LOG_DIR")}, true)
}

// home is a namespace whose images go when the test ends, and the plan before
// them: it would have them made again.
func home(t *testing.T) string {
	t.Helper()
	ns := place.Namespace(t)
	t.Cleanup(func() {
		ctx := context.Background()
		assert.NoError(t, client.IgnoreNotFound(place.Client().Delete(ctx, plan())))
		assert.NoError(t, place.Client().DeleteAllOf(ctx, &v1alpha1.VMDiskImage{}, client.InNamespace(ns)))
	})
	return ns
}

// policy is a quick one, with some of its keys changed.
func policy(keysAndValues ...string) map[string]string {
	data := map[string]string{"concurrency": "4", "retryLimit": "1", "retryBackoffDuration": "100ms"}
	for i := 0; i < len(keysAndValues); i += 2 {
		data[keysAndValues[i]] = keysAndValues[i+1]
	}
	return data
}

// plan is the one ClusterPlan, empty.
func plan() *v1alpha1.ClusterPlan {
	return &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: v1alpha1.MailboxName}}
}

// clusterUID is how the member is known.
func clusterUID(t *testing.T) types.UID {
	t.Helper()
	return clusterUIDOf(t, place.Client())
}

func clusterUIDOf(t *testing.T, c client.Client) types.UID {
	t.Helper()
	ns := &corev1.Namespace{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns))
	return ns.UID
}

// sequence is that of the newest plan that any test has made.
var sequence int64

// planOf is a plan for the member, newer than all before.
func planOf(t *testing.T, policy map[string]string, images ...*v1alpha1.VMDiskImage) *v1alpha1.ClusterPlan {
	t.Helper()
	sequence++
	p := plan()
	p.Spec = v1alpha1.ClusterPlanSpec{
		PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: sequence, Hash: fmt.Sprintf("hash-%d", sequence)},
		ClusterUID:  clusterUID(t), Policy: policy, PolicySource: "a test",
	}
	for _, img := range images {
		p.Spec.Images = append(p.Spec.Images, v1alpha1.PlannedImage{Namespace: img.Namespace, Name: img.Name, Spec: img.Spec})
	}
	return p
}

// store puts a plan into the member, as the relay does.
func store(t *testing.T, p *v1alpha1.ClusterPlan) *v1alpha1.ClusterPlan {
	t.Helper()
	got := plan()
	if err := place.Client().Get(t.Context(), client.ObjectKeyFromObject(got), got); client.IgnoreNotFound(err) == nil && err != nil {
		got.Spec = p.Spec
		place.Create(t, got)
		return got
	}
	place.Change(t, got, func() { got.Spec = p.Spec })
	return got
}

// setPlan stores a plan and waits until the ledger was written under it.
func setPlan(t *testing.T, p *v1alpha1.ClusterPlan) {
	t.Helper()
	store(t, p)
	wantAcknowledged(t, p)
}

func wantAcknowledged(t *testing.T, p *v1alpha1.ClusterPlan) {
	t.Helper()
	var st v1alpha1.SyncLedgerStatus
	require.True(t, scene.Await(t, func() bool {
		st = *place.Ledger(t).Status
		return st.Plan != nil && *st.Plan == p.Spec.PlanVersion
	}), "plan %+v is not acknowledged: %+v", p.Spec.PlanVersion, st)
}

// withoutPlan removes the plan and waits until the ledger was written without.
func withoutPlan(t *testing.T) {
	t.Helper()
	require.NoError(t, client.IgnoreNotFound(place.Client().Delete(t.Context(), plan())))
	place.LedgerCondition(t, v1alpha1.ConditionPlanAccepted, metav1.ConditionFalse, v1alpha1.ReasonNoPlan)
}

// withoutOwn has the plan's policy hold alone.
func withoutOwn(t *testing.T) {
	t.Helper()
	require.NoError(t, place.Client().Delete(t.Context(), place.Policy()))
	require.True(t, scene.Await(t, func() bool { return place.Ledger(t).Status.PolicyVersion == "" }), "the cluster's own policy stays in force")
}

// succeeded waits until an image is in the cluster.
func succeeded(t *testing.T, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	t.Helper()
	return place.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
}

// wantItem waits until the report says what became of a planned image, and
// returns what it says about why.
func wantItem(t *testing.T, img *v1alpha1.VMDiskImage, state v1alpha1.PlanItemState) string {
	t.Helper()
	var got *v1alpha1.PlanItemReport
	require.True(t, scene.Await(t, func() bool {
		got = nil
		var reports v1alpha1.ClusterReportList
		require.NoError(t, place.Client().List(t.Context(), &reports, client.InNamespace(agent.Namespace)))
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

// proxied starts an agent that needs no Lease, behind a proxy of its own.
func proxied(t *testing.T) (*agent.Agent, *proxy.Proxy) {
	t.Helper()
	p, err := proxy.Start(place.ControlPlane.Config())
	require.NoError(t, err)
	a, err := agent.Start(t.Context(), place.ControlPlane, agent.Options{
		Through: p.Through, Log: os.Getenv("OT_FLEET_AGENT_LOG"), Args: []string{"--leader-elect=false"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		a.Kill()
		<-a.Done()
		_ = p.Close()
	})
	return a, p
}
