//go:build linux

package restore_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestRestartWritesNoNewPlans(t *testing.T) {
	for name, end := range map[string]func(*program.Hub) error{
		"killed":  func(h *program.Hub) error { h.Kill(); <-h.Done(); return nil },
		"stopped": func(h *program.Hub) error { return h.Stop(testenv.Patience) },
	} {
		t.Run(name, func(t *testing.T) {
			h := shared.startHub(t, nil)
			shared.awaitAcknowledged(t, shared.setNewBudget(t))
			before := shared.mailboxVersions(t)
			require.NoError(t, end(h))
			shared.setFakeImages(t, plainFake, 3)
			h = shared.startHub(t, nil)
			// It leads when it tells what was reported meanwhile, and has then looked
			// at every member.
			shared.awaitImageCount(t, plainFake, 3)
			shared.awaitLeader(t, h)
			shared.reportFromAllFakes(t, 4)
			shared.reportFromAllFakes(t, 5)
			assert.Equal(t, before, shared.mailboxVersions(t))
		})
	}
}

func TestMembersWorkWithoutHub(t *testing.T) {
	h := shared.startHub(t, nil)
	shared.ReplacePolicy(t, newPolicyData(2))
	shared.awaitAcknowledged(t, 2)
	require.NoError(t, h.Stop(testenv.Patience))

	o, err := observer.Start(t.Context(), shared.realMember.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(o.Stop)
	const images = 12
	for i := range images {
		createImage(t, shared.realMember.Client(), fmt.Sprintf("alone-%d", i))
	}
	awaitSynced(t, shared.realMember.Client(), images)
	history, err := o.History(t.Context())
	require.NoError(t, err)
	assert.Empty(t, history.BudgetViolations())
	assert.LessOrEqual(t, history.MaxRunning(), 2)
	assert.Len(t, history.Creations(), images)

	// The report tells the state, and is no list of what the hub has missed.
	var reports v1alpha1.ClusterReportList
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, shared.realMember.Client().List(t.Context(), &reports, client.InNamespace(program.AgentNamespace)))
		for i := range reports.Items {
			if root := reports.Items[i].Root; root != nil && root.Phases[v1alpha1.PhaseSucceeded] == images {
				return len(reports.Items) == 3 // root, page and activity
			}
		}
		return false
	}), "reports: %+v", &reports)

	shared.startHub(t, nil)
	shared.AwaitMember(t, realName, "all images counted", func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total == images && m.Status.Images.Ready == images
	})
	assert.Equal(t, int32(2), *shared.GetMember(t, realName).Status.Budget)
}

// createImage creates an image and deletes it after the test. No test downloads from its
// source.
func createImage(t *testing.T, c client.Client, name string) {
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

func awaitSynced(t *testing.T, c client.Client, n int) {
	t.Helper()
	var list v1alpha1.VMDiskImageList
	require.True(t, testenv.AwaitCondition(t, func() bool {
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
