package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ActivityName is the name of the ClusterReport that has the activity of a member.
const ActivityName = "activity"

// Limits of the activity of a member.
const (
	// MaxActiveImports is how many running imports it lists.
	MaxActiveImports = 32
	// MaxQueuedImports is how many images of the queue it lists, from its head.
	MaxQueuedImports = 20
	// MaxSourceRates is how many groups of sources it lists: all of a policy, and SourceOther.
	MaxSourceRates = 17
	// MaxActivityBytes is the maximum size of an activity, as JSON. An agent cuts the lists;
	// the hub ignores a larger one.
	MaxActivityBytes = 6000
)

// Reasons why what a member imports is unknown, beside those of its report.
const (
	// ReasonActivityMissing: the member reports no activity, because its agent or a
	// definition of ClusterReports is of an older version.
	ReasonActivityMissing = "ActivityMissing"
	// ReasonActivityOversized: the activity is larger than an agent writes, and the hub
	// ignores it.
	ReasonActivityOversized = "ActivityOversized"
	// ReasonActivityOutdated: the report was written later than the activity or by another
	// process of the agent, or contradicts it.
	ReasonActivityOutdated = "ActivityOutdated"
)

// SourceOther is the group of the sources that no group of the policy has.
const SourceOther = "other"

// ActiveImport is an import that takes a slot. It is stored as one line, so that 32 of them
// are small; - stands for what is unknown. A type that embeds it would be a line, too:
// api/readapi has one with the same fields and no encoding of its own.
//
//	namespace/name source attempt/maxAttempts startedAt bytesDone/bytesTotal bytesPerSecond
//
// startedAt is in Unix seconds. Where bytesTotal is unknown, atMostBytes with the prefix max
// takes its place.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=512
type ActiveImport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// source is the group of its source in the policy, or other.
	Source string `json:"source,omitempty"`
	// bytesDone of the download, as far as the importer tells.
	BytesDone int64 `json:"bytesDone,omitempty"`
	// bytesTotal of the download; absent if unknown.
	BytesTotal int64 `json:"bytesTotal,omitempty"`
	// atMostBytes is diskSize where bytesTotal is unknown.
	AtMostBytes int64 `json:"atMostBytes,omitempty"`
	// bytesPerSecond is the rate of late, weighted towards the newest samples; absent if
	// unknown.
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
	// startedAt is when the attempt took its slot, by the member's clock.
	StartedAt metav1.Time `json:"startedAt"`
	// attempt is the number of the attempt, and maxAttempts how many there may be.
	Attempt     int32 `json:"attempt,omitempty"`
	MaxAttempts int32 `json:"maxAttempts,omitempty"`
}

// QueuedImport is an image that waits for a slot. It is stored as one line; - stands for
// what is unknown, and values that are 0 or absent are left out at the end:
//
//	namespace/name source queuedAt bytes reason priority=… attempts=… notBefore=…
//
// Times are in Unix seconds. Where bytes is unknown, atMostBytes with the prefix max takes its
// place.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:MaxLength=640
type QueuedImport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// source is the group of its source in the policy, or other.
	Source   string `json:"source,omitempty"`
	Priority int32  `json:"priority,omitempty"`
	// bytes of the download; absent if unknown.
	Bytes int64 `json:"bytes,omitempty"`
	// atMostBytes is diskSize where bytes is unknown.
	AtMostBytes int64 `json:"atMostBytes,omitempty"`
	// queuedAt is when it took its place.
	QueuedAt metav1.Time `json:"queuedAt"`
	// notBefore is when its next attempt may start, by the member's clock.
	NotBefore *metav1.Time `json:"notBefore,omitempty"`
	// opensAt is when the window of the policy opens that it waits for.
	OpensAt *metav1.Time `json:"opensAt,omitempty"`
	// reason why it waits, as in the image's status.
	Reason Reason `json:"reason,omitempty"`
	// attempts that were started.
	Attempts int32 `json:"attempts,omitempty"`
}

// SourceRate is how fast imports from one group of sources were of late in a member.
type SourceRate struct {
	// name of the group in the policy, or other.
	// +kubebuilder:validation:MaxLength=63
	// +required
	Name string `json:"name"`
	// p20, p50 and p80 are bytes per second of one import: a fifth were slower than p20,
	// half slower than p50, a fifth faster than p80.
	// +optional
	P20 int64 `json:"p20,omitempty"`
	// +optional
	P50 int64 `json:"p50,omitempty"`
	// +optional
	P80 int64 `json:"p80,omitempty"`
	// overheadSeconds is the median time of an import that is not its download: Pods that
	// start, conversions, snapshots.
	// +optional
	OverheadSeconds int64 `json:"overheadSeconds,omitempty"`
	// samples is how many imports the rates are of.
	// +optional
	Samples int32 `json:"samples,omitempty"`
	// since is when the oldest of them ended.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// transferredBytes were downloaded since the process with this activity's bootID
	// started. It only rises while bootID stays.
	// +optional
	TransferredBytes int64 `json:"transferredBytes,omitempty"`
}

// ReportedActivity is what a member imports, and what waits for a slot. Each process of the
// agent writes it once when it starts, and then at most once per heartbeat, and only while
// something is imported or waits; the last one written says that nothing does.
type ReportedActivity struct {
	// observedAt is when the agent observed this, by the member's clock.
	// +required
	ObservedAt metav1.Time `json:"observedAt"`
	// bootID identifies the agent process that wrote this.
	// +kubebuilder:validation:MaxLength=64
	// +required
	BootID string `json:"bootID"`
	// budget of the member, and slots that are taken.
	// +optional
	Budget int32 `json:"budget"`
	// +optional
	Slots int32 `json:"slots"`
	// active are the imports that take a slot, the one that will end first in front.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Active []ActiveImport `json:"active,omitempty"`
	// head of the queue, in the order in which slots are given.
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	// +optional
	Head []QueuedImport `json:"head,omitempty"`
	// queued is how many images wait for a slot, those behind the head included.
	// +optional
	Queued int32 `json:"queued"`
	// rates by group of sources.
	// +kubebuilder:validation:MaxItems=17
	// +listType=map
	// +listMapKey=name
	// +optional
	Rates []SourceRate `json:"rates,omitempty"`
}
