package report

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// readBatchSize is the number of objects per list request: pages can be large.
const readBatchSize = 16

// storedObject is what is known of one object of the report.
type storedObject struct {
	uid             types.UID // empty: it does not exist
	resourceVersion string
	// sequence is the stored one; newestSequence is the highest that was ever seen, so that
	// an older copy that somebody has restored is exceeded.
	sequence, newestSequence int64
	// mustRewrite: the stored object is replaced, whatever it says.
	mustRewrite bool
	// digest of a page's images, and their number.
	digest     string
	imageCount int
	root       *v1alpha1.ReportRoot
	activity   *v1alpha1.ReportedActivity
	// refusedUntil is when a page is tried again that is refused, or whose writes go on failing; zero if
	// the last one was stored.
	refusedUntil time.Time
	// failingSince is when a write of a page first failed; zero if the last one was stored.
	failingSince time.Time
	// answer is the plan that the stored page answers.
	answer report.PlanAnswer
}

func (o *storedObject) exists() bool { return o.uid != "" }

// holds reports whether a page is stored as it is now.
func (o *storedObject) holds(page report.Page) bool {
	return o.exists() && !o.mustRewrite && o.digest == page.Digest
}

// clearFailure ends what is known of failed writes.
func (o *storedObject) clearFailure() { o.refusedUntil, o.failingSince = time.Time{}, time.Time{} }

// isOutdated reports whether a page is stored otherwise, or not at all, because it was refused.
func (o *storedObject) isOutdated(page report.Page) bool {
	return !o.refusedUntil.IsZero() && (!o.exists() || o.digest != page.Digest)
}

func (o *storedObject) pageRef(name string) v1alpha1.PageRef {
	return v1alpha1.PageRef{Name: name, Sequence: o.sequence, Images: int32(o.imageCount)}
}

// silenceLimit is the age from which on a root was not left by a running agent. Either none
// ran, or the cluster was restored from a backup: then the hub may know later pages than
// the stored ones.
func (r *Reconciler) silenceLimit() time.Duration { return max(time.Minute, 3*r.Heartbeat) }

// storedReport is a report as it is stored: the names of its pages, and the results that
// are in no image's status.
type storedReport struct {
	pages     []string
	planItems map[report.Key]v1alpha1.PlanItemReport
	pruned    map[report.Key]v1alpha1.ReportedPrune
}

func (s *storedReport) addImage(img *v1alpha1.ReportedImage) {
	key := report.Key{Namespace: img.Namespace, Name: img.Name}
	if img.Plan != nil {
		s.planItems[key] = *img.Plan
	}
	if img.Prune != nil && img.Prune.ImageUID != img.UID {
		s.pruned[key] = *img.Prune
	}
}

// readStoredReport reads all objects of the report live.
func (r *Reconciler) readStoredReport(ctx context.Context) (storedReport, error) {
	stored := storedReport{planItems: map[report.Key]v1alpha1.PlanItemReport{}, pruned: map[report.Key]v1alpha1.ReportedPrune{}}
	exists := map[string]bool{}
	var list v1alpha1.ClusterReportList
	for {
		if err := r.Live.List(ctx, &list, client.InNamespace(r.Namespace), client.Limit(readBatchSize), client.Continue(list.Continue)); err != nil {
			return stored, fmt.Errorf("listing ClusterReports in namespace %s: %w", r.Namespace, err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			exists[obj.Name] = true
			r.recordStored(obj)
			if obj.Page == nil {
				continue
			}
			stored.pages = append(stored.pages, obj.Name)
			for i := range obj.Page.Images {
				stored.addImage(&obj.Page.Images[i])
			}
		}
		if list.Continue == "" {
			break
		}
	}
	for name := range r.stored {
		if !exists[name] {
			r.recordAbsent(name)
		}
	}
	if root := r.stored[v1alpha1.MailboxName]; root != nil && root.root != nil {
		stored.pages = nil
		isOld := time.Since(root.root.ObservedAt.Time) > r.silenceLimit()
		for _, ref := range root.root.Pages {
			stored.pages = append(stored.pages, ref.Name)
			page := r.objectFor(ref.Name)
			page.newestSequence = max(page.newestSequence, ref.Sequence)
			page.mustRewrite = page.mustRewrite || isOld || page.sequence < page.newestSequence
		}
	}
	return stored, nil
}

// readObject reads one object live. A root that is older than before was restored, maybe
// with the whole cluster, and no event announces older pages: everything is read again.
func (r *Reconciler) readObject(ctx context.Context, name string) error {
	obj := &v1alpha1.ClusterReport{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: name}, obj)
	switch {
	case err == nil:
		r.recordStored(obj)
		if name == v1alpha1.MailboxName && obj.Sequence < r.stored[name].newestSequence {
			r.paginator = nil
		}
	case apierrors.IsNotFound(err):
		r.recordAbsent(name)
	default:
		return fmt.Errorf("reading ClusterReport %s/%s: %w", r.Namespace, name, err)
	}
	return nil
}

// objectFor returns what is known of an object, adding it if need be.
func (r *Reconciler) objectFor(name string) *storedObject {
	o := r.stored[name]
	if o == nil {
		o = &storedObject{}
		r.stored[name] = o
	}
	return o
}

// recordStored records an object as it was read or written.
func (r *Reconciler) recordStored(obj *v1alpha1.ClusterReport) {
	o := r.objectFor(obj.Name)
	if o.uid != obj.UID || o.resourceVersion != obj.ResourceVersion {
		o.answer = report.PlanAnswer{}
	}
	o.uid, o.resourceVersion, o.sequence = obj.UID, obj.ResourceVersion, obj.Sequence
	o.newestSequence = max(o.newestSequence, obj.Sequence)
	o.mustRewrite = o.mustRewrite || obj.Sequence < o.newestSequence || obj.ClusterUID != r.clusterUID
	o.root, o.activity, o.digest, o.imageCount = obj.Root, obj.Activity, "", 0
	if obj.Page != nil {
		o.digest, o.imageCount = report.DigestPage(obj.Page.Images), len(obj.Page.Images)
	}
	r.changes.setKnownVersion(obj.Name, obj.ResourceVersion)
}

// recordAbsent records that an object does not exist. Its sequence is kept: an object that
// is created in its place continues above it.
func (r *Reconciler) recordAbsent(name string) {
	o := r.objectFor(name)
	*o = storedObject{newestSequence: o.newestSequence}
	r.changes.setKnownVersion(name, "")
}

// writeObject writes an object in place of the known one. It returns errReportChanged if
// another writer has changed that.
func (r *Reconciler) writeObject(ctx context.Context, name string, fill func(*v1alpha1.ClusterReport)) error {
	o := r.objectFor(name)
	obj := &v1alpha1.ClusterReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name, UID: o.uid, ResourceVersion: o.resourceVersion},
		ClusterUID: r.clusterUID,
		Sequence:   max(time.Now().UnixMilli(), o.newestSequence+1),
	}
	fill(obj)
	var err error
	if o.exists() {
		ownership.Untrack(obj)
		err = r.Update(ctx, obj)
	} else {
		err = r.Create(ctx, obj)
	}
	switch {
	case err == nil:
		o.mustRewrite = false
		r.recordStored(obj)
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), o.exists() && apierrors.IsNotFound(err):
		r.changes.markStale(name)
		return fmt.Errorf("storing ClusterReport %s/%s: %w", r.Namespace, name, errReportChanged)
	default:
		return fmt.Errorf("storing ClusterReport %s/%s: %w", r.Namespace, name, err)
	}
}

// deleteObject deletes the known object. It returns errReportChanged if another writer has
// changed that.
func (r *Reconciler) deleteObject(ctx context.Context, name string, o *storedObject) error {
	obj := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name}}
	err := r.Delete(ctx, obj, client.Preconditions{UID: &o.uid, ResourceVersion: &o.resourceVersion})
	switch {
	case client.IgnoreNotFound(err) == nil:
		r.recordAbsent(name)
		return nil
	case apierrors.IsConflict(err):
		r.changes.markStale(name)
		return fmt.Errorf("deleting ClusterReport %s/%s: %w", r.Namespace, name, errReportChanged)
	default:
		return fmt.Errorf("deleting ClusterReport %s/%s, which the report no longer lists: %w", r.Namespace, name, err)
	}
}
