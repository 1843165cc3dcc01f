package report

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

const (
	// maxDeletions is how many objects one reconcile deletes, so that a member with many
	// does not occupy a worker.
	maxDeletions = 64
	// deletionPause is the wait before the next ones are deleted.
	deletionPause = 100 * time.Millisecond
	// floodMemory is how long a member's condition says that somebody wrote more pages
	// than an agent does.
	floodMemory = time.Hour
)

// deleteUnlisted deletes what the root does not list, and returns when to do so again; 0
// for never.
func (r *Reconciler) deleteUnlisted(ctx context.Context, member *v1alpha1.MemberCluster, report *readReport, stored map[string]*metav1.PartialObjectMetadata) (after time.Duration, err error) {
	listed := map[string]bool{v1alpha1.MailboxName: true, v1alpha1.ActivityName: true}
	for _, page := range report.listedPages() {
		listed[page] = true
	}
	var unlisted []string
	for name := range stored {
		if !listed[name] {
			unlisted = append(unlisted, name)
		}
	}
	now := r.now()
	d := report.unlisted.Observe(unlisted, now)
	switch {
	case d.Surplus > 0:
		report.floodedAt = &now
	case report.floodedAt != nil && now.Sub(*report.floodedAt) >= floodMemory:
		report.floodedAt = nil
	}
	after = d.NextAfter
	if report.floodedAt != nil {
		after = min(cmp.Or(after, floodMemory), floodMemory)
	}
	if len(d.Names) > maxDeletions {
		d.Names, after = d.Names[:maxDeletions], deletionPause
	}
	deleted := 0
	defer func() { r.recordDeleted(member, deleted) }()
	for _, name := range d.Names {
		err := r.Live.Delete(ctx, &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member.Name, Name: name}},
			client.Preconditions{UID: ptr.To(stored[name].UID)})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		case err != nil:
			return 0, fmt.Errorf("deleting ClusterReport %s%s/%s, which the report does not list: %w", v1alpha1.MemberNamespacePrefix, member.Name, name, err)
		default:
			deleted++
		}
	}
	return after, nil
}

// recordDeleted reports deleted objects as an event and a metric.
func (r *Reconciler) recordDeleted(member *v1alpha1.MemberCluster, deleted int) {
	if deleted == 0 {
		return
	}
	r.Metrics.CountDeleted(member.Name, deleted)
	r.Events.Eventf(member, nil, corev1.EventTypeWarning, "UnlistedReportsDeleted", "CleanUp",
		"Deleted %d ClusterReports in namespace %s%s that the report does not list", deleted, v1alpha1.MemberNamespacePrefix, member.Name)
}

// excess returns what of the member's namespace is not used.
func (r *readReport) excess() memberstatus.ReportExcess {
	excess := memberstatus.ReportExcess{RootTooLarge: r.rootTooLarge, Undecodable: r.hasUndecodable(), FloodedAt: r.floodedAt}
	for _, page := range r.pages {
		if !page.kept && !page.undecodable {
			excess.IgnoredPages++
		}
	}
	return excess
}

func (r *readReport) hasUndecodable() bool {
	for _, page := range r.pages {
		if page.undecodable {
			return true
		}
	}
	return r.rootUndecodable
}
