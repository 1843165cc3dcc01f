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
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// storedObject is what is known of one object of the report.
type storedObject struct {
	uid             types.UID // empty: it is not there
	resourceVersion string
	// sequence of what is stored; newest is the highest that was ever seen, so
	// that an older copy that somebody has written back is overtaken.
	sequence, newestSequence int64
	// rewrite: what is stored is not to stay, whatever it says.
	mustRewrite bool
	// digest of a page's images, and how many there are.
	digest     string
	imageCount int
	root       *v1alpha1.ReportRoot
	// refusedDigest is the digest of a page that the API server does not take.
	refusedDigest string
	// answer that what is stored is.
	answer report.PlanAnswer
}

func (rec *storedObject) exists() bool { return rec.uid != "" }

func (rec *storedObject) pageRef(name string) v1alpha1.PageRef {
	return v1alpha1.PageRef{Name: name, Sequence: rec.sequence, Images: int32(rec.imageCount)}
}

// readBatchSize is how many objects are read at a time: pages can be large.
const readBatchSize = 16

// silenceLimit is how old a root is that no living agent has left. Either none
// ran, or the cluster was restored from a backup; then the hub may know later
// pages than those that are stored, and what looks unchanged is older to it.
func (r *Reconciler) silenceLimit() time.Duration { return max(time.Minute, 3*r.Heartbeat) }

// storedReport is a report as it is stored: the names of its pages, and what they say became
// of the plan that no image says itself.
type storedReport struct {
	pages     []string
	planItems map[report.Key]v1alpha1.PlanItemReport
	pruned    map[report.Key]v1alpha1.ReportedPrune
}

func (f *storedReport) addImage(img *v1alpha1.ReportedImage) {
	key := report.Key{Namespace: img.Namespace, Name: img.Name}
	if img.Plan != nil {
		f.planItems[key] = *img.Plan
	}
	if img.Prune != nil && img.Prune.ImageUID != img.UID {
		f.pruned[key] = *img.Prune
	}
}

// readStoredReport reads everything that is stored.
func (r *Reconciler) readStoredReport(ctx context.Context) (storedReport, error) {
	was := storedReport{planItems: map[report.Key]v1alpha1.PlanItemReport{}, pruned: map[report.Key]v1alpha1.ReportedPrune{}}
	seen := map[string]bool{}
	var list v1alpha1.ClusterReportList
	for {
		if err := r.Live.List(ctx, &list, client.InNamespace(r.Namespace), client.Limit(readBatchSize), client.Continue(list.Continue)); err != nil {
			return was, fmt.Errorf("listing ClusterReports in namespace %s: %w", r.Namespace, err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			seen[obj.Name] = true
			r.recordStored(obj)
			if obj.Page == nil {
				continue
			}
			was.pages = append(was.pages, obj.Name)
			for i := range obj.Page.Images {
				was.addImage(&obj.Page.Images[i])
			}
		}
		if list.Continue == "" {
			break
		}
	}
	for name := range r.stored {
		if !seen[name] {
			r.recordAbsent(name)
		}
	}
	if root := r.stored[v1alpha1.MailboxName]; root != nil && root.root != nil {
		was.pages = nil
		old := time.Since(root.root.ObservedAt.Time) > r.silenceLimit()
		for _, ref := range root.root.Pages {
			was.pages = append(was.pages, ref.Name)
			rec := r.objectFor(ref.Name)
			rec.newestSequence = max(rec.newestSequence, ref.Sequence)
			rec.mustRewrite = rec.mustRewrite || old || rec.sequence < rec.newestSequence
		}
	}
	return was, nil
}

// readObject reads one object again. A root that has become older means that all may
// have: somebody has put it back, or the whole cluster, and then no event tells
// of the pages: it is begun anew.
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

func (r *Reconciler) objectFor(name string) *storedObject {
	rec := r.stored[name]
	if rec == nil {
		rec = &storedObject{}
		r.stored[name] = rec
	}
	return rec
}

// recordStored takes note of an object as it is stored.
func (r *Reconciler) recordStored(obj *v1alpha1.ClusterReport) {
	rec := r.objectFor(obj.Name)
	if rec.uid != obj.UID || rec.resourceVersion != obj.ResourceVersion {
		rec.answer = report.PlanAnswer{}
	}
	rec.uid, rec.resourceVersion, rec.sequence = obj.UID, obj.ResourceVersion, obj.Sequence
	rec.newestSequence = max(rec.newestSequence, obj.Sequence)
	rec.mustRewrite = rec.mustRewrite || obj.Sequence < rec.newestSequence || obj.ClusterUID != r.clusterUID
	rec.root, rec.digest, rec.imageCount = obj.Root, "", 0
	if obj.Page != nil {
		rec.digest, rec.imageCount = report.DigestPage(obj.Page.Images), len(obj.Page.Images)
	}
	r.changes.setKnownVersion(obj.Name, obj.ResourceVersion)
}

// recordAbsent takes note that an object is not there. Its sequence is kept: one that
// takes its place goes on above it.
func (r *Reconciler) recordAbsent(name string) {
	rec := r.objectFor(name)
	*rec = storedObject{newestSequence: rec.newestSequence}
	r.changes.setKnownVersion(name, "")
}

// writeObject stores an object in place of the one that is known, and of no other.
func (r *Reconciler) writeObject(ctx context.Context, name string, fill func(*v1alpha1.ClusterReport)) error {
	rec := r.objectFor(name)
	obj := &v1alpha1.ClusterReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name, UID: rec.uid, ResourceVersion: rec.resourceVersion},
		ClusterUID: r.clusterUID,
		Sequence:   max(time.Now().UnixMilli(), rec.newestSequence+1),
	}
	fill(obj)
	var err error
	if rec.exists() {
		err = r.Update(ctx, obj)
	} else {
		err = r.Create(ctx, obj)
	}
	switch {
	case err == nil:
		rec.mustRewrite = false
		r.recordStored(obj)
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), rec.exists() && apierrors.IsNotFound(err):
		r.changes.markStale(name)
		return fmt.Errorf("storing ClusterReport %s/%s: %w", r.Namespace, name, errReportChanged)
	default:
		return fmt.Errorf("storing ClusterReport %s/%s: %w", r.Namespace, name, err)
	}
}

// deleteObject deletes an object as it is known.
func (r *Reconciler) deleteObject(ctx context.Context, name string, rec *storedObject) error {
	obj := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name}}
	err := r.Delete(ctx, obj, client.Preconditions{UID: &rec.uid, ResourceVersion: &rec.resourceVersion})
	switch {
	case client.IgnoreNotFound(err) == nil:
		r.recordAbsent(name)
		return nil
	case apierrors.IsConflict(err):
		r.changes.markStale(name)
		return fmt.Errorf("deleting ClusterReport %s/%s: %w", r.Namespace, name, errReportChanged)
	default:
		return fmt.Errorf("deleting ClusterReport %s/%s, which the report does not list any more: %w", r.Namespace, name, err)
	}
}
