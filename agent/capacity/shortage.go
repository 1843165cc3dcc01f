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
}

// computeDemand relies on CDI 1.65: each HTTP import, and each from a registry whose image no node
// pulls, has scratch space as large as the disk (requiresScratchSpace). Those from S3 and GCS have it
// for some formats, which is unknown before the import.
func computeDemand(spec *v1alpha1.VMDiskImageSpec, class string, available Availability) demand {
	need, scratchClass := demand{disk: max(spec.DiskSize.Value(), minimumClaimSize(available.Profile))}, available.ScratchClass
	if spec.SourceType == v1alpha1.SourceHTTP || spec.SourceType == v1alpha1.SourceRegistry && spec.PullMethod != v1alpha1.PullNode {
		need.scratch = need.disk
		need.scratchInSameClass = scratchClass != "" && scratchClass == class
	}
	return need
}

func (n demand) countClaims() int64 {
	if n.scratch > 0 {
		return 2
	}
	return 1
}

// inStorageClass is the part of the demand in the StorageClass of the disk.
func (n demand) inStorageClass() (bytes, claims int64) {
	if n.scratchInSameClass {
		return n.disk + n.scratch, n.countClaims()
	}
	return n.disk, 1
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
		bytes, _ := need.inStorageClass()
		if need.disk <= volume && bytes <= total {
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
	bytes, claims := need.inStorageClass()
	for _, limit := range []struct {
		name   corev1.ResourceName
		needed int64
		format func(int64) string
	}{
		{corev1.ResourceRequestsStorage, need.disk + need.scratch, formatSize},
		{corev1.ResourceName(class + classQuotaInfix + string(corev1.ResourceRequestsStorage)), bytes, formatSize},
		{corev1.ResourcePersistentVolumeClaims, need.countClaims(), formatCount},
		{corev1.ResourceName(class + classQuotaInfix + string(corev1.ResourcePersistentVolumeClaims)), claims, formatCount},
	} {
		hard, limited := quota.Status.Hard[limit.name]
		if !limited {
			continue
		}
		if left := remainingQuota(hard, quota.Status.Used[limit.name]); limit.needed > left {
			return newShortage("needs %s of %s%s, and ResourceQuota %s/%s has %s left of %s: raise it, or delete unused objects of the namespace",
				limit.format(limit.needed), limit.name, need.scratchSuffix(), quota.Namespace, quota.Name, limit.format(left), limit.format(hard.Value()))
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
