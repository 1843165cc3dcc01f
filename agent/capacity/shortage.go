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
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Availability is what a cluster publishes about its free storage.
type Availability struct {
	// Capacities of the image's StorageClass.
	Capacities []storagev1.CSIStorageCapacity
	// Quotas of the image's namespace.
	Quotas []corev1.ResourceQuota
	// ScratchClass is the StorageClass of CDI's scratch space; empty for unknown.
	ScratchClass string
	// UsesPopulator: CDI fills a claim of its own, prime-…, which becomes the volume of the
	// image's claim. Both exist during the import, with one volume.
	UsesPopulator bool
	// Profile is CDI's StorageProfile of the image's StorageClass; nil for unknown.
	Profile *cdiv1.StorageProfile
	// LimitRanges of the image's namespace.
	LimitRanges []corev1.LimitRange
	// FilesystemOverhead is the share that CDI adds to the disk in a file system.
	FilesystemOverhead float64
}

// FindBlocker returns why an image cannot be stored in a StorageClass; nil where it can
// or that is unknown. An empty class is unknown. CDI's filesystem overhead is counted
// against LimitRanges only.
func FindBlocker(img *v1alpha1.VMDiskImage, class string, available Availability) *image.Blocker {
	claim := ClaimRequest{Class: class, Bytes: img.Spec.DiskSize.Value(), ClassField: "spec.storageClass", SizeField: "spec.diskSize"}
	if blocker := FindClaimBlocker(claim, available); blocker != nil {
		return blocker
	}
	need := computeDemand(&img.Spec, class, available)
	if shortage := findCapacityShortage(need, class, available.Capacities); shortage != nil {
		return shortage
	}
	quotas := slices.Clone(available.Quotas)
	slices.SortFunc(quotas, func(a, b corev1.ResourceQuota) int { return strings.Compare(a.Name, b.Name) })
	for i := range quotas {
		if shortage := findQuotaShortage(need, class, &quotas[i]); shortage != nil {
			return shortage
		}
	}
	return nil
}

// demand is the storage that an import needs, in bytes.
type demand struct {
	disk int64
	// scratch space exists beside the disk during the import, in a claim of its own;
	// 0 for none.
	scratch int64
	// scratchInSameClass: disk and scratch space have the same StorageClass.
	scratchInSameClass bool
	// populated: for quotas, the disk has another claim of its size meanwhile.
	populated bool
}

// computeDemand relies on CDI 1.65: each HTTP import, and each from a registry whose image no node
// pulls, has scratch space as large as the disk (requiresScratchSpace). Those from S3 and GCS have it
// for some formats, which is unknown before the import.
func computeDemand(spec *v1alpha1.VMDiskImageSpec, class string, available Availability) demand {
	need, scratchClass := demand{disk: max(spec.DiskSize.Value(), minimumClaimSize(available.Profile)), populated: available.UsesPopulator}, available.ScratchClass
	if spec.SourceType == v1alpha1.SourceHTTP || spec.SourceType == v1alpha1.SourceRegistry && spec.PullMethod != v1alpha1.PullNode {
		need.scratch = need.disk
		need.scratchInSameClass = scratchClass != "" && scratchClass == class
	}
	return need
}

// volumeBytes is the size of the volumes in the StorageClass of the disk.
func (n demand) volumeBytes() int64 {
	if n.scratchInSameClass {
		return n.disk + n.scratch
	}
	return n.disk
}

// diskClaims are the claims of the disk, which all have its StorageClass.
func (n demand) diskClaims() (bytes, claims int64) {
	if n.populated {
		return 2 * n.disk, 2
	}
	return n.disk, 1
}

// allClaims are the claims of disk and scratch space.
func (n demand) allClaims() (bytes, claims int64) {
	bytes, claims = n.diskClaims()
	if n.scratch > 0 {
		return bytes + n.scratch, claims + 1
	}
	return bytes, claims
}

// claimsInStorageClass are the claims in the StorageClass of the disk.
func (n demand) claimsInStorageClass() (bytes, claims int64) {
	if n.scratchInSameClass {
		return n.allClaims()
	}
	return n.diskClaims()
}

// findCapacityShortage looks for one topology segment with enough capacity: the
// importer Pod runs on one node, and needs disk and scratch space there.
func findCapacityShortage(need demand, class string, capacities []storagev1.CSIStorageCapacity) *image.Blocker {
	var known bool
	var largestVolume, largestTotal int64
	for i := range capacities {
		c := &capacities[i]
		if c.StorageClassName != class || c.NodeTopology == nil { // without a topology no node reaches it
			continue
		}
		volume, published := maxVolumeSize(c)
		if !published {
			return nil
		}
		total := int64(math.MaxInt64)
		if c.Capacity != nil {
			total = c.Capacity.Value()
		}
		if need.disk <= volume && need.volumeBytes() <= total {
			return nil
		}
		known = true
		largestVolume = max(largestVolume, volume)
		if need.disk <= volume {
			largestTotal = max(largestTotal, total)
		}
	}
	switch {
	case !known:
		return nil
	case need.disk > largestVolume:
		return newShortage("needs a volume of %s, and the largest that StorageClass %s has room for is %s: add storage, delete unused volumes, or choose another spec.storageClass",
			formatSize(need.disk), class, formatSize(largestVolume))
	default:
		return newShortage("needs %s and as much scratch space while it is imported, and StorageClass %s has room for %s in one place at the most: add storage, delete unused volumes, or choose another spec.storageClass",
			formatSize(need.disk), class, formatSize(largestTotal))
	}
}

// maxVolumeSize is the size of the largest possible volume. A driver's
// maximumVolumeSize has precedence over its capacity.
func maxVolumeSize(c *storagev1.CSIStorageCapacity) (bytes int64, published bool) {
	switch {
	case c.MaximumVolumeSize != nil:
		return c.MaximumVolumeSize.Value(), true
	case c.Capacity != nil:
		return c.Capacity.Value(), true
	default:
		return 0, false
	}
}

// classQuotaInfix separates the StorageClass from the resource in a quota's key.
const classQuotaInfix = ".storageclass.storage.k8s.io/"

// findQuotaShortage checks a quota by its status, which is what is enforced. A
// quota with scopes is ignored: claims alone do not show whether it applies.
func findQuotaShortage(need demand, class string, quota *corev1.ResourceQuota) *image.Blocker {
	if len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
		return nil
	}
	bytes, claims := need.claimsInStorageClass()
	allBytes, allClaims := need.allClaims()
	for _, limit := range []struct {
		name   corev1.ResourceName
		needed int64
		format func(int64) string
	}{
		{corev1.ResourceRequestsStorage, allBytes, formatSize},
		{corev1.ResourceName(class + classQuotaInfix + string(corev1.ResourceRequestsStorage)), bytes, formatSize},
		{corev1.ResourcePersistentVolumeClaims, allClaims, formatCount},
		{corev1.ResourceName(class + classQuotaInfix + string(corev1.ResourcePersistentVolumeClaims)), claims, formatCount},
	} {
		hard, limited := quota.Status.Hard[limit.name]
		if !limited {
			continue
		}
		if left := remainingQuota(hard, quota.Status.Used[limit.name]); limit.needed > left {
			return newShortage("needs %s of %s%s, and ResourceQuota %s/%s has %s left of %s: raise it, or delete unused objects of the namespace",
				limit.format(limit.needed), limit.name, need.extraClaims(), quota.Namespace, quota.Name, limit.format(left), limit.format(hard.Value()))
		}
	}
	return nil
}

func remainingQuota(hard, used resource.Quantity) int64 {
	hard.Sub(used)
	return max(0, hard.Value())
}

// extraClaims says what is counted besides the disk.
func (n demand) extraClaims() string {
	switch {
	case n.scratch > 0 && n.populated:
		return ", with the scratch space of its import and a claim that CDI fills first"
	case n.scratch > 0:
		return ", with the scratch space of its import"
	case n.populated:
		return ", with a claim that CDI fills first"
	default:
		return ""
	}
}

func newShortage(format string, args ...any) *image.Blocker {
	return &image.Blocker{Reason: v1alpha1.ReasonInsufficientStorage, Message: fmt.Sprintf(format, args...)}
}

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }

// formatSize rounds down to a tenth of the unit: free storage changes by the byte,
// and each change of a message is a write.
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
