package imageprune

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/prunereport"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// loadedTargets are the targets of an ImagePrune as its report's pages gave them. They
// never change: neither do the pages of a digest.
type loadedTargets struct {
	pruneUID       types.UID
	list           []prune.Target
	absentClusters []string
	exclusions     prune.Exclusions
	changedReason  string // why there are none: the pages are not those that were reviewed
}

func (t *loadedTargets) addTo(v *prune.PruneView) {
	v.Targets, v.AbsentClusters, v.Exclusions, v.ChangedReason, v.TargetsLoaded = t.list, t.absentClusters, t.exclusions, t.changedReason, true
}

// cachedTargets returns nil where the targets of an ImagePrune are not loaded.
func (r *Reconciler) cachedTargets(stored *v1alpha1.ImagePrune) *loadedTargets {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.targetsByPrune[stored.Name]; t != nil && t.pruneUID == stored.UID {
		return t
	}
	return nil
}

func (r *Reconciler) cacheTargets(name string, t *loadedTargets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.targetsByPrune == nil {
		r.targetsByPrune = map[string]*loadedTargets{}
	}
	r.targetsByPrune[name] = t
}

func (r *Reconciler) loadTargets(ctx context.Context, stored *v1alpha1.ImagePrune, report *v1alpha1.PruneReport) (*loadedTargets, error) {
	clusters, changed, err := prunereport.ReadPages(ctx, r.Live, report, stored.Spec.ReportRef.Digest)
	if err != nil {
		return nil, err
	}
	t := &loadedTargets{pruneUID: stored.UID, changedReason: changed}
	if changed == "" {
		t.list, t.absentClusters = prune.SelectTargets(&stored.Spec, clusters), prune.AbsentClusters(&stored.Spec, clusters)
		t.exclusions = prune.SelectExclusions(&stored.Spec, clusters)
	}
	return t, nil
}

// TargetState is the progress of one target of an ImagePrune.
type TargetState struct {
	prune.Target
	v1alpha1.PruneStatus
}

// TargetStates returns the progress of the targets of an ImagePrune, by cluster,
// namespace and name; found is false where there is no such ImagePrune. There are no
// targets without a complete report that is as it was reviewed. It changes nothing, and
// works in every replica.
func (r *Reconciler) TargetStates(ctx context.Context, name string) (states []TargetState, found bool, err error) {
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
	t, err := r.targetsForQuery(ctx, stored, v.Report)
	if err != nil || t == nil {
		return nil, true, err
	}
	t.addTo(&v)
	states = make([]TargetState, len(v.Targets))
	for i, target := range v.Targets {
		states[i] = TargetState{target, prune.TargetState(v, target)}
	}
	return states, true, nil
}

// targetsForQuery returns the loaded targets, or reads them. It keeps those that were
// read last: a reader pages through them with several queries.
func (r *Reconciler) targetsForQuery(ctx context.Context, stored *v1alpha1.ImagePrune, report *v1alpha1.PruneReport) (*loadedTargets, error) {
	if t := r.cachedTargets(stored); t != nil {
		return t, nil
	}
	r.mu.Lock()
	t := r.lastQueried
	r.mu.Unlock()
	if t != nil && t.pruneUID == stored.UID {
		return t, nil
	}
	if report == nil || report.Status.Phase != v1alpha1.PruneReportComplete || report.Status.Digest != stored.Spec.ReportRef.Digest {
		return nil, nil
	}
	t, err := r.loadTargets(ctx, stored, report)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastQueried = t
	return t, nil
}
