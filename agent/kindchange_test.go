package main

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	imagecontroller "github.com/pelotech/ot-fleet/agent/controllers/image"
	ledgercontroller "github.com/pelotech/ot-fleet/agent/controllers/ledger"
	vmcontroller "github.com/pelotech/ot-fleet/agent/controllers/vm"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestRemovedKindRequeuesMachinesAndImages removes KubeVirt's kind and brings it back: machines that say
// KubeVirtMissing have no event of their own.
func TestRemovedKindRequeuesMachinesAndImages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		require.NoError(t, v1alpha1.AddToScheme(scheme))
		var mu sync.Mutex
		var machines, images int
		counting := clientfake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				mu.Lock()
				defer mu.Unlock()
				switch list.(type) {
				case *v1alpha1.VirtualMachineList:
					machines++
				case *v1alpha1.VMDiskImageList:
					images++
				}
				return c.List(ctx, list, opts...)
			},
		}).Build()
		c := &controllers{
			ledger: &ledgercontroller.Reconciler{}, images: &imagecontroller.Reconciler{Client: counting}, vms: &vmcontroller.Reconciler{Client: counting},
		}
		gvk := kubevirt.VirtualMachineGVK
		present := []*metav1.APIResourceList{{GroupVersion: gvk.GroupVersion().String(), APIResources: []metav1.APIResource{{Kind: gvk.Kind}}}}
		d := &fake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: present}}
		d.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return false, nil, nil
		})
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(gvk, meta.RESTScopeNamespace)
		kinds := apidiscovery.NewKindTracker(mapper)
		kinds.WhenServed(gvk, func(context.Context) error { return nil })
		kinds.Recheck(d, c.requeueForKinds)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- kinds.Start(ctx) }()

		for n, served := range []bool{true, false, true} {
			mu.Lock()
			d.Resources = slices.DeleteFunc(slices.Clone(present), func(*metav1.APIResourceList) bool { return !served })
			mu.Unlock()
			require.NoError(t, trigger.Sleep(ctx, 2*time.Minute))
			assert.Equal(t, served, kinds.IsServed(gvk))
			mu.Lock()
			assert.Equal(t, []int{n, n}, []int{machines, images}, "machines and images are listed to be requeued at each change")
			mu.Unlock()
		}
		cancel()
		require.NoError(t, <-ended)
	})
}
