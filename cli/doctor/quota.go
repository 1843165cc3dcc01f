package doctor

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// importClaims is how many claims of the size of the disk one import has at a time: the disk,
// its scratch space, and on CSI storage the one that CDI fills first.
const importClaims = 3

// quotas judges ResourceQuotas without scopes in namespaces of images: claims alone do not
// show whether one with scopes applies.
func (e *examiner) quotas() {
	largest, waiting := map[string]*Image{}, map[string]*Image{}
	for i := range e.Images {
		img := &e.Images[i]
		if img.SourceType == v1alpha1.SourceBlank {
			continue // it is not downloaded
		}
		keepLargest(largest, img)
		if !img.Imported {
			keepLargest(waiting, img)
		}
	}
	if len(largest) == 0 {
		e.addSkip("there are no images that are downloaded")
		return
	}
	for _, namespace := range slices.Sorted(maps.Keys(largest)) {
		before := len(e.findings)
		count := 0
		for i := range e.Quotas {
			q := &e.Quotas[i]
			if q.Namespace == namespace && len(q.Spec.Scopes) == 0 && q.Spec.ScopeSelector == nil {
				count++
				e.judgeQuota(q, largest[namespace], waiting[namespace])
			}
		}
		switch subject := "Namespace " + namespace; {
		case len(e.findings) > before:
		case count == 0:
			e.addPass(subject, "no ResourceQuota limits its claims")
		default:
			e.addPass(subject, "%d × %s, the largest disk, fits", importClaims, largest[namespace].DiskSize.String())
		}
	}
}

func keepLargest(byNamespace map[string]*Image, img *Image) {
	if known := byNamespace[img.Namespace]; known == nil || known.DiskSize.Cmp(img.DiskSize) < 0 {
		byNamespace[img.Namespace] = img
	}
}

// judgeQuota adds the first limit of a quota that has no room; waiting is nil for none.
func (e *examiner) judgeQuota(q *corev1.ResourceQuota, largest, waiting *Image) {
	for _, limit := range e.limitsOf(largest) {
		hard, limited := q.Status.Hard[limit.name]
		if !limited {
			if hard, limited = q.Spec.Hard[limit.name]; !limited {
				continue
			}
		}
		left := hard.DeepCopy()
		left.Sub(q.Status.Used[limit.name])
		subject := fmt.Sprintf("ResourceQuota %s/%s", q.Namespace, q.Name)
		wanted := func(img *Image) string {
			return fmt.Sprintf("%s for importing %s: three claims of its size", limit.format(limit.need(img)), img.key())
		}
		switch {
		case waiting != nil && limit.need(waiting) > left.Value():
			e.addFail(subject, fmt.Sprintf("%s has %s left of %s", limit.name, limit.format(max(0, left.Value())), hard.String()), wanted(waiting), "")
			return
		case limit.need(largest) > hard.Value():
			e.addFail(subject, fmt.Sprintf("%s is %s", limit.name, hard.String()), wanted(largest), "")
			return
		case limit.need(largest) > left.Value():
			e.addWarn(subject, fmt.Sprintf("%s has %s left of %s: the next revision would wait", limit.name, limit.format(max(0, left.Value())), hard.String()), wanted(largest), "")
			return
		}
	}
}

// quotaLimit is one key of a quota.
type quotaLimit struct {
	name   corev1.ResourceName
	need   func(*Image) int64
	format func(int64) string
}

const classInfix = ".storageclass.storage.k8s.io/"

// limitsOf returns the keys that the claims of an image's StorageClass count against.
func (e *examiner) limitsOf(img *Image) []quotaLimit {
	bytes := func(img *Image) int64 {
		if size := img.DiskSize.Value(); size < math.MaxInt64/importClaims {
			return importClaims * size
		}
		return math.MaxInt64
	}
	claims := func(*Image) int64 { return importClaims }
	formatBytes := func(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
	formatCount := func(n int64) string { return strconv.FormatInt(n, 10) }
	limits := []quotaLimit{
		{corev1.ResourceRequestsStorage, bytes, formatBytes},
		{corev1.ResourcePersistentVolumeClaims, claims, formatCount},
	}
	scratch := ""
	if e.CDIConfig != nil {
		scratch = e.CDIConfig.ScratchClass
	}
	if class := e.classOf(img); class != "" && (scratch == "" || scratch == class) {
		limits = append(limits,
			quotaLimit{corev1.ResourceName(class + classInfix + string(corev1.ResourceRequestsStorage)), bytes, formatBytes},
			quotaLimit{corev1.ResourceName(class + classInfix + string(corev1.ResourcePersistentVolumeClaims)), claims, formatCount})
	}
	return limits
}
