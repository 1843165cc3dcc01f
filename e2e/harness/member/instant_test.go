//go:build linux

package member_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// TestMemberWithInstantImporter plays CDI, snapshots and the node, below the real
// virt-controller.
func TestMemberWithInstantImporter(t *testing.T) {
	t.Parallel()
	started := time.Now()
	m, err := member.Start(t.Context(), member.Options{
		Name: "instant", InstantImporter: true, InstantSnapshots: true, KubeVirt: true, LogDir: os.Getenv("OT_FLEET_TEST_LOGS"),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Stop()) }()
	fmt.Fprintf(os.Stderr, "an instant member with KubeVirt in %s\n", time.Since(started).Round(100*time.Millisecond))
	space, c := "vms", m.Client()
	require.NoError(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}))
	disks := map[string]*cdiv1.DataVolume{
		"of-snapshot":         newClone(space, "of-snapshot", "image", simulator.ClassCSI, "2Gi", true),
		"of-snapshot-unsized": newClone(space, "of-snapshot-unsized", "image", simulator.ClassCSI, "", true),
		"of-claim":            newClone(space, "of-claim", "image", simulator.ClassCSI, "1Gi", false),
	}
	for name, disk := range disks {
		require.NoError(t, c.Create(t.Context(), disk))
		require.NoError(t, c.Create(t.Context(), newVM(space, name, name, kubevirtv1.RunStrategyAlways)))
	}
	require.NoError(t, c.Create(t.Context(), newDataVolume("image", simulator.ClassCSI, "/ok/image.qcow2", nil)))
	require.NoError(t, c.Create(t.Context(), &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "image"},
		Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: ptr.To(simulator.SnapshotClass),
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("image")},
		},
	}))
	m.InstantImporter().AllowFinishes(1)
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		finished, err := m.InstantImporter().CountFinished()
		require.NoError(check, err)
		require.Equal(check, 1, finished, "clones are no imports")
	}, waitTimeout, pollInterval)
	for name := range disks {
		key := client.ObjectKey{Namespace: space, Name: name}
		awaitVMStatus(t, m, key, kubevirtv1.VirtualMachineStatusRunning, true)
		setRunStrategy(t, m, key, kubevirtv1.RunStrategyHalted)
		awaitVMStatus(t, m, key, kubevirtv1.VirtualMachineStatusStopped, false)
		deleteVM(t, m, key)
	}
}
