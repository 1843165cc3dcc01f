package capacity

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ClaimRequest is what a DataVolume requests of CDI.
type ClaimRequest struct {
	Class string
	// Bytes of the disk, to which CDI adds its overhead in a file system. With Exact, they are
	// those of the claim.
	Bytes int64
	Exact bool
	// ClassField and SizeField are the fields that its author can change.
	ClassField, SizeField string
}

// FindClaimBlocker returns why the claim of a DataVolume cannot be created. CDI 1.65 shows the
// first only once there is a DataVolume, and the second nowhere but in its log.
func FindClaimBlocker(request ClaimRequest, available Availability) *image.Blocker {
	if p := available.Profile; p != nil && (len(p.Status.ClaimPropertySets) == 0 || len(p.Status.ClaimPropertySets[0].AccessModes) == 0) {
		return &image.Blocker{Reason: v1alpha1.ReasonStorageProfileIncomplete, Message: fmt.Sprintf(
			"CDI has no access modes for StorageClass %s: set claimPropertySets (accessModes, volumeMode) in the spec of StorageProfile %s, or choose another %s", request.Class, p.Name, request.ClassField)}
	}
	size := request.claimSize(available)
	ranges := slices.SortedFunc(slices.Values(available.LimitRanges), func(a, b corev1.LimitRange) int { return cmp.Compare(a.Name, b.Name) })
	for i := range ranges {
		for _, limit := range ranges[i].Spec.Limits {
			if limit.Type != corev1.LimitTypePersistentVolumeClaim {
				continue
			}
			if most, limited := limit.Max[corev1.ResourceStorage]; limited && size > most.Value() {
				return newShortage("needs a PersistentVolumeClaim of %s, and LimitRange %s/%s allows %s at most: raise its max, or lower %s",
					formatSize(size), ranges[i].Namespace, ranges[i].Name, formatSize(most.Value()), request.SizeField)
			}
			if least, limited := limit.Min[corev1.ResourceStorage]; limited && size < least.Value() {
				return newShortage("needs a PersistentVolumeClaim of %s, and LimitRange %s/%s allows none below %s: lower its min, or raise %s",
					formatSize(size), ranges[i].Namespace, ranges[i].Name, formatSize(least.Value()), request.SizeField)
			}
		}
	}
	return nil
}

// blockAlignment is what CDI 1.65 rounds the size of a disk in a file system up to.
const blockAlignment = 1 << 20

// claimSize is what CDI 1.65 requests for a disk (GetRequiredSpace of pkg/util). Where the
// volume mode is unknown, it is the size of the disk.
func (r *ClaimRequest) claimSize(available Availability) int64 {
	p := available.Profile
	if p == nil || r.Exact {
		return r.Bytes
	}
	return max(r.inflatedSize(available), minimumClaimSize(p))
}

// inflatedSize is the size of a disk with CDI's overhead.
func (r *ClaimRequest) inflatedSize(available Availability) int64 {
	disk, p := r.Bytes, available.Profile
	if mode := p.Status.ClaimPropertySets[0].VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		return disk
	}
	aligned := (disk + blockAlignment - 1) / blockAlignment * blockAlignment
	return int64(math.Ceil(float64(aligned) * (1 + available.FilesystemOverhead)))
}

// annotationMinimumSize is the least size of a claim that the driver takes, on CDI's
// StorageProfile. CDI 1.65 sets it for drivers that it knows, and requests no less
// (GetEffectiveVolumeSize of pkg/controller/common).
const annotationMinimumSize = "cdi.kubevirt.io/minimumSupportedPvcSize"

// minimumClaimSize is 0 where nothing is known of a minimum.
func minimumClaimSize(p *cdiv1.StorageProfile) int64 {
	if p == nil {
		return 0
	}
	minimum, err := resource.ParseQuantity(p.Annotations[annotationMinimumSize])
	if err != nil {
		return 0
	}
	return minimum.Value()
}
