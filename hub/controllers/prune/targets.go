package prune

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// loadedTargets of an ImagePrune, from the pages of its report. They stay as they were
// read: the pages of a digest do not change.
type loadedTargets struct {
	prune          types.UID
	list           []prune.Target
	absentClusters []string // clusters it names that the pages say nothing of
	changedReason  string   // why there are none: the pages are not as they were reviewed
}

// cachedTargets that are loaded; nil for none.
func (r *PruneReconciler) cachedTargets(stored *v1alpha1.ImagePrune) *loadedTargets {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.targetsByPrune[stored.Name]; t != nil && t.prune == stored.UID {
		return t
	}
	return nil
}

func (r *PruneReconciler) cacheTargets(name string, t *loadedTargets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.targetsByPrune == nil {
		r.targetsByPrune = map[string]*loadedTargets{}
	}
	r.targetsByPrune[name] = t
}

// loadTargets reads the targets of an ImagePrune.
func (r *PruneReconciler) loadTargets(ctx context.Context, stored *v1alpha1.ImagePrune, of *v1alpha1.PruneReport) (*loadedTargets, error) {
	clusters, changed, err := readPages(ctx, r.Live, of, stored.Spec.ReportRef.Digest)
	if err != nil {
		return nil, err
	}
	t := &loadedTargets{prune: stored.UID, changedReason: changed}
	if changed == "" {
		t.list, t.absentClusters = prune.SelectTargets(&stored.Spec, clusters), prune.AbsentClusters(&stored.Spec, clusters)
	}
	return t, nil
}

// TargetState is how far one target of an ImagePrune is.
type TargetState struct {
	prune.Target
	v1alpha1.PruneStatus
}

// TargetStates tells how far the targets of an ImagePrune are, by cluster, namespace and
// name; found is false where there is none of that name. Without a report that is
// complete and as it was reviewed it has no targets. Nothing comes of it, and every
// replica tells it.
func (r *PruneReconciler) TargetStates(ctx context.Context, name string) (states []TargetState, found bool, err error) {
	stored := &v1alpha1.ImagePrune{}
	switch err := r.Get(ctx, client.ObjectKey{Name: name}, stored); {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("reading ImagePrune %s: %w", name, err)
	}
	v, err := r.gatherView(ctx, stored)
	if err != nil {
		return nil, true, err
	}
	t, err := r.targetsForReader(ctx, stored, v.Report)
	if err != nil || t == nil {
		return nil, true, err
	}
	v.Targets, v.AbsentClusters, v.TargetsLoaded, v.ChangedReason = t.list, t.absentClusters, true, t.changedReason
	states = make([]TargetState, len(v.Targets))
	for i, target := range v.Targets {
		states[i] = TargetState{target, prune.TargetState(v, target)}
	}
	return states, true, nil
}

// targetsForReader returns the targets for whoever asks: as they are loaded, or else as
// they are stored. Whoever goes through them asks several times.
func (r *PruneReconciler) targetsForReader(ctx context.Context, stored *v1alpha1.ImagePrune, of *v1alpha1.PruneReport) (*loadedTargets, error) {
	if t := r.cachedTargets(stored); t != nil {
		return t, nil
	}
	r.mu.Lock()
	t := r.lastRead
	r.mu.Unlock()
	if t != nil && t.prune == stored.UID {
		return t, nil
	}
	if of == nil || of.Status.Phase != v1alpha1.PruneReportComplete || of.Status.Digest != stored.Spec.ReportRef.Digest {
		return nil, nil
	}
	t, err := r.loadTargets(ctx, stored, of)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastRead = t
	return t, nil
}
