//go:build linux

package restore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func TestRestartPlansNothingAnew(t *testing.T) {
	for name, end := range map[string]func(*hub.Hub) error{
		"killed":  func(h *hub.Hub) error { h.Kill(); <-h.Done(); return nil },
		"stopped": func(h *hub.Hub) error { return h.Stop(patience) },
	} {
		t.Run(name, func(t *testing.T) {
			h := shared.startHub(t, nil)
			shared.acknowledged(t, shared.change(t))
			before := shared.mailboxes(t)
			require.NoError(t, end(h))
			shared.report(t, plain, 3)
			h = shared.startHub(t, nil)
			// It leads when it tells what was reported meanwhile, and has then looked
			// at every member.
			shared.reported(t, plain, 3)
			shared.leads(t, h)
			shared.allReport(t, 4)
			shared.allReport(t, 5)
			assert.Equal(t, before, shared.mailboxes(t))
		})
	}
}

func TestMembersWorkOnWithoutAHub(t *testing.T) {
	h := shared.startHub(t, nil)
	shared.setPolicy(t, policyData(2))
	shared.acknowledged(t, 2)
	require.NoError(t, h.Stop(patience))

	o, err := observer.Start(t.Context(), shared.bergen.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(o.Stop)
	const images = 12
	for i := range images {
		syncImage(t, shared.bergen.Client(), fmt.Sprintf("alone-%d", i))
	}
	synced(t, shared.bergen.Client(), images)
	history, err := o.History(t.Context())
	require.NoError(t, err)
	assert.Empty(t, history.OverBudget())
	assert.LessOrEqual(t, history.MostRunning(), 2)
	assert.Len(t, history.Starts(), images)

	// The report tells the state, and is no list of what the hub has missed.
	var reports v1alpha1.ClusterReportList
	require.True(t, scene.Await(t, func() bool {
		require.NoError(t, shared.bergen.Client().List(t.Context(), &reports, client.InNamespace(agent.Namespace)))
		for i := range reports.Items {
			if root := reports.Items[i].Root; root != nil && root.Phases[v1alpha1.PhaseSucceeded] == images {
				return len(reports.Items) == 2
			}
		}
		return false
	}), "reports: %+v", &reports)

	shared.startHub(t, nil)
	shared.eventually(t, real1, "all images counted", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total == images && m.Status.Images.Ready == images
	})
	assert.Equal(t, int32(2), *shared.member(t, real1).Status.Budget)
}

// syncImage creates an image that is gone after the test. Nobody asks its source.
func syncImage(t *testing.T, c client.Client, name string) {
	t.Helper()
	img := &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: "http://images.example.com/" + name + ".qcow2",
			DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
		},
	}
	require.NoError(t, c.Create(t.Context(), img))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(c.Delete(context.Background(), img))) })
}

func synced(t *testing.T, c client.Client, n int) {
	t.Helper()
	var list v1alpha1.VMDiskImageList
	require.True(t, scene.Await(t, func() bool {
		require.NoError(t, c.List(t.Context(), &list))
		ready := 0
		for i := range list.Items {
			if list.Items[i].Status.Phase == v1alpha1.PhaseSucceeded {
				ready++
			}
		}
		return ready == n
	}), "not all %d images are synced", n)
}

func TestBadPolicyBesideAHubThatStarts(t *testing.T) {
	h := shared.startHub(t, nil)
	shared.acknowledged(t, shared.change(t))
	before := shared.mailboxes(t)
	require.NoError(t, h.Stop(patience))
	shared.setPolicy(t, map[string]string{"concurrency": "many"})
	h = shared.startHub(t, nil)
	shared.leads(t, h)
	require.True(t, scene.Await(t, func() bool {
		text, err := h.Metrics(t.Context())
		require.NoError(t, err)
		return strings.Contains(text, "ot_hub_policy_valid 0") && strings.Contains(text, `ot_hub_policy_key_invalid{key="concurrency"} 1`)
	}), "the metrics do not tell of the bad policy")
	// It goes on with what it is told, and plans by what was good.
	shared.allReport(t, 6)
	shared.allReport(t, 7)
	assert.Equal(t, before, shared.mailboxes(t))
	shared.acknowledged(t, shared.change(t))
}
