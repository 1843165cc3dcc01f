package prunereport

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// reconcileSchedule creates the report that is due and deletes those beyond the history
// limit. The status is written after the report: its name holds the time it is for, so
// it is not created twice.
func (r *Reconciler) reconcileSchedule(ctx context.Context, parent *v1alpha1.PruneReport) (after time.Duration, err error) {
	children, err := r.listChildren(ctx, parent)
	if err != nil {
		return 0, err
	}
	inUse, err := r.listReportsInUse(ctx)
	if err != nil {
		return 0, err
	}
	d := prune.DecideSchedule(prune.ScheduleView{Now: time.Now(), Report: parent, Children: children, InUse: inUse})
	if d.Create != nil {
		err := r.createChild(ctx, parent, d.Create)
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) { // as of a schedule that is older than the rules it breaks
			d = prune.RefuseSchedule(d, parent, err, time.Now())
		} else if err != nil {
			return 0, err
		}
	}
	wait, err := r.updateStatus(ctx, parent, &d.Status)
	if err != nil {
		return 0, err
	}
	if err := r.deleteChildren(ctx, parent, children, d.Delete); err != nil {
		return 0, err
	}
	return trigger.Earliest(d.RequeueAfter, wait), nil
}

// listChildren returns the reports that a schedule has created, by name.
func (r *Reconciler) listChildren(ctx context.Context, parent *v1alpha1.PruneReport) (children []v1alpha1.PruneReport, err error) {
	var list v1alpha1.PruneReportList
	if err := r.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("listing PruneReports: %w", err)
	}
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], parent) {
			children = append(children, list.Items[i])
		}
	}
	slices.SortFunc(children, func(a, b v1alpha1.PruneReport) int { return strings.Compare(a.Name, b.Name) })
	return children, nil
}

// listReportsInUse returns the names of the reports that unfinished ImagePrunes name.
func (r *Reconciler) listReportsInUse(ctx context.Context) (map[string]bool, error) {
	var list v1alpha1.ImagePruneList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ImagePrunes: %w", err)
	}
	inUse := map[string]bool{}
	for i := range list.Items {
		if p := &list.Items[i]; !p.Status.Phase.IsFinal() {
			inUse[p.Spec.ReportRef.Name] = true
		}
	}
	return inUse, nil
}

// createChild creates a report of a schedule. Where an aborted attempt has created it,
// nothing is left to do; where a foreign object has its name, this time is skipped.
func (r *Reconciler) createChild(ctx context.Context, parent, child *v1alpha1.PruneReport) error {
	err := r.Create(ctx, child)
	switch {
	case err == nil:
		return nil
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("creating PruneReport %s of schedule %s: %w", child.Name, parent.Name, err)
	}
	existing := &v1alpha1.PruneReport{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(child), existing); err != nil {
		return fmt.Errorf("reading PruneReport %s: %w", child.Name, err)
	}
	if !metav1.IsControlledBy(existing, parent) {
		r.Events.Eventf(parent, existing, corev1.EventTypeWarning, "NameTaken", "Schedule", "skipped this time: PruneReport %s exists and does not belong to this schedule", child.Name)
	}
	return nil
}

func (r *Reconciler) deleteChildren(ctx context.Context, parent *v1alpha1.PruneReport, children []v1alpha1.PruneReport, names []string) error {
	for i := range children {
		child := &children[i]
		if !slices.Contains(names, child.Name) {
			continue
		}
		err := r.Delete(ctx, child, exactPreconditions(child), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting PruneReport %s beyond the history limit of schedule %s: %w", child.Name, parent.Name, err)
		}
	}
	return nil
}
