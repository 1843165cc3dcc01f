package capacity_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// capacitySegment is a topology segment with a largest volume and a total; empty for
// figures that the driver does not publish.
func capacitySegment(volume, total string) storagev1.CSIStorageCapacity {
	c := storagev1.CSIStorageCapacity{StorageClassName: "csi", NodeTopology: &metav1.LabelSelector{}}
	if volume != "" {
		c.MaximumVolumeSize = ptr.To(resource.MustParse(volume))
	}
	if total != "" {
		c.Capacity = ptr.To(resource.MustParse(total))
	}
	return c
}

func newQuota(limits ...string) corev1.ResourceQuota {
	q := corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "quota"},
		Status:     corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{}, Used: corev1.ResourceList{}},
	}
	for i := 0; i < len(limits); i += 3 {
		q.Status.Hard[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+2])
		if limits[i+1] != "" {
			q.Status.Used[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
		}
	}
	return q
}

const (
	csiStorageQuota = "csi.storageclass.storage.k8s.io/requests.storage"
	csiClaimsQuota  = "csi.storageclass.storage.k8s.io/persistentvolumeclaims"
)

func TestFindBlocker(t *testing.T) {
	http := func() *apitest.ImageBuilder { return apitest.Image("ns/a").WithDiskSize("10Gi") }
	blank := func() *apitest.ImageBuilder { return http().WithSource(v1alpha1.SourceBlank, "") }
	registry := func() *apitest.ImageBuilder {
		return http().WithSource(v1alpha1.SourceRegistry, "docker://registry.example.com/a")
	}
	capacities := func(c ...storagev1.CSIStorageCapacity) capacity.Availability {
		return capacity.Availability{Capacities: c}
	}
	together := func(c ...storagev1.CSIStorageCapacity) capacity.Availability {
		return capacity.Availability{Capacities: c, ScratchClass: "csi"}
	}
	quotas := func(q ...corev1.ResourceQuota) capacity.Availability { return capacity.Availability{Quotas: q} }
	populated := func(q ...corev1.ResourceQuota) capacity.Availability {
		return capacity.Availability{Quotas: q, ScratchClass: "csi", UsesPopulator: true}
	}
	other := capacitySegment("1Gi", "1Gi")
	other.StorageClassName = "other"
	unreachable := capacitySegment("1Gi", "1Gi")
	unreachable.NodeTopology = nil
	scoped := newQuota("requests.storage", "0", "1Gi")
	scoped.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	selecting := newQuota("requests.storage", "0", "1Gi")
	selecting.Spec.ScopeSelector = &corev1.ScopeSelector{}
	unenforced := newQuota()
	unenforced.Spec.Hard = corev1.ResourceList{"requests.storage": resource.MustParse("1Gi")}

	for _, tt := range []struct {
		name        string
		image       *apitest.ImageBuilder
		class       string
		available   capacity.Availability
		wantMessage string // empty: no shortage
	}{
		{"nothing is published", http(), "csi", capacity.Availability{}, ""},
		{"a large enough volume", http(), "csi", capacities(capacitySegment("10Gi", "")), ""},
		{"too small a volume", http(), "csi", capacities(capacitySegment("10239Mi", "")), "needs a volume of 10Gi, and the largest that StorageClass csi has room for is 9.9Gi"},
		{"too small volumes in two segments", http(), "csi", capacities(capacitySegment("3Gi", ""), capacitySegment("7Gi", "")), "the largest that StorageClass csi has room for is 7Gi"},
		{"a large enough volume in one of two segments", http(), "csi", capacities(capacitySegment("3Gi", ""), capacitySegment("70Gi", "")), ""},
		{"a capacity of another class", http(), "csi", capacities(other), ""},
		{"an unknown class", http(), "", capacities(capacitySegment("1Gi", "")), ""},
		{"a segment without nodes", http(), "csi", capacities(unreachable), ""},
		{"a segment without figures", http(), "csi", capacities(capacitySegment("", "")), ""},
		{"one of two segments without figures", http(), "csi", capacities(capacitySegment("3Gi", ""), capacitySegment("", "")), ""},
		{"too small a total", http(), "csi", capacities(capacitySegment("", "9Gi")), "needs a volume of 10Gi, and the largest that StorageClass csi has room for is 9Gi"},
		{"no capacity left", http(), "csi", capacities(capacitySegment("", "0")), "has room for is 0"},
		{"bounded volumes, large total", http(), "csi", capacities(capacitySegment("9Gi", "100Gi")), "has room for is 9Gi"},
		{"large volumes, small total", blank(), "csi", capacities(capacitySegment("100Gi", "9Gi")), "has room for 9Gi in one place"},
		{"scratch space in another class", http(), "csi", capacities(capacitySegment("", "10Gi")), ""},
		{"scratch space in the same class", http(), "csi", together(capacitySegment("", "20Gi")), ""},
		{"no room for scratch space in the same class", http(), "csi", together(capacitySegment("", "19Gi")), "needs 10Gi and as much scratch space while it is imported, and StorageClass csi has room for 19Gi in one place at the most"},
		{"no room for a registry's scratch space", registry(), "csi", together(capacitySegment("", "19Gi")), "needs 10Gi and as much scratch space while it is imported, and StorageClass csi has room for 19Gi in one place at the most"},
		{"a node pulls the image", registry().WithPullMethod(v1alpha1.PullNode), "csi", together(capacitySegment("", "19Gi")), ""},
		{"scratch space is a separate volume", http(), "csi", together(capacitySegment("10Gi", "")), ""},
		{"scratch space in another segment", http(), "csi", together(capacitySegment("", "10Gi"), capacitySegment("", "19Gi")), "has room for 19Gi in one place"},
		{"no scratch space is needed", blank(), "csi", together(capacitySegment("", "10Gi")), ""},

		{"a quota of another resource", http(), "csi", quotas(newQuota("pods", "0", "0")), ""},
		{"a quota with room", http(), "csi", quotas(newQuota("requests.storage", "5Gi", "25Gi")), ""},
		{"a quota with too little", http(), "csi", quotas(newQuota("requests.storage", "6Gi", "25Gi")), "needs 20Gi of requests.storage, with the scratch space of its import, and ResourceQuota ns/quota has 19Gi left of 25Gi"},
		{"a quota with too little, without scratch space", blank(), "csi", quotas(newQuota("requests.storage", "16Gi", "25Gi")), "needs 10Gi of requests.storage, and ResourceQuota ns/quota has 9Gi left of 25Gi"},
		{"a quota that is overdrawn", blank(), "csi", quotas(newQuota("requests.storage", "30Gi", "25Gi")), "has 0 left of 25Gi"},
		{"a quota without usage", blank(), "csi", quotas(newQuota("requests.storage", "", "9Gi")), "has 9Gi left of 9Gi"},
		{"a quota without status", http(), "csi", quotas(unenforced), ""},
		{"quotas with scopes", http(), "csi", quotas(scoped, selecting), ""},
		{"the second of two quotas", http(), "csi", quotas(newQuota("requests.storage", "0", "25Gi"), newQuota("requests.storage", "0", "2Gi")), "has 2Gi left of 2Gi"},
		{"one claim left", http(), "csi", quotas(newQuota("persistentvolumeclaims", "4", "5")), "needs 2 of persistentvolumeclaims, with the scratch space of its import, and ResourceQuota ns/quota has 1 left of 5"},
		{"one claim left, without scratch space", blank(), "csi", quotas(newQuota("persistentvolumeclaims", "4", "5")), ""},
		{"a quota of the class", http(), "csi", quotas(newQuota(csiStorageQuota, "0", "9Gi")), "needs 10Gi of " + csiStorageQuota},
		{"a quota of the class, scratch space in another class", http(), "csi", quotas(newQuota(csiStorageQuota, "0", "10Gi")), ""},
		{"a quota of the class, scratch space in the same class", http(), "csi", capacity.Availability{Quotas: []corev1.ResourceQuota{newQuota(csiStorageQuota, "0", "10Gi")}, ScratchClass: "csi"}, "needs 20Gi of " + csiStorageQuota},
		{"claims of the class", http(), "csi", quotas(newQuota(csiClaimsQuota, "3", "3")), "needs 1 of " + csiClaimsQuota},
		{"three claims", http(), "csi", populated(newQuota("requests.storage", "0", "30Gi", "persistentvolumeclaims", "0", "3", csiStorageQuota, "0", "30Gi", csiClaimsQuota, "0", "3")), ""},
		{"room for two of three claims", http(), "csi", populated(newQuota("requests.storage", "0", "25Gi", "persistentvolumeclaims", "0", "2")), "needs 30Gi of requests.storage, with the scratch space of its import and a claim that CDI fills first, and ResourceQuota ns/quota has 25Gi left"},
		{"two of three claims", http(), "csi", populated(newQuota("persistentvolumeclaims", "0", "2")), "needs 3 of persistentvolumeclaims"},
		{"room for two of three claims of the class", http(), "csi", populated(newQuota(csiStorageQuota, "0", "29Gi")), "needs 30Gi of " + csiStorageQuota},
		{"two of three claims of the class", http(), "csi", populated(newQuota(csiClaimsQuota, "0", "2")), "needs 3 of " + csiClaimsQuota},
		{"scratch space beside the class", http(), "csi", capacity.Availability{Quotas: []corev1.ResourceQuota{newQuota(csiStorageQuota, "0", "20Gi", csiClaimsQuota, "0", "2")}, ScratchClass: "other", UsesPopulator: true}, ""},
		{"one of two claims", blank(), "csi", populated(newQuota("requests.storage", "0", "19Gi")), "needs 20Gi of requests.storage, with a claim that CDI fills first, and"},
		{"the filled claim has the same volume", http(), "csi", capacity.Availability{Capacities: []storagev1.CSIStorageCapacity{capacitySegment("", "20Gi")}, ScratchClass: "csi", UsesPopulator: true}, ""},
		{"a quota of another class", http(), "other", quotas(newQuota(csiStorageQuota, "0", "1Gi")), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := capacity.FindBlocker(tt.image.Obj(), tt.class, tt.available)
			if apitest.RequireFinding(t, got, v1alpha1.ReasonInsufficientStorage, tt.wantMessage) {
				assert.Contains(t, got.Message, ": ", "says what to do")
			}
		})
	}
}

// TestMoreCapacityNeverCausesShortage adds capacity and quota: an image that fitted
// still fits.
func TestMoreCapacityNeverCausesShortage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := func(name string) *resource.Quantity {
			if rapid.IntRange(0, 4).Draw(t, name+" is not published") == 0 {
				return nil
			}
			return resource.NewQuantity(rapid.Int64Range(0, 40).Draw(t, name)<<30, resource.BinarySI)
		}
		builder := apitest.Image("ns/a")
		if rapid.Bool().Draw(t, "blank") {
			builder.WithSource(v1alpha1.SourceBlank, "")
		}
		image := builder.Obj()
		image.Spec.DiskSize = *resource.NewQuantity(rapid.Int64Range(1, 20).Draw(t, "disk")<<30, resource.BinarySI)
		available := capacity.Availability{ScratchClass: rapid.SampledFrom([]string{"", "csi", "other"}).Draw(t, "scratch"), UsesPopulator: rapid.Bool().Draw(t, "populated")}
		for range rapid.IntRange(0, 3).Draw(t, "segments") {
			available.Capacities = append(available.Capacities, storagev1.CSIStorageCapacity{
				StorageClassName: "csi", NodeTopology: &metav1.LabelSelector{}, MaximumVolumeSize: size("volume"), Capacity: size("total"),
			})
		}
		q := newQuota()
		q.Status.Used["requests.storage"] = *resource.NewQuantity(rapid.Int64Range(0, 20).Draw(t, "used")<<30, resource.BinarySI)
		q.Status.Hard["requests.storage"] = *resource.NewQuantity(rapid.Int64Range(0, 60).Draw(t, "hard")<<30, resource.BinarySI)
		available.Quotas = []corev1.ResourceQuota{q}
		before := capacity.FindBlocker(image, "csi", available)
		require.Equal(t, before, capacity.FindBlocker(image, "csi", available))

		more := *resource.NewQuantity(1<<30, resource.BinarySI)
		for i := range available.Capacities {
			for _, q := range []*resource.Quantity{available.Capacities[i].MaximumVolumeSize, available.Capacities[i].Capacity} {
				if q != nil {
					q.Add(more)
				}
			}
		}
		hard := q.Status.Hard["requests.storage"]
		hard.Add(more)
		q.Status.Hard["requests.storage"] = hard
		if after := capacity.FindBlocker(image, "csi", available); before == nil {
			require.Nil(t, after)
		}
		bare := available
		bare.Capacities, bare.Quotas = nil, nil
		require.Nil(t, capacity.FindBlocker(image, "csi", bare), "unknown capacity is no shortage")
	})
}
