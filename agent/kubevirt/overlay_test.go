package kubevirt_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func machineWithOverlay(t *testing.T, overlay string) *apitest.MachineBuilder {
	text, err := yaml.YAMLToJSON([]byte(overlay))
	require.NoError(t, err)
	return apitest.VirtualMachine("ns", "vm").WithOverlay(string(text))
}

func TestOverlayIsMerged(t *testing.T) {
	for name, tt := range map[string]struct{ overlay, path, want string }{
		"new key": {
			"template: {spec: {nodeSelector: {zone: a}}}", "spec.template.spec.nodeSelector", "zone: a\n",
		},
		"existing key": {
			"template: {spec: {domain: {cpu: {sockets: 2, model: host-model}}}}", "spec.template.spec.domain.cpu", "cores: 1\nmodel: host-model\nsockets: 2\n",
		},
		"null removes a key": {
			"template: {spec: {domain: {cpu: {cores: null, sockets: 4}}}}", "spec.template.spec.domain.cpu", "sockets: 4\n",
		},
		"null for a missing key": {
			"template: {spec: {domain: {cpu: {model: null, numa: {guestMappingPassthrough: null}}}}}", "spec.template.spec.domain.cpu", "cores: 1\nnuma: {}\n",
		},
		"a directive removes a key": {
			"template: {spec: {domain: {cpu: {cores: {$patch: delete}, sockets: 4}}}}", "spec.template.spec.domain.cpu", "sockets: 4\n",
		},
		"a directive removes an object": {
			"template: {spec: {domain: {cpu: {$patch: delete}, devices: {rng: {$patch: delete}, disks: [{name: root, disk: {bus: {$patch: delete}}}]}}}}", "spec.template.spec.domain.cpu", "null\n",
		},
		"a directive removes a named item": {
			"template: {spec: {volumes: [{name: cloudinit, $patch: delete}, {name: unknown, $patch: delete}], domain: {devices: {disks: [{$patch: delete, name: cloudinit}]}}}}", "spec.template.spec.volumes",
			"- dataVolume:\n    name: vm-root\n  name: root\n",
		},
		"a directive in an item that is new": {
			"template: {spec: {volumes: [{name: data, dataVolume: {name: d, hotpluggable: {$patch: delete}}}]}}", "spec.template.spec.volumes",
			"- dataVolume:\n    name: vm-root\n  name: root\n- cloudInitNoCloud:\n    secretRef:\n      name: vm-cloudinit\n  name: cloudinit\n- dataVolume:\n    name: d\n  name: data\n",
		},
		"new named item": {
			"template: {spec: {volumes: [{name: data, dataVolume: {name: d}}]}}", "spec.template.spec.volumes",
			"- dataVolume:\n    name: vm-root\n  name: root\n- cloudInitNoCloud:\n    secretRef:\n      name: vm-cloudinit\n  name: cloudinit\n- dataVolume:\n    name: d\n  name: data\n",
		},
		"existing named item": {
			"template: {spec: {domain: {devices: {disks: [{name: root, cache: none, disk: {bus: null}}]}}}}", "spec.template.spec.domain.devices.disks",
			"- bootOrder: 1\n  cache: none\n  disk: {}\n  name: root\n- disk:\n    bus: virtio\n  name: cloudinit\n",
		},
		"list of unnamed items": {
			"template: {spec: {tolerations: [{key: a, operator: Exists}]}}", "spec.template.spec.tolerations", "- key: a\n  operator: Exists\n",
		},
		"empty list": {
			"template: {spec: {networks: []}}", "spec.template.spec.networks", "null\n",
		},
		"canonical quantities": {
			"template: {spec: {domain: {memory: {guest: 2048Mi}, resources: {requests: {memory: 1024Mi}}, ioThreadsPolicy: ''}}}", "spec.template.spec.domain",
			"cpu:\n  cores: 1\ndevices:\n  disks:\n  - bootOrder: 1\n    disk:\n      bus: virtio\n    name: root\n  - disk:\n      bus: virtio\n    name: cloudinit\n  interfaces:\n  - macAddress: 02:c6:04:0e:a6:22\n    masquerade: {}\n    name: default\n" +
				"ioThreadsPolicy: \"\"\nmemory:\n  guest: 2Gi\nresources:\n  requests:\n    memory: 1Gi\n",
		},
		"template labels": {
			"template: {metadata: {labels: {a: b}}}", "metadata.labels", "pelotech.ot/machine-uid: vm\n",
		},
		"field of spec itself": {
			"updateVolumesStrategy: Migration", "spec.updateVolumesStrategy", "Migration\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			vm := machineWithOverlay(t, tt.overlay).WithUID("vm").Obj()
			assert.Equal(t, tt.want, toYAML(t, fieldAt(t, mustBuild(t, vm), tt.path)))
		})
	}
}

func TestEmptyOverlayChangesNothing(t *testing.T) {
	want := mustBuild(t, apitest.VirtualMachine("ns", "vm").Obj())
	for _, overlay := range []string{"", "{}", "null", `{"template":{}}`, `{"template":{"spec":{"domain":{"devices":{"disks":[{"name":"root"}]}}}}}`} {
		got := mustBuild(t, apitest.VirtualMachine("ns", "vm").WithOverlay(overlay).Obj())
		assert.Equal(t, want.Object["spec"], got.Object["spec"], overlay)
		assert.Equal(t, want.GetAnnotations()[v1alpha1.AnnotationAppliedDigest], got.GetAnnotations()[v1alpha1.AnnotationAppliedDigest], overlay)
		assert.NotContains(t, got.GetAnnotations(), v1alpha1.AnnotationOverlaid)
	}
}

func TestInvalidOverlayIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ overlay, want string }{
		"run strategy":                 {"runStrategy: Always", "overlay must not set runStrategy: set spec.runStrategy instead"},
		"running":                      {"running: true", "overlay must not set running: set spec.runStrategy instead"},
		"removed":                      {"runStrategy: null", "overlay must not set runStrategy: set spec.runStrategy instead"},
		"instancetype":                 {"instancetype: {name: a}", "overlay must not set instancetype: set spec.instancetype instead"},
		"preference":                   {"preference: {name: a}", "overlay must not set preference: set spec.preference instead"},
		"templates":                    {"dataVolumeTemplates: []", "overlay must not set dataVolumeTemplates: list disks beside the root disk in spec.disks, or create DataVolumes separately and add them as volumes"},
		"a whole one":                  {"spec: {runStrategy: Always}", "overlay must not set spec: it is merged into spec of the KubeVirt VirtualMachine, so give the content of spec alone, such as {\"template\": {…}}"},
		"with a name":                  {"metadata: {name: other}", "overlay must not set metadata: it is merged into spec of the KubeVirt VirtualMachine, so give the content of spec alone, such as {\"template\": {…}}"},
		"a list":                       {"[1]", "overlay must be an object with fields of spec of a KubeVirt VirtualMachine"},
		"no template":                  {"template: null", "overlay: the result is no valid KubeVirt VirtualMachine: spec.template.spec is missing"},
		"unknown":                      {"templat: {}", `overlay: the result is no valid KubeVirt VirtualMachine: unknown field "spec.templat"`},
		"unknown below":                {"template: {spec: {domain: {cpus: 2}}}", `overlay: the result is no valid KubeVirt VirtualMachine: unknown field "spec.template.spec.domain.cpus"`},
		"letter case":                  {"template: {spec: {nodeselector: {}}}", `overlay: the result is no valid KubeVirt VirtualMachine: unknown field "spec.template.spec.nodeselector"`},
		"two unknown":                  {"template: {spec: {a: 1, b: 2}}", `unknown field "spec.template.spec.b"`},
		"in a list":                    {"template: {spec: {domain: {devices: {disks: [{name: x, Lun: {}}]}}}}", `unknown field "spec.template.spec.domain.devices.disks[2].Lun"`},
		"another type":                 {"template: {spec: {domain: {cpu: {cores: two}}}}", "overlay: the result is no valid KubeVirt VirtualMachine: spec.template.spec.domain.cpu.cores cannot be a string"},
		"no quantity":                  {"template: {spec: {domain: {memory: {guest: 2GB}}}}", "quantities must match"},
		"a token":                      {"template: {spec: {volumes: [{name: sa, serviceAccount: {serviceAccountName: default}}]}}", "overlay must not add volume sa of type serviceAccount, which gives the guest a token"},
		"a host's file":                {"template: {spec: {volumes: [{name: data, dataVolume: {name: d}}, {name: etc, hostDisk: {path: /etc/shadow, type: Disk}}]}}", "overlay must not add volume etc of type hostDisk, which gives the guest files of its node"},
		"a directive of another kind":  {"template: {spec: {domain: {cpu: {$patch: replace, cores: 2}}}}", "overlay has $patch: replace at spec.template.spec.domain.cpu: the only directive is $patch: delete"},
		"another directive":            {"template: {spec: {$retainKeys: [domain]}}", "overlay has $retainKeys: [domain] at spec.template.spec: the only directive"},
		"a directive for all":          {"$patch: delete", "overlay must not remove the whole spec"},
		"a directive and fields":       {"template: {spec: {domain: {cpu: {$patch: delete, cores: 2}}}}", "overlay has other fields beside $patch: delete at spec.template.spec.domain.cpu"},
		"a directive and a name":       {"template: {spec: {domain: {cpu: {$patch: delete, name: a}}}}", "overlay has other fields beside $patch: delete at spec.template.spec.domain.cpu"},
		"a directive, name and fields": {"template: {spec: {volumes: [{name: root, $patch: delete, dataVolume: {name: d}}]}}", "overlay has other fields beside $patch: delete at spec.template.spec.volumes[0]"},
		"a directive without a name":   {"template: {spec: {tolerations: [{$patch: delete}]}}", "overlay removes an item without a name at spec.template.spec.tolerations[0]"},
		"a directive, run strategy":    {"runStrategy: {$patch: delete}", "overlay must not set runStrategy"},
		"no object":                    {"template: {spec: 1}", "spec.template.spec"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := kubevirt.BuildVirtualMachine(machineWithOverlay(t, tt.overlay).Obj(), cloudinit.Config{Hostname: "vm"})
			require.ErrorContains(t, err, tt.want)
		})
	}
}
