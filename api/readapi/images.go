package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What an ImageList is sorted by.
const (
	// ImagesBySource: by source, the default.
	ImagesBySource = "source"
	// ImagesByMembers: those that the most members have last.
	ImagesByMembers = "members"
	// ImagesByBytes: those that take the most storage last.
	ImagesByBytes = "bytes"
	// ImagesByReferences: those that the most machines need last.
	ImagesByReferences = "references"
	// ImagesByUnreferenced: those that no machine has needed for longest first.
	ImagesByUnreferenced = "unreferenced"
)

// ImageOrders lists what an ImageList can be sorted by, the default first.
func ImageOrders() []string {
	return []string{ImagesBySource, ImagesByMembers, ImagesByBytes, ImagesByReferences, ImagesByUnreferenced}
}

// ImageList is a page of the distinct images. Next is the after of the next page, by source;
// empty at the end, and in another order. UnknownMembers may have any of the images.
type ImageList struct {
	Images []Image `json:"images"`
	Next   string  `json:"next,omitempty"`
	// Total is how many match.
	Total          int             `json:"total"`
	UnknownMembers []UnknownMember `json:"unknownMembers,omitempty"`
}

// Image is one distinct image over all members.
type Image struct {
	// Source that the image is downloaded from.
	Source string `json:"source"`
	// Members is the number of members that are known to have it or to plan it.
	Members int `json:"members"`
	// Unknown is the number of unknown members; each may have and reference it.
	Unknown int `json:"unknown"`
	Counts
	// UnreferencedSince is when the last VirtualMachine of the known members stopped
	// using it. It is absent while one uses it, and if a member does not know the time.
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
}

// ImageDetail is one distinct image by member.
type ImageDetail struct {
	Image
	// PerMember lists the members that are known to have it, by name.
	PerMember []ImageInMember `json:"in"`
	// UnknownMembers may have it, by name.
	UnknownMembers []UnknownMember `json:"unknownMembers,omitempty"`
}

// ImageInMember is what one member has of an image.
type ImageInMember struct {
	Member  string `json:"member"`
	Unknown string `json:"unknown,omitempty"`
	Counts
	UnreferencedSince *metav1.Time `json:"unreferencedSince,omitempty"`
	// Entries are the VMDiskImages, by namespace and name.
	Entries []ImageEntry `json:"entries"`
}

// ImageEntry is one VMDiskImage of a member. Without a phase it is planned and absent.
type ImageEntry struct {
	Namespace         string          `json:"namespace"`
	Name              string          `json:"name"`
	Phase             v1alpha1.Phase  `json:"phase,omitempty"`
	Reason            v1alpha1.Reason `json:"reason,omitempty"`
	References        int32           `json:"references"`
	UnreferencedSince *metav1.Time    `json:"unreferencedSince,omitempty"`
	Bytes             int64           `json:"bytes"`
}

// Counts sums up images.
type Counts struct {
	// Images that exist; an image under two names counts twice.
	Images int `json:"images"`
	// Absent images are planned and do not exist.
	Absent int `json:"absent,omitempty"`
	// Phases with at least one image.
	Phases map[v1alpha1.Phase]int `json:"phases,omitempty"`
	// References is the number of VirtualMachines that use the images, Unreferenced the
	// number of images that none uses.
	References   int64 `json:"references"`
	Unreferenced int   `json:"unreferenced"`
	// Bytes of provisioned storage.
	Bytes int64 `json:"bytes"`
}

// ImageState is how an image is in a cluster, as the cells of a Matrix have it.
type ImageState string

// States of an image in a cluster.
const (
	ImageUnknown   ImageState = "Unknown"
	ImageAbsent    ImageState = "Absent"
	ImagePlanned   ImageState = "Planned"
	ImageQueued    ImageState = "Queued"
	ImageImporting ImageState = "Importing"
	ImageReady     ImageState = "Ready"
	ImageFailed    ImageState = "Failed"
	ImageLeaving   ImageState = "Leaving"
	ImageOther     ImageState = "Other"
)

// ImageStates lists all states, by the Cell that has them.
func ImageStates() []ImageState {
	return []ImageState{ImageUnknown, ImageAbsent, ImagePlanned, ImageQueued, ImageImporting, ImageReady, ImageFailed, ImageLeaving, ImageOther}
}

// ImageState returns the state of a cell in a word.
func (c Cell) ImageState() ImageState {
	if states := ImageStates(); int(c.State()) < len(states) {
		return states[c.State()]
	}
	return ImageOther
}

// FleetImageList is a page of FleetDiskImages with their versions, by name.
type FleetImageList struct {
	Images []FleetImage `json:"images"`
	// Total is how many match, Clusters how many the fleet has, and UnknownClusters how many
	// of these may have more than is known.
	Total           int `json:"total"`
	Clusters        int `json:"clusters"`
	UnknownClusters int `json:"unknownClusters,omitempty"`
}

// FleetImage is a FleetDiskImage with its versions, the current one first.
type FleetImage struct {
	Name     string         `json:"name"`
	Versions []ImageVersion `json:"versions"`
	// KeepVersions is how many of them are kept, whether machines need them or not.
	KeepVersions int32 `json:"keepVersions"`
	// KeepUnreferencedFor is when the others go, as in 168h0m0s; absent: they do not go by
	// themselves.
	KeepUnreferencedFor string `json:"keepUnreferencedFor,omitempty"`
}

// ImageVersion is a version of a FleetDiskImage over all clusters.
type ImageVersion struct {
	Version   string       `json:"version"`
	Current   bool         `json:"current,omitempty"`
	Namespace string       `json:"namespace"`
	Image     string       `json:"image"`
	Since     *metav1.Time `json:"since,omitempty"`
	// Source and DiskBytes are absent where they are not recorded.
	Source    string `json:"source,omitempty"`
	DiskBytes int64  `json:"diskBytes,omitempty"`
	// States counts the clusters by what they have of it. It adds up to all clusters.
	States map[ImageState]int `json:"states"`
	// Referenced clusters have machines that need it. Unreferenced ones have it ready, and no
	// machine needs it. Stale ones may have changed since.
	Referenced   int `json:"referenced"`
	Unreferenced int `json:"unreferenced"`
	Stale        int `json:"stale,omitempty"`
	// Kept: it is one of the versions that are kept.
	Kept bool `json:"kept,omitempty"`
}

// ImageClusters is a page of the clusters that have, or are to have, a version of a
// FleetDiskImage, by name.
type ImageClusters struct {
	Clusters []ImageCluster `json:"clusters"`
	Total    int            `json:"total"`
}

// ImageCluster is what one cluster has of a FleetDiskImage.
type ImageCluster struct {
	Cluster string `json:"cluster"`
	// Unknown is why it may have more than is known.
	Unknown string `json:"unknown,omitempty"`
	// Versions that it has, or is to have, the newest first.
	Versions []VersionInCluster `json:"versions"`
	// Effective is what it is to have of the current version; absent where the placement does
	// not select it.
	Effective *EffectiveImage `json:"effective,omitempty"`
}

// EffectiveImage is the template of a FleetDiskImage with the overrides of one cluster.
type EffectiveImage struct {
	// Source without credentials.
	Source string `json:"source,omitempty"`
	// Revision of it, and Digest as approvals name it.
	Revision string `json:"revision"`
	Digest   string `json:"digest"`
	// Fields that are set, or removed by an override, by name.
	Fields []EffectiveField `json:"fields"`
	// Waits is why the cluster cannot begin, and what to do; absent where it can. MissingLabels
	// are those that an override's url names.
	Waits         string   `json:"waits,omitempty"`
	MissingLabels []string `json:"missingLabels,omitempty"`
}

// EffectiveField is a field, and where it comes from.
type EffectiveField struct {
	Field string `json:"field"`
	// Value without credentials; absent where an override removes the template's.
	Value string `json:"value,omitempty"`
	// From is template, or an override as in overrides[2].
	From string `json:"from"`
}

// FromTemplate is where a field comes from that no override changes.
const FromTemplate = "template"

// VersionInCluster is a version of a FleetDiskImage in a cluster. What follows Stale is absent
// where the cluster has not reported it.
type VersionInCluster struct {
	Version string     `json:"version"`
	State   ImageState `json:"state"`
	Stale   bool       `json:"stale,omitempty"`
	// Reported is what the cluster has said of it.
	Reported *v1alpha1.ReportedImage `json:"reported,omitempty"`
}
