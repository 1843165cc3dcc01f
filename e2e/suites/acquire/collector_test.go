//go:build linux

package acquire

import (
	"context"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// collectGarbageUntilCleanup deletes objects whose controller is gone until the test ends,
// as the cluster's garbage collector does.
func collectGarbageUntilCleanup(t *testing.T, ns string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			collectGarbageOnce(ctx, ns)
			return false, nil
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func collectGarbageOnce(ctx context.Context, ns string) {
	kubeVirtVMs := &unstructured.UnstructuredList{}
	kubeVirtVMs.SetGroupVersionKind(kubevirt.VirtualMachineGVK.GroupVersion().WithKind(kubevirt.VirtualMachineGVK.Kind + "List"))
	var owned []client.Object
	// Race: owned objects are listed before owners, which are created first.
	for _, list := range []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &cdiv1.DataVolumeList{}, kubeVirtVMs, &corev1.SecretList{}} {
		objects, ok := listObjects(ctx, ns, list)
		if !ok {
			return
		}
		owned = append(owned, objects...)
	}
	owners := map[types.UID]bool{}
	for _, list := range []client.ObjectList{&cdiv1.DataVolumeList{}, &v1alpha1.VirtualMachineList{}, &snapshotv1.VolumeSnapshotList{}} {
		objects, ok := listObjects(ctx, ns, list)
		if !ok {
			return
		}
		for _, o := range objects {
			owners[o.GetUID()] = true
		}
	}
	for _, o := range owned {
		for _, owner := range o.GetOwnerReferences() {
			if owner.Controller != nil && *owner.Controller && !owners[owner.UID] {
				uid := o.GetUID()
				_ = env.Client().Delete(ctx, o, client.Preconditions{UID: &uid})
			}
		}
	}
}

func listObjects(ctx context.Context, ns string, list client.ObjectList) ([]client.Object, bool) {
	if err := env.Client().List(ctx, list, client.InNamespace(ns)); err != nil {
		return nil, false
	}
	var objects []client.Object
	err := meta.EachListItem(list, func(o runtime.Object) error {
		objects = append(objects, o.(client.Object))
		return nil
	})
	return objects, err == nil
}

func listNames(t *testing.T, list client.ObjectList) []string {
	t.Helper()
	var names []string
	require.NoError(t, meta.EachListItem(list, func(o runtime.Object) error {
		names = append(names, o.(client.Object).GetName())
		return nil
	}))
	return names
}
