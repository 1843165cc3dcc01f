package doctor

import (
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// View says what a snapshot was read from.
type View string

// Views.
const (
	// ViewMember: the member's own API server.
	ViewMember View = "member"
	// ViewHub: what the hub knows of the member.
	ViewHub View = "hub"
)

// Source is something that is read of a cluster, named as the right that it takes.
type Source string

// Sources of a snapshot.
const (
	SourceVersion          Source = "get /version"
	SourceKinds            Source = "get /api and /apis"
	SourceStorageClasses   Source = "list storageclasses.storage.k8s.io"
	SourceCSIDrivers       Source = "list csidrivers.storage.k8s.io"
	SourceCapacities       Source = "list csistoragecapacities.storage.k8s.io"
	SourceQuotas           Source = "list resourcequotas"
	SourceNamespaces       Source = "get namespaces"
	SourceCDI              Source = "list cdis.cdi.kubevirt.io"
	SourceCDIConfig        Source = "get cdiconfigs.cdi.kubevirt.io"
	SourceProfiles         Source = "list storageprofiles.cdi.kubevirt.io"
	SourceSnapshotClasses  Source = "list volumesnapshotclasses.snapshot.storage.k8s.io"
	SourceSnapshots        Source = "list volumesnapshots.snapshot.storage.k8s.io"
	SourceKubeVirt         Source = "list kubevirts.kubevirt.io"
	SourceWebhooks         Source = "list validatingwebhookconfigurations and mutatingwebhookconfigurations.admissionregistration.k8s.io"
	SourceServices         Source = "get services"
	SourceDataVolumePolicy Source = "get validatingadmissionpolicies and validatingadmissionpolicybindings.admissionregistration.k8s.io"
	SourceOneDownload      Source = "get mutatingadmissionpolicies and mutatingadmissionpolicybindings.admissionregistration.k8s.io, list pods"
	SourceImages           Source = "list vmdiskimages.pelotech.ot"
	SourceMachines         Source = "list virtualmachines.pelotech.ot"
	SourceSecrets          Source = "get secrets"
	SourceLedger           Source = "get syncledgers.pelotech.ot"
	SourceReport           Source = "get clusterreports.pelotech.ot"
	SourcePlan             Source = "get clusterplans.pelotech.ot"
	SourceDeployment       Source = "get deployments.apps"
	SourceLease            Source = "get leases.coordination.k8s.io"
	SourcePolicy           Source = "get configmaps"
	SourceMember           Source = "get memberclusters.pelotech.ot"
	SourceHubReports       Source = "list clusterreports.pelotech.ot"
	SourceProbe            Source = "create jobs.batch, list pods"
)

// Snapshot is what was read of one cluster. It has no content of Secrets, and no URL with
// credentials.
type Snapshot struct {
	View    View   `json:"view"`
	Cluster string `json:"cluster"`
	// CLIVersion is that of this program.
	CLIVersion string `json:"cliVersion,omitempty"`
	Asked      Asked  `json:"asked"`
	// Unread says why a source could not be read.
	Unread map[Source]string `json:"unread,omitempty"`
	// Truncated are sources of which only the first objects were read.
	Truncated []Source `json:"truncated,omitempty"`

	// ClientTime is this machine's clock in the middle of the request that ServerTime, with
	// whole seconds, answers; the request took RoundTrip.
	ClientTime time.Time     `json:"clientTime"`
	ServerTime time.Time     `json:"serverTime"`
	RoundTrip  time.Duration `json:"roundTrip"`

	Kubernetes string `json:"kubernetes,omitempty"`
	// Served are the kinds that doctor asks about, as Kind.version.group.
	Served []string `json:"served,omitempty"`

	StorageClasses  []storagev1.StorageClass         `json:"storageClasses,omitempty"`
	CSIDrivers      []string                         `json:"csiDrivers,omitempty"`
	Capacities      []storagev1.CSIStorageCapacity   `json:"capacities,omitempty"`
	Quotas          []corev1.ResourceQuota           `json:"quotas,omitempty"`
	Namespaces      []Namespace                      `json:"namespaces,omitempty"`
	CDI             []Component                      `json:"cdi,omitempty"`
	CDIConfig       *CDIConfig                       `json:"cdiConfig,omitempty"`
	Profiles        []cdiv1.StorageProfile           `json:"profiles,omitempty"`
	SnapshotClasses []snapshotv1.VolumeSnapshotClass `json:"snapshotClasses,omitempty"`
	Snapshots       []Snapshotting                   `json:"snapshots,omitempty"`
	KubeVirt        []Component                      `json:"kubeVirt,omitempty"`
	Webhooks        []Webhook                        `json:"webhooks,omitempty"`

	DataVolumePolicy GuardPolicy                       `json:"dataVolumePolicy"`
	OneDownload      *admissionpolicy.OneDownloadState `json:"oneDownload,omitempty"`

	Images   []Image     `json:"images,omitempty"`
	Machines int         `json:"machines"`
	Secrets  []SecretUse `json:"secrets,omitempty"`
	Agent    Agent       `json:"agent"`
	// PolicyData are the keys of the policy ConfigMap; nil where there is none.
	PolicyData map[string]string `json:"policyData,omitempty"`
	// PolicyUnreadable are the keys of the policy ConfigMap that are not text.
	PolicyUnreadable []policy.KeyError `json:"policyUnreadable,omitempty"`

	Probe *Probe `json:"probe,omitempty"`
	Hub   *Hub   `json:"hub,omitempty"`
}

// Asked is what the user asked for.
type Asked struct {
	StorageClass string `json:"storageClass,omitempty"`
	Namespace    string `json:"namespace,omitempty"`
	ProbeURL     string `json:"probeURL,omitempty"`
}

// Component is an installation of CDI or KubeVirt.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Phase   string `json:"phase,omitempty"`
}

// CDIConfig has what CDI's config says about proxies; URLs are redacted.
type CDIConfig struct {
	HTTPProxy  string `json:"httpProxy,omitempty"`
	HTTPSProxy string `json:"httpsProxy,omitempty"`
	NoProxy    string `json:"noProxy,omitempty"`
	// TrustedCA names a ConfigMap in CDI's namespace.
	TrustedCA string `json:"trustedCA,omitempty"`
	// TrustedCAMissing: it does not exist there.
	TrustedCAMissing bool   `json:"trustedCAMissing,omitempty"`
	ScratchClass     string `json:"scratchClass,omitempty"`
}

// Namespace is a namespace that something needs.
type Namespace struct {
	Name string `json:"name"`
	// NeededBy says what for.
	NeededBy string `json:"neededBy"`
	// Missing or Terminating, or else it exists.
	Missing     bool `json:"missing,omitempty"`
	Terminating bool `json:"terminating,omitempty"`
}

// Snapshotting is a VolumeSnapshot that has no status.
type Snapshotting struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	CreatedAt metav1.Time `json:"createdAt"`
}

// Webhook is one that the API server asks about objects that imports or machines need.
type Webhook struct {
	Configuration string `json:"configuration"`
	Name          string `json:"name"`
	Mutating      bool   `json:"mutating"`
	// Blocking: what it does not answer is refused.
	Blocking       bool     `json:"blocking"`
	TimeoutSeconds int32    `json:"timeoutSeconds"`
	Resources      []string `json:"resources"`
	// Service is namespace/name; empty for a URL.
	Service        string `json:"service,omitempty"`
	ServiceMissing bool   `json:"serviceMissing,omitempty"`
}

// GuardPolicy is a ValidatingAdmissionPolicy with its binding.
type GuardPolicy struct {
	Exists  bool `json:"exists"`
	Bound   bool `json:"bound"`
	Denying bool `json:"denying"`
}

// Image is what doctor needs to know of a VMDiskImage, or of an image of the plan.
type Image struct {
	Namespace     string              `json:"namespace"`
	Name          string              `json:"name"`
	SourceType    v1alpha1.SourceType `json:"sourceType"`
	PullMethod    v1alpha1.PullMethod `json:"pullMethod,omitempty"`
	URL           string              `json:"url,omitempty"` // redacted
	StorageClass  string              `json:"storageClass,omitempty"`
	SnapshotClass string              `json:"snapshotClass,omitempty"`
	DiskSize      resource.Quantity   `json:"diskSize"`
	// Imported: its current revision is there, or is being imported.
	Imported bool `json:"imported,omitempty"`
}

func (i *Image) key() string { return i.Namespace + "/" + i.Name }

// SecretUse is a Secret that an image or a machine names.
type SecretUse struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UsedBy is the field of the object.
	UsedBy string `json:"usedBy"`
	// Keys that it must have; with none, any do.
	Keys    []string `json:"keys,omitempty"`
	Missing bool     `json:"missing,omitempty"`
	// Lacking are those of Keys that it does not have, or has empty.
	Lacking []string `json:"lacking,omitempty"`
	// Problem of its content, which quotes none of it.
	Problem string `json:"problem,omitempty"`
	// Unread says why it could not be read.
	Unread string `json:"unread,omitempty"`
}

// Agent is what is known of the agent.
type Agent struct {
	Namespace string `json:"namespace"`
	Installed bool   `json:"installed"`
	Version   string `json:"version,omitempty"`
	// Image of its container.
	Image string `json:"image,omitempty"`
	// RenewedAt is when its leader last renewed its Lease, by the leader's clock, which is
	// valid for LeaseSeconds; zero for no Lease.
	RenewedAt    time.Time `json:"renewedAt"`
	LeaseSeconds int32     `json:"leaseSeconds,omitempty"`
	// Conditions of its SyncLedger.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Probe is what a Pod in the cluster got from a source.
type Probe struct {
	URL    string `json:"url"` // redacted
	Status int    `json:"status,omitempty"`
	// Milliseconds until the answer.
	Milliseconds int64  `json:"milliseconds,omitempty"`
	Bytes        int64  `json:"bytes,omitempty"`
	Error        string `json:"error,omitempty"`
	// NotRun says why no Pod ran to its end.
	NotRun string `json:"notRun,omitempty"`
}

// Hub is what the hub knows of a member.
type Hub struct {
	Version      string             `json:"version,omitempty"`
	AgentVersion string             `json:"agentVersion,omitempty"`
	Conditions   []metav1.Condition `json:"conditions,omitempty"`
	// Reported are the conditions of the member's SyncLedger, as it last reported them;
	// none where it never did.
	Reported []metav1.Condition `json:"reported,omitempty"`
	// HeartbeatSeconds is how often the member reports; 0 where its reports are not read.
	HeartbeatSeconds int32          `json:"heartbeatSeconds,omitempty"`
	LastReport       *metav1.Time   `json:"lastReport,omitempty"`
	SilentSince      *metav1.Time   `json:"silentSince,omitempty"`
	ReportedImage    []ImageProblem `json:"reportedImages,omitempty"`
}

// ImageProblem is an image that does not become ready, as the member reports it.
type ImageProblem struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Reason    v1alpha1.Reason `json:"reason"`
	Message   string          `json:"message,omitempty"`
}

// Serves reports whether a kind is served, as Kind.version.group.
func (s *Snapshot) Serves(kind string) bool { return slices.Contains(s.Served, kind) }

func (s *Snapshot) storageClass(name string) *storagev1.StorageClass {
	i := slices.IndexFunc(s.StorageClasses, func(c storagev1.StorageClass) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &s.StorageClasses[i]
}

func (s *Snapshot) profile(class string) *cdiv1.StorageProfile {
	i := slices.IndexFunc(s.Profiles, func(p cdiv1.StorageProfile) bool { return p.Name == class })
	if i < 0 {
		return nil
	}
	return &s.Profiles[i]
}

func (s *Snapshot) snapshotClass(name string) *snapshotv1.VolumeSnapshotClass {
	i := slices.IndexFunc(s.SnapshotClasses, func(c snapshotv1.VolumeSnapshotClass) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &s.SnapshotClasses[i]
}
