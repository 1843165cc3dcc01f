//go:build linux

package restore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// startHub starts a hub that stops with the test at the latest. redirect changes its way to
// its API server; nil for none.
func (f *testFleet) startHub(t *testing.T, redirect func(*rest.Config), args ...string) *program.Hub {
	t.Helper()
	h, err := f.RunHub(t.Context(), program.Options{ConfigureClient: redirect, LeaseDuration: hubLeaseDuration, Args: args})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Stop(testenv.Patience)) })
	return h
}

// longLease is for hubs that no other one waits for: they must not lose it on a busy machine.
var longLease = []string{"--leader-elect-lease-duration=1m", "--leader-elect-renew-deadline=50s"}

// newPolicyData is a policy with a concurrency.
func newPolicyData(concurrency int32) map[string]string {
	return map[string]string{
		"concurrency": fmt.Sprint(concurrency), "retryLimit": "1", "retryBackoffDuration": "1s", "preflight": "false",
	}
}

// setNewBudget stores a policy with a budget that was not used before and returns it.
func (f *testFleet) setNewBudget(t *testing.T) int32 {
	t.Helper()
	f.lastBudget++
	f.ReplacePolicy(t, newPolicyData(10+f.lastBudget))
	return 10 + f.lastBudget
}

// awaitAcknowledged waits until members have acknowledged a plan with a budget; all of them
// without names.
func (f *testFleet) awaitAcknowledged(t *testing.T, budget int32, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = f.memberNames
	}
	for _, name := range names {
		f.AwaitMember(t, name, fmt.Sprintf("acknowledged, budget %d", budget), hasBudget(budget))
	}
}

func hasBudget(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionPolicyAcknowledged) &&
			m.Status.Budget != nil && *m.Status.Budget == budget
	}
}

// setFakeImages makes a fake member report n images.
func (f *testFleet) setFakeImages(t *testing.T, name string, n int) {
	t.Helper()
	images := make([]v1alpha1.ReportedImage, n)
	for i := range images {
		images[i] = v1alpha1.ReportedImage{
			Namespace: "default", Name: fmt.Sprintf("image-%d", i), UID: "1", Source: fmt.Sprintf("http://images.example.com/%d", i),
			Phase: v1alpha1.PhaseSucceeded,
		}
	}
	require.NoError(t, f.getFake(t, name).SetImages(t.Context(), "page", images))
}

// reportFromAllFakes makes all fake members report n images and waits until the hub has it.
func (f *testFleet) reportFromAllFakes(t *testing.T, n int) {
	t.Helper()
	for _, m := range f.Fakes.List {
		f.setFakeImages(t, m.Name, n)
	}
	for _, m := range f.Fakes.List {
		f.awaitImageCount(t, m.Name, int32(n))
	}
}

func (f *testFleet) getFake(t *testing.T, name string) *fakemember.Member {
	t.Helper()
	for _, m := range f.Fakes.List {
		if m.Name == name {
			return m
		}
	}
	require.Fail(t, "no fake member "+name)
	return nil
}

// awaitImageCount waits until the hub shows n images of a member.
func (f *testFleet) awaitImageCount(t *testing.T, name string, n int32) {
	t.Helper()
	f.AwaitMember(t, name, fmt.Sprintf("%d images", n), func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total == n
	})
}

// mailboxVersions returns the resourceVersions of all plans and grants, on the hub and in the
// members.
func (f *testFleet) mailboxVersions(t *testing.T) map[string]string {
	t.Helper()
	fakes, err := client.New(f.FakePlane.Config(), client.Options{Scheme: testenv.NewScheme()})
	require.NoError(t, err)
	versions := map[string]string{}
	for where, c := range map[string]client.Client{"hub": f, realName: f.realMember.Client(), "fake": fakes} {
		for _, list := range []client.ObjectList{&v1alpha1.ClusterPlanList{}, &v1alpha1.TransferGrantList{}} {
			require.NoError(t, c.List(t.Context(), list))
			require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
				object := o.(client.Object)
				versions[fmt.Sprintf("%s: %T %s/%s", where, o, object.GetNamespace(), object.GetName())] = object.GetResourceVersion()
				return nil
			}))
		}
	}
	return versions
}

// awaitLeader waits until a hub is the leader.
func (f *testFleet) awaitLeader(t *testing.T, h *program.Hub) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		elected, err := h.IsElected(t.Context())
		require.NoError(t, err)
		return elected
	}), "the hub does not become leader")
}
