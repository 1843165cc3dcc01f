package ledger

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// listUnfinishedCached lists the agent's DataVolumes that may still download.
func (r *Reconciler) listUnfinishedCached(ctx context.Context) ([]cdiv1.DataVolume, error) {
	if !r.Kinds.IsServed(image.DataVolumeGVK) {
		return nil, nil
	}
	var dvs cdiv1.DataVolumeList
	if err := r.List(ctx, &dvs, client.MatchingFields{image.UnfinishedIndex: image.UnfinishedIndexValue}); err != nil {
		return nil, fmt.Errorf("listing unfinished DataVolumes: %w", err)
	}
	return dvs.Items, nil
}

func (r *Reconciler) listUnfinishedLive(ctx context.Context) ([]cdiv1.DataVolume, error) {
	var dvs cdiv1.DataVolumeList
	if err := r.Live.List(ctx, &dvs, client.HasLabels{v1alpha1.LabelImageUID}); err != nil {
		return nil, fmt.Errorf("listing DataVolumes: %w", err)
	}
	return slices.DeleteFunc(dvs.Items, func(dv cdiv1.DataVolume) bool { return dv.Status.Phase == cdiv1.Succeeded }), nil
}

// findUnlisted returns the unfinished DataVolumes that hold no slot. Each is confirmed by a
// live read, since the list may be old.
func (r *Reconciler) findUnlisted(ctx context.Context, dvs []cdiv1.DataVolume, listed map[string]bool, found *gatheredFacts) ([]ledger.UnlistedDataVolume, error) {
	var unlisted []ledger.UnlistedDataVolume
	for i := range dvs {
		dv := &dvs[i]
		if listed[dv.Namespace+"/"+dv.Name] {
			continue
		}
		u, exists, err := r.checkUnlisted(ctx, dv, found)
		if err != nil {
			return nil, err
		}
		if exists {
			unlisted = append(unlisted, u)
		}
	}
	return unlisted, nil
}

// checkUnlisted reads a DataVolume without a slot, and its image, live. One that cannot be
// adopted is marked for deletion.
func (r *Reconciler) checkUnlisted(ctx context.Context, listed *cdiv1.DataVolume, found *gatheredFacts) (u ledger.UnlistedDataVolume, exists bool, err error) {
	attempt, _ := strconv.ParseInt(listed.Labels[v1alpha1.LabelAttempt], 10, 32)
	u.Slot = v1alpha1.Slot{
		Image: v1alpha1.ImageKey{
			Namespace: listed.Namespace, Name: listed.Annotations[v1alpha1.AnnotationImageName],
			UID: types.UID(listed.Labels[v1alpha1.LabelImageUID]),
		},
		Revision: listed.Labels[v1alpha1.LabelRevision], Attempt: int32(attempt),
		DataVolume: listed.Name, StartedAt: listed.CreationTimestamp, Host: image.DataVolumeHost(listed),
	}
	img, err := r.readImageLive(ctx, u.Slot.Image)
	if err != nil {
		return u, false, err
	}
	if img != nil {
		found.images[img.UID] = img
		u.Adoptable = attempt > 0 && listed.Name == ledger.DataVolumeName(u.Slot.Image, u.Slot.Attempt) && image.IsAdoptable(img, u.Slot)
	}
	live := &cdiv1.DataVolume{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(listed), live)
	switch {
	case apierrors.IsNotFound(err), err == nil && (live.UID != listed.UID || live.Status.Phase == cdiv1.Succeeded):
		return u, false, nil
	case err != nil:
		return u, false, fmt.Errorf("reading DataVolume %s/%s: %w", listed.Namespace, listed.Name, err)
	}
	if live.DeletionTimestamp == nil && !u.Adoptable {
		found.toDelete = append(found.toDelete, live)
		found.strays[live.UID] = true
	}
	return u, true, nil
}
