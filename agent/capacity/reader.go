package capacity

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// +kubebuilder:rbac:groups=storage.k8s.io,resources=csistoragecapacities;csidrivers,verbs=list
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=resourcequotas,verbs=list
// +kubebuilder:rbac:groups="",resources=limitranges,verbs=list
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=cdiconfigs,verbs=get
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=storageprofiles,verbs=list

// The maximum age of what was read. It is listed and not watched: drivers of local
// storage publish a CSIStorageCapacity per node and class and update it with every
// volume, whereas the agent needs them only while images wait.
const (
	// MaxAgeWhileWaiting is for images that wait.
	MaxAgeWhileWaiting = 10 * time.Second
	// MaxAgeAtAdmission is for images that are about to get a slot. Those admitted
	// together share one read.
	MaxAgeAtAdmission = time.Second
)

// cdiConfigName is the name of CDI's only CDIConfig.
const cdiConfigName = "config"

// Reader caches what was last read. It is safe for concurrent use: one caller
// reads, the others wait for it.
type Reader struct {
	apiReader client.Reader

	mu         sync.Mutex
	readAt     time.Time // zero before the first read
	version    int
	current    clusterStorage
	lastErrors map[string]string // by kind
}

// clusterStorage is what was read. Its fields are exported for DeepEqual.
type clusterStorage struct {
	Capacities   map[string][]storagev1.CSIStorageCapacity // by StorageClass
	Quotas       map[string][]corev1.ResourceQuota         // by namespace
	LimitRanges  map[string][]corev1.LimitRange            // by namespace
	Profiles     map[string]*cdiv1.StorageProfile          // by StorageClass
	Provisioners map[string]string                         // by StorageClass
	CSIDrivers   map[string]bool                           // by provisioner
	// ScratchClass is nil where CDI's configuration is unknown, and empty where CDI takes the
	// StorageClass of the disk.
	ScratchClass *string
	Overhead     cdiv1.FilesystemOverhead
}

// NewReader returns a Reader; apiReader must not be cached.
func NewReader(apiReader client.Reader) *Reader {
	return &Reader{apiReader: apiReader, lastErrors: map[string]string{}}
}

// AvailabilityFor returns the storage that is available to a namespace in a
// StorageClass, not older than maxAge.
func (r *Reader) AvailabilityFor(ctx context.Context, namespace, class string, maxAge time.Duration) Availability {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readIfOlder(ctx, maxAge)
	provisioner, known := r.current.Provisioners[class]
	return Availability{
		Capacities: r.current.Capacities[class], Quotas: r.current.Quotas[namespace],
		ScratchClass: ScratchClassFor(r.current.ScratchClass, class), UsesPopulator: known && r.current.CSIDrivers[provisioner],
		Profile: r.current.Profiles[class], LimitRanges: r.current.LimitRanges[namespace], FilesystemOverhead: overheadFor(r.current.Overhead, class),
	}
}

// Version changes whenever the available storage does. It is not older than maxAge.
func (r *Reader) Version(ctx context.Context, maxAge time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readIfOlder(ctx, maxAge)
	return r.version
}

// readIfOlder reads everything unless it was read within maxAge. A kind that is not
// served or not permitted becomes unknown; after any other error the former answer
// stays.
func (r *Reader) readIfOlder(ctx context.Context, maxAge time.Duration) {
	if !r.readAt.IsZero() && time.Since(r.readAt) < maxAge {
		return
	}
	next := r.current
	var capacities storagev1.CSIStorageCapacityList
	if r.tryRead(ctx, "CSIStorageCapacity", func() error { return r.apiReader.List(ctx, &capacities, fromServerCache) }) {
		next.Capacities = groupByStorageClass(capacities.Items)
	}
	var quotas corev1.ResourceQuotaList
	if r.tryRead(ctx, "ResourceQuota", func() error { return r.apiReader.List(ctx, &quotas, fromServerCache) }) {
		next.Quotas = groupByNamespace(quotas.Items)
	}
	var ranges corev1.LimitRangeList
	if r.tryRead(ctx, "LimitRange", func() error { return r.apiReader.List(ctx, &ranges, fromServerCache) }) {
		next.LimitRanges = map[string][]corev1.LimitRange{}
		for _, item := range ranges.Items {
			next.LimitRanges[item.Namespace] = append(next.LimitRanges[item.Namespace], corev1.LimitRange{
				ObjectMeta: metav1.ObjectMeta{Namespace: item.Namespace, Name: item.Name}, Spec: item.Spec,
			})
		}
	}
	var profiles cdiv1.StorageProfileList
	if r.tryRead(ctx, "StorageProfile", func() error { return r.apiReader.List(ctx, &profiles, fromServerCache) }) {
		next.Profiles = map[string]*cdiv1.StorageProfile{}
		for i := range profiles.Items {
			item := &profiles.Items[i]
			profile := &cdiv1.StorageProfile{
				ObjectMeta: metav1.ObjectMeta{Name: item.Name},
				Status:     cdiv1.StorageProfileStatus{ClaimPropertySets: item.Status.ClaimPropertySets},
			}
			if minimum, ok := item.Annotations[annotationMinimumSize]; ok {
				profile.Annotations = map[string]string{annotationMinimumSize: minimum}
			}
			next.Profiles[item.Name] = profile
		}
	}
	var classes storagev1.StorageClassList
	if r.tryRead(ctx, "StorageClass", func() error { return r.apiReader.List(ctx, &classes, fromServerCache) }) {
		next.Provisioners = map[string]string{}
		for i := range classes.Items {
			next.Provisioners[classes.Items[i].Name] = classes.Items[i].Provisioner
		}
	}
	var drivers storagev1.CSIDriverList
	if r.tryRead(ctx, "CSIDriver", func() error { return r.apiReader.List(ctx, &drivers, fromServerCache) }) {
		next.CSIDrivers = map[string]bool{}
		for i := range drivers.Items {
			next.CSIDrivers[drivers.Items[i].Name] = true
		}
	}
	config := &cdiv1.CDIConfig{}
	if r.tryRead(ctx, "CDIConfig", func() error { return r.apiReader.Get(ctx, types.NamespacedName{Name: cdiConfigName}, config) }) {
		next.ScratchClass, next.Overhead = nil, cdiv1.FilesystemOverhead{}
		if config.Name != "" { // it was read
			next.ScratchClass = &config.Status.ScratchSpaceStorageClass
		}
		if config.Status.FilesystemOverhead != nil {
			next.Overhead = *config.Status.FilesystemOverhead
		}
	}
	if !equality.Semantic.DeepEqual(next, r.current) {
		r.version++
	}
	r.current, r.readAt = next, time.Now()
}

// fromServerCache makes the API server answer from its watch cache.
var fromServerCache = &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}

// tryRead reports whether read has an answer, which may be that there is nothing. It
// logs an error when it differs from the last one of that kind.
func (r *Reader) tryRead(ctx context.Context, kind string, read func() error) bool {
	err := read()
	if err == nil || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		delete(r.lastErrors, kind)
		return true
	}
	if r.lastErrors[kind] != err.Error() {
		r.lastErrors[kind] = err.Error()
		ctrl.LoggerFrom(ctx).Error(err, "Failed to read available storage; not checking images against it", "kind", kind)
	}
	return apierrors.IsForbidden(err)
}

// ScratchClassFor returns the StorageClass of the scratch space of a disk in class; empty for
// unknown. configured is that of CDI's configuration, nil where it is unknown. CDI 1.65 takes the
// class of the disk where none is configured (GetScratchPvcStorageClass of pkg/controller).
func ScratchClassFor(configured *string, class string) string {
	if configured == nil {
		return ""
	}
	return cmp.Or(*configured, class)
}

// overheadFor returns the share that CDI adds to disks in a StorageClass; 0 for unknown.
func overheadFor(o cdiv1.FilesystemOverhead, class string) float64 {
	text, ofClass := o.StorageClass[class]
	if !ofClass {
		text = o.Global
	}
	share, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(share >= 0 && share <= 1) {
		return 0
	}
	return share
}

// groupByStorageClass keeps the fields that FindBlocker uses.
func groupByStorageClass(items []storagev1.CSIStorageCapacity) map[string][]storagev1.CSIStorageCapacity {
	groups := map[string][]storagev1.CSIStorageCapacity{}
	for i := range items {
		item := storagev1.CSIStorageCapacity{
			StorageClassName: items[i].StorageClassName, NodeTopology: items[i].NodeTopology,
			Capacity: items[i].Capacity, MaximumVolumeSize: items[i].MaximumVolumeSize,
		}
		groups[item.StorageClassName] = append(groups[item.StorageClassName], item)
	}
	return groups
}

// groupByNamespace keeps the fields that FindBlocker uses.
func groupByNamespace(items []corev1.ResourceQuota) map[string][]corev1.ResourceQuota {
	groups := map[string][]corev1.ResourceQuota{}
	for i := range items {
		item := corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: items[i].Namespace, Name: items[i].Name},
			Spec:       items[i].Spec, Status: items[i].Status,
		}
		groups[item.Namespace] = append(groups[item.Namespace], item)
	}
	return groups
}
