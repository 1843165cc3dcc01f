package prune

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

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// reconcileSchedule makes the report that is due, and deletes those that are too many. That
// a report was made is stored after it was: its name says what it was made for, so
// that it is not made twice.
func (r *ReportReconciler) reconcileSchedule(ctx context.Context, parent *v1alpha1.PruneReport) (after time.Duration, err error) {
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
		if err := r.createChild(ctx, parent, d.Create); err != nil {
			return 0, err
		}
	}
	wait, err := r.updateStatus(ctx, parent, &d.Status)
	if err != nil {
		return 0, err
	}
	for _, name := range d.Delete {
		i := slices.IndexFunc(children, func(c v1alpha1.PruneReport) bool { return c.Name == name })
		if i < 0 {
			continue
		}
		err := r.Delete(ctx, &children[i], exactPreconditions(&children[i]), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("deleting PruneReport %s, which is too many of schedule %s: %w", name, parent.Name, err)
		}
	}
	return shorterDelay(d.RequeueAfter, wait), nil
}

// listChildren are the reports that a schedule has made, by name.
func (r *ReportReconciler) listChildren(ctx context.Context, parent *v1alpha1.PruneReport) (children []v1alpha1.PruneReport, err error) {
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

// listReportsInUse are the reports that ImagePrunes go by that have not ended.
func (r *ReportReconciler) listReportsInUse(ctx context.Context) (map[string]bool, error) {
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

// createChild makes a report of a schedule. One that is there already was made by a
// try that was broken off; where it is somebody else's, this time is passed over.
func (r *ReportReconciler) createChild(ctx context.Context, parent, child *v1alpha1.PruneReport) error {
	child.OwnerReferences = []metav1.OwnerReference{newOwnerReference(parent)}
	err := r.Create(ctx, child)
	switch {
	case err == nil:
		return nil
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("creating PruneReport %s of schedule %s: %w", child.Name, parent.Name, err)
	}
	there := &v1alpha1.PruneReport{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(child), there); err != nil {
		return fmt.Errorf("reading PruneReport %s: %w", child.Name, err)
	}
	if !metav1.IsControlledBy(there, parent) {
		r.Events.Eventf(parent, there, corev1.EventTypeWarning, "NameTaken", "Schedule", "no report is made for this time: PruneReport %s is there and is not of this schedule", child.Name)
	}
	return nil
}

func sortMembers(members []*v1alpha1.MemberCluster) {
	slices.SortFunc(members, func(a, b *v1alpha1.MemberCluster) int { return strings.Compare(a.Name, b.Name) })
}
