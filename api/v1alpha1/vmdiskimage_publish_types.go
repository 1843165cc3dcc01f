package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MaxPublications is how many Publications an image can have at a time.
const MaxPublications = 16

// Publication is storage of an image that a CDI DataSource points at, or has pointed at. Whoever
// clones finds the storage by the DataSource at one moment and clones later, so the storage stays
// until no clone in flight can have found it.
//
// Invariant: it is stored before the DataSource is changed to point at the storage, and until is
// set only after a live read has shown that it no longer does.
type Publication struct {
	// dataSource is the name of the DataSource, in the image's namespace.
	// +kubebuilder:validation:MaxLength=253
	// +required
	DataSource string `json:"dataSource"`
	// attempt whose storage it is.
	// +required
	Attempt int32 `json:"attempt"`
	// persistentVolumeClaim of the attempt.
	// +kubebuilder:validation:MaxLength=253
	// +required
	PersistentVolumeClaim string `json:"persistentVolumeClaim"`
	// volumeSnapshot that the DataSource points at; if absent, it points at the claim.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	VolumeSnapshot string `json:"volumeSnapshot,omitempty"`
	// resourceVersion of the DataSource that was, or is yet to be, changed to point at the
	// storage. A change of another one is refused.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// since is when the agent began to publish the storage.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// until is when the DataSource was seen to point elsewhere, or not to exist, by the API
	// server's clock. Default: it points there.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}

// Conditions of a VMDiskImage that is to be published.
const (
	// ConditionPublished: a CDI DataSource points at what serves.
	ConditionPublished = "Published"
)

// Reasons of condition Published of a VMDiskImage.
const (
	// ReasonPublished: the DataSource points at what serves.
	ReasonPublished Reason = "Published"
	// ReasonPublishing: the DataSource is being created, changed or removed.
	ReasonPublishing Reason = "Publishing"
	// ReasonNothingToPublish: nothing serves, or the image is being deleted, so there is no
	// DataSource.
	ReasonNothingToPublish Reason = "NothingToPublish"
	// ReasonDataSourceForeign: somebody else made a DataSource of that name.
	ReasonDataSourceForeign Reason = "DataSourceForeign"
	// ReasonOtherImagePublished: another image is published under that name.
	ReasonOtherImagePublished Reason = "OtherImagePublished"
	// ReasonDataSourcesNotServed: the cluster does not serve CDI's DataSources.
	ReasonDataSourcesNotServed Reason = "DataSourcesNotServed"
	// ReasonDataSourceRefused: the API server refuses to read, create, change or delete the
	// DataSource.
	ReasonDataSourceRefused Reason = "DataSourceRefused"
	// ReasonTooManyPublications: clones hold so much earlier storage that nothing else is published.
	ReasonTooManyPublications Reason = "TooManyPublications"
)
