package image

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datasources,verbs=get;list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get

// DataSources are those of others that images may use.
type DataSources struct {
	// Namespaces that the agent may clone from.
	Namespaces []string
	// Cache has the DataSources of the cluster.
	Cache cache.Cache
}

// dataSourceNamespaceIndex is the field index of the images by the namespace of their DataSource.
// What a DataSource points at is in its own namespace.
const dataSourceNamespaceIndex = "data-source-namespace"

func indexDataSourceNamespace(o client.Object) []string {
	if img := o.(*v1alpha1.VMDiskImage); image.UsesDataSource(&img.Spec) {
		return []string{image.DataSourceKey(img).Namespace}
	}
	return nil
}

// watchDataSources requeues the images of a namespace's DataSources with each change of one.
func (r *Reconciler) watchDataSources(ctx context.Context, mgr manager.Manager, c controller.Controller) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.VMDiskImage{}, dataSourceNamespaceIndex, indexDataSourceNamespace); err != nil {
		return err
	}
	r.Kinds.WhenServed(image.DataSourceGVK, func(ctx context.Context) error {
		if r.DataSources.Cache == nil || len(r.DataSources.Namespaces) == 0 {
			return nil
		}
		return apidiscovery.Watch(ctx, c, r.DataSources.Cache, &cdiv1.DataSource{}, handler.EnqueueRequestsFromMapFunc(r.mapDataSourceToImages))
	})
	return nil
}

func (r *Reconciler) mapDataSourceToImages(ctx context.Context, o client.Object) []reconcile.Request {
	var images v1alpha1.VMDiskImageList
	if err := r.List(ctx, &images, client.MatchingFields{dataSourceNamespaceIndex: o.GetNamespace()}, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the VMDiskImages of a DataSource; they follow it within a minute", "dataSource", client.ObjectKeyFromObject(o))
		return nil
	}
	var requests []reconcile.Request
	for i := range images.Items {
		requests = append(requests, requestFor(image.KeyOf(&images.Items[i])))
	}
	return requests
}

// gatherDataSource reads what an image's DataSource leads to, and whether what a former one led
// to is still there.
func (r *Reconciler) gatherDataSource(ctx context.Context, v *image.View) (err error) {
	img := v.Image
	if serving := img.Status.Serving; serving != nil && serving.Namespace != "" && serving.Revision != img.Spec.Revision() {
		if v.FormerSourceExists, err = r.adoptedSourceExists(ctx, serving); err != nil {
			return err
		}
	}
	if !image.UsesDataSource(&img.Spec) {
		return nil
	}
	if !r.Kinds.IsServed(image.DataSourceGVK) {
		v.DataSource.Blocker = &image.Blocker{Reason: v1alpha1.ReasonCDIMissing, Message: "the cluster does not serve CDI's DataSource: install CDI; the agent notices by itself"}
		return nil
	}
	v.DataSource, err = image.FollowDataSource(img, r.DataSources.Namespaces, r.sourceReader(ctx))
	if err != nil {
		return fmt.Errorf("following the DataSource of %s: %w", describeImage(img), err)
	}
	return nil
}

func (r *Reconciler) adoptedSourceExists(ctx context.Context, serving *v1alpha1.Serving) (bool, error) {
	if !slices.Contains(r.DataSources.Namespaces, serving.Namespace) {
		return false, nil
	}
	read := r.sourceReader(ctx)
	if serving.VolumeSnapshot != "" {
		snapshot, err := read.Snapshot(types.NamespacedName{Namespace: serving.Namespace, Name: serving.VolumeSnapshot})
		return snapshot != nil && image.IsSnapshotReady(snapshot), err
	}
	claim, err := read.Claim(types.NamespacedName{Namespace: serving.Namespace, Name: serving.PersistentVolumeClaim})
	return claim != nil && image.IsClaimReady(claim), err
}

// sourceReader reads live: the caches have none of what belongs to others.
func (r *Reconciler) sourceReader(ctx context.Context) image.SourceReader {
	return image.SourceReader{
		DataSource: func(key types.NamespacedName) (*cdiv1.DataSource, error) {
			return apidiscovery.GetExisting(ctx, r.Live, key, &cdiv1.DataSource{})
		},
		Claim: func(key types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
			return apidiscovery.GetExisting(ctx, r.Live, key, &corev1.PersistentVolumeClaim{})
		},
		Snapshot: func(key types.NamespacedName) (*snapshotv1.VolumeSnapshot, error) {
			if !r.Kinds.IsServed(image.VolumeSnapshotGVK) {
				return nil, nil
			}
			return apidiscovery.GetExisting(ctx, r.Live, key, &snapshotv1.VolumeSnapshot{})
		},
	}
}
