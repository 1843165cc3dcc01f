// Package capacity reads what the cluster tells of the room that its storage has, for
// all images at once.
package capacity

import (
	"context"
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

// +kubebuilder:rbac:groups=storage.k8s.io,resources=csistoragecapacities,verbs=list
// +kubebuilder:rbac:groups="",resources=resourcequotas,verbs=list
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=cdiconfigs,verbs=get

// How old an answer may be. A watch would tell sooner, and for as long as
// the agent runs: drivers of local storage publish a CSIStorageCapacity for each
// node and class, and change it with every volume, whereas images wait for a
// while only. So all that is asked is what one list gives, by whoever asks first.
const (
	// MaxAgeWhileWaiting is for images that wait.
	MaxAgeWhileWaiting = 10 * time.Second
	// MaxAgeAtAdmission is for one that is about to get a slot: all that get one at a time share
	// an answer, and what has got one before has taken its room.
	MaxAgeAtAdmission = time.Second
)

// cdiConfigName is the name of CDI's one CDIConfig.
const cdiConfigName = "config"

// Reader keeps what was last read. It is safe to be used by several at a
// time: one of them reads, the others wait for it.
type Reader struct {
	apiReader client.Reader

	mu         sync.Mutex
	readAt     time.Time // zero: nothing was read yet
	version    int
	current    clusterStorage
	lastErrors map[string]string
}

// clusterStorage is what was read. Its fields are compared from outside of this package.
type clusterStorage struct {
	Capacities   map[string][]storagev1.CSIStorageCapacity // by StorageClass
	Quotas       map[string][]corev1.ResourceQuota         // by namespace
	ScratchClass string
}

// NewReader returns a Reader that asks past every cache.
func NewReader(live client.Reader) *Reader {
	return &Reader{apiReader: live, lastErrors: map[string]string{}}
}

// AvailabilityFor returns the room for images of a namespace in a StorageClass, as it was no
// longer ago than age.
func (r *Reader) AvailabilityFor(ctx context.Context, namespace, class string, age time.Duration) Availability {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readIfOlder(ctx, age)
	return Availability{Capacities: r.current.Capacities[class], Quotas: r.current.Quotas[namespace], ScratchClass: r.current.ScratchClass}
}

// Version is another one once something of the room has changed, as it was no
// longer ago than age.
func (r *Reader) Version(ctx context.Context, age time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readIfOlder(ctx, age)
	return r.version
}

// readIfOlder asks again where the last answer is too old. What cannot be asked for, as
// the cluster does not serve it or does not allow it, is not known; where the API
// server does not answer, the former answer holds.
func (r *Reader) readIfOlder(ctx context.Context, age time.Duration) {
	if !r.readAt.IsZero() && time.Since(r.readAt) < age {
		return
	}
	now := r.current
	var capacities storagev1.CSIStorageCapacityList
	if r.tryRead(ctx, "CSIStorageCapacities", func() error { return r.apiReader.List(ctx, &capacities, fromServerCache) }) {
		now.Capacities = groupByStorageClass(capacities.Items)
	}
	var quotas corev1.ResourceQuotaList
	if r.tryRead(ctx, "ResourceQuotas", func() error { return r.apiReader.List(ctx, &quotas, fromServerCache) }) {
		now.Quotas = groupByNamespace(quotas.Items)
	}
	config := &cdiv1.CDIConfig{}
	if r.tryRead(ctx, "CDIConfig", func() error { return r.apiReader.Get(ctx, types.NamespacedName{Name: cdiConfigName}, config) }) {
		now.ScratchClass = config.Status.ScratchSpaceStorageClass
	}
	if !equality.Semantic.DeepEqual(now, r.current) {
		r.version++
	}
	r.current, r.readAt = now, time.Now()
}

// fromServerCache has the API server answer from its own cache.
var fromServerCache = &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}

// tryRead tells whether there is an answer; that something is not there is one. What
// goes wrong is logged when it is not what went wrong before.
func (r *Reader) tryRead(ctx context.Context, what string, do func() error) bool {
	err := do()
	if err == nil || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		delete(r.lastErrors, what)
		return true
	}
	if r.lastErrors[what] != err.Error() {
		r.lastErrors[what] = err.Error()
		ctrl.LoggerFrom(ctx).Error(err, "Reading what room the storage has: images are imported without regard to what is not known", "object", what)
	}
	return apierrors.IsForbidden(err)
}

// groupByStorageClass keeps of each object what is decided by.
func groupByStorageClass(items []storagev1.CSIStorageCapacity) map[string][]storagev1.CSIStorageCapacity {
	found := map[string][]storagev1.CSIStorageCapacity{}
	for i := range items {
		item := storagev1.CSIStorageCapacity{
			StorageClassName: items[i].StorageClassName, NodeTopology: items[i].NodeTopology,
			Capacity: items[i].Capacity, MaximumVolumeSize: items[i].MaximumVolumeSize,
		}
		found[item.StorageClassName] = append(found[item.StorageClassName], item)
	}
	return found
}

// groupByNamespace keeps of each object what is decided by.
func groupByNamespace(items []corev1.ResourceQuota) map[string][]corev1.ResourceQuota {
	found := map[string][]corev1.ResourceQuota{}
	for i := range items {
		item := corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: items[i].Namespace, Name: items[i].Name},
			Spec:       items[i].Spec, Status: items[i].Status,
		}
		found[item.Namespace] = append(found[item.Namespace], item)
	}
	return found
}
