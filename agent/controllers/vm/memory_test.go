package vm

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestDataVolumesAreSeenByTheirUID: each clone of a disk has the name of the one before.
func TestDataVolumesAreSeenByTheirUID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, obj := &Reconciler{}, apitest.VirtualMachine("ns", "vm").Obj()
		obj.Spec.Disks = []v1alpha1.Disk{{Name: "data"}}
		uids := map[string]types.UID{"": "root", "data": "data"}
		seenFor := func() (root, data time.Duration) {
			view, disks, err := r.readDisks(t.Context(), obj, func(_ context.Context, k diskKey) (vm.DiskView, error) {
				return vm.DiskView{DataVolume: &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: k.object.Name, UID: uids[k.disk]}}}, nil
			})
			require.NoError(t, err)
			return view.SeenFor, disks["data"].SeenFor
		}
		want := func(wantRoot, wantData time.Duration) {
			root, data := seenFor()
			assert.Equal(t, []time.Duration{wantRoot, wantData}, []time.Duration{root, data})
		}
		want(0, 0)
		<-time.After(time.Minute)
		want(time.Minute, time.Minute)
		uids["data"] = "another"
		want(time.Minute, 0)
		<-time.After(time.Second)
		want(time.Minute+time.Second, time.Second)
		r.memory.forget(client.ObjectKeyFromObject(obj))
		want(0, 0)
	})
}
