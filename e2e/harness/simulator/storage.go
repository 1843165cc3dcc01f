//go:build linux

package simulator

import (
	"context"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The storage classes of a member.
const (
	// ClassCSI is the default class: a CSI driver with snapshots. CDI populates its volumes.
	ClassCSI = "sim-csi"
	// ClassLocal has no CSIDriver: CDI writes into the claim directly.
	ClassLocal = "sim-local"
	// ClassWaitForFirstConsumer binds claims only when a pod is scheduled.
	ClassWaitForFirstConsumer = "sim-wffc"
	// ClassUnknown has no access modes in CDI's StorageProfile.
	ClassUnknown = "sim-unknown"
)

// The VolumeSnapshotClasses of a member, both of ClassCSI's driver.
const (
	SnapshotClass = "sim-snapclass"
	// SnapshotClassNever has snapshots that never become ready.
	SnapshotClassNever = "sim-never"
)

const stopTimeout = 2 * time.Minute

// Options configure the simulators of a member.
type Options struct {
	Name       string
	Config     *rest.Config
	Kubeconfig string
	Dir        string
	LogDir     string
	Scheme     *runtime.Scheme // core, storage and, with Snapshots, snapshot kinds
	Snapshots  bool
}

// Storage is the provisioner and the csi-snapshotter of every class.
type Storage struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// StartStorage creates the classes and serves them.
func StartStorage(ctx context.Context, c client.Client, o Options) (*Storage, error) {
	if err := createStorageClasses(ctx, c, o.Snapshots); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(o.Config, ctrl.Options{
		Scheme:                 o.Scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: ptr.To(true), MaxConcurrentReconciles: 4},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the simulated storage of %s: %w", o.Name, err)
	}
	if err := (&provisioner{client: mgr.GetClient(), apiReader: mgr.GetAPIReader()}).setupWithManager(mgr, o.Snapshots); err != nil {
		return nil, fmt.Errorf("setting up the simulated provisioner of %s: %w", o.Name, err)
	}
	if err := (&cloneReconciler{client: mgr.GetClient()}).setupWithManager(mgr); err != nil {
		return nil, fmt.Errorf("setting up the simulated clones of %s: %w", o.Name, err)
	}
	if o.Snapshots {
		if err := (&snapshotter{client: mgr.GetClient()}).setupWithManager(mgr); err != nil {
			return nil, fmt.Errorf("setting up the simulated snapshotter of %s: %w", o.Name, err)
		}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Storage{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = mgr.Start(running)
	}()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		cancel()
		<-s.done
		return nil, fmt.Errorf("starting the simulated storage of %s: its caches did not fill (%v)", o.Name, s.err)
	}
	return s, nil
}

// Stop ends the provisioner and the snapshotter; volumes stay as they are.
func (s *Storage) Stop() error {
	s.cancel()
	<-s.done
	return s.err
}

var storageClasses = []string{ClassCSI, ClassLocal, ClassWaitForFirstConsumer, ClassUnknown}

// ProvisionerForClass returns the provisioner of a storage class, which is also the driver of its snapshots.
func ProvisionerForClass(class string) string { return class + ".pelotech.ot" }

func hasCSIDriver(class string) bool { return class == ClassCSI || class == ClassWaitForFirstConsumer }

func createStorageClasses(ctx context.Context, c client.Client, snapshots bool) error {
	var objects []client.Object
	for _, name := range storageClasses {
		class := &storagev1.StorageClass{
			ObjectMeta:           metav1.ObjectMeta{Name: name},
			Provisioner:          ProvisionerForClass(name),
			ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
			VolumeBindingMode:    ptr.To(storagev1.VolumeBindingImmediate),
			AllowVolumeExpansion: ptr.To(true),
		}
		switch name {
		case ClassCSI:
			class.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		case ClassWaitForFirstConsumer:
			class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
		}
		objects = append(objects, class)
		if hasCSIDriver(name) {
			objects = append(objects, &storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: ProvisionerForClass(name)},
				Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(false), StorageCapacity: ptr.To(false)},
			})
		}
	}
	if snapshots {
		for _, name := range []string{SnapshotClass, SnapshotClassNever} {
			objects = append(objects, &snapshotv1.VolumeSnapshotClass{
				ObjectMeta:     metav1.ObjectMeta{Name: name},
				Driver:         ProvisionerForClass(ClassCSI),
				DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			})
		}
		objects[len(objects)-2].SetAnnotations(map[string]string{"snapshot.storage.kubernetes.io/is-default-class": "true"})
	}
	for _, object := range objects {
		if err := c.Create(ctx, object); client.IgnoreAlreadyExists(err) != nil {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

func isSimulatedProvisioner(provisioner string) bool {
	return slices.ContainsFunc(storageClasses, func(class string) bool { return ProvisionerForClass(class) == provisioner })
}

const (
	snapshotContentFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	beingDeletedAnnotation   = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
)

// snapshotter is the csi-snapshotter sidecar: it serves the contents that the real snapshot
// controller creates.
type snapshotter struct {
	client client.Client
}

func (s *snapshotter) setupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("sim-snapshot").For(&snapshotv1.VolumeSnapshotContent{}).Complete(reconcile.Func(s.reconcile))
}

func (s *snapshotter) reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	var content snapshotv1.VolumeSnapshotContent
	if err := s.client.Get(ctx, r.NamespacedName, &content); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	switch {
	case !isSimulatedProvisioner(content.Spec.Driver):
		return reconcile.Result{}, nil
	case content.DeletionTimestamp != nil:
		return reconcile.Result{}, s.removeContentFinalizer(ctx, &content)
	case content.Status == nil || content.Status.SnapshotHandle == nil:
		return reconcile.Result{}, s.createSnapshot(ctx, &content)
	default:
		return reconcile.Result{}, nil
	}
}

func (s *snapshotter) createSnapshot(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	base := content.DeepCopy()
	content.Status = &snapshotv1.VolumeSnapshotContentStatus{
		SnapshotHandle: ptr.To("snap-" + string(content.UID)),
		CreationTime:   ptr.To(time.Now().UnixNano()),
		ReadyToUse:     ptr.To(ptr.Deref(content.Spec.VolumeSnapshotClassName, "") != SnapshotClassNever),
	}
	if handle := content.Spec.Source.VolumeHandle; handle != nil {
		var volume corev1.PersistentVolume
		if err := s.client.Get(ctx, client.ObjectKey{Name: *handle}, &volume); err != nil {
			return fmt.Errorf("taking snapshot %s of volume %s: %w", content.Name, *handle, err)
		}
		size := volume.Spec.Capacity[corev1.ResourceStorage]
		content.Status.RestoreSize = ptr.To(size.Value())
	}
	if err := s.client.Status().Patch(ctx, content, client.MergeFrom(base)); err != nil {
		return fmt.Errorf("reporting snapshot %s as taken: %w", content.Name, err)
	}
	return nil
}

// removeContentFinalizer releases a content once the snapshot controller has marked it; until then
// the snapshot uses it.
func (s *snapshotter) removeContentFinalizer(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	if content.Annotations[beingDeletedAnnotation] == "" {
		return nil
	}
	base := content.DeepCopy()
	if !controllerutil.RemoveFinalizer(content, snapshotContentFinalizer) {
		return nil
	}
	if err := s.client.Patch(ctx, content, client.MergeFrom(base)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing deleted snapshot content %s: %w", content.Name, err)
	}
	return nil
}
