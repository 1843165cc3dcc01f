package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SourceType says where a disk image comes from.
//
// +kubebuilder:validation:Enum=s3;http;gcs;registry;blank
type SourceType string

// Source types, those of CDI.
const (
	SourceS3       SourceType = "s3"
	SourceHTTP     SourceType = "http"
	SourceGCS      SourceType = "gcs"
	SourceRegistry SourceType = "registry"
	// SourceBlank is an empty disk without a URL, meant for tests.
	SourceBlank SourceType = "blank"
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
// A change of url, sourceType, checksum, diskSize or storageClass creates a new
// revision. It is queued and synced beside the old revision, which stays usable until
// the new one is ready. Changes of other fields create no revision.
//
// +kubebuilder:validation:XValidation:rule="self.sourceType == 'blank' || (has(self.url) && size(self.url) > 0)",message="url is required: say where the image is downloaded from (only sourceType blank has none)"
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

	// sourceType says how url is read: s3, http, gcs, registry, or blank for an empty disk.
	// +required
	SourceType SourceType `json:"sourceType"`

	// url of the image. For sourceType http: http:// or https://; for s3: the object's
	// address at its endpoint, as in https://s3.eu-central-1.amazonaws.com/bucket/key; for
	// gcs: gs://bucket/object; for registry: docker:// or oci-archive://; for blank: none.
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
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$') && size(self) > 0 && duration(self) >= duration('1m')",message="deleteUnreferencedAfter must be a duration of at least 1m in hours, minutes and seconds, as in 72h or 1h30m"
	// +optional
	DeleteUnreferencedAfter *metav1.Duration `json:"deleteUnreferencedAfter,omitempty"`
}

// Phase is the phase of a VMDiskImage.
//
// +kubebuilder:validation:Enum=Queued;Syncing;Succeeded;Failed;PrunePending;Terminating;Deleting
type Phase string

// Phases of a VMDiskImage.
const (
	// PhaseQueued: waits for a slot, or for its backoff.
	PhaseQueued Phase = "Queued"
	// PhaseSyncing: an attempt runs, or its snapshot is being created.
	PhaseSyncing Phase = "Syncing"
	// PhaseSucceeded: the current revision is ready.
	PhaseSucceeded Phase = "Succeeded"
	// PhaseFailed: the current revision failed and is not retried.
	PhaseFailed Phase = "Failed"
	// PhasePrunePending: stays usable, and is deleted when its undo window ends.
	PhasePrunePending Phase = "PrunePending"
	// PhaseTerminating: is to be deleted, and stays usable while referenced.
	PhaseTerminating Phase = "Terminating"
	// PhaseDeleting: is being deleted, and can no longer be acquired.
	PhaseDeleting Phase = "Deleting"
)

// OrderingKey is a revision's place in the queue: smaller time first, then smaller
// sequence. It is set when the agent first sees the revision and never changes.
type OrderingKey struct {
	// time is the image's creation time, or the time of the previous key if that is
	// later, so that clock differences cannot reorder images.
	// +required
	Time metav1.Time `json:"time"`
	// sequence numbers the keys.
	// +required
	Sequence int64 `json:"sequence"`
}

// Outcome of an attempt.
//
// +kubebuilder:validation:Enum=Succeeded;Failed
type Outcome string

// Outcomes of an attempt.
const (
	OutcomeSucceeded Outcome = "Succeeded"
	OutcomeFailed    Outcome = "Failed"
)

// Failure says why an attempt failed.
type Failure struct {
	// +required
	Reason Reason `json:"reason"`
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Message string `json:"message"`
	// +required
	Time metav1.Time `json:"time"`
}

// RevisionStatus is the state of one revision of an image.
//
// Attempts are numbered from 1 across all revisions of an image, so no number is used
// twice. Invariant: attempt numbers are set by value, from the slot of the attempt,
// never incremented; a repeated or late write changes nothing.
type RevisionStatus struct {
	// revision is the hash of the fields that define the source.
	// +kubebuilder:validation:MaxLength=16
	// +required
	Revision string `json:"revision"`
	// source is the url without its query, for people.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Source string `json:"source,omitempty"`
	// orderingKey is the revision's place in the queue.
	// +required
	OrderingKey OrderingKey `json:"orderingKey"`
	// attempt is the highest attempt that was started.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// attemptEnded is the highest attempt with an outcome.
	// +optional
	AttemptEnded int32 `json:"attemptEnded,omitempty"`
	// outcome of attemptEnded.
	// +optional
	Outcome Outcome `json:"outcome,omitempty"`
	// attemptsBefore is how many attempts no longer count against retryLimit: those
	// before somebody restarted the image, or before its storage was lost.
	// +optional
	AttemptsBefore int32 `json:"attemptsBefore,omitempty"`
	// failure of the last failed attempt, until one succeeds.
	// +optional
	Failure *Failure `json:"failure,omitempty"`
	// notBefore is the earliest time of the next attempt.
	// +optional
	NotBefore *metav1.Time `json:"notBefore,omitempty"`

	// startedAt is when the running attempt got its slot.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// progressedAt is when the running attempt last made progress.
	// +optional
	ProgressedAt *metav1.Time `json:"progressedAt,omitempty"`
	// importedAt is when the last successful attempt ended.
	// +optional
	ImportedAt *metav1.Time `json:"importedAt,omitempty"`

	// importPhase is the phase of the running attempt's DataVolume.
	// +optional
	ImportPhase string `json:"importPhase,omitempty"`
	// dataVolume of the attempt; its PersistentVolumeClaim has the same name.
	// +optional
	DataVolume string `json:"dataVolume,omitempty"`
	// volumeSnapshot of the attempt, if spec.snapshotClass is set.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// snapshotAttempt counts the VolumeSnapshots tried for this attempt.
	// +optional
	SnapshotAttempt int32 `json:"snapshotAttempt,omitempty"`
	// snapshotSince is when the agent started to wait for the VolumeSnapshot.
	// +optional
	SnapshotSince *metav1.Time `json:"snapshotSince,omitempty"`

	// resyncs is how often lost storage was synced again since resyncsSince.
	// +optional
	Resyncs int32 `json:"resyncs,omitempty"`
	// resyncsSince is when counting resyncs started.
	// +optional
	ResyncsSince *metav1.Time `json:"resyncsSince,omitempty"`
}

// Serving names what VMs are cloned from.
type Serving struct {
	// +required
	Revision string `json:"revision"`
	// +required
	Attempt int32 `json:"attempt"`
	// +required
	PersistentVolumeClaim string `json:"persistentVolumeClaim"`
	// volumeSnapshot to clone from; if absent, VMs are cloned from the claim.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// diskSize is the virtual size of the disk.
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
	// restoreSize is the minimum size of a clone's volume, including filesystem
	// overhead.
	// +optional
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
}

// References counts the VirtualMachines that need the image, and the root disks whose
// VirtualMachine no longer exists. It is recomputed, never incremented.
type References struct {
	// +optional
	Count int32 `json:"count"`
	// unreferencedSince is when count last became 0.
	// +optional
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// holders are the first VirtualMachines, as namespace/name. A root disk without a
	// VirtualMachine is marked "(orphaned disk)".
	// +kubebuilder:validation:MaxItems=5
	// +listType=atomic
	// +optional
	Holders []string `json:"holders,omitempty"`
}

// MaxEndedPrunes is how many ended ImagePrunes an image remembers.
const MaxEndedPrunes = 16

// MaxRevisions is how many revisions an image can have at a time.
const MaxRevisions = 4

// VMDiskImageStatus is what the agent knows about the image.
type VMDiskImageStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before
	// the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// reason for the phase, from a closed set.
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// message explains the reason and says what to do, if anything.
	// +optional
	Message string `json:"message,omitempty"`
	// progress of the running attempt as CDI reports it: "42.0%" or "N/A".
	// +optional
	Progress string `json:"progress,omitempty"`
	// bytesDone of bytesTotal, for the running or last successful attempt, computed
	// from progress.
	// +optional
	BytesDone int64 `json:"bytesDone,omitempty"`
	// bytesTotal is the size of the download if the source reports it, else
	// spec.diskSize.
	// +optional
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// queuePosition is an upper bound of how many images go first; 0 for the head of
	// the queue. It is updated only when it falls below another power of ten.
	// +optional
	QueuePosition *int32 `json:"queuePosition,omitempty"`
	// lastAttempt is the highest attempt of any revision that was started.
	// +optional
	LastAttempt int32 `json:"lastAttempt,omitempty"`
	// attempts that count against the policy's retryLimit.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// revision that the spec asks for.
	// +optional
	Revision string `json:"revision,omitempty"`
	// serving names what VMs are cloned from; it can be older than revision.
	// +optional
	Serving *Serving `json:"serving,omitempty"`
	// revisions that are needed or still exist, the current one first.
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=revision
	// +optional
	Revisions []RevisionStatus `json:"revisions,omitempty"`
	// observedRetry is the last value of annotation pelotech.ot/retry that was applied.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	ObservedRetry string `json:"observedRetry,omitempty"`
	// observedPlanRetry is the last retry of the ClusterPlan's item that was applied.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	ObservedPlanRetry string `json:"observedPlanRetry,omitempty"`
	// +optional
	References References `json:"references"`
	// tearDown: after the image was marked Deleting, a live list found no
	// VirtualMachine that holds it. Its deletion can no longer be cancelled.
	// +optional
	TearDown bool `json:"tearDown,omitempty"`
	// prune is the progress of the last prune that a ClusterPlan asked for.
	// +optional
	Prune *PruneStatus `json:"prune,omitempty"`
	// endedPrunes are the ImagePrunes, newest first, that were skipped or undone for
	// this image. None of them starts again, even if an older plan asks for it.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	EndedPrunes []types.UID `json:"endedPrunes,omitempty"`
	// conditions; exactly one of Ready, Reconciling and Stalled is True while the object is
	// not being deleted.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VMDiskImage is a disk image that VMs of a cluster boot from: downloaded once, cloned
// for every VM.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vmdi,categories=ot
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Ahead",type=integer,JSONPath=`.status.queuePosition`
// +kubebuilder:printcolumn:name="Attempts",type=integer,JSONPath=`.status.attempts`
// +kubebuilder:printcolumn:name="Refs",type=integer,JSONPath=`.status.references.count`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=0
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.status.revisions[0].source`,priority=1
type VMDiskImage struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec VMDiskImageSpec `json:"spec"`
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status VMDiskImageStatus `json:"status,omitempty"`
}

// VMDiskImageList is a list of VMDiskImages.
//
// +kubebuilder:object:root=true
type VMDiskImageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VMDiskImage `json:"items"`
}

// ImageKey identifies one VMDiskImage: a name that is reused has another UID.
type ImageKey struct {
	// +kubebuilder:validation:MaxLength=63
	// +required
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// +required
	UID types.UID `json:"uid"`
}
