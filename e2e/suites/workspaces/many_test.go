//go:build linux

package workspaces

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestManyVMsShareOneMissingImage that are created at once. Real clones of 50
// machines take minutes on two cores, so CDI is played for 20 of them, and for 50
// with OT_FLEET_LONG.
func TestManyVMsShareOneMissingImage(t *testing.T) {
	t.Run("6 with real CDI", func(t *testing.T) { testManyVMs(t, env, 6) })
	t.Run("more with CDI played", func(t *testing.T) {
		s, err := testenv.Start(context.Background(), member.Options{Name: "many", InstantImporter: true, InstantSnapshots: true, KubeVirt: true})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, s.Stop()) })
		require.NoError(t, s.StartAgent())
		t.Cleanup(s.Agent.Kill)
		n := 20
		if os.Getenv("OT_FLEET_LONG") != "" {
			n = 50
		}
		testManyVMs(t, s, n)
	})
}

// testManyVMs wants one image, one import and a clone for each of n machines, and
// that nothing is made or written twice.
func testManyVMs(t *testing.T, s *testenv.Env, n int) {
	t.Helper()
	s.SetPolicy(t, newPolicy())
	ns, farm := s.CreateNamespace(t), s.CreateNamespace(t)
	o := s.StartObserver(t)
	images, clones, machines := countObjects(t, s, &v1alpha1.VMDiskImageList{}, farm), countObjects(t, s, &cdiv1.DataVolumeList{}, ns), countObjects(t, s, &kubevirtv1.VirtualMachineList{}, ns)
	img := s.NewSnapshottedImage(farm, "image", "/ok/1s/a")
	vms := make([]*v1alpha1.VirtualMachine, n)
	errs := make([]error, n)
	var creating sync.WaitGroup
	for i := range n {
		creating.Add(1)
		go func() {
			defer creating.Done()
			vms[i] = withImageTemplate(ns, fmt.Sprintf("vm-%02d", i), img)
			errs[i] = s.Client().Create(t.Context(), vms[i])
		}()
	}
	creating.Wait()
	if s.InstantImporter() != nil {
		s.InstantImporter().AllowFinishes(1) // a second import would never end
	}
	pins := map[types.UID]bool{}
	for i, vm := range vms {
		require.NoError(t, errs[i])
		got := s.AwaitMachine(t, vm, testenv.MachineHasReason(v1alpha1.ReasonRunning))
		pins[got.Status.Pinned.UID] = true
		if s.InstantImporter() != nil {
			continue // without KubeVirt's webhooks, its controller sets their defaults: the generation is no judge
		}
		their := kubeVirtVMOf(vm)
		require.NoError(t, s.Client().Get(t.Context(), client.ObjectKeyFromObject(vm), their))
		assert.EqualValues(t, 1, their.Generation, "what KubeVirt was told when it was created is all that it is told")
	}
	assert.Len(t, pins, 1)
	got := s.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool { return int(img.Status.References.Count) == n })
	assert.Len(t, got.Status.References.Holders, 5)
	h := testenv.History(t, o)
	assert.Equal(t, 1, h.Attempts(got.UID))
	assert.Empty(t, h.BudgetViolations())
	testenv.Await(t, func() bool { return images() >= 1 && clones() >= n && machines() >= n }) // their watches may be behind
	assert.Equal(t, 1, images())
	assert.Equal(t, n, clones())
	assert.Equal(t, n, machines())
}

// countObjects tells how many objects of a kind a namespace has ever had.
func countObjects(t *testing.T, s *testenv.Env, list client.ObjectList, ns string) func() int {
	t.Helper()
	c, err := client.NewWithWatch(s.ControlPlane.Config(), client.Options{Scheme: s.Client().Scheme()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := c.Watch(ctx, list, client.InNamespace(ns))
	if err != nil {
		cancel()
		require.NoError(t, err)
	}
	var mu sync.Mutex
	seen := map[types.UID]bool{}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range w.ResultChan() {
			if o, ok := e.Object.(client.Object); ok && e.Type != watch.Error {
				mu.Lock()
				seen[o.GetUID()] = true
				mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() { cancel(); w.Stop(); <-ended })
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
}
