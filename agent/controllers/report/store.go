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

// record is what is known of one object of the report.
type record struct {
	uid     types.UID // empty: it is not there
	version string
	// sequence of what is stored; newest is the highest that was ever seen, so
	// that an older copy that somebody has written back is overtaken.
	sequence, newest int64
	// rewrite: what is stored is not to stay, whatever it says.
	rewrite bool
	// digest of a page's images, and how many there are.
	digest string
	images int
	root   *v1alpha1.ReportRoot
	// refused is the digest of a page that the API server does not take.
	refused string
	// answer that what is stored is.
	answer report.Answer
}

func (rec *record) exists() bool { return rec.uid != "" }

func (rec *record) ref(name string) v1alpha1.PageRef {
	return v1alpha1.PageRef{Name: name, Sequence: rec.sequence, Images: int32(rec.images)}
}

// readBatch is how many objects are read at a time: pages can be large.
const readBatch = 16

// longSilence is how old a root is that no living agent has left. Either none
// ran, or the cluster was restored from a backup; then the hub may know later
// pages than those that are stored, and what looks unchanged is older to it.
func (r *Reconciler) longSilence() time.Duration { return max(time.Minute, 3*r.Heartbeat) }

// former is a report as it is stored: the names of its pages, and what they say became
// of the plan that no image says itself.
type former struct {
	pages  []string
	plan   map[report.Key]v1alpha1.PlanItemReport
	pruned map[report.Key]v1alpha1.ReportedPrune
}

func (f *former) take(img *v1alpha1.ReportedImage) {
	key := report.Key{Namespace: img.Namespace, Name: img.Name}
	if img.Plan != nil {
		f.plan[key] = *img.Plan
	}
	if img.Prune != nil && img.Prune.ImageUID != img.UID {
		f.pruned[key] = *img.Prune
	}
}

// readAll reads everything that is stored.
func (r *Reconciler) readAll(ctx context.Context) (former, error) {
	was := former{plan: map[report.Key]v1alpha1.PlanItemReport{}, pruned: map[report.Key]v1alpha1.ReportedPrune{}}
	seen := map[string]bool{}
	var list v1alpha1.ClusterReportList
	for {
		if err := r.Live.List(ctx, &list, client.InNamespace(r.Namespace), client.Limit(readBatch), client.Continue(list.Continue)); err != nil {
			return was, fmt.Errorf("listing ClusterReports in namespace %s: %w", r.Namespace, err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			seen[obj.Name] = true
			r.remember(obj)
			if obj.Page == nil {
				continue
			}
			was.pages = append(was.pages, obj.Name)
			for i := range obj.Page.Images {
				was.take(&obj.Page.Images[i])
			}
		}
		if list.Continue == "" {
			break
		}
	}
	for name := range r.stored {
		if !seen[name] {
			r.forget(name)
		}
	}
	if root := r.stored[v1alpha1.MailboxName]; root != nil && root.root != nil {
		was.pages = nil
		old := time.Since(root.root.ObservedAt.Time) > r.longSilence()
		for _, ref := range root.root.Pages {
			was.pages = append(was.pages, ref.Name)
			rec := r.recordOf(ref.Name)
			rec.newest = max(rec.newest, ref.Sequence)
			rec.rewrite = rec.rewrite || old || rec.sequence < rec.newest
		}
	}
	return was, nil
}

// read reads one object again. A root that has become older means that all may
// have: somebody has put it back, or the whole cluster, and then no event tells
// of the pages: it is begun anew.
func (r *Reconciler) read(ctx context.Context, name string) error {
	obj := &v1alpha1.ClusterReport{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: name}, obj)
	switch {
	case err == nil:
		r.remember(obj)
		if name == v1alpha1.MailboxName && obj.Sequence < r.stored[name].newest {
			r.book = nil
		}
	case apierrors.IsNotFound(err):
		r.forget(name)
	default:
		return fmt.Errorf("reading ClusterReport %s/%s: %w", r.Namespace, name, err)
	}
	return nil
}

func (r *Reconciler) recordOf(name string) *record {
	rec := r.stored[name]
	if rec == nil {
		rec = &record{}
		r.stored[name] = rec
	}
	return rec
}

// remember takes note of an object as it is stored.
func (r *Reconciler) remember(obj *v1alpha1.ClusterReport) {
	rec := r.recordOf(obj.Name)
	if rec.uid != obj.UID || rec.version != obj.ResourceVersion {
		rec.answer = report.Answer{}
	}
	rec.uid, rec.version, rec.sequence = obj.UID, obj.ResourceVersion, obj.Sequence
	rec.newest = max(rec.newest, obj.Sequence)
	rec.rewrite = rec.rewrite || obj.Sequence < rec.newest || obj.ClusterUID != r.cluster
	rec.root, rec.digest, rec.images = obj.Root, "", 0
	if obj.Page != nil {
		rec.digest, rec.images = report.Digest(obj.Page.Images), len(obj.Page.Images)
	}
	r.news.know(obj.Name, obj.ResourceVersion)
}

// forget takes note that an object is not there. Its sequence is kept: one that
// takes its place goes on above it.
func (r *Reconciler) forget(name string) {
	rec := r.recordOf(name)
	*rec = record{newest: rec.newest}
	r.news.know(name, "")
}

// write stores an object in place of the one that is known, and of no other.
func (r *Reconciler) write(ctx context.Context, name string, fill func(*v1alpha1.ClusterReport)) error {
	rec := r.recordOf(name)
	obj := &v1alpha1.ClusterReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name, UID: rec.uid, ResourceVersion: rec.version},
		ClusterUID: r.cluster,
		Sequence:   max(time.Now().UnixMilli(), rec.newest+1),
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
		rec.rewrite = false
		r.remember(obj)
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), rec.exists() && apierrors.IsNotFound(err):
		r.news.doubt(name)
		return fmt.Errorf("storing ClusterReport %s/%s: %w", r.Namespace, name, errChanged)
	default:
		return fmt.Errorf("storing ClusterReport %s/%s: %w", r.Namespace, name, err)
	}
}

// remove deletes an object as it is known.
func (r *Reconciler) remove(ctx context.Context, name string, rec *record) error {
	obj := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name}}
	err := r.Delete(ctx, obj, client.Preconditions{UID: &rec.uid, ResourceVersion: &rec.version})
	switch {
	case client.IgnoreNotFound(err) == nil:
		r.forget(name)
		return nil
	case apierrors.IsConflict(err):
		r.news.doubt(name)
		return fmt.Errorf("deleting ClusterReport %s/%s: %w", r.Namespace, name, errChanged)
	default:
		return fmt.Errorf("deleting ClusterReport %s/%s, which the report does not list any more: %w", r.Namespace, name, err)
	}
}
