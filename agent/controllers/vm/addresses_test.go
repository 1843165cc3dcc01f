package vm

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// newSharingMachines returns machines with the same two addresses, the oldest first, and a Reconciler
// whose cache has them. lists counts how often it is listed.
func newSharingMachines(t *testing.T, n int) (r *Reconciler, machines []*v1alpha1.VirtualMachine, lists *int) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	b := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1alpha1.VirtualMachine{}, vm.AddressIndex, func(o client.Object) []string {
		return vm.AddressKeys(o.(*v1alpha1.VirtualMachine))
	})
	for i := range n {
		machine := apitest.VirtualMachine("ns", fmt.Sprintf("vm-%d", i)).WithUID(types.UID(fmt.Sprint(i))).
			WithInterfaces(v1alpha1.Interface{Network: "a", IPAddress: "10.0.0.5/24", AdditionalAddresses: []string{"10.0.0.6/24"}}).Obj()
		machine.CreationTimestamp = metav1.NewTime(apitest.Epoch.Add(time.Duration(i) * time.Second))
		machines = append(machines, machine)
		b.WithObjects(machine)
	}
	lists = new(int)
	c := interceptor.NewClient(b.Build(), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		*lists++
		return c.List(ctx, list, opts...)
	}})
	return &Reconciler{Client: c}, machines, lists
}

func TestFindAddressConflictStopsAtTheFirst(t *testing.T) {
	r, machines, lists := newSharingMachines(t, 5)
	conflict, err := r.findAddressConflict(t.Context(), machines[4])
	require.NoError(t, err)
	assert.Contains(t, conflict, "ipAddress 10.0.0.5, which interfaces[0] of VirtualMachine vm-0 has, too")
	assert.Equal(t, 1, *lists)
	conflict, err = r.findAddressConflict(t.Context(), machines[0])
	require.NoError(t, err)
	assert.Empty(t, conflict)
	assert.Equal(t, 3, *lists)
}

func TestAddressEventHandler(t *testing.T) {
	const changed = 2 // of 5
	for name, tt := range map[string]struct {
		send func(r *Reconciler, machine *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request])
		want []string
	}{
		"created": {func(r *Reconciler, machine *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			r.addressEventHandler().Create(t.Context(), event.CreateEvent{Object: machine}, q)
		}, []string{"vm-3", "vm-4"}},
		"listed when the agent starts": {func(r *Reconciler, machine *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			r.addressEventHandler().Create(t.Context(), event.CreateEvent{Object: machine, IsInInitialList: true}, q)
		}, nil},
		"deleted": {func(r *Reconciler, machine *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			r.addressEventHandler().Delete(t.Context(), event.DeleteEvent{Object: machine}, q)
		}, []string{"vm-3", "vm-4"}},
		"created again": {func(r *Reconciler, machine *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			again := machine.DeepCopy()
			again.UID, again.CreationTimestamp = "again", metav1.NewTime(apitest.Epoch.Add(time.Hour))
			r.addressEventHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: machine, ObjectNew: again}, q)
		}, []string{"vm-3", "vm-4"}},
		"an address given up": {func(r *Reconciler, machine *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			updated := machine.DeepCopy()
			updated.Generation++
			updated.Spec.Interfaces[0].AdditionalAddresses = nil
			r.addressEventHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: machine, ObjectNew: updated}, q)
		}, []string{"vm-3", "vm-4"}},
		"other changes": {func(r *Reconciler, machine *v1alpha1.VirtualMachine, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			updated := machine.DeepCopy()
			updated.Generation++
			updated.Spec.RunStrategy = "Halted"
			r.addressEventHandler().Update(t.Context(), event.UpdateEvent{ObjectOld: machine, ObjectNew: updated}, q)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, machines, _ := newSharingMachines(t, 5)
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer q.ShutDown()
			tt.send(r, machines[changed], q)
			var got []string
			for q.Len() > 0 {
				request, _ := q.Get()
				got = append(got, request.Name)
			}
			slices.Sort(got)
			assert.Equal(t, tt.want, got)
		})
	}
}
