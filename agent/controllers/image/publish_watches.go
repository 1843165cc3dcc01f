package image

import (
	"cmp"
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// cloneIndex is the field index of unfinished clones among all DataVolumes; its only value is
// cloneIndexValue.
const (
	cloneIndex      = "clone"
	cloneIndexValue = "true"
)

// cloneFlags are annotations that say by their presence whether a DataVolume holds an image.
var cloneFlags = []string{cdiv1.AnnPrePopulated, cdiv1.AnnCheckStaticVolume}

// maxClonedFromBytes is more than an agent writes: UID, revision and attempt of an image, and a name.
const maxClonedFromBytes = 512

// StripClone is the transform of a cache of all DataVolumes and DataSources: it keeps what says
// which clones hold which image.
func StripClone(obj any) (any, error) {
	switch o := obj.(type) {
	case *cdiv1.DataVolume:
		source, ref := o.Spec.Source, o.Spec.SourceRef
		if source != nil {
			source = &cdiv1.DataVolumeSource{PVC: source.PVC, Snapshot: source.Snapshot}
		}
		annotations := map[string]string{}
		for _, flag := range cloneFlags {
			if _, isSet := o.Annotations[flag]; isSet {
				annotations[flag] = "" // whoever creates it may write much there
			}
		}
		if from, isSet := o.Annotations[v1alpha1.AnnotationClonedFrom]; isSet {
			annotations[v1alpha1.AnnotationClonedFrom] = strings.Clone(from[:min(len(from), maxClonedFromBytes)]) // a part keeps the whole in memory
		}
		return &cdiv1.DataVolume{
			ObjectMeta: metav1.ObjectMeta{
				Annotations: annotations,
				Namespace:   o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, CreationTimestamp: o.CreationTimestamp,
				DeletionTimestamp: o.DeletionTimestamp, OwnerReferences: o.OwnerReferences,
			},
			Spec:   cdiv1.DataVolumeSpec{Source: source, SourceRef: ref},
			Status: cdiv1.DataVolumeStatus{Phase: o.Status.Phase},
		}, nil
	case *cdiv1.DataSource:
		o.ManagedFields = nil
	}
	return obj, nil
}

// setupPublishing watches, once they are served, DataSources and the DataVolumes that are cloned
// from them. clones is a cache of both, with StripClone.
func (r *Reconciler) setupPublishing(mgr manager.Manager, c controller.Controller, clones cache.Cache) error {
	orphans, err := controller.New("orphaned-data-sources", mgr, controller.Options{RateLimiter: trigger.NewRateLimiter(), Reconciler: reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		after, err := r.reconcileOrphanedDataSource(ctx, req.NamespacedName)
		return ctrl.Result{RequeueAfter: after}, err
	})})
	if err != nil {
		return err
	}
	r.Kinds.WhenServed(image.DataSourceGVK, func(ctx context.Context) error {
		if err := apidiscovery.Watch(ctx, orphans, clones, &cdiv1.DataSource{}, &handler.EnqueueRequestForObject{}); err != nil {
			return err
		}
		return apidiscovery.Watch(ctx, c, clones, &cdiv1.DataSource{}, handler.EnqueueRequestsFromMapFunc(r.mapDataSourceToPublished))
	})
	r.Kinds.WhenServed(image.DataVolumeGVK, func(ctx context.Context) error {
		if err := clones.IndexField(ctx, &cdiv1.DataVolume{}, cloneIndex, indexClone); err != nil {
			return err
		}
		return apidiscovery.Watch(ctx, c, clones, &cdiv1.DataVolume{}, handler.EnqueueRequestsFromMapFunc(r.mapCloneToImages), cloneChangedPredicate())
	})
	return nil
}

func indexClone(o client.Object) []string {
	if image.IsClone(o.(*cdiv1.DataVolume)) {
		return []string{cloneIndexValue}
	}
	return nil
}

// mapDataSourceToPublished returns the images of the namespace that a DataSource concerns: those that
// it is labelled for, and those that are or were published under its name, or under the name of
// the one that it refers to.
func (r *Reconciler) mapDataSourceToPublished(ctx context.Context, o client.Object) []reconcile.Request {
	ds := o.(*cdiv1.DataSource)
	names := []string{ds.Name}
	if target := ds.Spec.Source.DataSource; target != nil {
		names = append(names, target.Name)
	}
	return r.mapToImages(ctx, ds.Namespace, func(img *v1alpha1.VMDiskImage) bool {
		if string(img.UID) == ds.Labels[v1alpha1.LabelImageUID] {
			return true
		}
		for _, name := range names {
			if image.PublishedName(img) == name || hasPublication(img, func(p *v1alpha1.Publication) bool { return p.DataSource == name }) {
				return true
			}
		}
		return false
	})
}

// mapCloneToImages returns the images that a DataVolume may hold. For one with sourceRef these are
// all published images of that namespace: it may name a DataSource that refers to another one.
func (r *Reconciler) mapCloneToImages(ctx context.Context, o client.Object) []reconcile.Request {
	dv := o.(*cdiv1.DataVolume)
	if source := dv.Spec.Source; source != nil {
		switch {
		case source.Snapshot != nil:
			return r.mapToImages(ctx, cmp.Or(source.Snapshot.Namespace, dv.Namespace), func(img *v1alpha1.VMDiskImage) bool {
				return hasPublication(img, func(p *v1alpha1.Publication) bool { return p.VolumeSnapshot == source.Snapshot.Name })
			})
		case source.PVC != nil:
			return r.mapToImages(ctx, cmp.Or(source.PVC.Namespace, dv.Namespace), func(img *v1alpha1.VMDiskImage) bool {
				return hasPublication(img, func(p *v1alpha1.Publication) bool { return p.PersistentVolumeClaim == source.PVC.Name })
			})
		}
	}
	ref := dv.Spec.SourceRef
	if ref == nil {
		return nil
	}
	namespace := dv.Namespace
	if ref.Namespace != nil && *ref.Namespace != "" {
		namespace = *ref.Namespace
	}
	return r.mapToImages(ctx, namespace, func(img *v1alpha1.VMDiskImage) bool {
		return len(img.Status.Publications) > 0 || image.IsPublishing(img, nil)
	})
}

// mapToSiblings returns the other images that are published under the same name.
func (r *Reconciler) mapToSiblings(ctx context.Context, o client.Object) []reconcile.Request {
	name := image.PublishedName(o.(*v1alpha1.VMDiskImage))
	if name == "" {
		return nil
	}
	return r.mapToImages(ctx, o.GetNamespace(), func(img *v1alpha1.VMDiskImage) bool {
		return img.UID != o.GetUID() && image.PublishedName(img) == name
	})
}

// publisherChangedPredicate passes the events of images that change which of several is published.
func publisherChangedPredicate() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.VMDiskImage), e.ObjectNew.(*v1alpha1.VMDiskImage)
		return before.UID != after.UID || image.PublishedName(before) != image.PublishedName(after) || image.CanPublish(before) != image.CanPublish(after)
	}}
}

// cloneChangedPredicate passes the events of DataVolumes that begin or cease to be clones.
func cloneChangedPredicate() predicate.Predicate {
	isClone := func(o client.Object) bool { return image.IsClone(o.(*cdiv1.DataVolume)) }
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return isClone(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || isClone(e.ObjectOld) != isClone(e.ObjectNew)
		},
		DeleteFunc: func(e event.DeleteEvent) bool { return isClone(e.Object) },
	}
}

func hasPublication(img *v1alpha1.VMDiskImage, matches func(*v1alpha1.Publication) bool) bool {
	for i := range img.Status.Publications {
		if matches(&img.Status.Publications[i]) {
			return true
		}
	}
	return false
}

// mapToImages returns the images of a namespace that match.
func (r *Reconciler) mapToImages(ctx context.Context, namespace string, matches func(*v1alpha1.VMDiskImage) bool) []reconcile.Request {
	var list v1alpha1.VMDiskImageList
	if err := r.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list VMDiskImages; those that this event concerns are not requeued", "namespace", namespace)
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if img := &list.Items[i]; matches(img) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: img.Namespace, Name: img.Name}})
		}
	}
	return requests
}
