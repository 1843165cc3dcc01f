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

// targets of an ImagePrune, from the pages of its report. They stay as they were
// read: the pages of a digest do not change.
type targets struct {
	prune   types.UID
	list    []prune.Target
	absent  []string // clusters it names that the pages say nothing of
	changed string   // why there are none: the pages are not as they were reviewed
}

// targets that are loaded; nil for none.
func (r *Prunes) targets(stored *v1alpha1.ImagePrune) *targets {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.loaded[stored.Name]; t != nil && t.prune == stored.UID {
		return t
	}
	return nil
}

func (r *Prunes) keep(name string, t *targets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loaded == nil {
		r.loaded = map[string]*targets{}
	}
	r.loaded[name] = t
}

// load reads the targets of an ImagePrune.
func (r *Prunes) load(ctx context.Context, stored *v1alpha1.ImagePrune, of *v1alpha1.PruneReport) (*targets, error) {
	clusters, changed, err := readPages(ctx, r.Live, of, stored.Spec.ReportRef.Digest)
	if err != nil {
		return nil, err
	}
	t := &targets{prune: stored.UID, changed: changed}
	if changed == "" {
		t.list, t.absent = prune.Targets(&stored.Spec, clusters), prune.Absent(&stored.Spec, clusters)
	}
	return t, nil
}

// State is how far one target of an ImagePrune is.
type State struct {
	prune.Target
	v1alpha1.PruneStatus
}

// States tells how far the targets of an ImagePrune are, by cluster, namespace and
// name; found is false where there is none of that name. Without a report that is
// complete and as it was reviewed it has no targets. Nothing comes of it, and every
// replica tells it.
func (r *Prunes) States(ctx context.Context, name string) (states []State, found bool, err error) {
	stored := &v1alpha1.ImagePrune{}
	switch err := r.Get(ctx, client.ObjectKey{Name: name}, stored); {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("reading ImagePrune %s: %w", name, err)
	}
	v, err := r.view(ctx, stored)
	if err != nil {
		return nil, true, err
	}
	t, err := r.targetsFor(ctx, stored, v.Report)
	if err != nil || t == nil {
		return nil, true, err
	}
	v.Targets, v.Absent, v.Loaded, v.Changed = t.list, t.absent, true, t.changed
	states = make([]State, len(v.Targets))
	for i, target := range v.Targets {
		states[i] = State{target, prune.StateOf(v, target)}
	}
	return states, true, nil
}

// targetsFor returns the targets for whoever asks: as they are loaded, or else as
// they are stored. Whoever goes through them asks several times.
func (r *Prunes) targetsFor(ctx context.Context, stored *v1alpha1.ImagePrune, of *v1alpha1.PruneReport) (*targets, error) {
	if t := r.targets(stored); t != nil {
		return t, nil
	}
	r.mu.Lock()
	t := r.asked
	r.mu.Unlock()
	if t != nil && t.prune == stored.UID {
		return t, nil
	}
	if of == nil || of.Status.Phase != v1alpha1.PruneReportComplete || of.Status.Digest != stored.Spec.ReportRef.Digest {
		return nil, nil
	}
	t, err := r.load(ctx, stored, of)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = t
	return t, nil
}
