package capacity

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Availability is what a cluster tells of the room that its storage has.
type Availability struct {
	// Capacities of the StorageClass that the image is to be stored in.
	Capacities []storagev1.CSIStorageCapacity
	// Quotas of the namespace that the image is in.
	Quotas []corev1.ResourceQuota
	// ScratchClass is the StorageClass that CDI makes scratch space in; empty where
	// that is not known.
	ScratchClass string
}

// FindShortage tells what keeps an image from being imported into a StorageClass for want
// of room; nil where it fits, or where nobody can tell. An empty class is not
// known. What CDI adds to a disk for a filesystem is not counted.
func FindShortage(img *v1alpha1.VMDiskImage, class string, room Availability) *image.Blocker {
	need := computeDemand(&img.Spec, class, room.ScratchClass)
	if b := findCapacityShortage(need, class, room.Capacities); b != nil {
		return b
	}
	quotas := slices.Clone(room.Quotas)
	slices.SortFunc(quotas, func(a, b corev1.ResourceQuota) int { return strings.Compare(a.Name, b.Name) })
	for i := range quotas {
		if b := findQuotaShortage(need, class, &quotas[i]); b != nil {
			return b
		}
	}
	return nil
}

// demand is what the import of an image takes, in bytes.
type demand struct {
	disk int64
	// scratch space stands beside the disk while it is imported, in a claim of its
	// own; 0 for none.
	scratch int64
	// together: scratch space is made in the StorageClass of the disk.
	scratchInSameClass bool
}

// computeDemand knows that CDI makes scratch space as large as the disk for every HTTP
// import (CDI 1.65).
func computeDemand(spec *v1alpha1.VMDiskImageSpec, class, scratchClass string) demand {
	n := demand{disk: spec.DiskSize.Value()}
	if spec.SourceType == v1alpha1.SourceHTTP {
		n.scratch = n.disk
		n.scratchInSameClass = scratchClass != "" && scratchClass == class
	}
	return n
}

func (n demand) countClaims() int64 {
	if n.scratch > 0 {
		return 2
	}
	return 1
}

// inStorageClass is how much of the StorageClass of the disk is taken.
func (n demand) inStorageClass() (bytes, claims int64) {
	if n.scratchInSameClass {
		return n.disk + n.scratch, n.countClaims()
	}
	return n.disk, 1
}

// findCapacityShortage looks for one segment of the topology that has room: the Pod
// that imports runs on one node, and needs disk and scratch space there.
func findCapacityShortage(n demand, class string, capacities []storagev1.CSIStorageCapacity) *image.Blocker {
	var told bool
	var volume, total int64
	for i := range capacities {
		c := &capacities[i]
		if c.StorageClassName != class || c.NodeTopology == nil { // one that no node reaches
			continue
		}
		largest, known := maxVolumeSize(c)
		if !known {
			return nil
		}
		all := int64(math.MaxInt64)
		if c.Capacity != nil {
			all = c.Capacity.Value()
		}
		bytes, _ := n.inStorageClass()
		if n.disk <= largest && bytes <= all {
			return nil
		}
		told = true
		volume = max(volume, largest)
		if n.disk <= largest {
			total = max(total, all)
		}
	}
	switch {
	case !told:
		return nil
	case n.disk > volume:
		return newShortage("needs a volume of %s, and the largest that StorageClass %s has room for is %s: give it more storage, delete what nobody needs, or choose another spec.storageClass",
			formatSize(n.disk), class, formatSize(volume))
	default:
		return newShortage("needs %s and as much scratch space while it is imported, and StorageClass %s has room for %s in one place at the most: give it more storage, delete what nobody needs, or choose another spec.storageClass",
			formatSize(n.disk), class, formatSize(total))
	}
}

// maxVolumeSize is how large a volume may be; what a driver tells of volumes
// counts before what it tells of all of its storage.
func maxVolumeSize(c *storagev1.CSIStorageCapacity) (bytes int64, known bool) {
	switch {
	case c.MaximumVolumeSize != nil:
		return c.MaximumVolumeSize.Value(), true
	case c.Capacity != nil:
		return c.Capacity.Value(), true
	default:
		return 0, false
	}
}

// classQuotaInfix is what a quota counts of one StorageClass.
const classQuotaInfix = ".storageclass.storage.k8s.io/"

// findQuotaShortage goes by what is enforced, which is what the status of a quota says.
// A quota with scopes is left alone: whether claims fall under it is told by more
// than the claims.
func findQuotaShortage(n demand, class string, quota *corev1.ResourceQuota) *image.Blocker {
	if len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
		return nil
	}
	bytes, claims := n.inStorageClass()
	for _, limit := range []struct {
		name  corev1.ResourceName
		needs int64
		show  func(int64) string
	}{
		{corev1.ResourceRequestsStorage, n.disk + n.scratch, formatSize},
		{corev1.ResourceName(class + classQuotaInfix + string(corev1.ResourceRequestsStorage)), bytes, formatSize},
		{corev1.ResourcePersistentVolumeClaims, n.countClaims(), formatCount},
		{corev1.ResourceName(class + classQuotaInfix + string(corev1.ResourcePersistentVolumeClaims)), claims, formatCount},
	} {
		hard, limited := quota.Status.Hard[limit.name]
		if !limited {
			continue
		}
		used := quota.Status.Used[limit.name]
		if left := remainingQuota(hard, used); limit.needs > left {
			return newShortage("needs %s of %s%s, and ResourceQuota %s/%s has %s left of %s: raise it, or delete what nobody needs in the namespace",
				limit.show(limit.needs), limit.name, n.scratchSuffix(), quota.Namespace, quota.Name, limit.show(left), limit.show(hard.Value()))
		}
	}
	return nil
}

func remainingQuota(hard, used resource.Quantity) int64 {
	hard.Sub(used)
	return max(0, hard.Value())
}

func (n demand) scratchSuffix() string {
	if n.scratch == 0 {
		return ""
	}
	return ", with the scratch space of its import"
}

func newShortage(format string, args ...any) *image.Blocker {
	return &image.Blocker{Reason: v1alpha1.ReasonInsufficientStorage, Message: fmt.Sprintf(format, args...)}
}

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }

// formatSize is rounded down to a tenth of its unit: storage that fills up changes by
// the byte, and each change of a message is a write.
func formatSize(bytes int64) string {
	for _, unit := range []struct {
		name  string
		bytes int64
	}{{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}} {
		if bytes >= unit.bytes {
			return strconv.FormatFloat(math.Floor(float64(bytes)/float64(unit.bytes)*10)/10, 'f', -1, 64) + unit.name
		}
	}
	return formatCount(bytes)
}
