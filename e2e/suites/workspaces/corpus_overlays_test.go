//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// overlays are merged over spec of the KubeVirt VirtualMachine, in flow style. Each is by
// itself, for the case to name it.
var overlays = []string{
	// What people use overlays for.
	`{template: {spec: {domain: {cpu: {cores: 4, sockets: 2, threads: 1, model: host-passthrough}}}}}`,
	`{template: {spec: {domain: {machine: {type: q35}}}}}`,
	`{template: {spec: {domain: {firmware: {bootloader: {efi: {secureBoot: false}}}}}}}`,
	`{template: {spec: {domain: {features: {acpi: {}, smm: {enabled: true}}, firmware: {bootloader: {efi: {}}}}}}}`,
	`{template: {spec: {domain: {devices: {rng: {}, tpm: {}, autoattachMemBalloon: false, autoattachGraphicsDevice: false}}}}}`,
	`{template: {spec: {domain: {devices: {watchdog: {name: w, i6300esb: {action: poweroff}}}}}}}`,
	`{template: {spec: {domain: {devices: {sound: {name: s, model: ich9}}}}}}`,
	`{template: {spec: {domain: {devices: {inputs: [{name: t, type: tablet, bus: usb}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, ports: [{name: http, port: 80, protocol: TCP}]}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, model: e1000e}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: root, disk: {bus: sata}, cache: none}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: data, disk: {bus: virtio}, serial: A1}]}}, volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: data, disk: {}}]}}, volumes: [{name: data, dataVolume: {name: data}}]}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: s, disk: {}}]}}, volumes: [{name: s, secret: {secretName: s}}]}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: c, cdrom: {bus: sata}}]}}, volumes: [{name: c, containerDisk: {image: "registry.example.com/tools:1"}}]}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: e, disk: {}}]}}, volumes: [{name: e, emptyDisk: {capacity: 2Gi}}]}}}`,
	`{template: {spec: {domain: {memory: {hugepages: {pageSize: 2Mi}}}}}}`,
	`{template: {spec: {domain: {resources: {requests: {cpu: "2", memory: 2Gi}, limits: {cpu: "2", memory: 4Gi}}}}}}`,
	`{template: {spec: {nodeSelector: {zone: a}, tolerations: [{key: gpu, operator: Exists}], priorityClassName: high, schedulerName: other}}}`,
	`{template: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}}}}`,
	`{template: {spec: {evictionStrategy: LiveMigrate, terminationGracePeriodSeconds: 0}}}`,
	`{template: {spec: {dnsPolicy: None, dnsConfig: {nameservers: [10.10.0.53]}, subdomain: web}}}`,
	`{template: {spec: {readinessProbe: {tcpSocket: {port: 22}, initialDelaySeconds: 5}, startStrategy: Paused}}}`,
	`{template: {metadata: {labels: {team: web}, annotations: {note: a}}}}`,
	`{template: {spec: {networks: [{name: lan, multus: {networkName: lan}}], domain: {devices: {interfaces: [{name: lan, bridge: {}}]}}}}}`,
	`{template: {spec: {volumes: [{name: cloudinit, $patch: delete}], domain: {devices: {disks: [{name: cloudinit, $patch: delete}]}}}}}`,
	`{template: {spec: {domain: {cpu: null}}}}`,
	`{}`,
	`{template: {}}`,

	// What the agent refuses.
	`{runStrategy: Always}`, `{running: true}`, `{instancetype: {name: a}}`, `{preference: {name: a}}`, `{dataVolumeTemplates: []}`,
	`{spec: {template: {}}}`, `{metadata: {labels: {a: b}}}`, `{kind: VirtualMachine}`, `{$patch: delete}`, `{template: {$patch: delete}}`, `{template: {$patch: replace}}`,
	`{template: null}`, `{template: {spec: null}}`, `{template: []}`, `{template: {spec: a}}`, `{unknown: 1}`, `{template: {spec: {unknown: 1}}}`, `{template: {spec: {domain: {devices: {disks: {}}}}}}`,
	`{template: {spec: {domain: {cpu: {cores: two}}}}}`, `{template: {spec: {domain: {cpu: {cores: -1}}}}}`, `{template: {spec: {domain: {memory: {guest: 2GB}}}}}`, `{template: {spec: {terminationGracePeriodSeconds: soon}}}`,
	`{template: {spec: {volumes: [{name: h, hostDisk: {path: /a, type: Disk}}]}}}`, `{template: {spec: {volumes: [{name: t, serviceAccount: {serviceAccountName: default}}]}}}`,
	`{template: {spec: {volumes: [text]}}}`, `{template: {spec: {volumes: {name: a}}}}`,
	`[]`, `text`, `5`, `null`,

	// What KubeVirt refuses.
	`{template: {spec: {domain: {devices: {disks: [{name: data, disk: {bus: virtio}}]}}}}}`,
	`{template: {spec: {volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}}`,
	`{template: {spec: {volumes: [{name: data}], domain: {devices: {disks: [{name: data, disk: {}}]}}}}}`,
	`{template: {spec: {volumes: [{name: data, emptyDisk: {capacity: 1Gi}, dataVolume: {name: a}}], domain: {devices: {disks: [{name: data, disk: {}}]}}}}}`,
	`{template: {spec: {volumes: [{name: d, emptyDisk: {capacity: 1Gi}}, {name: d, emptyDisk: {capacity: 2Gi}}], domain: {devices: {disks: [{name: d, disk: {}}, {name: d, disk: {}}]}}}}}`,
	`{template: {spec: {volumes: [{name: d, dataVolume: {name: ""}}], domain: {devices: {disks: [{name: d, disk: {}}]}}}}}`,
	`{template: {spec: {volumes: [{name: root, $patch: delete}]}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: root, $patch: delete}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: root, disk: {bus: floppy}}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: root, cdrom: {}}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: root, bootOrder: 0}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: cloudinit, bootOrder: 1}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: root, cache: sometimes}]}}}}}`,
	`{template: {spec: {domain: {devices: {disks: [{name: root, serial: "a b"}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: lan, bridge: {}}]}}}}}`,
	`{template: {spec: {networks: [{name: lan, multus: {networkName: lan}}]}}}`,
	`{template: {spec: {networks: [{name: lan, multus: {networkName: ""}}], domain: {devices: {interfaces: [{name: lan, bridge: {}}]}}}}}`,
	`{template: {spec: {networks: [{name: lan, multus: {networkName: lan}}], domain: {devices: {interfaces: [{name: lan, masquerade: {}}]}}}}}`,
	`{template: {spec: {networks: [{name: pod, pod: {}}], domain: {devices: {interfaces: [{name: pod, masquerade: {}}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, model: ne1000}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, macAddress: "02:00"}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, macAddress: "02:00:00:00:00:00"}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, pciAddress: "1"}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, slirp: {}}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, ports: [{port: 0}]}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, ports: [{port: 70000}]}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, ports: [{name: Not_A_Name, port: 80}]}]}}}}}`,
	`{template: {spec: {domain: {devices: {interfaces: [{name: default, ports: [{port: 80, protocol: SCTP}]}]}}}}}`,
	`{template: {spec: {domain: {machine: {type: toaster}}}}}`,
	`{template: {spec: {architecture: vax}}}`,
	`{template: {spec: {domain: {cpu: {dedicatedCpuPlacement: true, isolateEmulatorThread: true, threads: 3}}}}}`,
	`{template: {spec: {domain: {cpu: {features: [{name: vmx, policy: maybe}]}}}}}`,
	`{template: {spec: {domain: {cpu: {realtime: {}}}}}}`,
	`{template: {spec: {domain: {memory: {hugepages: {pageSize: 3Mi}}}}}}`,
	`{template: {spec: {domain: {memory: {hugepages: {pageSize: big}}}}}}`,
	`{template: {spec: {domain: {resources: {requests: {memory: 4Gi}, limits: {memory: 2Gi}}}}}}`,
	`{template: {spec: {domain: {resources: {requests: {cpu: "4"}, limits: {cpu: "2"}}}}}}`,
	`{template: {spec: {domain: {resources: {requests: {memory: -1Gi}}}}}}`,
	`{template: {spec: {domain: {devices: {gpus: [{name: g, deviceName: nvidia.com/T4}]}}}}}`,
	`{template: {spec: {domain: {devices: {hostDevices: [{name: g, deviceName: example.com/x}]}}}}}`,
	`{template: {spec: {domain: {devices: {filesystems: [{name: f, virtiofs: {}}]}}}}}`,
	`{template: {spec: {domain: {devices: {sound: {name: s, model: sb16}}}}}}`,
	`{template: {spec: {domain: {devices: {inputs: [{name: t, type: mouse, bus: usb}]}}}}}`,
	`{template: {spec: {domain: {devices: {panicDevices: [{}]}}}}}`,
	`{template: {spec: {domain: {firmware: {bootloader: {efi: {}, bios: {}}}}}}}`,
	`{template: {spec: {domain: {firmware: {bootloader: {efi: {}}}}}}}`,
	`{template: {spec: {domain: {firmware: {kernelBoot: {kernelArgs: a}}}}}}`,
	`{template: {spec: {domain: {ioThreadsPolicy: lots}}}}`,
	`{template: {spec: {dnsPolicy: None}}}`, `{template: {spec: {dnsPolicy: Sometimes}}}`, `{template: {spec: {dnsPolicy: None, dnsConfig: {nameservers: [dns]}}}}`,
	`{template: {spec: {hostname: "not a label"}}}`, `{template: {spec: {subdomain: Web_1}}}`,
	`{template: {spec: {evictionStrategy: Perhaps}}}`, `{template: {spec: {startStrategy: Later}}}`,
	`{template: {spec: {readinessProbe: {}}}}`, `{template: {spec: {livenessProbe: {tcpSocket: {port: 1}, httpGet: {port: 1}}}}}`,
	`{template: {spec: {accessCredentials: [{sshPublicKey: {}}]}}}`,
	`{template: {spec: {topologySpreadConstraints: [{maxSkew: 0, topologyKey: "", whenUnsatisfiable: Never}]}}}`,
	`{template: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}}}}`,
	`{template: {spec: {tolerations: [{key: a, operator: Near}]}}}`, `{template: {spec: {nodeSelector: {"a b": c}}}}`,
	`{template: {spec: {terminationGracePeriodSeconds: -1}}}`,
	`{template: {metadata: {labels: {kubevirt.io/created-by: me}}}}`, `{template: {metadata: {labels: {a: "b c"}}}}`, `{template: {metadata: {annotations: {"a b": c}}}}`,
	`{updateVolumesStrategy: Never}`, `{template: {spec: {domain: {launchSecurity: {sev: {}}}}}}`,
}

// conflicts are overlays of what the instancetype has.
var conflicts = []string{
	`{template: {spec: {domain: {cpu: {cores: 4}}}}}`, `{template: {spec: {domain: {memory: {guest: 4Gi}}}}}`, `{template: {spec: {domain: {resources: {requests: {cpu: "1"}}}}}}`,
}

func addOverlays(t *testing.T, c *corpus) {
	t.Helper()
	for _, text := range overlays {
		var overlay any
		require.NoError(t, yaml.Unmarshal([]byte(text), &overlay), text)
		c.add(map[string]any{"spec.overlay": overlay})
	}
	for _, text := range conflicts {
		var overlay any
		require.NoError(t, yaml.Unmarshal([]byte(text), &overlay), text)
		c.add(map[string]any{"spec.overlay": overlay, "spec.resources": removed, "spec.instancetype.name": "small"})
	}
}
