package readapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ImageList is a page of the distinct images, by source. Next is the after of the next
// page; empty at the end. UnknownMembers may have any of the images.
type ImageList struct {
	Images         []Image         `json:"images"`
	Next           string          `json:"next,omitempty"`
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
