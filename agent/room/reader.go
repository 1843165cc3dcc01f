// Package room reads what the cluster tells of the room that its storage has, for
// all images at once.
package room

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

	"github.com/pelotech/ot-fleet/agent/storage"
)

// +kubebuilder:rbac:groups=storage.k8s.io,resources=csistoragecapacities,verbs=list
// +kubebuilder:rbac:groups="",resources=resourcequotas,verbs=list
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=cdiconfigs,verbs=get

// How old an answer may be. A watch would tell sooner, and for as long as
// the agent runs: drivers of local storage publish a CSIStorageCapacity for each
// node and class, and change it with every volume, whereas images wait for a
// while only. So all that is asked is what one list gives, by whoever asks first.
const (
	// Age is for images that wait.
	Age = 10 * time.Second
	// Fresh is for one that is about to get a slot: all that get one at a time share
	// an answer, and what has got one before has taken its room.
	Fresh = time.Second
)

// configName is the name of CDI's one CDIConfig.
const configName = "config"

// Reader keeps what was last read. It is safe to be used by several at a
// time: one of them reads, the others wait for it.
type Reader struct {
	live client.Reader

	mu      sync.Mutex
	at      time.Time // zero: nothing was read yet
	version int
	known   known
	faults  map[string]string
}

// known is what was read. Its fields are compared from outside of this package.
type known struct {
	Capacities map[string][]storagev1.CSIStorageCapacity // by StorageClass
	Quotas     map[string][]corev1.ResourceQuota         // by namespace
	Scratch    string
}

// New returns a Reader that asks past every cache.
func New(live client.Reader) *Reader {
	return &Reader{live: live, faults: map[string]string{}}
}

// Of returns the room for images of a namespace in a StorageClass, as it was no
// longer ago than age.
func (r *Reader) Of(ctx context.Context, namespace, class string, age time.Duration) storage.Room {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read(ctx, age)
	return storage.Room{Capacities: r.known.Capacities[class], Quotas: r.known.Quotas[namespace], ScratchClass: r.known.Scratch}
}

// Version is another one once something of the room has changed, as it was no
// longer ago than age.
func (r *Reader) Version(ctx context.Context, age time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read(ctx, age)
	return r.version
}

// read asks again where the last answer is too old. What cannot be asked for, as
// the cluster does not serve it or does not allow it, is not known; where the API
// server does not answer, the former answer holds.
func (r *Reader) read(ctx context.Context, age time.Duration) {
	if !r.at.IsZero() && time.Since(r.at) < age {
		return
	}
	now := r.known
	var capacities storagev1.CSIStorageCapacityList
	if r.ask(ctx, "CSIStorageCapacities", func() error { return r.live.List(ctx, &capacities, anyVersion) }) {
		now.Capacities = byClass(capacities.Items)
	}
	var quotas corev1.ResourceQuotaList
	if r.ask(ctx, "ResourceQuotas", func() error { return r.live.List(ctx, &quotas, anyVersion) }) {
		now.Quotas = byNamespace(quotas.Items)
	}
	config := &cdiv1.CDIConfig{}
	if r.ask(ctx, "CDIConfig", func() error { return r.live.Get(ctx, types.NamespacedName{Name: configName}, config) }) {
		now.Scratch = config.Status.ScratchSpaceStorageClass
	}
	if !equality.Semantic.DeepEqual(now, r.known) {
		r.version++
	}
	r.known, r.at = now, time.Now()
}

// anyVersion has the API server answer from its own cache.
var anyVersion = &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}

// ask tells whether there is an answer; that something is not there is one. What
// goes wrong is logged when it is not what went wrong before.
func (r *Reader) ask(ctx context.Context, what string, do func() error) bool {
	err := do()
	if err == nil || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		delete(r.faults, what)
		return true
	}
	if r.faults[what] != err.Error() {
		r.faults[what] = err.Error()
		ctrl.LoggerFrom(ctx).Error(err, "Reading what room the storage has: images are imported without regard to what is not known", "object", what)
	}
	return apierrors.IsForbidden(err)
}

// byClass keeps of each object what is decided by.
func byClass(items []storagev1.CSIStorageCapacity) map[string][]storagev1.CSIStorageCapacity {
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

// byNamespace keeps of each object what is decided by.
func byNamespace(items []corev1.ResourceQuota) map[string][]corev1.ResourceQuota {
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
