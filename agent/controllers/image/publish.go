package image

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datasources,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=list;watch

// dataSourceFieldOwner owns what the agent applies to a DataSource.
const dataSourceFieldOwner = client.FieldOwner("ot-agent")

// orphanRecheckInterval is how often a DataSource without an image is looked at that clones need.
const orphanRecheckInterval = time.Minute

// clonePageSize is the number of DataVolumes per live request.
const clonePageSize = 500

// gatherPublishing reads the DataSources of the image's namespace.
//
// Invariant: a live View reads them before the API server's clock, and both before the
// DataVolumes.
func (r *Reconciler) gatherPublishing(ctx context.Context, v *image.View) error {
	if v.Live && v.Publishing == nil {
		return nil // the cached View of the same resourceVersion has shown that it is not published
	}
	v.Publishing = nil
	dataSources, err := r.listDataSources(ctx, v.Image.Namespace, v.Live)
	if err != nil {
		return err
	}
	if !image.IsPublishing(v.Image, dataSources) {
		return nil
	}
	view := &image.PublishingView{Served: r.Kinds.IsServed(image.DataSourceGVK), DataSources: dataSources, Refusal: r.publishRefusals.get(v.Image.UID)}
	if view.Publishers, err = r.choosePublishers(ctx, v.Image, dataSources); err != nil {
		return err
	}
	v.Publishing = view
	if v.Live && len(v.Image.Status.Publications) > 0 {
		return r.askToPublish(ctx, v)
	}
	return nil
}

// listDataSources lists those of a namespace; none where the kind is not served.
func (r *Reconciler) listDataSources(ctx context.Context, namespace string, live bool) ([]cdiv1.DataSource, error) {
	if r.Clones == nil || !r.Kinds.IsServed(image.DataSourceGVK) {
		return nil, nil
	}
	reader, options := r.Clones, []client.ListOption{client.InNamespace(namespace), client.UnsafeDisableDeepCopy}
	if live {
		reader, options = r.Live, options[:1]
	}
	var list cdiv1.DataSourceList
	if err := reader.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("listing the DataSources of namespace %s: %w", namespace, err)
	}
	return list.Items, nil
}

// choosePublishers returns which images of a namespace are to be published, by the name of the
// DataSource: for the name of img, and for those of DataSources that are labelled for it. It
// requeues an image that takes one of those over.
func (r *Reconciler) choosePublishers(ctx context.Context, img *v1alpha1.VMDiskImage, dataSources []cdiv1.DataSource) (map[string]image.PublishCandidate, error) {
	var list v1alpha1.VMDiskImageList
	if err := r.List(ctx, &list, client.InNamespace(img.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the VMDiskImages of namespace %s: %w", img.Namespace, err)
	}
	labelled := map[string]types.UID{}
	for i := range dataSources {
		labelled[dataSources[i].Name] = types.UID(dataSources[i].Labels[v1alpha1.LabelImageUID])
	}
	candidates, planUnknown := map[string][]image.PublishCandidate{}, false
	for i := range list.Items {
		other := &list.Items[i]
		name := image.PublishedName(other)
		if !image.CanPublish(other) || (name != image.PublishedName(img) && labelled[name] != img.UID) {
			continue
		}
		c := image.PublishCandidate{Name: other.Name, UID: other.UID, Created: other.CreationTimestamp, Current: labelled[name] == other.UID}
		if r.PlannedState != nil {
			state, err := r.PlannedState(ctx, client.ObjectKeyFromObject(other), false)
			if err != nil {
				return nil, err
			}
			c.Wanted, planUnknown = state.Wanted, planUnknown || state.Unknown
		}
		candidates[name] = append(candidates[name], c)
	}
	publishers := map[string]image.PublishCandidate{}
	for name, list := range candidates {
		chosen, _ := image.ChoosePublisher(list, planUnknown)
		publishers[name] = chosen
		if chosen.UID != img.UID && labelled[name] == img.UID {
			r.Enqueue(v1alpha1.ImageKey{Namespace: img.Namespace, Name: chosen.Name, UID: chosen.UID})
		}
	}
	return publishers, nil
}

// askToPublish has the API server say whether it would store a DataSource of the image, and its
// time: the clock that stamps DataVolumes.
func (r *Reconciler) askToPublish(ctx context.Context, v *image.View) error {
	if !v.Publishing.Served {
		v.Publishing.ServerTime = v.Now // there are no DataSources that anything could find
		return nil
	}
	probe := &cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{
		Namespace: v.Image.Namespace, GenerateName: clockProbePrefix, Labels: map[string]string{v1alpha1.LabelImageUID: string(v.Image.UID)},
	}}
	now, err := r.readServerClock(ctx, probe)
	switch {
	case err == nil:
		v.Publishing.ServerTime = now
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		v.Publishing.NamespaceTerminating = true
	case isProbeRefused(err):
		v.Publishing.Refusal = err.Error()
	default:
		return fmt.Errorf("asking for the API server's clock for %s: %w", describeImage(v.Image), err)
	}
	return nil
}

// listClones lists the DataVolumes that may hold what an image publishes, and notes the
// DataSources in flight. With live, it reads all of the cluster: a DataVolume of any namespace may
// name a DataSource of another one.
func (r *Reconciler) listClones(ctx context.Context, v *image.View) ([]image.Holder, error) {
	if v.Publishing == nil || r.Clones == nil || !r.Kinds.IsServed(image.DataVolumeGVK) {
		return nil, nil
	}
	v.Publishing.InFlight = map[string]bool{}
	if !v.Live {
		var list cdiv1.DataVolumeList
		if err := r.Clones.List(ctx, &list, client.MatchingFields{cloneIndex: cloneIndexValue}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing clones: %w", err)
		}
		image.DataSourcesInFlight(v.Publishing.InFlight, v.Image.Namespace, list.Items, v.Publishing.DataSources)
		return image.CloneHolders(v.Image, list.Items, v.Publishing.DataSources), nil
	}
	var holders []image.Holder
	for next := ""; ; {
		var page cdiv1.DataVolumeList
		if err := r.Live.List(ctx, &page, client.Limit(clonePageSize), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("listing clones live: %w", err)
		}
		image.DataSourcesInFlight(v.Publishing.InFlight, v.Image.Namespace, page.Items, v.Publishing.DataSources)
		holders = append(holders, image.CloneHolders(v.Image, page.Items, v.Publishing.DataSources)...)
		if next = page.Continue; next == "" {
			return vm.SortHolders(holders), nil
		}
	}
}

// applyDataSources carries out what was decided. What the API server refuses for good is shown in
// condition Published.
func (r *Reconciler) applyDataSources(ctx context.Context, img *v1alpha1.VMDiskImage, d image.Decision) error {
	if len(d.DataSources) == 0 {
		r.publishRefusals.set(img.UID, nil)
		return nil
	}
	for _, change := range d.DataSources {
		err := r.applyDataSource(ctx, change)
		switch {
		case err == nil:
			r.publishRefusals.set(img.UID, nil)
			continue
		case trigger.IsConflict(err) && r.conflicts.IsExhausted(requestFor(image.KeyOf(img))): // no other read solves it
		case trigger.IsConflict(err), apierrors.IsNotFound(err):
			return fmt.Errorf("%w: %w", errImageChanged, err) // another writer was first
		}
		r.publishRefusals.set(img.UID, err)
		return fmt.Errorf("trying to %s DataSource %s of %s: %w", change.Operation, change.DataSource.Name, describeImage(img), err)
	}
	return nil
}

func (r *Reconciler) applyDataSource(ctx context.Context, change image.DataSourceChange) error {
	ds := change.DataSource
	switch change.Operation {
	case image.CreateDataSource:
		return r.Create(ctx, ds.DeepCopy(), dataSourceFieldOwner)
	case image.DeleteDataSource:
		return client.IgnoreNotFound(r.Delete(ctx, ds.DeepCopy(), client.Preconditions{UID: &ds.UID, ResourceVersion: &ds.ResourceVersion}))
	default:
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(ds)
		if err != nil {
			return err
		}
		delete(content, "status") // CDI's
		u := &unstructured.Unstructured{Object: content}
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		return r.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), dataSourceFieldOwner, client.ForceOwnership)
	}
}

// reconcileOrphanedDataSource deletes a DataSource of ours whose image no longer exists: its
// finalizer was removed by hand, or a paused agent created the DataSource late.
//
// One that unfinished DataVolumes refer to stays: CDI neither finishes nor deletes them without it.
func (r *Reconciler) reconcileOrphanedDataSource(ctx context.Context, name types.NamespacedName) (requeueAfter time.Duration, err error) {
	ds := &cdiv1.DataSource{}
	if err := r.Clones.Get(ctx, name, ds); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	uid := types.UID(ds.Labels[v1alpha1.LabelImageUID])
	if _, known := r.arrivals.nameForUID(uid); uid == "" || known || ds.DeletionTimestamp != nil {
		return 0, nil
	}
	var images v1alpha1.VMDiskImageList
	if err := r.Live.List(ctx, &images, client.InNamespace(name.Namespace)); err != nil {
		return 0, fmt.Errorf("listing the images of DataSource %s: %w", name, err)
	}
	if slices.ContainsFunc(images.Items, func(img v1alpha1.VMDiskImage) bool {
		return img.UID == uid || (image.CanPublish(&img) && image.PublishedName(&img) == name.Name)
	}) {
		return 0, nil
	}
	orphaned := &image.View{Image: &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace}}, Publishing: &image.PublishingView{DataSources: []cdiv1.DataSource{*ds}}}
	if _, err := r.listClones(ctx, orphaned); err != nil {
		return 0, err
	}
	if orphaned.Publishing.InFlight[name.Name] {
		return orphanRecheckInterval, nil
	}
	err = r.Delete(ctx, ds, client.Preconditions{UID: &ds.UID, ResourceVersion: &ds.ResourceVersion})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("deleting DataSource %s, whose image is gone: %w", name, err)
	}
	return 0, nil
}
