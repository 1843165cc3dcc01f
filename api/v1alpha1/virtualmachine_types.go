package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// ImageMode says what is done where the image of a VirtualMachine is not there.
//
// +kubebuilder:validation:Enum=CreateIfNotExist;FailIfNotExist
type ImageMode string

// Image modes.
const (
	// ImageModeCreate makes the image from spec.vmDiskImageTemplate.
	ImageModeCreate ImageMode = "CreateIfNotExist"
	// ImageModeFail waits in phase Failed until somebody else makes the image.
	ImageModeFail ImageMode = "FailIfNotExist"
)

// RunStrategy is KubeVirt's: whether and when an instance runs.
//
// +kubebuilder:validation:Enum=Always;RerunOnFailure;Manual;Halted;Once
type RunStrategy string

// VirtualMachineSpec says which machine a workspace is to have. The agent never
// changes it: where it has to do something else than the letter of it, condition
// SpecAdjusted says so.
//
// +kubebuilder:validation:XValidation:rule="has(self.instancetype) || (has(self.resources) && has(self.resources.memory))",message="resources.memory is required where no instancetype is named"
// +kubebuilder:validation:XValidation:rule="!has(self.instancetype) || !has(self.resources) || (!has(self.resources.cpu) && !has(self.resources.memory))",message="instancetype excludes resources.cpu and resources.memory: KubeVirt takes both from the instancetype"
// +kubebuilder:validation:XValidation:rule="!has(self.imageMode) || self.imageMode != 'CreateIfNotExist' || has(self.vmDiskImageTemplate)",message="imageMode CreateIfNotExist needs a vmDiskImageTemplate to create the image from"
type VirtualMachineSpec struct {
	// baseVm is carried as label pelotech.ot/base-vm. (Assumption on an open point
	// of the proposal: it selects nothing.)
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="baseVm becomes a label: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	BaseVM string `json:"baseVm,omitempty"`
	// baseVmVersion is carried as label pelotech.ot/base-vm-version.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="baseVmVersion becomes a label: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	BaseVMVersion string `json:"baseVmVersion,omitempty"`
	// version is carried as label pelotech.ot/version.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",message="version becomes a label: up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Version string `json:"version,omitempty"`

	// ignoreOnDeploy makes the image ready and creates no KubeVirt VirtualMachine
	// until it is false. One that is there already is left alone. (Assumption on
	// an open point of the proposal.)
	// +optional
	IgnoreOnDeploy bool `json:"ignoreOnDeploy,omitempty"`

	// name is the host name inside the guest. Default: metadata.name.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`

	// users that cloud-init makes at the first boot. Those listed are all there
	// are; one named default is the image's own.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(u, self.exists_one(o, o.name == u.name))",message="two users have the same name"
	// +listType=atomic
	// +optional
	Users []User `json:"users,omitempty"`

	// resources of the machine.
	// +optional
	Resources *MachineResources `json:"resources,omitempty"`

	// instancetype is passed to KubeVirt; it excludes resources.cpu and
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

	// vmDiskImageRef names the image that the root disk is cloned from. Another
	// image is taken up only while the root disk is not there yet: what a guest has
	// written is never thrown away.
	// +required
	VMDiskImageRef ImageReference `json:"vmDiskImageRef"`

	// vmDiskImageTemplate is what the image is made from where it is not there and
	// the machine has no root disk yet. An image that is there wins, and condition
	// ImageDiffers says where it differs.
	// +optional
	VMDiskImageTemplate *VMDiskImageSpec `json:"vmDiskImageTemplate,omitempty"`

	// imageMode says what is done where the image is not there. Default:
	// CreateIfNotExist where there is a template, else FailIfNotExist.
	// +optional
	ImageMode ImageMode `json:"imageMode,omitempty"`

	// runStrategy is KubeVirt's. Unset, the machine is created with Always, and
	// from then on its run strategy is left to virtctl and others.
	// +optional
	RunStrategy RunStrategy `json:"runStrategy,omitempty"`

	// cloudInit is what the guest is told beside name, users and interfaces.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`

	// overlay is merged over spec of the KubeVirt VirtualMachine, for what this
	// kind has no field for: objects are merged by key, lists whose items have a
	// name by that name, other lists are replaced, null removes. Disks and volumes
	// are named root and cloudinit, interfaces and networks net0, net1 and so on,
	// the one of the Pod network default. runStrategy,
	// running, instancetype, preference and dataVolumeTemplates are refused. Who
	// sets it must be allowed to create KubeVirt VirtualMachines.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Overlay *runtime.RawExtension `json:"overlay,omitempty"`
}

// User of the guest, in the words of cloud-init.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.plain_text_passwd) && has(self.passwordSecretRef))",message="plain_text_passwd and passwordSecretRef exclude each other: prefer passwordSecretRef"
type User struct {
	// name of the user. What is no valid Linux name is made one, and condition
	// SpecAdjusted says which.
	// +kubebuilder:validation:XValidation:rule="size(self) >= 1",message="name must not be empty"
	// +kubebuilder:validation:MaxLength=128
	// +required
	Name string `json:"name"`
	// passwordSecretRef names a key of a Secret in the machine's namespace with
	// the password, in clear or as crypt(3) makes it.
	// +optional
	PasswordSecretRef *SecretKey `json:"passwordSecretRef,omitempty"`
	// plain_text_passwd is a password that everybody can read who can read the
	// VirtualMachine: prefer passwordSecretRef.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	PlainTextPasswd string `json:"plain_text_passwd,omitempty"`
	// lock_passwd forbids to log in with a password. Default: true without a
	// password, false with one.
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
	// groups, with commas between them.
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
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// key in the Secret's data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Key string `json:"key"`
}

// MachineResources of a VirtualMachine.
type MachineResources struct {
	// cpu is the number of cores, a whole number. Default: 1.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self)) && quantity(string(self)).isInteger() && quantity(string(self)).asInteger() >= 1 && quantity(string(self)).asInteger() <= 512",message="cpu must be a whole number from 1 to 512"
	// +optional
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// memory of the guest, from 1Mi to 64Ti.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self))",message="memory must be a quantity such as 2Gi (units are Mi, Gi and Ti; GB or GiB are none)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || (!quantity(string(self)).isLessThan(quantity('1Mi')) && !quantity(string(self)).isGreaterThan(quantity('64Ti')))",message="memory must be from 1Mi to 64Ti: is the unit missing, as in 2Gi?"
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// diskSize of the root disk, from 1Mi to 64Ti. One that is smaller than the
	// image is grown to it. Default: the size of the image.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="isQuantity(string(self))",message="diskSize must be a quantity such as 24Gi (units are Mi, Gi and Ti; GB or GiB are none)"
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || (!quantity(string(self)).isLessThan(quantity('1Mi')) && !quantity(string(self)).isGreaterThan(quantity('64Ti')))",message="diskSize must be from 1Mi to 64Ti: is the unit missing, as in 24Gi?"
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
}

// Matcher names an instancetype or a preference, as KubeVirt does.
type Matcher struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// kind, such as VirtualMachineInstancetype. Default: KubeVirt's, the one of
	// the whole cluster.
	// +kubebuilder:validation:Enum=VirtualMachineInstancetype;VirtualMachineClusterInstancetype;VirtualMachinePreference;VirtualMachineClusterPreference
	// +optional
	Kind string `json:"kind,omitempty"`
}

// Interface of a machine.
type Interface struct {
	// network is a NetworkAttachmentDefinition in the machine's namespace, or
	// namespace/name of another one.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$')",message="network must be the name of a NetworkAttachmentDefinition, or namespace/name"
	// +kubebuilder:validation:MaxLength=317
	// +required
	Network string `json:"network"`
	// ipAddress with the length of its prefix, as in 10.10.0.161/24. Without one
	// the guest asks by DHCP.
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="ipAddress must be an address with the length of its prefix, as in 10.10.0.161/24"
	// +kubebuilder:validation:MaxLength=64
	// +optional
	IPAddress string `json:"ipAddress,omitempty"`
	// gateway is where the interface's default route leads.
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="gateway must be an address, as in 10.10.0.1"
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// nameservers to ask over the interface.
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.all(n, isIP(n))",message="nameservers must be addresses, as in 10.10.0.53"
	// +listType=atomic
	// +optional
	Nameservers []string `json:"nameservers,omitempty"`
	// macAddress. Default: one that depends on the cluster, the machine's name and
	// the place in this list only, so that it stays when the machine is made again.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5}$')",message="macAddress must be six bytes with colons, as in 02:00:00:12:34:56, and no multicast address"
	// +kubebuilder:validation:MaxLength=17
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
}

// ImageReference names a ImageNameForVersion.
type ImageReference struct {
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be that of a ImageNameForVersion: up to 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=253
	// +required
	Name string `json:"name"`
	// namespace of the image. Default: that of the machine.
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="namespace must be that of a ImageNameForVersion: up to 63 lower case letters, digits and '-', with a letter or digit at both ends"
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// CloudInit is what a guest is told beside what the VirtualMachine says of name,
// users and interfaces.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.userData) && has(self.userDataSecretRef))",message="userData and userDataSecretRef exclude each other"
type CloudInit struct {
	// userData is a part of cloud-init's user data in any form that it knows:
	// #cloud-config, a script, and so on. What both this and the agent's own part
	// set is as here; lists are joined, the agent's first.
	// +kubebuilder:validation:MaxLength=524288
	// +optional
	UserData string `json:"userData,omitempty"`
	// userDataSecretRef names a key of a Secret in the machine's namespace with
	// the same.
	// +optional
	UserDataSecretRef *SecretKey `json:"userDataSecretRef,omitempty"`
}

// MachinePhase is where a VirtualMachine is in its life.
//
// +kubebuilder:validation:Enum=Provisioning;Ready;Failed
type MachinePhase string

// Phases of a VirtualMachine.
const (
	// MachineProvisioning: something is being made, or waited for.
	MachineProvisioning MachinePhase = "Provisioning"
	// MachineReady: the KubeVirt VirtualMachine is there and runs, or is stopped on
	// purpose; with ignoreOnDeploy, the image is ready.
	MachineReady MachinePhase = "Ready"
	// MachineFailed: a person has to do something. It is left when the cause goes.
	MachineFailed MachinePhase = "Failed"
)

// MachineImage is the image of a machine as it was last seen.
type MachineImage struct {
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// +optional
	Progress string `json:"progress,omitempty"`
	// queuePosition is at most how many images go first.
	// +optional
	QueuePosition *int32 `json:"queuePosition,omitempty"`
}

// PinnedImage is what the root disk is, or is to be, cloned from. It is stored
// before the image is looked at once more, so that whoever deletes the image or
// a revision of it sees it: an image, revision and snapshot that are pinned stay
// while the VirtualMachine exists.
type PinnedImage struct {
	ImageKey `json:",inline"`
	// +kubebuilder:validation:MaxLength=16
	// +required
	Revision string `json:"revision"`
	// +required
	Attempt int32 `json:"attempt"`
	// +required
	PersistentVolumeClaim string `json:"persistentVolumeClaim"`
	// volumeSnapshot, where the image has one, is what is cloned.
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// diskSize and restoreSize are those of the image's status.serving.
	// +optional
	DiskSize *resource.Quantity `json:"diskSize,omitempty"`
	// +optional
	RestoreSize *resource.Quantity `json:"restoreSize,omitempty"`
	// acquiredAt is when the image was seen, read live after the pin had been
	// stored, to serve what is pinned. Nothing is cloned before.
	// +optional
	AcquiredAt *metav1.Time `json:"acquiredAt,omitempty"`
}

// RootDisk of a machine.
type RootDisk struct {
	// dataVolume and its PersistentVolumeClaim have this name.
	// +required
	DataVolume string `json:"dataVolume"`
	// size as the guest sees it; the volume can be larger.
	// +required
	Size resource.Quantity `json:"size"`
	// progress of the clone, as CDI tells it.
	// +optional
	Progress string `json:"progress,omitempty"`
	// ready: it has been cloned.
	// +optional
	Ready bool `json:"ready,omitempty"`
}

// VirtualMachineStatus is what the agent knows of the machine.
type VirtualMachineStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	Phase MachinePhase `json:"phase,omitempty"`
	// reason says why it is in this phase, from a closed set.
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// message says the same in words, and what to do where something is to be done.
	// +optional
	Message string `json:"message,omitempty"`
	// image that the spec names, as it was last seen.
	// +optional
	Image *MachineImage `json:"image,omitempty"`
	// pinned is what the root disk is cloned from.
	// +optional
	Pinned *PinnedImage `json:"pinned,omitempty"`
	// rootDisk of the machine.
	// +optional
	RootDisk *RootDisk `json:"rootDisk,omitempty"`
	// printableStatus of the KubeVirt VirtualMachine, which has the name of this one.
	// +optional
	PrintableStatus string `json:"printableStatus,omitempty"`
	// runStrategy that the KubeVirt VirtualMachine was last seen with. It is made
	// again with this one where the spec names none.
	// +optional
	RunStrategy RunStrategy `json:"runStrategy,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VirtualMachine is a KubeVirt VirtualMachine whose disk image is made sure of:
// it is there before the machine boots, and stays while the machine exists.
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

// ImageNamespacedName is the image that the machine names.
func (vm *VirtualMachine) ImageNamespacedName() types.NamespacedName {
	name := types.NamespacedName{Namespace: vm.Spec.VMDiskImageRef.Namespace, Name: vm.Spec.VMDiskImageRef.Name}
	if name.Namespace == "" {
		name.Namespace = vm.Namespace
	}
	return name
}
