package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxOverrides is how many overrides a FleetDiskImage can have.
const MaxOverrides = 16

// ImageOverride changes fields of the template for some clusters. Of several overrides that
// select a cluster and set the same field, the last one in the list wins. An empty text removes
// the template's, as a checksum has to be where sourceType becomes registry.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) || (has(self.clusterNames) && size(self.clusterNames) > 0)",message="an override selects no cluster: set clusterSelector ({} for all) or clusterNames"
type ImageOverride struct {
	// clusterSelector selects MemberClusters by their labels; {} selects all.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// clusterNames adds MemberClusters by name, whatever their labels.
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="no MemberCluster can have this name, so nothing is selected: it must consist of a-z, 0-9 and -, as in bergen"
	// +listType=set
	// +optional
	ClusterNames []string `json:"clusterNames,omitempty"`

	// sourceType instead of the template's.
	// +optional
	SourceType *SourceType `json:"sourceType,omitempty"`
	// url instead of the template's. ${labels.<key>} stands for the value of a label of the
	// MemberCluster, as in https://images.${labels.site}.example/ubuntu.qcow2, and
	// ${cluster.name} for its name. A cluster without the label waits.
	// +kubebuilder:validation:XValidation:rule="self == self.trim() && !self.matches('[[:cntrl:]]')",message="url must have no space at its beginning or end, and no line break: write it on one line, without the | of a YAML block"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([^$]|[$][^{]|[$]$|[$][{]cluster[.]name[}]|[$][{]labels[.]([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?[}])*$')",message="url has an unknown variable: there are ${labels.<key>}, with the key of a label of the MemberCluster, and ${cluster.name}"
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^([a-z0-9-]+://[^/?#:]|oci-archive:///[^/?#])')",message="url must name a host, as in https://images.example.com/ubuntu.qcow2"
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.contains('${') || isURL(self)",message="url is not a valid URL: the host has no space or special character, the port is a number, an IPv6 address is in brackets, and % is written as %25 unless two hex digits follow"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[a-z0-9-]+://[^/?#]*@')",message="url must not carry a user name or password: put them into a Secret and name it in secretRef"
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	URL *string `json:"url,omitempty"`
	// checksum instead of the template's; empty removes it.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^(md5:[0-9a-fA-F]{32}|sha1:[0-9a-fA-F]{40}|sha256:[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$')",message="checksum must be an algorithm and a hash of its length, as in sha256:<64 hex digits>; algorithms are md5, sha1, sha256 and sha512"
	// +optional
	Checksum *string `json:"checksum,omitempty"`
	// secretRef instead of the template's; empty removes it.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="secretRef must be the name of a Secret: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SecretRef *string `json:"secretRef,omitempty"`
	// certConfigMap instead of the template's; empty removes it.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="certConfigMap must be the name of a ConfigMap: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +optional
	CertConfigMap *string `json:"certConfigMap,omitempty"`
	// extraHeaders instead of all of the template's; an empty list removes them.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.all(h, h.matches('^[A-Za-z0-9][A-Za-z0-9_.-]*: ?[!-~]([ -~]*[!-~])?$'))",message="each of extraHeaders must be one line as in 'X-Tenant: blue': a name of letters, digits, - and _, a colon, and a value of printable ASCII without space at its end"
	// +kubebuilder:validation:XValidation:rule="self.all(h, !h.matches('(?i)^(connection|content-length|expect|host|keep-alive|proxy-connection|range|te|trailer|transfer-encoding|upgrade) *:'))",message="extraHeaders must not set Connection, Content-Length, Expect, Host, Keep-Alive, Proxy-Connection, Range, TE, Trailer, Transfer-Encoding or Upgrade, which CDI sets for its transfers"
	// +kubebuilder:validation:XValidation:rule="self.all(h, !h.matches('(?i)^(([a-z0-9_.-]*[_.-])?metadata([_.-][a-z0-9_.-]*)?:|authorization: ?bearer +oracle$)'))",message="extraHeaders must not have a name with the word metadata, as Metadata-Flavor, nor Authorization: Bearer Oracle: metadata services of clouds give credentials to who sends them"
	// +kubebuilder:validation:XValidation:rule="self.all(h, !h.contains('$(') && !h.contains('$$'))",message="extraHeaders must not contain $( or $$, which the importer Pod would expand: put that header into a Secret and name it in secretExtraHeaders"
	// +listType=atomic
	// +optional
	ExtraHeaders *[]string `json:"extraHeaders,omitempty"`
	// secretExtraHeaders instead of all of the template's; an empty list removes them.
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="each of secretExtraHeaders must be the name of a Secret: a-z, 0-9, - and ., without space or line break"
	// +listType=set
	// +optional
	SecretExtraHeaders *[]string `json:"secretExtraHeaders,omitempty"`
	// pullMethod instead of the template's.
	// +optional
	PullMethod *PullMethod `json:"pullMethod,omitempty"`
	// storageClass instead of the template's; empty removes it.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="storageClass must be the name of a StorageClass: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +optional
	StorageClass *string `json:"storageClass,omitempty"`
	// snapshotClass instead of the template's; empty removes it.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="snapshotClass must be the name of a VolumeSnapshotClass: a-z, 0-9, - and ., without space or line break"
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SnapshotClass *string `json:"snapshotClass,omitempty"`
	// diskSize instead of the template's, from 1Mi to 64Ti, as text.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self)",message="diskSize must be a quantity such as 24Gi (use Mi, Gi or Ti, not GB or GiB)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(self) || !quantity(self).isLessThan(quantity('1Mi'))",message="diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(self) || !quantity(self).isGreaterThan(quantity('64Ti'))",message="diskSize must be at most 64Ti"
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
	// architecture instead of the template's.
	// +optional
	Architecture *Architecture `json:"architecture,omitempty"`
	// dataSource instead of the template's, with sourceType dataSource.
	// +optional
	DataSource *DataSourceReference `json:"dataSource,omitempty"`
	// priority instead of the template's.
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	// +optional
	Priority *int32 `json:"priority,omitempty"`
}
