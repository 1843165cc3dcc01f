package main

import (
	"encoding/json"
	"fmt"
	"io"

	extv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

// definitions are those of virt-operator's own installation, and its own kind.
var definitions = []func() (*extv1.CustomResourceDefinition, error){
	components.NewKubeVirtCrd,
	components.NewVirtualMachineInstanceCrd, components.NewPresetCrd, components.NewReplicaSetCrd,
	components.NewVirtualMachineCrd, components.NewVirtualMachineInstanceMigrationCrd,
	components.NewVirtualMachineSnapshotCrd, components.NewVirtualMachineSnapshotContentCrd,
	components.NewVirtualMachineRestoreCrd, components.NewVirtualMachineInstancetypeCrd,
	components.NewVirtualMachineClusterInstancetypeCrd, components.NewVirtualMachinePoolCrd,
	components.NewMigrationPolicyCrd, components.NewVirtualMachinePreferenceCrd,
	components.NewVirtualMachineClusterPreferenceCrd, components.NewVirtualMachineExportCrd,
	components.NewVirtualMachineCloneCrd, components.NewVirtualMachineBackupCrd,
	components.NewVirtualMachineBackupTrackerCrd,
}

func writeCRDs(to io.Writer) error {
	for _, definition := range definitions {
		crd, err := definition()
		if err != nil {
			return fmt.Errorf("making KubeVirt's CRDs: %w", err)
		}
		if err := json.NewEncoder(to).Encode(crd); err != nil {
			return fmt.Errorf("writing KubeVirt's CRD %s: %w", crd.Name, err)
		}
	}
	return nil
}
