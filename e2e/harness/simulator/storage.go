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
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// The storage classes of a member.
const (
	// ClassCSI is the default: a CSI driver with snapshots; CDI populates its volumes.
	ClassCSI = "sim-csi"
	// ClassLocal has no CSIDriver: CDI writes straight into the claim.
	ClassLocal = "sim-local"
	// ClassWaitForFirstConsumer binds only for a pod that was scheduled.
	ClassWaitForFirstConsumer = "sim-wffc"
	// ClassUnknown is a class of which CDI's StorageProfile knows no access modes.
	ClassUnknown = "sim-unknown"
)

// The snapshot classes of a member, both of ClassCSI's driver.
const (
	SnapshotClass = "sim-snapclass"
	// SnapshotClassNever makes snapshots that never become ready.
	SnapshotClassNever = "sim-never"
)

const stopTimeout = 2 * time.Minute

// Options say where a member's simulated parts find its API server.
type Options struct {
	Name       string
	Config     *rest.Config
	Kubeconfig string
	Dir        string
	LogDir     string
	Scheme     *runtime.Scheme // core, storage and, with Snapshots, snapshot kinds
	Snapshots  bool
}

// Storage plays the provisioner and the csi-snapshotter of every class.
type Storage struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// StartStorage creates the classes and starts to serve them.
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

func provisionerForClass(class string) string { return class + ".pelotech.ot" }

func hasCSIDriver(class string) bool { return class == ClassCSI || class == ClassWaitForFirstConsumer }

func createStorageClasses(ctx context.Context, c client.Client, snapshots bool) error {
	var objects []client.Object
	for _, name := range storageClasses {
		class := &storagev1.StorageClass{
			ObjectMeta:           metav1.ObjectMeta{Name: name},
			Provisioner:          provisionerForClass(name),
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
				ObjectMeta: metav1.ObjectMeta{Name: provisionerForClass(name)},
				Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(false), StorageCapacity: ptr.To(false)},
			})
		}
	}
	if snapshots {
		for _, name := range []string{SnapshotClass, SnapshotClassNever} {
			objects = append(objects, &snapshotv1.VolumeSnapshotClass{
				ObjectMeta:     metav1.ObjectMeta{Name: name},
				Driver:         provisionerForClass(ClassCSI),
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
	return slices.ContainsFunc(storageClasses, func(class string) bool { return provisionerForClass(class) == provisioner })
}
