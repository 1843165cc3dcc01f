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

// withoutWords drops the descriptions: seven eighths of KubeVirt's schemas, which
// every API server of a test would parse, store and serve for nobody.
func withoutWords(schema *extv1.JSONSchemaProps) {
	if schema == nil {
		return
	}
	schema.Description = ""
	for name, property := range schema.Properties {
		withoutWords(&property)
		schema.Properties[name] = property
	}
	if schema.Items != nil {
		withoutWords(schema.Items.Schema)
	}
	if schema.AdditionalProperties != nil {
		withoutWords(schema.AdditionalProperties.Schema)
	}
}

func writeCRDs(to io.Writer) error {
	for _, definition := range definitions {
		crd, err := definition()
		if err != nil {
			return fmt.Errorf("making KubeVirt's CRDs: %w", err)
		}
		for _, version := range crd.Spec.Versions {
			if version.Schema != nil {
				withoutWords(version.Schema.OpenAPIV3Schema)
			}
		}
		if err := json.NewEncoder(to).Encode(crd); err != nil {
			return fmt.Errorf("writing KubeVirt's CRD %s: %w", crd.Name, err)
		}
	}
	return nil
}
