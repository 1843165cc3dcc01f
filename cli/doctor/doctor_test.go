package doctor

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

var testTime = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

const driver = "ebs.csi.example.com"

func trueCondition(kind string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Fine", Message: "all is well"}
}

func falseCondition(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// healthyMember passes every check.
func healthyMember() *Snapshot {
	quota := corev1.ResourceList{
		"requests.storage": resource.MustParse("4Ti"), "persistentvolumeclaims": resource.MustParse("100"),
		"gp3.storageclass.storage.k8s.io/requests.storage": resource.MustParse("4Ti"),
	}
	return &Snapshot{
		View: ViewMember, Cluster: "frankfurt", CLIVersion: "v0.3.1",
		Asked:      Asked{ProbeURL: "https://images.example.com/a.qcow2"},
		ClientTime: testTime.Add(300 * time.Millisecond), ServerTime: testTime, RoundTrip: 10 * time.Millisecond,
		Kubernetes: "v1.36.1-eks-1a2b",
		Served:     []string{KindValidatingPolicy, KindMutatingPolicy("v1"), KindDataVolume, KindSnapshot, KindKubeVirtMachine, KindImage},
		StorageClasses: []storagev1.StorageClass{
			{ObjectMeta: metav1.ObjectMeta{Name: "gp3", Annotations: map[string]string{capacity.AnnotationDefaultClass: "true"}}, Provisioner: driver},
			{ObjectMeta: metav1.ObjectMeta{Name: "lvm"}, Provisioner: "lvm.example.com"},
		},
		CSIDrivers: []string{driver},
		Capacities: []storagev1.CSIStorageCapacity{{StorageClassName: "gp3", NodeTopology: &metav1.LabelSelector{}, Capacity: ptr.To(resource.MustParse("10Ti"))}},
		Quotas:     []corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: "farm", Name: "q"}, Status: corev1.ResourceQuotaStatus{Hard: quota, Used: corev1.ResourceList{}}}},
		Namespaces: []Namespace{{Name: "sync-operator", NeededBy: "the policy ConfigMap"}},
		CDI:        []Component{{Name: "cdi", Version: "v1.65.0", Phase: deployed}},
		CDIConfig:  &CDIConfig{ScratchClass: "gp3"},
		Profiles: []cdiv1.StorageProfile{{ObjectMeta: metav1.ObjectMeta{Name: "gp3"}, Status: cdiv1.StorageProfileStatus{
			CloneStrategy:     ptr.To(cdiv1.CloneStrategySnapshot),
			ClaimPropertySets: []cdiv1.ClaimPropertySet{{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem)}},
		}}},
		SnapshotClasses: []snapshotv1.VolumeSnapshotClass{{ObjectMeta: metav1.ObjectMeta{Name: "gp3-snap"}, Driver: driver}},
		KubeVirt:        []Component{{Name: "kubevirt/kubevirt", Version: "v1.8.2", Phase: deployed}},
		Webhooks: []Webhook{
			{Configuration: "cdi", Name: "mutate", Mutating: true, Blocking: true, TimeoutSeconds: 10, Resources: []string{"datavolumes.cdi.kubevirt.io"}, Service: "cdi/cdi-api"},
			{Configuration: "cdi", Name: "validate", Blocking: true, TimeoutSeconds: 10, Resources: []string{"datavolumes.cdi.kubevirt.io"}, Service: "cdi/cdi-api"},
		},
		DataVolumePolicy: GuardPolicy{Exists: true, Bound: true, Denying: true},
		OneDownload:      &admissionpolicy.OneDownloadState{PoliciesServed: true, CDIAccount: "system:serviceaccount:cdi:cdi-sa"},
		Images: []Image{{
			Namespace: "farm", Name: "ubuntu-24", SourceType: v1alpha1.SourceHTTP, URL: "https://images.example.com/a.qcow2",
			SnapshotClass: "gp3-snap", DiskSize: resource.MustParse("24Gi"),
		}},
		Machines: 1,
		Secrets:  []SecretUse{{Namespace: "farm", Name: "s3", UsedBy: "image farm/ubuntu-24", Keys: []string{"accessKeyId", "secretKey"}}},
		Agent: Agent{
			Namespace: "ot-agent", Installed: true, Version: "v0.3.0", RenewedAt: testTime.Add(-2 * time.Second), LeaseSeconds: 15,
			Conditions: []metav1.Condition{
				trueCondition(v1alpha1.ConditionRightsComplete), trueCondition(v1alpha1.ConditionBudgetGuarded),
				trueCondition(v1alpha1.ConditionPolicyAccepted), falseCondition(v1alpha1.ConditionPlanAccepted, v1alpha1.ReasonNoPlan, "there is no plan"),
			},
		},
		PolicyData: map[string]string{"concurrency": "3"},
		Probe:      &Probe{URL: "https://images.example.com/a.qcow2", Status: 200, Milliseconds: 81},
	}
}

// testCase changes a snapshot that passes.
type testCase struct {
	id, name string
	change   func(*Snapshot)
	want     Status
	wantText string // in the finding's found, wanted or mend
}

var unchanged = func(*Snapshot) {}

var memberCases = []testCase{
	{"k8s-version", "known", unchanged, Pass, "v1.36.1"},
	{"k8s-version", "too old to install", func(s *Snapshot) { s.Kubernetes = "v1.29.9" }, Fail, "at least 1.30"},
	{"k8s-version", "never run", func(s *Snapshot) { s.Kubernetes = "v1.40.0" }, Warn, "1.34 to 1.37"},
	{"k8s-version", "old, and installs", func(s *Snapshot) { s.Kubernetes = "v1.31.0" }, Warn, "nothing was run"},
	{"k8s-version", "no version", func(s *Snapshot) { s.Kubernetes = "main" }, Warn, `"main"`},
	{"k8s-version", "not readable", func(s *Snapshot) { s.Unread = map[Source]string{SourceVersion: "no right"} }, Skip, "no right"},

	{"admission-v1", "served", unchanged, Pass, "served"},
	{"admission-v1", "not served", func(s *Snapshot) { s.Served = s.Served[1:] }, Fail, "1.30"},

	{"mutating-admission", "v1", unchanged, Pass, "v1"},
	{"mutating-admission", "beta", func(s *Snapshot) { s.Served[1] = KindMutatingPolicy("v1beta1") }, Pass, "v1beta1"},
	{"mutating-admission", "none", func(s *Snapshot) { s.Served[1] = "" }, Warn, "1.36"},

	{"clock-skew", "the same", unchanged, Pass, "less than 30s"},
	{"clock-skew", "ahead", func(s *Snapshot) { s.ClientTime = testTime.Add(time.Minute) }, Warn, "ahead of the API server's"},
	{"clock-skew", "far behind", func(s *Snapshot) { s.ClientTime = testTime.Add(-time.Hour) }, Fail, "behind the API server's"},
	{"clock-skew", "a slow answer", func(s *Snapshot) { s.ClientTime, s.RoundTrip = testTime.Add(time.Minute), 2*time.Minute }, Pass, "less than"},
	{"clock-skew", "the agent's, ahead", func(s *Snapshot) { s.Agent.RenewedAt = testTime.Add(10 * time.Minute) }, Fail, "the agent's node"},
	{"clock-skew", "no time", func(s *Snapshot) { s.ServerTime = time.Time{} }, Skip, "no Date"},

	{"webhook-timeouts", "short", unchanged, Pass, "less than 30s"},
	{"webhook-timeouts", "too long together", func(s *Snapshot) { s.Webhooks[0].TimeoutSeconds = 25 }, Warn, "mutate (25s)"},
	{"webhook-timeouts", "CDI's own are long", func(s *Snapshot) {
		s.Webhooks[0].Name, s.Webhooks[0].TimeoutSeconds = "datavolume-mutate.cdi.kubevirt.io", 30
	}, Pass, ""},
	{"webhook-timeouts", "validated side by side", func(s *Snapshot) { s.Webhooks = append(s.Webhooks, s.Webhooks[1], s.Webhooks[1]) }, Pass, "4 webhooks"},
	{"webhook-timeouts", "of a Service that is gone", func(s *Snapshot) { s.Webhooks[1].ServiceMissing = true }, Fail, "cdi/cdi-api"},
	{"webhook-timeouts", "ignored, of a Service that is gone", func(s *Snapshot) { s.Webhooks[1].ServiceMissing, s.Webhooks[1].Blocking = true, false }, Warn, "ignored"},
	{"webhook-timeouts", "Services cannot be read", func(s *Snapshot) { s.Unread = map[Source]string{SourceServices: "needs get services"} }, Skip, "needs get services"},

	{"namespace-exists", "exists", unchanged, Pass, "exists"},
	{"namespace-exists", "missing", func(s *Snapshot) { s.Namespaces[0].Missing = true }, Fail, "kubectl create namespace sync-operator"},
	{"namespace-exists", "being deleted", func(s *Snapshot) { s.Namespaces[0].Terminating = true }, Fail, "being deleted"},

	{"cdi-present", "installed", unchanged, Pass, "served"},
	{"cdi-present", "not installed", withoutCDI, Fail, "1.64 or 1.65 or 1.66"},

	{"cdi-version-known", "known", unchanged, Pass, "v1.65.0"},
	{"cdi-version-known", "unknown", func(s *Snapshot) { s.CDI[0].Version = "v1.70.1" }, Warn, "nothing was run"},
	{"cdi-version-known", "no release", func(s *Snapshot) { s.CDI[0].Version = "" }, Warn, "no release"},
	{"cdi-version-known", "not deployed", func(s *Snapshot) { s.CDI[0].Phase = "Deploying" }, Fail, "Deploying"},
	{"cdi-version-known", "no CDI object", func(s *Snapshot) { s.CDI = nil }, Warn, "no CDI object"},
	{"cdi-version-known", "not installed", withoutCDI, Skip, "cdi-present"},

	{"cdi-importproxy", "none", unchanged, Pass, "no proxy"},
	{"cdi-importproxy", "one", func(s *Snapshot) { s.CDIConfig.HTTPSProxy = "http://proxy.example.com:3128" }, Pass, "proxy.example.com"},
	{"cdi-importproxy", "no URL", func(s *Snapshot) { s.CDIConfig.HTTPProxy = "http://pro xy:3128" }, Fail, "not a URL"},
	{"cdi-importproxy", "unknown scheme", func(s *Snapshot) { s.CDIConfig.HTTPProxy = "ftp://proxy:21" }, Fail, "scheme"},
	{"cdi-importproxy", "certificates missing", func(s *Snapshot) { s.CDIConfig.TrustedCA, s.CDIConfig.TrustedCAMissing = "proxy-ca", true }, Fail, "proxy-ca"},
	{"cdi-importproxy", "a Service through it", func(s *Snapshot) {
		s.CDIConfig.HTTPProxy, s.Images[0].URL = "http://proxy.example.com:3128", "http://mirror.images.svc/a.qcow2"
	}, Warn, "farm/ubuntu-24"},
	{"cdi-importproxy", "a Service beside it", func(s *Snapshot) {
		s.CDIConfig.HTTPProxy, s.CDIConfig.NoProxy, s.Images[0].URL = "http://proxy.example.com:3128", ".svc", "http://mirror.images.svc/a.qcow2"
	}, Pass, "proxy.example.com"},
	{"cdi-importproxy", "no config", func(s *Snapshot) { s.CDIConfig = nil }, Fail, "does not exist"},

	{"default-sc", "one", unchanged, Pass, "gp3"},
	{"default-sc", "none", func(s *Snapshot) { s.StorageClasses[0].Annotations = nil }, Fail, "there is: gp3, lvm"},
	{"default-sc", "none, and every image names its own", func(s *Snapshot) {
		s.StorageClasses[0].Annotations, s.Images[0].StorageClass, s.Asked.StorageClass = nil, "gp3", "gp3"
	}, Pass, "names its own"},
	{"default-sc", "several", func(s *Snapshot) { s.StorageClasses[1].Annotations = s.StorageClasses[0].Annotations }, Warn, "gp3, lvm are defaults; gp3"},
	{"default-sc", "an image names one that is missing", func(s *Snapshot) { s.Images[0].StorageClass = "gp4" }, Fail, "images farm/ubuntu-24"},
	{"default-sc", "asked for one that is missing", func(s *Snapshot) { s.Asked.StorageClass = "gp4" }, Fail, "--storage-class"},

	{"storage-profile-complete", "complete", unchanged, Pass, "ReadWriteOnce Filesystem"},
	{"storage-profile-complete", "without access modes", func(s *Snapshot) { s.Profiles[0].Status.ClaimPropertySets = nil }, Fail, "no access modes for StorageClass gp3"},
	{"storage-profile-complete", "no profile", func(s *Snapshot) { s.Profiles = nil }, Warn, "does not exist"},
	{"storage-profile-complete", "of the class that was asked for", func(s *Snapshot) {
		s.Asked.StorageClass = "lvm"
		s.Profiles = append(s.Profiles, cdiv1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: "lvm"}})
	}, Fail, "StorageClass lvm"},

	{"clone-strategy", "snapshot", unchanged, Pass, "cloneStrategy snapshot"},
	{"clone-strategy", "not set", func(s *Snapshot) { s.Profiles[0].Status.CloneStrategy = nil }, Pass, "CDI chooses"},
	{"clone-strategy", "snapshot without a class", func(s *Snapshot) { s.SnapshotClasses = nil }, Warn, "each clone is a copy"},
	{"clone-strategy", "copy", func(s *Snapshot) { s.Profiles[0].Status.CloneStrategy = ptr.To(cdiv1.CloneStrategyHostAssisted) }, Warn, "two Pods"},
	{"clone-strategy", "csi-clone", func(s *Snapshot) { s.Profiles[0].Status.CloneStrategy = ptr.To(cdiv1.CloneStrategyCsiClone) }, Pass, "csi-clone"},
	{"clone-strategy", "csi-clone without a driver", func(s *Snapshot) {
		s.Profiles[0].Status.CloneStrategy, s.CSIDrivers = ptr.To(cdiv1.CloneStrategyCsiClone), nil
	}, Fail, "no CSI driver"},
	{"clone-strategy", "csi-clone, drivers cannot be read", func(s *Snapshot) {
		s.Profiles[0].Status.CloneStrategy, s.Unread = ptr.To(cdiv1.CloneStrategyCsiClone), map[Source]string{SourceCSIDrivers: "needs list csidrivers"}
	}, Skip, "needs list csidrivers"},

	{"snapshot-class-driver", "the same driver", unchanged, Pass, driver},
	{"snapshot-class-driver", "another driver", func(s *Snapshot) { s.SnapshotClasses[0].Driver = "nfs.example.com" }, Fail, "is of driver nfs.example.com, and StorageClass gp3 of " + driver},
	{"snapshot-class-driver", "there is a better one", func(s *Snapshot) {
		s.SnapshotClasses = append(s.SnapshotClasses, s.SnapshotClasses[0])
		s.SnapshotClasses[0].Driver, s.SnapshotClasses[1].Name = "nfs.example.com", "other"
	}, Fail, "there is: other"},
	{"snapshot-class-driver", "missing", func(s *Snapshot) { s.SnapshotClasses = nil }, Fail, "does not exist"},
	{"snapshot-class-driver", "volumes made by hand", func(s *Snapshot) { s.StorageClasses[0].Provisioner = capacity.LocalProvisioner }, Pass, ""},
	{"snapshot-class-driver", "no snapshots wanted", func(s *Snapshot) { s.Images[0].SnapshotClass = "" }, Skip, "no image names"},
	{"snapshot-class-driver", "none for the class that was asked for", func(s *Snapshot) { s.Asked.StorageClass = "lvm" }, Warn, "lvm.example.com"},

	{"csi-capacity", "published", unchanged, Pass, "fits"},
	{"csi-capacity", "not published", func(s *Snapshot) { s.Capacities = nil }, Warn, "fails late"},
	{"csi-capacity", "an image does not fit", func(s *Snapshot) { s.Capacities[0].Capacity = ptr.To(resource.MustParse("10Gi")) }, Fail, "needs a volume of 24Gi"},
	{"csi-capacity", "scratch space does not fit", func(s *Snapshot) { s.Capacities[0].Capacity = ptr.To(resource.MustParse("47Gi")) }, Fail, "as much scratch space"},
	{"csi-capacity", "scratch space by CDI's default does not fit", func(s *Snapshot) {
		s.CDIConfig.ScratchClass, s.Capacities[0].Capacity = "", ptr.To(resource.MustParse("47Gi"))
	}, Fail, "as much scratch space"},
	{"csi-capacity", "a node pulls the image, without scratch space", func(s *Snapshot) {
		s.Capacities[0].Capacity, s.Images[0].SourceType, s.Images[0].PullMethod = ptr.To(resource.MustParse("47Gi")), v1alpha1.SourceRegistry, v1alpha1.PullNode
	}, Pass, "fits"},
	{"csi-capacity", "it is there already", func(s *Snapshot) {
		s.Capacities[0].Capacity, s.Images[0].Imported = ptr.To(resource.MustParse("10Gi")), true
	}, Pass, "fits"},

	{"snapshot-controller", "answers", unchanged, Pass, "none is without an answer"},
	{"snapshot-controller", "does not answer", func(s *Snapshot) {
		s.Snapshots = []Snapshotting{{Namespace: "farm", Name: "vmdi-1", CreatedAt: metav1.NewTime(testTime.Add(-time.Hour))}}
	}, Fail, "farm/vmdi-1"},
	{"snapshot-controller", "has just been asked", func(s *Snapshot) {
		s.Snapshots = []Snapshotting{{Namespace: "farm", Name: "vmdi-1", CreatedAt: metav1.NewTime(testTime.Add(-time.Second))}}
	}, Pass, ""},
	{"snapshot-controller", "not installed, and needed", func(s *Snapshot) { s.Served[3] = "" }, Fail, "farm/ubuntu-24"},
	{"snapshot-controller", "not installed, nor needed", func(s *Snapshot) { s.Served[3], s.Images[0].SnapshotClass = "", "" }, Skip, "only images with"},

	{"quota-three-claims", "fits", unchanged, Pass, "3 × 24Gi"},
	{"quota-three-claims", "no quota", func(s *Snapshot) { s.Quotas = nil }, Pass, "no ResourceQuota"},
	{"quota-three-claims", "no room left", func(s *Snapshot) {
		s.Quotas[0].Status.Used["requests.storage"] = resource.MustParse("4060Gi")
	}, Fail, "72Gi for importing farm/ubuntu-24"},
	{"quota-three-claims", "claims", func(s *Snapshot) { s.Quotas[0].Status.Hard["persistentvolumeclaims"] = resource.MustParse("2") }, Fail, "persistentvolumeclaims has 2 left"},
	{"quota-three-claims", "of the class", func(s *Snapshot) {
		s.Quotas[0].Status.Hard["gp3.storageclass.storage.k8s.io/requests.storage"] = resource.MustParse("48Gi")
	}, Fail, "gp3.storageclass"},
	{"quota-three-claims", "imported, never again", func(s *Snapshot) {
		s.Images[0].Imported, s.Quotas[0].Status.Hard["requests.storage"] = true, resource.MustParse("30Gi")
	}, Fail, "requests.storage is 30Gi"},
	{"quota-three-claims", "imported, the next one waits", func(s *Snapshot) {
		s.Images[0].Imported, s.Quotas[0].Status.Used["requests.storage"] = true, resource.MustParse("4060Gi")
	}, Warn, "next revision"},
	{"quota-three-claims", "with scopes", func(s *Snapshot) {
		s.Quotas[0].Status.Used["requests.storage"] = resource.MustParse("4060Gi")
		s.Quotas[0].Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	}, Pass, "no ResourceQuota"},
	{"quota-three-claims", "of another namespace", func(s *Snapshot) {
		s.Quotas[0].Status.Used["requests.storage"], s.Quotas[0].Namespace = resource.MustParse("4060Gi"), "other"
	}, Pass, "no ResourceQuota"},
	{"quota-three-claims", "of very many images", func(s *Snapshot) { s.Truncated = []Source{SourceImages} }, Pass, "only the first objects"},
	{"quota-three-claims", "no images", func(s *Snapshot) { s.Images = nil }, Skip, "no images"},

	{"kubevirt-version", "known", unchanged, Pass, "v1.8.2"},
	{"kubevirt-version", "unknown", func(s *Snapshot) { s.KubeVirt[0].Version = "v1.3.0" }, Warn, "1.8 or 1.9"},
	{"kubevirt-version", "not deployed", func(s *Snapshot) { s.KubeVirt[0].Phase = "Deploying" }, Fail, "Deploying"},
	{"kubevirt-version", "missing, and machines need it", func(s *Snapshot) { s.Served[4] = "" }, Fail, "1 machines need it"},
	{"kubevirt-version", "missing, and nothing needs it", func(s *Snapshot) { s.Served[4], s.Machines = "", 0 }, Skip, "only machines"},
	{"kubevirt-version", "no object", func(s *Snapshot) { s.KubeVirt = nil }, Warn, "no KubeVirt object"},

	{"agent-running", "leads", unchanged, Pass, "leads"},
	{"agent-running", "stopped", stopAgent, Fail, "1h0m0s"},
	{"agent-running", "never started", func(s *Snapshot) { s.Agent.RenewedAt = time.Time{} }, Fail, "ever led"},
	{"agent-running", "not installed", func(s *Snapshot) { s.Agent.Installed = false }, Skip, "no agent is installed"},

	{"agent-version-skew", "one apart", func(s *Snapshot) { s.Hub = &Hub{Version: "v0.4.0"} }, Pass, "the hub is v0.4.0"},
	{"agent-version-skew", "too old", func(s *Snapshot) { s.Hub = &Hub{Version: "v0.5.0"} }, Fail, "upgrade the agent"},
	{"agent-version-skew", "too new", func(s *Snapshot) { s.Agent.Version = "v0.9.0" }, Fail, "upgrade kubectl-ot"},
	{"agent-version-skew", "no release", func(s *Snapshot) { s.Agent.Version = "dev" }, Skip, "releases only"},

	{"agent-rights", "complete", unchanged, Pass, "all is well"},
	{"agent-rights", "missing", func(s *Snapshot) {
		s.Agent.Conditions[0] = falseCondition(v1alpha1.ConditionRightsComplete, "RightsMissing", "its account lacks permissions: list pods")
	}, Fail, "list pods"},
	{"agent-rights", "of an agent that does not run", stopAgent, Skip, "does not run"},
	{"agent-rights", "not readable", func(s *Snapshot) { s.Unread = map[Source]string{SourceLedger: "needs get syncledgers"} }, Skip, "needs get syncledgers"},

	{"budget-guarded", "in force", unchanged, Pass, "denies"},
	{"budget-guarded", "policy missing", func(s *Snapshot) { s.DataVolumePolicy.Exists = false }, Fail, "does not exist"},
	{"budget-guarded", "binding missing", func(s *Snapshot) { s.DataVolumePolicy.Bound = false }, Fail, "its binding does not exist"},
	{"budget-guarded", "audits only", func(s *Snapshot) { s.DataVolumePolicy.Denying = false }, Fail, "does not deny"},
	{"budget-guarded", "tried in vain", func(s *Snapshot) {
		s.Agent.Conditions[1] = falseCondition(v1alpha1.ConditionBudgetGuarded, v1alpha1.ReasonPolicyNotInForce, "the plugin is off")
	}, Fail, "the plugin is off"},
	{"budget-guarded", "not served", func(s *Snapshot) { s.Served = s.Served[1:] }, Fail, "does not serve its kind"},

	{"one-download", "in force", unchanged, Pass, "does not restart"},
	{"one-download", "binding missing", func(s *Snapshot) {
		s.OneDownload.MissingObjects = []string{"MutatingAdmissionPolicyBinding ot-agent-importers"}
	}, Warn, "MutatingAdmissionPolicyBinding"},
	{"one-download", "another account", func(s *Snapshot) { s.OneDownload.RestartableImporter = "farm/importer-1" }, Warn, "farm/importer-1"},
	{"one-download", "not served", func(s *Snapshot) { s.OneDownload.PoliciesServed = false }, Warn, "PoliciesNotServed"},

	{"policy-accepted", "accepted", unchanged, Pass, "every key"},
	{"policy-accepted", "no ConfigMap", func(s *Snapshot) { s.PolicyData = nil }, Pass, "no ConfigMap"},
	{"policy-accepted", "a value that cannot be used", func(s *Snapshot) { s.PolicyData["concurrency"] = "many" }, Fail, "many"},
	{"policy-accepted", "an unknown key", func(s *Snapshot) { s.PolicyData["concurency"] = "3" }, Warn, "concurency"},
	{"policy-accepted", "the plan is refused", func(s *Snapshot) {
		s.Agent.Conditions[3] = falseCondition(v1alpha1.ConditionPlanAccepted, v1alpha1.ReasonPlanPolicyInvalid, "concurrency is no number")
	}, Fail, "concurrency is no number"},

	{"secret-keys", "complete", unchanged, Pass, "image farm/ubuntu-24"},
	{"secret-keys", "missing", func(s *Snapshot) { s.Secrets[0].Missing = true }, Fail, "keys accessKeyId and secretKey"},
	{"secret-keys", "a key is missing", func(s *Snapshot) { s.Secrets[0].Lacking = []string{"secretKey"} }, Fail, "lacks secretKey"},
	{"secret-keys", "no header", func(s *Snapshot) { s.Secrets[0].Problem = "key a has a line break" }, Fail, "line break"},
	{"secret-keys", "not readable", func(s *Snapshot) { s.Secrets[0].Unread = "needs get secrets in farm" }, Skip, "needs get secrets"},
	{"secret-keys", "none needed", func(s *Snapshot) { s.Secrets = nil }, Skip, "names a Secret"},

	{"source-head", "answers", unchanged, Pass, "81 ms"},
	{"source-head", "not found", func(s *Snapshot) { s.Probe.Status = 404 }, Fail, "404 Not Found"},
	{"source-head", "refused", func(s *Snapshot) { s.Probe.Status = 403 }, Warn, "signed URL"},
	{"source-head", "no way", func(s *Snapshot) { s.Probe.Error = "no such host" }, Fail, "no such host"},
	{"source-head", "the Pod did not run", func(s *Snapshot) { s.Probe.NotRun = "Unschedulable" }, Skip, "Unschedulable"},
	{"source-head", "no right to try", func(s *Snapshot) {
		s.Probe, s.Unread = nil, map[Source]string{SourceProbe: "needs create jobs"}
	}, Skip, "needs create jobs"},
	{"source-head", "not asked for", func(s *Snapshot) { s.Probe, s.Asked.ProbeURL = nil, "" }, Skip, "not asked for"},
}

func withoutCDI(s *Snapshot) { s.Served[2] = "" }

func stopAgent(s *Snapshot) { s.Agent.RenewedAt = testTime.Add(-time.Hour) }

func findingsOf(r *Report, id string) (found []Finding) {
	for _, f := range r.Findings {
		if f.ID == id {
			found = append(found, f)
		}
	}
	return found
}

// worst returns the worst of the findings of a check.
func worst(findings []Finding) Finding {
	rank := map[Status]int{Pass: 0, Skip: 1, Warn: 2, Fail: 3}
	w := findings[0]
	for _, f := range findings {
		if rank[f.Status] > rank[w.Status] {
			w = f
		}
	}
	return w
}

func TestMemberChecks(t *testing.T) {
	for _, tt := range memberCases {
		t.Run(tt.id+"/"+tt.name, func(t *testing.T) { runCase(t, healthyMember(), tt) })
	}
}

func runCase(t *testing.T, s *Snapshot, tt testCase) {
	t.Helper()
	tt.change(s)
	findings := findingsOf(Examine(s), tt.id)
	require.NotEmpty(t, findings)
	f := worst(findings)
	assert.Equal(t, tt.want, f.Status, "%+v", findings)
	assert.Contains(t, f.Found+"\n"+f.Wanted+"\n"+f.Mend+"\n"+f.Subject, tt.wantText)
	if f.Status == Warn || f.Status == Fail {
		assert.NotEmpty(t, f.Why)
		assert.NotEmpty(t, f.Mend)
	}
}

// Each check has a case in which its fault is there, and one in which it is not.
func TestEveryCheckHasItsFault(t *testing.T) {
	faults, passes := map[string]bool{}, map[string]bool{}
	for _, tt := range memberCases {
		faults[tt.id] = faults[tt.id] || tt.want == Fail || tt.want == Warn
		passes[tt.id] = passes[tt.id] || tt.want == Pass
	}
	for _, id := range IDs() {
		assert.True(t, faults[id], id)
		assert.True(t, passes[id], id)
	}
	assert.Len(t, faults, len(IDs()), "cases of checks that do not exist")
}

func TestHealthyMemberPasses(t *testing.T) {
	r := Examine(healthyMember())
	for _, f := range r.Findings {
		assert.Equal(t, Pass, f.Status, "%+v", f)
	}
	assert.Equal(t, exit.Yes, r.ExitCode())
	assert.Equal(t, len(r.Findings), r.Summary.Passed)
}

func TestExitCode(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Snapshot)
		want   exit.Code
	}{
		"all pass":                      {unchanged, 0},
		"a warning":                     {func(s *Snapshot) { s.Capacities = nil }, 0},
		"nothing to check":              {func(s *Snapshot) { s.Images, s.Secrets = nil, nil }, 0},
		"a failure":                     {func(s *Snapshot) { s.Secrets[0].Missing = true }, 1},
		"something is unread":           {func(s *Snapshot) { s.Unread = map[Source]string{SourceQuotas: "no right"} }, 2},
		"a failure, something unread":   {func(s *Snapshot) { s.Secrets[0].Missing, s.Unread = true, map[Source]string{SourceQuotas: "no right"} }, 1},
		"the hub has never heard of it": {func(s *Snapshot) { s.View, s.Hub = ViewHub, &Hub{} }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := healthyMember()
			tt.change(s)
			assert.Equal(t, tt.want, Examine(s).ExitCode())
		})
	}
}

// A right that is lacking skips the checks that need it, names itself, and fails none.
func TestEveryUnreadSourceIsNamed(t *testing.T) {
	for i := range checks {
		for _, source := range checks[i].needs {
			s := healthyMember()
			s.Unread = map[Source]string{source: "needs " + string(source)}
			findings := findingsOf(Examine(s), checks[i].id)
			require.Len(t, findings, 1)
			assert.Equal(t, Skip, findings[0].Status)
			assert.True(t, findings[0].Unread)
			assert.Equal(t, "needs "+string(source), findings[0].Found)
		}
	}
}

// What was read of nothing at all is judged without a panic, in both views.
func TestEmptySnapshots(t *testing.T) {
	for _, s := range []*Snapshot{{View: ViewMember}, {View: ViewHub, Hub: &Hub{}}} {
		r := Examine(s)
		seen := map[string]bool{}
		for _, f := range r.Findings {
			seen[f.ID] = true
		}
		for _, id := range IDs() {
			assert.True(t, seen[id], "%s is not judged", id)
		}
	}
}

func TestTextsFromOutsideAreBounded(t *testing.T) {
	s := healthyMember()
	s.Agent.Conditions[0] = falseCondition(v1alpha1.ConditionRightsComplete, "RightsMissing", "\x1b[31m"+strings.Repeat("x", 5000)+" https://user:password@host/a?signature=b")
	for _, f := range findingsOf(Examine(s), "agent-rights") {
		assert.NotContains(t, f.Found, "\x1b")
		assert.LessOrEqual(t, len(f.Found), maxTextBytes)
	}
}

func TestSnapshotIsRecordedAsJSON(t *testing.T) {
	s := healthyMember()
	text, err := json.Marshal(s)
	require.NoError(t, err)
	read := &Snapshot{}
	require.NoError(t, json.Unmarshal(text, read))
	assert.Equal(t, Examine(s), Examine(read))
}

func TestPageHasEveryCheck(t *testing.T) {
	for _, id := range IDs() {
		s := sections[id]
		assert.NotEmpty(t, s.text, id)
		assert.NotEmpty(t, s.why, id)
		assert.NotEmpty(t, s.mend, id)
		text, err := Explain(id)
		require.NoError(t, err)
		assert.Contains(t, text, "## "+id)
	}
	assert.Len(t, sections, len(IDs()), "a section of no check")
	_, err := Explain("snapshot")
	assert.ErrorContains(t, err, "snapshot-class-driver")
}

// make generate copies the page.
func TestPageIsGenerated(t *testing.T) {
	generated, err := os.ReadFile("../../" + PagePath)
	require.NoError(t, err)
	assert.Equal(t, "<!-- Written by make generate from cli/doctor/doctor.md. -->\n"+Page, string(generated))
}

func TestScreens(t *testing.T) {
	s := healthyMember()
	rendertest.Golden(t, "healthy", testTime, Examine(s))
	s.SnapshotClasses[0].Driver = "nfs.example.com"
	s.Capacities = nil
	s.Unread = map[Source]string{SourceQuotas: "needs list resourcequotas"}
	rendertest.Golden(t, "failing", testTime, Examine(s))
	rendertest.Golden(t, "hub", testTime, Examine(healthyHubView()))
}
