//go:build linux

package chart_test

import (
	"context"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	notMade        = "was not made for a VirtualMachine of pelotech.ot"
	notOwned       = "has no owner that is a VirtualMachine of pelotech.ot with its name"
	protectedSpace = "is one of the cluster's own"
	noRootDisk     = "is no disk of a VirtualMachine of pelotech.ot"
	notDeleted     = "was not made by the agent"

	noImagesDataSource = "was not made for an image"
	ofImage            = `pelotech.ot/image-uid: u`

	// ofDemo are the metadata of an object of machine demo, without a name.
	ofDemo = `namespace: images, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: u, controller: true}]`
	// machineOfDemo is the beginning of a KubeVirt machine with volumes.
	machineOfDemo = `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: demo, ` + ofDemo + `}, spec: {template: {spec: `
	diskOfDemo    = `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: demo-root, ` + ofDemo + `}, spec: `
	claimOfDemo   = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: demo-root, ` + ofDemo + `}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
	demoAsOwner   = `{"apiVersion":"pelotech.ot/v1alpha1","kind":"VirtualMachine","name":"demo","uid":"u","controller":true}`
	importOf      = `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: image-0123456789ab-1, namespace: images, labels: {pelotech.ot/image-uid: uid-1}}, spec: `
	// unownedClaim is a machine's root claim without an owner; its name replaces NAME.
	unownedClaim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: NAME, namespace: images, labels: {pelotech.ot/machine-uid: u}}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
	foreignClaim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: database, namespace: images}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`
)

func getSecret(namespace, name string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &corev1.Secret{})
	}
}

// importWith is an import with metadata, which include a name.
func importWith(metadata string) string {
	return `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {namespace: images, labels: {pelotech.ot/image-uid: uid-1}, ` + metadata + `}, spec: {source: {blank: {}}, storage: {}}}`
}

// ownedBy is a patch that makes a machine with the UID of the label the owner.
func ownedBy(name string) string {
	return `{"metadata":{"ownerReferences":[{"apiVersion":"pelotech.ot/v1alpha1","kind":"VirtualMachine","name":"` + name + `","uid":"u"}]}}`
}

func dataSourceWith(labels, source string) string {
	return `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataSource, metadata: {name: fedora, namespace: images, labels: {` + labels + `}}, spec: {source: ` + source + `}}`
}

func eventOf(controller string) string {
	return `{apiVersion: events.k8s.io/v1, kind: Event, metadata: {name: said, namespace: images}, eventTime: "2026-01-01T00:00:00.000000Z", action: Act, reason: Said, type: Normal, ` +
		`reportingInstance: x, reportingController: ` + controller + `, regarding: {kind: Pod, namespace: images, name: x}}`
}

func imageIn(namespace string) string {
	return `{apiVersion: pelotech.ot/v1alpha1, kind: VMDiskImage, metadata: {name: mine, namespace: ` + namespace + `}, spec: {name: mine, url: "https://example.com/a", sourceType: http, diskSize: 1Gi}}`
}

// readableByAgent says, of resources that the agent reads, what that shows.
var readableByAgent = map[string]string{
	"clusterplans.pelotech.ot": "its mailbox", "clusterreports.pelotech.ot": "its mailbox", "transfergrants.pelotech.ot": "its mailbox",
	"syncledgers.pelotech.ot": "its ledger", "vmdiskimages.pelotech.ot": "what it works on", "virtualmachines.pelotech.ot": "what it works on",
	"configmaps": "certificates that images name, and the policy", "namespaces": "whether one exists", "resourcequotas": "room for an image", "limitranges": "room for an image",
	"leases.coordination.k8s.io": "who leads",
	"persistentvolumeclaims":     "metadata of disks", "pods": "how importers end, without what is in a Secret", "events": "why a Pod does not start",
	"datavolumes.cdi.kubevirt.io": "imports and disks", "datasources.cdi.kubevirt.io": "names of disks", "cdiconfigs.cdi.kubevirt.io": "CDI's configuration", "storageprofiles.cdi.kubevirt.io": "how CDI makes claims",
	"virtualmachines.kubevirt.io": "machines, whose Secrets are by reference", "network-attachment-definitions.k8s.cni.cncf.io": "whether a network exists",
	"volumesnapshots.snapshot.storage.k8s.io": "snapshots", "volumesnapshotclasses.snapshot.storage.k8s.io": "classes",
	"servicecidrs.networking.k8s.io": "which addresses are the cluster's own",
	"storageclasses.storage.k8s.io":  "classes", "csistoragecapacities.storage.k8s.io": "room for an image", "csidrivers.storage.k8s.io": "which claims CDI fills first",
	"mutatingadmissionpolicies.admissionregistration.k8s.io": "a policy by name", "mutatingadmissionpolicybindings.admissionregistration.k8s.io": "a policy by name",
}

// triedByAgent has a row for each right of the agent's account.
var triedByAgent = map[string]triedRight{
	"create secrets": tried(
		attempt{what: "a token of an account of kube-system",
			object: `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: t, namespace: kube-system, labels: {pelotech.ot/machine-uid: u}, annotations: {kubernetes.io/service-account.name: clusterrole-aggregation-controller}}}`},
		attempt{what: "a token of an account of a user", want: "of type Opaque only",
			object: `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: demo-cloudinit, annotations: {kubernetes.io/service-account.name: default}, ` + ofDemo + `}}`},
		attempt{what: "a token of an account, as the agent's own credential", want: "of type Opaque only",
			object: `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: ot-hub-credential, namespace: ot-system, annotations: {kubernetes.io/service-account.name: ot-hub}}}`},
		attempt{what: "annotations for a token", want: "annotation of kubernetes.io",
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, annotations: {kubernetes.io/service-account.name: default}, ` + ofDemo + `}}`},
		attempt{what: "a bootstrap token", object: `{apiVersion: v1, kind: Secret, type: bootstrap.kubernetes.io/token, metadata: {name: bootstrap-token-abcdef, namespace: kube-system}}`},
		attempt{what: "a Secret for nobody", want: notMade, object: `{apiVersion: v1, kind: Secret, metadata: {name: new, namespace: images}}`},
		attempt{what: "a Secret with another owner", want: notOwned,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: images, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: demo, uid: u, controller: true}]}}`},
		attempt{what: "a Secret with an owner of another UID", want: notOwned,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: images, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: v, controller: true}]}}`},
		attempt{what: "a Secret with an owner that does not control it", want: notOwned,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: images, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: u}]}}`},
		attempt{what: "a Secret with a name that others read", want: notOwned, object: `{apiVersion: v1, kind: Secret, metadata: {name: registry, ` + ofDemo + `}}`},
		attempt{what: "a Secret with keys that others read", want: "in keys userdata and networkdata", object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, ` + ofDemo + `}, stringData: {server: https://example.com}}`},
		attempt{what: "a certificate", want: "of type Opaque only", object: `{apiVersion: v1, kind: Secret, type: kubernetes.io/tls, metadata: {name: demo-cloudinit, ` + ofDemo + `}, stringData: {tls.crt: "", tls.key: ""}}`},
		attempt{what: "a member, where the hub is in the cluster", want: "and no other: controllers choose Secrets by labels",
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: images, labels: {pelotech.ot/machine-uid: u, pelotech.ot/member: "true"}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: u, controller: true}]}}`},
		attempt{what: "a cluster of Argo CD, as the agent's own credential", want: "and no other: controllers choose Secrets by labels",
			object: `{apiVersion: v1, kind: Secret, metadata: {name: ot-hub-credential, namespace: ot-system, labels: {argocd.argoproj.io/secret-type: cluster}}}`},
		attempt{what: "a Secret of a machine in kube-system", want: protectedSpace,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: kube-system, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: u, controller: true}]}}`},
		attempt{what: "a Secret of a machine in the agent's namespace", want: "which has no machines",
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: ot-system, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: u, controller: true}]}}`},
	),
	"get secrets": tried(
		attempt{what: "a Secret of kube-system", send: getSecret("kube-system", "x"), want: "cannot get resource"},
		attempt{what: "a Secret of a namespace that is not bound", send: getSecret(imageNamespace, "x"), want: "cannot get resource"},
		attempt{what: "a Secret of the hub", send: getSecret(hubNamespace, "ot-member-edge-token"), want: "cannot get resource"},
	),
	"list secrets":  gainsNothing("its own credential and join token, by name"),
	"watch secrets": gainsNothing("its own credential and join token, by name"),
	"update secrets": tried(
		attempt{what: "the content of a Secret, quoted by the validation of a patch", want: "cannot patch resource", hides: "c3dvcmRmaXNo",
			object: `{apiVersion: v1, kind: Secret, metadata: {name: quoted, namespace: images}, data: {token: c3dvcmRmaXNo}}`,
			send: func(ctx context.Context, c client.Client) error {
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: "quoted"}}
				return c.Patch(ctx, secret, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"copy","from":"/data/token","path":"/type"}]`)))
			}},
		attempt{what: "the content of a Secret, answered to a patch", want: "cannot patch resource", hides: "c3dvcmRmaXNo",
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, ` + ofDemo + `}, data: {userdata: c3dvcmRmaXNo}}`,
			send: func(ctx context.Context, c client.Client) error {
				return c.Patch(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: "demo-cloudinit"}}, newMergePatch(`{}`), client.DryRunAll)
			}},
		attempt{what: "a Secret of others as it is", want: notMade, object: `{apiVersion: v1, kind: Secret, metadata: {name: passwords, namespace: images}, stringData: {a: b}}`},
		attempt{what: "a Secret of kube-system", want: protectedSpace,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: kube-system, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: u, controller: true}]}}`},
		attempt{what: "a Secret of others by taking it over", want: notMade,
			patch:  `{"metadata":{"labels":{"pelotech.ot/machine-uid":"u"},"ownerReferences":[{"apiVersion":"pelotech.ot/v1alpha1","kind":"VirtualMachine","name":"demo","uid":"u","controller":true}]}}`,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, namespace: images}, stringData: {a: b}}`},
		attempt{what: "an own Secret for a token", want: "annotation of kubernetes.io", patch: `{"metadata":{"annotations":{"kubernetes.io/service-account.name":"default"}}}`,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, ` + ofDemo + `}}`},
		attempt{what: "an own Secret as a member", want: "and no other: controllers choose Secrets by labels", patch: `{"metadata":{"labels":{"pelotech.ot/member":"true"}}}`,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, ` + ofDemo + `}}`},
		attempt{what: "an own Secret that nobody deletes", want: notOwned, patch: `{"metadata":{"ownerReferences":null}}`, object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, ` + ofDemo + `}}`},
		attempt{what: "a token in place of its credential", want: "annotation of kubernetes.io", patch: `{metadata: {annotations: {kubernetes.io/service-account.name: ot-hub}}}`,
			object: `{apiVersion: v1, kind: Secret, metadata: {name: ot-hub-credential, namespace: ot-system}}`},
	),

	"delete secrets": tried(
		attempt{what: "a Secret of others", want: "the agent deletes no Secret", object: `{apiVersion: v1, kind: Secret, metadata: {name: passwords, namespace: images}, stringData: {a: b}}`},
		attempt{what: "an own Secret", want: "the agent deletes no Secret", object: `{apiVersion: v1, kind: Secret, metadata: {name: demo-cloudinit, ` + ofDemo + `}}`},
	),
	"delete virtualmachines.kubevirt.io": tried(
		attempt{what: "a machine of others", want: "the agent deletes no VirtualMachine", object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: foreign, namespace: images}}`},
		attempt{what: "an own machine", want: "the agent deletes no VirtualMachine", object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: demo, ` + ofDemo + `}}`},
	),

	"create virtualmachines.kubevirt.io": tried(
		attempt{what: "a machine for nobody", want: notMade, object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: new, namespace: images}}`},
		attempt{what: "a machine of another name than its owner", want: notOwned, object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: other, ` + ofDemo + `}}`},
		attempt{what: "a token of an account", want: "serviceAccount or hostDisk", object: machineOfDemo + `{volumes: [{name: sa, serviceAccount: {serviceAccountName: default}}]}}}}`},
		attempt{what: "files of a node", want: "serviceAccount or hostDisk", object: machineOfDemo + `{volumes: [{name: host, hostDisk: {path: /etc/shadow, type: Disk}}]}}}}`},
		attempt{what: "a Secret as a volume", want: "kubectl create rolebinding secrets-for-ot-agent --namespace images", object: machineOfDemo + `{volumes: [{name: s, secret: {secretName: passwords}}]}}}}`},
		attempt{what: "a Secret as cloud-init data", want: "may not read Secrets there", object: machineOfDemo + `{volumes: [{name: c, cloudInitNoCloud: {secretRef: {name: passwords}}}]}}}}`},
		attempt{what: "a Secret as network data of a config drive", want: "may not read Secrets there", object: machineOfDemo + `{volumes: [{name: c, cloudInitConfigDrive: {networkDataSecretRef: {name: passwords}}}]}}}}`},
		attempt{what: "a Secret as sysprep data", want: "may not read Secrets there", object: machineOfDemo + `{volumes: [{name: c, sysprep: {secret: {name: passwords}}}]}}}}`},
		attempt{what: "a Secret as an access credential", want: "may not read Secrets there", object: machineOfDemo + `{accessCredentials: [{userPassword: {source: {secret: {secretName: passwords}}}}]}}}}`},
		attempt{what: "DataVolumes by KubeVirt's account", want: "dataVolumeTemplates", object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: demo, ` + ofDemo + `}, spec: {dataVolumeTemplates: [{metadata: {name: x}}]}}`},
		attempt{what: "a machine in KubeVirt's namespace", want: protectedSpace,
			object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: demo, namespace: kubevirt, labels: {pelotech.ot/machine-uid: u}, ownerReferences: [{apiVersion: pelotech.ot/v1alpha1, kind: VirtualMachine, name: demo, uid: u, controller: true}]}}`},
	),
	"patch virtualmachines.kubevirt.io": tried(
		attempt{what: "a machine of others", want: notMade, patch: `{"spec":{"runStrategy":"Halted"}}`, object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: foreign, namespace: images}}`},
		attempt{what: "a machine of others by taking it over", want: notMade,
			patch:  `{"metadata":{"labels":{"pelotech.ot/machine-uid":"u"},"ownerReferences":[{"apiVersion":"pelotech.ot/v1alpha1","kind":"VirtualMachine","name":"foreign","uid":"u","controller":true}]}}`,
			object: `{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: foreign, namespace: images}}`},
		attempt{what: "a token in a machine that runs", want: "serviceAccount or hostDisk", patch: `{"spec":{"template":{"spec":{"volumes":[{"name":"sa","serviceAccount":{"serviceAccountName":"default"}}]}}}}`, object: machineOfDemo + `{volumes: [{name: root, dataVolume: {name: demo-root}}]}}}}`},
		attempt{what: "a Secret in a machine that runs", want: "may not read Secrets there", patch: `{"spec":{"template":{"spec":{"accessCredentials":[{"sshPublicKey":{"source":{"secret":{"secretName":"x"}}}}]}}}}`, object: machineOfDemo + `{volumes: [{name: root, dataVolume: {name: demo-root}}]}}}}`},
	),

	"create datavolumes.cdi.kubevirt.io": tried(
		attempt{what: "a claim of others in another namespace", want: "the agent clones images only", object: diskOfDemo + `{source: {pvc: {namespace: workspace, name: database}}, storage: {}}}`},
		attempt{what: "a claim of a StatefulSet", want: "the agent clones images only", object: diskOfDemo + `{source: {pvc: {namespace: workspace, name: data-postgres-0}}, storage: {}}}`},
		attempt{what: "a claim of kube-system", want: "the agent clones nothing from there", object: diskOfDemo + `{source: {pvc: {namespace: kube-system, name: etcd-0123456789ab-1}}, storage: {}}}`},
		attempt{what: "a snapshot of others", want: "the agent clones images only", object: diskOfDemo + `{source: {snapshot: {namespace: workspace, name: backup}}, storage: {}}}`},
		attempt{what: "a DataSource of others", want: "source, storage and contentType only", object: diskOfDemo + `{sourceRef: {kind: DataSource, namespace: workspace, name: x}, storage: {}}}`},
		attempt{what: "a claim of others by its data source", want: "no volumeName, selector or data source", object: diskOfDemo + `{source: {pvc: {name: image-0123456789ab-1}}, storage: {dataSourceRef: {kind: PersistentVolumeClaim, name: database}}}}`},
		attempt{what: "a PersistentVolume, as one with a hostPath", want: "no volumeName, selector or data source", object: importOf + `{source: {blank: {}}, storage: {volumeName: host}}}`},
		attempt{what: "a PersistentVolume, by spec.pvc", want: "source, storage and contentType only", object: importOf + `{source: {blank: {}}, pvc: {volumeName: host}}}`},
		attempt{what: "priority over the cluster's Pods", want: "source, storage and contentType only", object: importOf + `{source: {blank: {}}, storage: {}, priorityClassName: system-node-critical}}`},
		attempt{what: "a clone as an import", want: "from http, s3, gcs or registry", object: importOf + `{source: {pvc: {name: database}}, storage: {}}}`},
		attempt{what: "an upload", want: "from http, s3, gcs or registry", object: importOf + `{source: {upload: {}}, storage: {}}}`},
		attempt{what: "credentials of vSphere", want: "from http, s3, gcs or registry", object: importOf + `{source: {vddk: {url: https://example.com, secretRef: x}}, storage: {}}}`},
		attempt{what: "a Secret, sent to a host", want: "kubectl create rolebinding secrets-for-ot-agent --namespace images", object: importOf + `{source: {http: {url: https://example.com, secretRef: passwords}}, storage: {}}}`},
		attempt{what: "a Secret, sent as a header", want: "kubectl create rolebinding secrets-for-ot-agent --namespace images", object: importOf + `{source: {http: {url: https://example.com, secretExtraHeaders: [passwords]}}, storage: {}}}`},
		attempt{what: "more Secrets than an image names", want: "at most 5 Secrets", object: importOf + `{source: {http: {url: https://example.com, secretRef: a, secretExtraHeaders: [a, b, c, d, e]}}, storage: {}}}`},
		attempt{what: "a Secret of Google's storage", want: "kubectl create rolebinding secrets-for-ot-agent --namespace images", object: importOf + `{source: {gcs: {url: "gs://bucket/a", secretRef: passwords}}, storage: {}}}`},
		attempt{what: "any certificate of the host", want: "from http, s3, gcs or registry", object: importOf + `{source: {http: {url: https://example.com, insecureSkipVerify: true}}, storage: {}}}`},
		attempt{what: "a Secret, sent as a header by an annotation", want: "annotations of pelotech.ot only",
			object: importWith(`name: image-0123456789ab-1, annotations: {cdi.kubevirt.io/storage.import.secretExtraHeaders.0: victim}`)},
		attempt{what: "an import without a populator", want: "annotations of pelotech.ot only",
			object: importWith(`name: image-0123456789ab-1, annotations: {cdi.kubevirt.io/storage.usePopulator: "false"}`)},
		attempt{what: "a claim of others that CDI adopts", want: "annotations of pelotech.ot only",
			object: importWith(`name: image-0123456789ab-1, annotations: {cdi.kubevirt.io/allowClaimAdoption: "true"}`)},
		attempt{what: "networks of importers", want: "annotations of pelotech.ot only",
			object: importWith(`name: image-0123456789ab-1, annotations: {k8s.v1.cni.cncf.io/networks: default/storage}`)},
		attempt{what: "the name of a claim of others", want: "under names of image claims only", object: importWith(`name: database`)},
		attempt{what: "a disk for nobody", want: "of images or of machines only", object: `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: new, namespace: images}, spec: {source: {blank: {}}}}`},
		attempt{what: "a disk with another owner", want: "has no owner that is a VirtualMachine", object: `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: demo-root, namespace: images, labels: {pelotech.ot/machine-uid: u}}, spec: {source: {pvc: {name: image-0123456789ab-1}}}}`},
		attempt{what: "an empty root disk", want: "the agent clones the disks of machines from images only", object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "a data disk of others", want: "the agent clones images only", object: strings.Replace(diskOfDemo, "demo-root", "demo-0123abcd-disk", 1) + `{source: {pvc: {name: payroll}}, storage: {}}}`},
		attempt{what: "a data disk of others, called blank", want: "the agent clones the disks of machines from images only", object: strings.Replace(diskOfDemo, "demo-root", "demo-0123abcd-disk", 1) + `{source: {pvc: {name: payroll}, blank: {}}, storage: {}}}`},
		attempt{what: "an import in CDI's namespace", want: protectedSpace, object: `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: image-0123456789ab-2, namespace: cdi, labels: {pelotech.ot/image-uid: uid-1}}, spec: {source: {blank: {}}, storage: {}}}`},
	),
	"create datavolumes/source.cdi.kubevirt.io": gainsNothing("lets CDI clone what the policy lets the agent ask for"),
	"delete datavolumes.cdi.kubevirt.io":        tried(attempt{what: "a disk of others", want: notDeleted, object: `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: foreign, namespace: images}}`}),
	"patch datavolumes.cdi.kubevirt.io": tried(
		attempt{what: "a disk of others by taking it over", want: noRootDisk, patch: `{"metadata":{"labels":{"pelotech.ot/machine-uid":"u"},"ownerReferences":[` + demoAsOwner + `]}}`,
			object: `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: other-root, namespace: images}, spec: {source: {blank: {}}, storage: {}}}`},
		attempt{what: "an import", want: noRootDisk, patch: `{"metadata":{"annotations":{"a":"b"}}}`, object: importOf + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "annotations of a machine's disk, which CDI obeys", want: "changes nothing else of them", patch: `{"metadata":{"annotations":{"cdi.kubevirt.io/storage.pod.network":"x"}}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "labels of a machine's disk", want: "changes nothing else of them", patch: `{"metadata":{"labels":{"a":"b"}}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "finalizers of a machine's disk", want: "changes nothing else of them", patch: `{"metadata":{"finalizers":["example.com/kept"]}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "the source of a machine's disk", want: "changes nothing else of them", patch: `{"spec":{"source":{"pvc":{"namespace":"cdi","name":"x"}}}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "another disk of a machine", want: noRootDisk, patch: `{"metadata":{"ownerReferences":[` + demoAsOwner + `]}}`,
			object: `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: demo-data, namespace: images, labels: {pelotech.ot/machine-uid: u}}, spec: {source: {blank: {}}, storage: {}}}`},
		attempt{what: "another machine as owner of a disk", want: "adds no owner to a disk but", patch: `{"metadata":{"ownerReferences":[` + demoAsOwner + `,{"apiVersion":"pelotech.ot/v1alpha1","kind":"VirtualMachine","name":"other","uid":"v"}]}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "a machine of KubeVirt as owner of a disk", want: "adds no owner to a disk but", patch: `{"metadata":{"ownerReferences":[` + demoAsOwner + `,{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","name":"demo","uid":"u"}]}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "another kind as owner of a disk", want: "adds no owner to a disk but", patch: `{"metadata":{"ownerReferences":[` + demoAsOwner + `,{"apiVersion":"pelotech.ot/v1alpha1","kind":"VMDiskImage","name":"demo","uid":"u"}]}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "another owner of a machine's disk", want: "adds no owner to a disk but", patch: `{"metadata":{"ownerReferences":[` + demoAsOwner + `,{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"u"}]}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
		attempt{what: "the deletion of a machine's disk, by an owner that does not exist", want: "adds no owner to a disk but", patch: ownedBy("does-not-exist"),
			object: `{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: demo-root, namespace: images, labels: {pelotech.ot/machine-uid: u}}, spec: {source: {blank: {}}, storage: {}}}`},
		attempt{what: "no owner of a machine's disk", want: "adds no owner to a disk but", patch: `{"metadata":{"ownerReferences":[]}}`, object: diskOfDemo + `{source: {blank: {}}, storage: {}}}`},
	),
	"create datasources.cdi.kubevirt.io": tried(
		attempt{what: "a claim of others, for whoever clones it", want: "of images of their own namespace only", object: dataSourceWith(ofImage, `{pvc: {namespace: images, name: payroll}}`)},
		attempt{what: "an image of another namespace", want: "of images of their own namespace only", object: dataSourceWith(ofImage, `{pvc: {namespace: other, name: image-0123456789ab-1}}`)},
		attempt{what: "a snapshot of others", want: "of images of their own namespace only", object: dataSourceWith(ofImage, `{snapshot: {namespace: images, name: backup}}`)},
		attempt{what: "a DataSource of others", want: "of images of their own namespace only", object: dataSourceWith(ofImage, `{dataSource: {namespace: images, name: fedora}}`)},
		attempt{what: "a DataSource for nobody", want: noImagesDataSource, object: dataSourceWith(``, `{pvc: {namespace: images, name: image-0123456789ab-1}}`)},
		attempt{what: "a DataSource in CDI's namespace", want: protectedSpace, object: strings.Replace(dataSourceWith(ofImage, `{}`), "namespace: images", "namespace: cdi", 1)},
	),
	"patch datasources.cdi.kubevirt.io": tried(
		attempt{what: "a DataSource of others by taking it over", want: noImagesDataSource, patch: `{"metadata":{"labels":{"pelotech.ot/image-uid":"u"}}}`, object: dataSourceWith(``, `{pvc: {namespace: images, name: payroll}}`)},
		attempt{what: "an own DataSource to point at a claim of others", want: "of images of their own namespace only", patch: `{"spec":{"source":{"pvc":{"namespace":"images","name":"payroll"}}}}`, object: dataSourceWith(ofImage, `{}`)},
		attempt{what: "an own DataSource that is nobody's then", want: noImagesDataSource, patch: `{"metadata":{"labels":null}}`, object: dataSourceWith(ofImage, `{}`)},
	),
	"delete datasources.cdi.kubevirt.io": tried(attempt{what: "a DataSource of others", want: notDeleted, object: dataSourceWith(``, `{}`)}),
	"patch persistentvolumeclaims": tried(
		attempt{what: "a claim of others by taking it over", want: noRootDisk, patch: `{"metadata":{"labels":{"pelotech.ot/machine-uid":"u"},"ownerReferences":[` + demoAsOwner + `]}}`, object: foreignClaim},
		attempt{what: "labels of a machine's claim", want: "changes nothing else of them", patch: `{"metadata":{"labels":{"a":"b"}}}`, object: claimOfDemo},
		attempt{what: "annotations of a machine's claim, which CDI obeys", want: "changes nothing else of them", patch: `{"metadata":{"annotations":{"cdi.kubevirt.io/storage.import.secretName":"x"}}}`, object: claimOfDemo},
		attempt{what: "another owner of a machine's claim", want: "adds no owner to a disk but", patch: `{"metadata":{"ownerReferences":[` + demoAsOwner + `,{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"u"}]}}`, object: claimOfDemo},
		attempt{what: "the deletion of a machine's claim, by an owner that does not exist", want: "adds no owner to a disk but", patch: ownedBy("does-not-exist"), object: strings.Replace(unownedClaim, "NAME", "demo-root", 1)},
		attempt{what: "the deletion of a data disk's claim, by an owner that does not exist", want: "adds no owner to a disk but", patch: ownedBy("does-not-exist"), object: strings.Replace(unownedClaim, "NAME", "demo-0123abcd-disk", 1)},
		attempt{what: "the deletion of a data disk's claim, by a longer name", want: "adds no owner to a disk but", patch: ownedBy("demo-0123abcd"), object: strings.Replace(unownedClaim, "NAME", "demo-0123abcd-disk", 1)},
		attempt{what: "the deletion of a claim, by a name with dots", want: "adds no owner to a disk but", patch: ownedBy("de.mo"), object: strings.Replace(unownedClaim, "NAME", "demo-root", 1)},
		attempt{what: "the deletion of a claim with a hash, by another name", want: "adds no owner to a disk but", patch: ownedBy("web-v2.1"), object: strings.Replace(unownedClaim, "NAME", "web-v2-0-0123abcd-root", 1)},
		attempt{what: "the deletion of a claim with a hash, by a longer name", want: "adds no owner to a disk but", patch: ownedBy("web-v2.0.1"), object: strings.Replace(unownedClaim, "NAME", "web-v2-0-0123abcd-root", 1)},
		attempt{what: "the deletion of a claim with a hash, by its name before the hash", want: "adds no owner to a disk but", patch: ownedBy("web-v2-0"), object: strings.Replace(unownedClaim, "NAME", "web-v2-0-0123abcd-root", 1)},
	),
	"delete persistentvolumeclaims": tried(attempt{what: "a claim of others", want: notDeleted, object: foreignClaim}),
	"create volumesnapshots.snapshot.storage.k8s.io": tried(
		attempt{what: "a claim of others", want: "takes snapshots of images only", object: `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: image-0123456789ab-1-x, namespace: images, labels: {pelotech.ot/image-uid: u}}, spec: {source: {persistentVolumeClaimName: database}}}`},
		attempt{what: "a snapshot of another namespace, by its content", want: "takes snapshots of images only", object: `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: image-0123456789ab-1-x, namespace: images, labels: {pelotech.ot/image-uid: u}}, spec: {source: {volumeSnapshotContentName: foreign}}}`},
		attempt{what: "a snapshot for nobody", want: "takes snapshots of images only", object: `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: image-0123456789ab-1-x, namespace: images}, spec: {source: {persistentVolumeClaimName: image-0123456789ab-1}}}`},
		attempt{what: "a snapshot in CDI's namespace", want: protectedSpace, object: `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: image-0123456789ab-1-x, namespace: cdi, labels: {pelotech.ot/image-uid: u}}, spec: {source: {persistentVolumeClaimName: image-0123456789ab-1}}}`},
	),
	"delete volumesnapshots.snapshot.storage.k8s.io": tried(attempt{what: "a backup of others", want: notDeleted, object: `{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: backup, namespace: images}}`}),

	"create events.events.k8s.io": tried(attempt{what: "an Event of the kubelet", want: "in its own name only", object: eventOf("kubelet")}),
	"patch events.events.k8s.io":  tried(attempt{what: "an Event of the kubelet", want: "in its own name only", patch: `{"series":{"count":9,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`, object: eventOf("kubelet")}),
	"create events":               gainsNothing("records Events in its own namespace"),
	"patch events":                gainsNothing("records Events in its own namespace"),

	"create vmdiskimages.pelotech.ot": tried(attempt{what: "an image in kube-system", want: protectedSpace, object: imageIn("kube-system")}),
	"patch vmdiskimages.pelotech.ot": tried(
		attempt{what: "another source of an author's image", want: "has no label pelotech.ot/planned", patch: `{"spec":{"url":"https://evil.example/a"}}`, object: imageIn("images")},
		attempt{what: "an author's image by taking it over", want: "adds label pelotech.ot/planned when it creates", patch: `{"metadata":{"labels":{"pelotech.ot/planned":"true"}}}`, object: imageIn("images")},
	),
	"delete vmdiskimages.pelotech.ot":                  gainsNothing("deletes images, which the agent does by order of a prune; those in use remain until nobody uses them"),
	"update vmdiskimages/status.pelotech.ot":           gainsNothing("the agent's own reports; what they have cloned is bounded where it is cloned"),
	"update virtualmachines/status.pelotech.ot":        gainsNothing("the agent's own reports; what they have cloned is bounded where it is cloned"),
	"create tokenreviews.authentication.k8s.io":        gainsNothing("judges tokens that one has"),
	"create subjectaccessreviews.authorization.k8s.io": gainsNothing("shows rights, gives none"),

	"create leases.coordination.k8s.io":     gainsNothing("its own namespace: who leads among agents"),
	"update leases.coordination.k8s.io":     gainsNothing("its own namespace: who leads among agents"),
	"create syncledgers.pelotech.ot":        gainsNothing("its own ledger"),
	"update syncledgers/status.pelotech.ot": gainsNothing("its own ledger, whose rules the CRD has"),
	"create clusterplans.pelotech.ot":       gainsNothing("its own mailbox: the hub writes it again"),
	"update clusterplans.pelotech.ot":       gainsNothing("its own mailbox: the hub writes it again"),
	"delete clusterplans.pelotech.ot":       gainsNothing("its own mailbox: the hub writes it again"),
	"create transfergrants.pelotech.ot":     gainsNothing("its own mailbox: the hub counts what it granted"),
	"update transfergrants.pelotech.ot":     gainsNothing("its own mailbox: the hub counts what it granted"),
	"delete transfergrants.pelotech.ot":     gainsNothing("its own mailbox: the hub counts what it granted"),
	"create clusterreports.pelotech.ot":     gainsNothing("its own report: the hub bounds what it believes"),
	"update clusterreports.pelotech.ot":     gainsNothing("its own report: the hub bounds what it believes"),
	"delete clusterreports.pelotech.ot":     gainsNothing("its own report: the hub bounds what it believes"),
}

// TestAgentWritesItsOwn creates what the agent makes for an image and a machine: the policies
// refuse nothing of it.
func TestAgentWritesItsOwn(t *testing.T) {
	createNamespaces(t, imageNamespace, workspace)
	agent := clientFor(t, "ot-agent")
	tried := attempt{object: `{apiVersion: v1, kind: Secret, metadata: {name: new, namespace: images}}`, want: notMade}
	tried.requireRefused(t, agent, "create", "")
	vm := apitest.VirtualMachine(workspace, "demo").WithUID("u").WithOverlay(`{"template":{"spec":{"volumes":[{"name":"data","dataVolume":{"name":"d"}}]}}}`).Obj()
	img := apitest.Image(imageNamespace + "/ubuntu-24.04-with-a-name-that-is-cut").WithUID("0f6a5f0e-7e7c-4f0c-8a65-4a6e5cbb0d11").Obj()
	key := image.KeyOf(img)
	claim := ledger.DataVolumeName(key, 12)
	cfg, err := cloudinit.Render(vm, cloudinit.Inputs{ClusterUID: "c"})
	require.NoError(t, err)
	machine, err := kubevirt.BuildVirtualMachine(vm, cfg)
	require.NoError(t, err)
	imported := slotsFor(claim)[0]
	imported.Image = key
	createLedger(t, 1)
	stored := &v1alpha1.SyncLedger{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKey{Namespace: agentNamespace, Name: v1alpha1.LedgerName}, stored))
	stored.Status = &v1alpha1.SyncLedgerStatus{Budget: 1, Slots: []v1alpha1.Slot{imported}}
	require.NoError(t, adminClient.Status().Update(t.Context(), stored))
	pin := v1alpha1.PinnedImage{ImageKey: key, Revision: "r1", Attempt: 12, PersistentVolumeClaim: claim}
	ofSnapshot := pin
	ofSnapshot.VolumeSnapshot = claim + "-mb2x7k1p"

	for name, object := range map[string]runtime.Object{
		"cloud-init Secret":         kubevirt.BuildCloudInitSecret(vm, cfg),
		"KubeVirt machine":          machine,
		"root disk of a claim":      kubevirt.BuildRootDisk(vm, img, pin, resource.MustParse("1Gi")),
		"root disk of a snapshot":   kubevirt.BuildRootDisk(vm, img, ofSnapshot, resource.MustParse("1Gi")),
		"data disk of a claim":      kubevirt.BuildDataDisk(vm, &v1alpha1.Disk{Name: "data"}, img, &pin, resource.MustParse("1Gi")),
		"data disk, blank":          kubevirt.BuildDataDisk(vm, &v1alpha1.Disk{Name: "data"}, nil, nil, resource.MustParse("1Gi")),
		"DataVolume of an image":    image.NewDataVolume(img, imported),
		"Event":                     parseObject(t, eventOf("ot-agent")),
		"credential in pull mode":   &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: "ot-hub-credential"}, Data: map[string][]byte{"kubeconfig": nil}},
		"VolumeSnapshot of a claim": newSnapshot(ofSnapshot),
		"DataSource of nothing yet": parseObject(t, dataSourceWith(ofImage, `{}`)),
		"DataSource of a claim":     parseObject(t, dataSourceWith(ofImage, `{pvc: {namespace: images, name: `+claim+`}}`)),
		"DataSource of a snapshot":  parseObject(t, dataSourceWith(ofImage, `{snapshot: {namespace: images, name: `+ofSnapshot.VolumeSnapshot+`}}`)),
	} {
		t.Run(name, func(t *testing.T) {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			require.NoError(t, err)
			made := &unstructured.Unstructured{Object: content}
			delete(content["metadata"].(map[string]any), "creationTimestamp")
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.NoError(c, agent.Create(t.Context(), made.DeepCopy(), client.DryRunAll))
			}, policyPropagationTimeout, 50*time.Millisecond)
		})
	}

	t.Run("what it made in a namespace before that was protected is deleted", func(t *testing.T) {
		made := parseObject(t, strings.Replace(foreignClaim, "namespace: images", "namespace: kube-system, labels: {pelotech.ot/image-uid: u}", 1))
		createForAttempt(t, made)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			assert.NoError(c, agent.Delete(t.Context(), made.DeepCopy(), client.DryRunAll))
		}, policyPropagationTimeout, 50*time.Millisecond)
	})
	t.Run("a KubeVirt machine with another controller gets an owner", func(t *testing.T) {
		controller := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "controller"}}
		createForAttempt(t, controller)
		existing := machine.DeepCopy()
		existing.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: controller.Name, UID: controller.UID, Controller: ptr.To(true)}})
		createForAttempt(t, existing)
		setOwners := func(owners []metav1.OwnerReference) error {
			changed := existing.DeepCopy()
			changed.SetOwnerReferences(owners)
			return agent.Patch(t.Context(), changed, client.MergeFrom(existing), client.DryRunAll)
		}
		owners := kubevirt.AdoptedOwners(existing, vm, nil)
		require.Len(t, owners, 2)
		require.NoError(t, setOwners(owners))
		owners[1].UID = "another"
		require.ErrorContains(t, setOwners(owners), "has no owner that is a VirtualMachine of pelotech.ot")
	})
	for name, machine := range map[string]string{
		"plain":                              "demo",
		"the longest that is not cut":        strings.Repeat("m", 48),
		"cut":                                strings.Repeat("m", 49),
		"cut at dashes":                      strings.Repeat("m", 37) + "---cut-here-and-no-later",
		"with dots":                          "web-v2.0",
		"with dots, as long as what remains": strings.Repeat("m", 36) + ".v1",
		"with dots, cut at one":              strings.Repeat("m", 38) + ".cut.v2.0",
		"like a name with a hash":            "web-0123abcd",
	} {
		t.Run("a root disk is given back to its machine, whose name is "+name, func(t *testing.T) {
			vm := apitest.VirtualMachine(imageNamespace, machine).WithUID("u").Obj()
			disk := parseObject(t, strings.Replace(unownedClaim, "NAME", kubevirt.RootDiskName(vm), 1))
			createForAttempt(t, disk)
			adopted := disk.DeepCopy()
			adopted.SetOwnerReferences(kubevirt.AdoptedOwners(disk, vm, nil))
			require.NotEmpty(t, adopted.GetOwnerReferences())
			require.NoError(t, agent.Patch(t.Context(), adopted, client.MergeFrom(disk), client.DryRunAll))
		})
	}
	for _, machine := range []string{"demo", strings.Repeat("m", 39), strings.Repeat("m", 40), "web-v2.0", strings.Repeat("m", 37) + "---cut"} {
		t.Run("a data disk is given back to its machine, whose name is "+machine, func(t *testing.T) {
			vm := apitest.VirtualMachine(imageNamespace, machine).WithUID("u").Obj()
			disk := parseObject(t, strings.Replace(unownedClaim, "NAME", kubevirt.DataDiskName(vm, "data"), 1))
			createForAttempt(t, disk)
			adopted := disk.DeepCopy()
			adopted.SetOwnerReferences(kubevirt.AdoptedOwners(disk, vm, nil))
			require.NotEmpty(t, adopted.GetOwnerReferences())
			require.NoError(t, agent.Patch(t.Context(), adopted, client.MergeFrom(disk), client.DryRunAll))
		})
	}
	t.Run("its own Secret is replaced without being read", func(t *testing.T) {
		secret := kubevirt.BuildCloudInitSecret(vm, cfg)
		createForAttempt(t, secret.DeepCopy())
		replace := func() *corev1.Secret {
			replaced := secret.DeepCopy()
			require.NoError(t, agent.Update(t.Context(), replaced))
			return replaced
		}
		first := replace()
		assert.Equal(t, first.ResourceVersion, replace().ResourceVersion, "an identical replacement changes nothing")
		err := agent.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{})
		require.True(t, apierrors.IsForbidden(err), "it needs no right to read Secrets for that: %v", err)
	})
}

func newSnapshot(pin v1alpha1.PinnedImage) *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		TypeMeta:   metav1.TypeMeta{APIVersion: "snapshot.storage.k8s.io/v1", Kind: "VolumeSnapshot"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pin.Namespace, Name: pin.VolumeSnapshot, Labels: image.AttemptLabels(pin.ImageKey, pin.Revision, pin.Attempt)},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To(pin.PersistentVolumeClaim)}},
	}
}

// TestAccountGuardIsReported takes one of the policies away: the agent's condition names it.
func TestAccountGuardIsReported(t *testing.T) {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme, snapshotv1.AddToScheme} {
		require.NoError(t, add(known))
	}
	c, err := client.New(configFor(t, "ot-agent"), client.Options{Scheme: known})
	require.NoError(t, err)
	evaluate := admissionpolicy.NewAccountGuardPoller(c, func() {}).Evaluate
	await := func(status metav1.ConditionStatus, reason, says string) {
		t.Helper()
		require.EventuallyWithT(t, func(check *assert.CollectT) {
			condition, err := evaluate(t.Context())
			require.NoError(check, err)
			assert.Equal(check, status, condition.Status)
			assert.Equal(check, reason, condition.Reason)
			assert.Contains(check, condition.Message, says)
		}, policyPropagationTimeout, 50*time.Millisecond)
	}
	await(metav1.ConditionTrue, v1alpha1.ReasonGuarded, "refuses what the agent never writes")

	for _, policy := range []string{"ot-agent-own", "ot-agent-disks", "ot-agent-snapshots", "ot-agent-protected-namespaces"} {
		binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
		require.NoError(t, adminClient.Get(t.Context(), client.ObjectKey{Name: policy}, binding))
		require.NoError(t, adminClient.Delete(t.Context(), binding))
		t.Cleanup(func() {
			binding.ResourceVersion, binding.UID = "", ""
			assert.NoError(t, client.IgnoreAlreadyExists(adminClient.Create(context.Background(), binding)))
		})
		await(metav1.ConditionFalse, v1alpha1.ReasonPolicyNotInForce, "policy "+policy+" or its binding is missing")
		restored := binding.DeepCopy()
		restored.ResourceVersion, restored.UID = "", ""
		require.NoError(t, adminClient.Create(t.Context(), restored))
		await(metav1.ConditionTrue, v1alpha1.ReasonGuarded, "")
	}
}
