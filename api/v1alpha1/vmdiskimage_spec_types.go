package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SourceType says where a disk image comes from.
//
// +kubebuilder:validation:Enum=s3;http;gcs;registry;blank;dataSource
type SourceType string

// Source types, those of CDI.
const (
	SourceS3       SourceType = "s3"
	SourceHTTP     SourceType = "http"
	SourceGCS      SourceType = "gcs"
	SourceRegistry SourceType = "registry"
	// SourceBlank is an empty disk without a URL, meant for tests.
	SourceBlank SourceType = "blank"
	// SourceDataSource is what a CDI DataSource of the cluster points at. Nothing is
	// downloaded, and what it points at is never changed or deleted.
	SourceDataSource SourceType = "dataSource"
)

// Architecture of the machines that can boot a disk image, by Go's names, as KubeVirt has them.
//
// +kubebuilder:validation:Enum=amd64;arm64;s390x
type Architecture string

// Architectures.
const (
	ArchitectureAMD64 Architecture = "amd64"
	ArchitectureARM64 Architecture = "arm64"
	ArchitectureS390X Architecture = "s390x"
)

// PullMethod says who pulls the container image of a registry source.
//
// +kubebuilder:validation:Enum=pod;node
type PullMethod string

// Pull methods, those of CDI.
const (
	// PullPod: CDI's importer downloads it. The default.
	PullPod PullMethod = "pod"
	// PullNode: the kubelet of the importer's node pulls it, as any container image.
	PullNode PullMethod = "node"
)

// VMDiskImageSpec says which disk image the cluster must have.
//
// A change of url, sourceType, checksum, diskSize, storageClass, architecture or dataSource
// creates a new revision. It is queued and synced beside the old revision, which stays usable until
// the new one is ready. Changes of other fields create no revision.
//
// +kubebuilder:validation:XValidation:rule="self.sourceType in ['blank', 'dataSource'] || (has(self.url) && size(self.url) > 0)",message="url is required: say where the image is downloaded from (only the sourceTypes blank and dataSource have none)"
// +kubebuilder:validation:XValidation:rule="(self.sourceType == 'dataSource') == has(self.dataSource)",message="dataSource and sourceType dataSource belong together: name the DataSource in dataSource, or remove it"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'dataSource' || ((!has(self.url) || size(self.url) == 0) && !has(self.secretRef) && !has(self.certConfigMap) && !has(self.storageClass) && !has(self.snapshotClass))",message="sourceType dataSource downloads and stores nothing: remove url, secretRef, certConfigMap, storageClass and snapshotClass"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'dataSource' || !has(self.publish) || !has(self.publish.dataSource) || !self.publish.dataSource",message="sourceType dataSource uses a DataSource that others keep: remove publish"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'blank' || !has(self.url) || size(self.url) == 0",message="sourceType blank is an empty disk and takes no url: remove url, or set sourceType to s3, http, gcs or registry"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'http' || !has(self.url) || self.url.startsWith('http://') || self.url.startsWith('https://')",message="url must start with http:// or https:// for sourceType http"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 's3' || !has(self.url) || self.url.startsWith('http://') || self.url.startsWith('https://')",message="url must be the object's address at its endpoint for sourceType s3, as in https://s3.eu-central-1.amazonaws.com/bucket/key: CDI takes https:// and http://, and no s3://"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'gcs' || !has(self.url) || self.url.matches('^gs://[^/?#]+/[^?#]*[^/?#]$')",message="url must be gs://bucket/object for sourceType gcs, without ? and #; a public or signed object at https://storage.googleapis.com works with sourceType http"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'registry' || !has(self.url) || self.url.startsWith('docker://') || self.url.startsWith('oci-archive://')",message="url must start with docker:// or oci-archive:// for sourceType registry"
// +kubebuilder:validation:XValidation:rule="!has(self.url) || !self.url.matches('^[a-z0-9-]+://[^/?#]*@')",message="url must not carry a user name or password: put them into a Secret and name it in secretRef"
// +kubebuilder:validation:XValidation:rule="!has(self.checksum) || self.sourceType == 'http'",message="checksum works with sourceType http only (CDI 1.65 or later)"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'blank' || (!has(self.secretRef) && !has(self.certConfigMap))",message="sourceType blank downloads nothing: remove secretRef and certConfigMap"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'gcs' || !has(self.certConfigMap)",message="certConfigMap does not work with sourceType gcs, which trusts Google's certificate authorities: remove it"
// +kubebuilder:validation:XValidation:rule="self.sourceType == 'http' || ((!has(self.extraHeaders) || size(self.extraHeaders) == 0) && (!has(self.secretExtraHeaders) || size(self.secretExtraHeaders) == 0))",message="extraHeaders and secretExtraHeaders work with sourceType http only"
// +kubebuilder:validation:XValidation:rule="((!has(self.extraHeaders) || size(self.extraHeaders) == 0) && (!has(self.secretExtraHeaders) || size(self.secretExtraHeaders) == 0)) || !has(self.url) || !self.url.matches('(?i)^https?://(metadata|metadata[.](goog|google[.]internal|azure[.]internal|tencentyun[.]com)|instance-data([.]ec2[.]internal)?|169[.]254[.][0-9.]+|168[.]63[.]129[.]16|100[.]100[.]100[.]200|192[.]0[.]0[.]192|[[](fe[89ab][0-9a-f]:|fd00:ec2:|fd20:ce:)[^]]*[]])[.]*(:[0-9]*)?([/?#]|$)')",message="url must not be a metadata service of a cloud or a link-local address where extraHeaders or secretExtraHeaders are set: such services have credentials, and no images"
// +kubebuilder:validation:XValidation:rule="!has(self.pullMethod) || self.sourceType == 'registry'",message="pullMethod works with sourceType registry only"
// +kubebuilder:validation:XValidation:rule="!has(self.pullMethod) || self.pullMethod != 'node' || (!has(self.secretRef) && !has(self.certConfigMap))",message="with pullMethod node the kubelet pulls with the node's own credentials and certificate authorities: remove secretRef and certConfigMap, and put pull Secrets into spec.config.imagePullSecrets of CDI"
// +kubebuilder:validation:XValidation:rule="!has(self.pullMethod) || self.pullMethod != 'node' || !has(self.url) || self.url.startsWith('docker://')",message="url must start with docker:// for pullMethod node: the kubelet pulls from registries only"
type VMDiskImageSpec struct {
	// name of the disk for people. It need not be unique.
	// +kubebuilder:validation:XValidation:rule="size(self) >= 1 && size(self) <= 253",message="name must have 1 to 253 characters"
	// +kubebuilder:validation:XValidation:rule="self == self.trim() && !self.matches('[[:cntrl:]]')",message="name must have no space at its beginning or end, and no line break: write it on one line, without the | of a YAML block"
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Name string `json:"name"`

	// sourceType says how url is read: s3, http, gcs, registry, or blank for an empty disk;
	// dataSource uses what a CDI DataSource of the cluster points at.
	// +required
	SourceType SourceType `json:"sourceType"`

	// url of the image. For sourceType http: http:// or https://; for s3: the object's
	// address at its endpoint, as in https://s3.eu-central-1.amazonaws.com/bucket/key; for
	// gcs: gs://bucket/object; for registry: docker:// or oci-archive://; for blank and
	// dataSource: none.
	// +kubebuilder:validation:XValidation:rule="self == self.trim() && !self.matches('[[:cntrl:]]')",message="url must have no space at its beginning or end, and no line break: write it on one line, without the | of a YAML block"
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^([a-z0-9-]+://[^/?#:]|oci-archive:///[^/?#])')",message="url must name a host, as in https://images.example.com/ubuntu.qcow2"
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || isURL(self)",message="url is not a valid URL: the host has no space or special character, the port is a number, an IPv6 address is in brackets, and % is written as %25 unless two hex digits follow"
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	URL string `json:"url,omitempty"`

	// checksum of the file at url as algorithm:hex, with md5, sha1, sha256 or sha512.
	// Only for sourceType http, with CDI 1.65 or later.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^(md5:[0-9a-fA-F]{32}|sha1:[0-9a-fA-F]{40}|sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$')",message="checksum must be an algorithm and a hash of its length, as in sha256:<64 hex digits>; algorithms are md5, sha1, sha256 and sha512"
	// +optional
	Checksum string `json:"checksum,omitempty"`

	// secretRef names a Secret in the image's namespace with the credentials for the
	// source, in CDI's format: keys accessKeyId and secretKey, or credentials.json for gcs.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="secretRef must be the name of a Secret: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	SecretRef string `json:"secretRef,omitempty"`

	// certConfigMap names a ConfigMap in the image's namespace with the certificate
	// authorities to trust for url.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="certConfigMap must be the name of a ConfigMap: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	CertConfigMap string `json:"certConfigMap,omitempty"`

	// extraHeaders are sent with each request for the image, each as "Name: value". They
	// are no secret: whoever may read the image, its DataVolume, its claim or its importer
	// Pod can read them. Only for sourceType http.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.all(h, h.matches('^[A-Za-z0-9][A-Za-z0-9_.-]*: ?[!-~]([ -~]*[!-~])?$'))",message="each of extraHeaders must be one line as in 'X-Tenant: blue': a name of letters, digits, - and _, a colon, and a value of printable ASCII without space at its end"
	// +kubebuilder:validation:XValidation:rule="self.all(h, !h.matches('(?i)^(connection|content-length|expect|host|keep-alive|proxy-connection|range|te|trailer|transfer-encoding|upgrade) *:'))",message="extraHeaders must not set Connection, Content-Length, Expect, Host, Keep-Alive, Proxy-Connection, Range, TE, Trailer, Transfer-Encoding or Upgrade, which CDI sets for its transfers"
	// +kubebuilder:validation:XValidation:rule="self.all(h, !h.matches('(?i)^(([a-z0-9_.-]*[_.-])?metadata([_.-][a-z0-9_.-]*)?:|authorization: ?bearer +oracle$)'))",message="extraHeaders must not have a name with the word metadata, as Metadata-Flavor, nor Authorization: Bearer Oracle: metadata services of clouds give credentials to who sends them"
	// +kubebuilder:validation:XValidation:rule="self.all(h, !h.contains('$(') && !h.contains('$$'))",message="extraHeaders must not contain $( or $$, which the importer Pod would expand: put that header into a Secret and name it in secretExtraHeaders"
	// +listType=atomic
	// +optional
	ExtraHeaders []string `json:"extraHeaders,omitempty"`

	// secretExtraHeaders name Secrets in the image's namespace. The value of each of their
	// keys is one header, as in "Authorization: Bearer …", sent with each request for the
	// image. Whoever writes the spec must be allowed to read them. Only for sourceType http.
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="each of secretExtraHeaders must be the name of a Secret: a-z, 0-9, - and ., without space or line break"
	// +listType=set
	// +optional
	SecretExtraHeaders []string `json:"secretExtraHeaders,omitempty"`

	// pullMethod says who pulls the container image of a registry source: pod for CDI's
	// importer, node for the kubelet, with its credentials, mirrors and cache. Default: pod.
	// +optional
	PullMethod PullMethod `json:"pullMethod,omitempty"`

	// storageClass that the image is stored in. Default: the cluster's default
	// StorageClass.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="storageClass must be the name of a StorageClass: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	StorageClass string `json:"storageClass,omitempty"`

	// snapshotClass is the VolumeSnapshotClass of the snapshot that VMs are cloned
	// from. Default: no snapshot; VMs are cloned from the PersistentVolumeClaim.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="snapshotClass must be the name of a VolumeSnapshotClass: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	// +optional
	SnapshotClass string `json:"snapshotClass,omitempty"`

	// diskSize is the virtual size of the disk, from 1Mi to 64Ti.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self))",message="diskSize must be a quantity such as 24Gi (use Mi, Gi or Ti, not GB or GiB)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || !quantity(string(self)).isLessThan(quantity('1Mi'))",message="diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || !quantity(string(self)).isGreaterThan(quantity('64Ti'))",message="diskSize must be at most 64Ti"
	// +required
	DiskSize resource.Quantity `json:"diskSize"`

	// architecture of the machines that can boot the image: amd64, arm64 or s390x. Where it is
	// set, no machine of another one starts on it. Default: not said, and not checked.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`

	// dataSource is the CDI DataSource whose image is used. Only for sourceType dataSource.
	// +optional
	DataSource *DataSourceReference `json:"dataSource,omitempty"`

	// publish says where else the image can be found. Default: nowhere.
	// +optional
	Publish *Publish `json:"publish,omitempty"`

	// defaults of machines that boot the image, for those that find it by its DataSource.
	// +optional
	Defaults *MachineDefaults `json:"defaults,omitempty"`

	// priority in the queue; higher goes first. Values above the policy's maxPriority,
	// which is 0 by default, count as maxPriority. Default: 0.
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// deleteUnreferencedAfter deletes the image once no VirtualMachine has referenced
	// it for this long, as in 72h. An image that the ClusterPlan asks for is never
	// deleted. Default: it is not deleted.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$') && size(self) > 0 && duration(self) >= duration('1m')",message="deleteUnreferencedAfter must be a duration of at least 1m in hours, minutes and seconds, as in 72h or 1h30m, up to 999999h"
	// +optional
	DeleteUnreferencedAfter *metav1.Duration `json:"deleteUnreferencedAfter,omitempty"`
}

// DataSourceReference names a CDI DataSource.
type DataSourceReference struct {
	// namespace of the DataSource. Default: the image's.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="namespace must be the name of a namespace"
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the DataSource, as in fedora.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name must be the name of a DataSource: a-z, 0-9, - and ., without space or line break"
	// +required
	Name string `json:"name"`
}

// Publish says where else an image can be found.
//
// +kubebuilder:validation:XValidation:rule="!has(self.name) || (has(self.dataSource) && self.dataSource)",message="name is that of the DataSource: set dataSource to true, or remove name"
type Publish struct {
	// dataSource keeps a CDI DataSource in the image's namespace that points at what
	// serves. Default: false.
	// +optional
	DataSource bool `json:"dataSource,omitempty"`
	// name of the DataSource. Several images may publish under one name, one at a time.
	// Default: the image's name; of a FleetDiskImage, its imageName.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name must consist of a-z, 0-9, - and ., as in ubuntu"
	// +optional
	Name string `json:"name,omitempty"`
}

// MachineDefaults are what KubeVirt infers for a machine that boots an image and names none.
//
// +kubebuilder:validation:XValidation:rule="has(self.instancetype) || !has(self.instancetypeKind)",message="instancetypeKind needs instancetype"
// +kubebuilder:validation:XValidation:rule="has(self.preference) || !has(self.preferenceKind)",message="preferenceKind needs preference"
type MachineDefaults struct {
	// instancetype by name, as in u1.medium.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="instancetype must be the name of an instancetype, as in u1.medium"
	// +optional
	Instancetype string `json:"instancetype,omitempty"`
	// instancetypeKind says where KubeVirt looks for it. Default: VirtualMachineClusterInstancetype.
	// +kubebuilder:validation:Enum=VirtualMachineInstancetype;VirtualMachineClusterInstancetype
	// +optional
	InstancetypeKind string `json:"instancetypeKind,omitempty"`
	// preference by name, as in fedora.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="preference must be the name of a preference, as in fedora"
	// +optional
	Preference string `json:"preference,omitempty"`
	// preferenceKind says where KubeVirt looks for it. Default: VirtualMachineClusterPreference.
	// +kubebuilder:validation:Enum=VirtualMachinePreference;VirtualMachineClusterPreference
	// +optional
	PreferenceKind string `json:"preferenceKind,omitempty"`
}
