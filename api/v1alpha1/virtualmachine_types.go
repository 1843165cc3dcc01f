package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ImageMode says what to do if the image of a VirtualMachine does not exist.
//
// +kubebuilder:validation:Enum=CreateIfNotExist;FailIfNotExist
type ImageMode string

// Image modes.
const (
	// ImageModeCreate creates the image from spec.vmDiskImageTemplate.
	ImageModeCreate ImageMode = "CreateIfNotExist"
	// ImageModeFail waits in phase Failed until somebody creates the image.
	ImageModeFail ImageMode = "FailIfNotExist"
)

// RunStrategy is KubeVirt's: whether and when an instance runs.
//
// +kubebuilder:validation:Enum=Always;RerunOnFailure;Manual;Halted;Once
type RunStrategy string

// VirtualMachineSpec describes a VM of a workspace. The agent never changes it; where
// it applies something else, condition SpecAdjusted says so.
//
// +kubebuilder:validation:XValidation:rule="has(self.instancetype) || (has(self.resources) && has(self.resources.memory))",message="resources.memory is required without an instancetype"
// +kubebuilder:validation:XValidation:rule="!has(self.instancetype) || !has(self.resources) || (!has(self.resources.cpu) && !has(self.resources.memory))",message="instancetype excludes resources.cpu and resources.memory: KubeVirt takes both from the instancetype"
// +kubebuilder:validation:XValidation:rule="!has(self.imageMode) || self.imageMode != 'CreateIfNotExist' || has(self.vmDiskImageTemplate)",message="imageMode CreateIfNotExist needs a vmDiskImageTemplate to create the image from"
type VirtualMachineSpec struct {
	// baseVm is copied to label pelotech.ot/base-vm. It selects nothing (an assumption:
	// the proposal leaves it open).
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="baseVm becomes a label: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	BaseVM string `json:"baseVm,omitempty"`
	// baseVmVersion is copied to label pelotech.ot/base-vm-version.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="baseVmVersion becomes a label: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	BaseVMVersion string `json:"baseVmVersion,omitempty"`
	// version is copied to label pelotech.ot/version.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="version becomes a label: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Version string `json:"version,omitempty"`

	// ignoreOnDeploy prepares the image but creates no KubeVirt VirtualMachine until it
	// is false. An existing one is left alone (an assumption: the proposal leaves it
	// open).
	// +optional
	IgnoreOnDeploy bool `json:"ignoreOnDeploy,omitempty"`

	// name is the host name of the guest. Default: metadata.name.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`

	// users that cloud-init creates at the first boot. The list is complete: other
	// users are not created. A user named default is the image's own.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(u, self.exists_one(o, o.name == u.name))",message="two users have the same name"
	// +listType=atomic
	// +optional
	Users []User `json:"users,omitempty"`

	// resources of the VM.
	// +optional
	Resources *MachineResources `json:"resources,omitempty"`

	// architecture that the VM is started with: amd64, arm64 or s390x. Where the image of its
	// root disk has another one, the VM is not started. Default: the image's, else KubeVirt's.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`

	// instancetype is passed to KubeVirt. It excludes resources.cpu and
	// resources.memory.
	// +kubebuilder:validation:XValidation:rule="!has(self.kind) || self.kind.endsWith('Instancetype')",message="instancetype.kind must be VirtualMachineInstancetype or VirtualMachineClusterInstancetype"
	// +optional
	Instancetype *Matcher `json:"instancetype,omitempty"`
	// preference is passed to KubeVirt.
	// +kubebuilder:validation:XValidation:rule="!has(self.kind) || self.kind.endsWith('Preference')",message="preference.kind must be VirtualMachinePreference or VirtualMachineClusterPreference"
	// +optional
	Preference *Matcher `json:"preference,omitempty"`

	// interfaces, in the order in which the guest sees them. Default: one on the
	// cluster's Pod network.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(i, !has(i.ipAddress) || !isCIDR(i.ipAddress) || self.exists_one(o, has(o.ipAddress) && isCIDR(o.ipAddress) && cidr(o.ipAddress).ip() == cidr(i.ipAddress).ip()))",message="two interfaces have the same ipAddress"
	// +kubebuilder:validation:XValidation:rule="self.all(i, !has(i.macAddress) || self.exists_one(o, has(o.macAddress) && o.macAddress.lowerAscii() == i.macAddress.lowerAscii()))",message="two interfaces have the same macAddress"
	// +listType=atomic
	// +optional
	Interfaces []Interface `json:"interfaces,omitempty"`

	// vmDiskImageRef names the image that the root disk is cloned from. A change
	// applies only before the root disk is created: data of the guest is never
	// discarded.
	// +required
	VMDiskImageRef ImageReference `json:"vmDiskImageRef"`

	// vmDiskImageTemplate is used to create the image if it does not exist and the VM
	// has no root disk yet. An existing image is used as it is; condition ImageDiffers
	// says where it differs.
	// +optional
	VMDiskImageTemplate *VMDiskImageSpec `json:"vmDiskImageTemplate,omitempty"`

	// disks beside the root disk, in the order in which the guest sees them. A disk that is
	// removed from the list is detached at the next start and kept until the VM is deleted.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	Disks []Disk `json:"disks,omitempty"`

	// imageMode says what to do if the image does not exist. Default: CreateIfNotExist
	// with a template, else FailIfNotExist.
	// +optional
	ImageMode ImageMode `json:"imageMode,omitempty"`

	// runStrategy is KubeVirt's. Default: the VM is created with Always, and later
	// changes by virtctl and others are kept.
	// +optional
	RunStrategy RunStrategy `json:"runStrategy,omitempty"`

	// cloudInit adds user data beside name, users and interfaces.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`

	// overlay is merged over spec of the KubeVirt VirtualMachine: objects by key,
	// lists of named items by name. Other lists are replaced. "$patch: delete" removes a
	// field or a named item. Names: root and cloudinit; net0, net1 …, or default on the
	// Pod network. Refused: runStrategy, running, instancetype, preference,
	// dataVolumeTemplates. Authors need the right to create KubeVirt VirtualMachines.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Overlay *runtime.RawExtension `json:"overlay,omitempty"`
}

// User of the guest, in the terms of cloud-init.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.plain_text_passwd) && has(self.passwordSecretRef))",message="set only one of plain_text_passwd and passwordSecretRef; prefer passwordSecretRef"
type User struct {
	// name of the user. An invalid Linux name is made valid, and condition SpecAdjusted
	// shows the result.
	// +kubebuilder:validation:XValidation:rule="size(self) >= 1",message="name must not be empty"
	// +kubebuilder:validation:MaxLength=128
	// +required
	Name string `json:"name"`
	// passwordSecretRef names a key of a Secret in the VM's namespace with the
	// password, in plain text or hashed by crypt(3).
	// +optional
	PasswordSecretRef *SecretKey `json:"passwordSecretRef,omitempty"`
	// plain_text_passwd is a password that everybody who can read the VirtualMachine
	// can read. Prefer passwordSecretRef.
	// +kubebuilder:validation:XValidation:rule="!self.matches('[[:cntrl:]]')",message="plain_text_passwd must be one line, without the | of a YAML block"
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	PlainTextPasswd string `json:"plain_text_passwd,omitempty"`
	// lock_passwd forbids login with a password. Default: true without a password,
	// false with one.
	// +optional
	LockPasswd *bool `json:"lock_passwd,omitempty"`
	// ssh_authorized_keys are public keys that the user can log in with.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=8192
	// +listType=atomic
	// +optional
	SSHAuthorizedKeys []string `json:"ssh_authorized_keys,omitempty"`
	// sudo is a rule for sudoers.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Sudo string `json:"sudo,omitempty"`
	// groups of the user, separated by commas.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Groups string `json:"groups,omitempty"`
	// shell of the user. Default: that of the image.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Shell string `json:"shell,omitempty"`
}

// SecretKey names one key of a Secret.
type SecretKey struct {
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="name must be that of a Secret: a-z, 0-9, - and ., with a letter or digit at both ends"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// key in the Secret's data.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-._a-zA-Z0-9]+$') && self != '.' && !self.startsWith('..')",message="key must be that of a Secret: letters, digits, -, _ and ., with no two . at its beginning"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Key string `json:"key"`
}

// MachineResources of a VirtualMachine.
type MachineResources struct {
	// cpu is the number of cores, from 1 to 512. Default: 1.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).isInteger() && quantity(string(self)).asInteger() >= 1 && quantity(string(self)).asInteger() <= 512",message="cpu must be a whole number from 1 to 512"
	// +optional
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// memory of the guest, from 1Mi to 64Ti.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self))",message="memory must be a quantity such as 2Gi (use Mi, Gi or Ti, not GB or GiB)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || (!quantity(string(self)).isLessThan(quantity('1Mi')) && !quantity(string(self)).isGreaterThan(quantity('64Ti')))",message="memory must be from 1Mi to 64Ti: is the unit missing, as in 2Gi?"
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// diskSize of the root disk, from 1Mi to 64Ti. If it is smaller than the image, the
	// disk gets the size of the image. Default: the size of the image.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self))",message="diskSize must be a quantity such as 24Gi (use Mi, Gi or Ti, not GB or GiB)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || (!quantity(string(self)).isLessThan(quantity('1Mi')) && !quantity(string(self)).isGreaterThan(quantity('64Ti')))",message="diskSize must be from 1Mi to 64Ti: is the unit missing, as in 24Gi?"
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
}

// Matcher names an instancetype or a preference, as in KubeVirt.
type Matcher struct {
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="no instancetype or preference can have this name: it must consist of a-z, 0-9, - and ., with a letter or digit at both ends"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// kind, such as VirtualMachineInstancetype. Default: KubeVirt's, which is
	// cluster-wide.
	// +kubebuilder:validation:Enum=VirtualMachineInstancetype;VirtualMachineClusterInstancetype;VirtualMachinePreference;VirtualMachineClusterPreference
	// +optional
	Kind string `json:"kind,omitempty"`
}

// CloudInit is user data for the guest beside name, users and interfaces of the
// VirtualMachine.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.userData) && has(self.userDataSecretRef))",message="set only one of userData and userDataSecretRef"
type CloudInit struct {
	// userData in any format of cloud-init, such as #cloud-config or a script. It is
	// combined with the agent's own part: its values win, and lists are joined with the
	// agent's items first.
	// +kubebuilder:validation:MaxLength=524288
	// +optional
	UserData string `json:"userData,omitempty"`
	// userDataSecretRef names a key of a Secret in the VM's namespace that has the
	// userData.
	// +optional
	UserDataSecretRef *SecretKey `json:"userDataSecretRef,omitempty"`
}

// MachinePhase is the phase of a VirtualMachine.
//
// +kubebuilder:validation:Enum=Provisioning;Ready;Failed
type MachinePhase string

// Phases of a VirtualMachine.
const (
	// MachineProvisioning: something is being created or waited for.
	MachineProvisioning MachinePhase = "Provisioning"
	// MachineReady: the KubeVirt VirtualMachine exists and runs, or is stopped on
	// purpose. With ignoreOnDeploy: the image is ready.
	MachineReady MachinePhase = "Ready"
	// MachineFailed: somebody has to act. The phase changes again when the cause is
	// fixed.
	MachineFailed MachinePhase = "Failed"
)

// MachineImage is the state of the VM's image as last observed.
type MachineImage struct {
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// +optional
	Progress string `json:"progress,omitempty"`
	// queuePosition is an upper bound of how many images go first.
	// +optional
	QueuePosition *int32 `json:"queuePosition,omitempty"`
}

// VirtualMachineStatus is what the agent knows about the VM.
type VirtualMachineStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before
	// the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase MachinePhase `json:"phase,omitempty"`
	// reason for the phase, from a closed set.
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// message explains the reason and says what to do, if anything.
	// +optional
	Message string `json:"message,omitempty"`
	// image of the spec, as last observed.
	// +optional
	Image *MachineImage `json:"image,omitempty"`
	// pinned is what the root disk is cloned from.
	// +optional
	Pinned *PinnedImage `json:"pinned,omitempty"`
	// rootDisk of the VM.
	// +optional
	RootDisk *DiskVolume `json:"rootDisk,omitempty"`
	// disks beside the root disk, those of spec.disks first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Disks []DataDisk `json:"disks,omitempty"`
	// printableStatus of the KubeVirt VirtualMachine, which has the same name.
	// +optional
	PrintableStatus string `json:"printableStatus,omitempty"`
	// runStrategy that the KubeVirt VirtualMachine last had. If it is created again, it
	// gets this one unless the spec sets another.
	// +optional
	RunStrategy RunStrategy `json:"runStrategy,omitempty"`
	// conditions; exactly one of Ready, Reconciling and Stalled is True while the object is
	// not being deleted.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VirtualMachine is a KubeVirt VirtualMachine with a managed disk image: the image is
// ready before the VM boots and is kept while the VM exists.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=otvm,categories=ot
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: KubeVirt makes labels and a host name of it"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.vmDiskImageRef.name`
// +kubebuilder:printcolumn:name="ImageProgress",type=string,JSONPath=`.status.image.progress`
// +kubebuilder:printcolumn:name="Machine",type=string,JSONPath=`.status.printableStatus`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=0
type VirtualMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec VirtualMachineSpec `json:"spec"`
	// +kubebuilder:default={"observedGeneration":-1}
	// +optional
	Status VirtualMachineStatus `json:"status,omitempty"`
}

// VirtualMachineList is a list of VirtualMachines.
//
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachine `json:"items"`
}
