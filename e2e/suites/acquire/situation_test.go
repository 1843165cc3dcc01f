//go:build linux

package acquire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// reportedWrites of an agent are told of one that does not go on.
const reportedWrites = 12

// describeSituation is what a person asks first of a story that does not go on: where
// agents died, what the last one did, and what there is.
func (s *killSweep) describeSituation(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	s.mu.Lock()
	fmt.Fprintf(&text, "died at, in this order: %v\n", s.died)
	s.mu.Unlock()
	fmt.Fprintf(&text, "the Lease is held by: %q\n", program.AgentLeaseHolder(t.Context(), testScene.Client()))
	if s.agent != nil {
		writes := s.agent.Proxy.Writes()
		fmt.Fprintf(&text, "the agent is gone: %t; its last writes of %d:\n", s.agent.HasEnded(), len(writes))
		for _, w := range writes[max(0, len(writes)-reportedWrites):] {
			fmt.Fprintf(&text, "  %s: %d\n", w, w.Status)
		}
	}
	for _, of := range []struct {
		ns   string
		list client.ObjectList
	}{
		{program.AgentNamespace, &v1alpha1.SyncLedgerList{}},
		{s.ns, &v1alpha1.VMDiskImageList{}}, {s.ns, &v1alpha1.VirtualMachineList{}},
		{s.ns, &cdiv1.DataVolumeList{}}, {s.ns, &corev1.PersistentVolumeClaimList{}}, {s.ns, &snapshotv1.VolumeSnapshotList{}},
	} {
		objects, ok := listObjects(t.Context(), of.ns, of.list)
		if !ok {
			fmt.Fprintf(&text, "%T could not be listed\n", of.list)
		}
		for _, o := range objects {
			o.SetManagedFields(nil)
			content, err := json.Marshal(o)
			if err != nil {
				content = []byte(err.Error())
			}
			fmt.Fprintf(&text, "%T %s: %s\n", o, o.GetName(), content)
		}
	}
	return text.String()
}
