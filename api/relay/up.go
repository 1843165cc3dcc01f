package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Up carries the report to the hub: the pages that the root lists, then the root,
// then it deletes the pages on the hub that the root does not list. known is the
// member's clusterUID as the hub knows it; empty: any is taken, unless the hub's
// copy is of another. A caller that goes by an old known, and still reaches the
// cluster that bears it, carries that one's report; the next with the right one
// replaces it whatever the sequences.
//
// A page that the root lists and that is missing in the member holds up neither
// the others nor the root; one that the hub's API server refuses does not either,
// and is an error once the root is carried.
//
// An error that apierrors.IsConflict tells means that somebody else wrote a copy
// at the same time: call Up again. A missing namespace, or kinds that are not
// served, are errors that say so; apierrors.IsNotFound or meta.IsNoMatchError
// tells them.
func (r Relay) Up(ctx context.Context, known types.UID) (Up, error) {
	source, err := r.report(ctx, r.Member.Cached)
	if err != nil || source.root == nil {
		return Up{Missing: err == nil}, err
	}
	copies, err := r.copies(ctx)
	if err != nil {
		return Up{}, err
	}
	root, v, err := r.root(ctx, &source, copies, known)
	switch {
	case err != nil:
		return Up{}, err
	case source.root == nil:
		return Up{Missing: true}, nil
	case v == another:
		return Up{Another: source.root.ClusterUID}, nil
	case v == ahead:
		return Up{Older: true, Root: root.Sequence}, nil
	}

	var up Up
	var refusals []error
	for _, ref := range source.root.Root.Pages {
		wrote, err := r.page(ctx, source, ref.Name, copies)
		if wrote {
			up.Carried++
		}
		if refused(err) {
			refusals = append(refusals, err)
		} else if err != nil {
			return up, err
		}
	}
	if v == write {
		written, err := put(ctx, reports, r.Hub, onHub, source.root, root, root.ResourceVersion != "")
		if err != nil {
			return up, errors.Join(append([]error{err}, refusals...)...)
		}
		r.Seen.equal(reports.name, source.root, written)
		up.Carried++
	}
	up.Root = source.root.Sequence
	deleted, err := r.sweep(ctx, source, copies)
	up.Carried += deleted
	if err != nil {
		return up, errors.Join(append([]error{err}, refusals...)...)
	}
	return up, errors.Join(refusals...)
}

// report is a member's report as it was at one time.
type report struct {
	root  *v1alpha1.ClusterReport
	pages map[string]*v1alpha1.ClusterReport
}

// report reads root and pages. They may be shared with a cache.
func (r Relay) report(ctx context.Context, from client.Reader) (report, error) {
	var list v1alpha1.ClusterReportList
	if err := from.List(ctx, &list, client.InNamespace(r.Member.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return report{}, fmt.Errorf("listing ClusterReports in %s %s%s: %w", r.Member.Namespace, inMember, hint(err, inMember), err)
	}
	found := report{pages: map[string]*v1alpha1.ClusterReport{}}
	for i := range list.Items {
		item := &list.Items[i]
		switch {
		case item.Name == v1alpha1.MailboxName && item.Root != nil:
			found.root = item
		case item.Page != nil:
			found.pages[item.Name] = item
		}
	}
	return found, nil
}

// copies are what there is on the hub, by name, without content.
func (r Relay) copies(ctx context.Context) (map[string]*metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReportList"))
	if err := r.Hub.Live.List(ctx, &list, client.InNamespace(r.Hub.Namespace)); err != nil {
		return nil, fmt.Errorf("listing ClusterReports in %s %s%s: %w", r.Hub.Namespace, onHub, hint(err, onHub), err)
	}
	copies := map[string]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		copies[list.Items[i].Name] = &list.Items[i]
	}
	return copies, nil
}

// root reads the hub's copy of the root, unless it was seen to be equal, and
// decides about it. Where the source had to be read once more, and had changed,
// the whole report is as of then.
func (r Relay) root(ctx context.Context, source *report, copies map[string]*metav1.PartialObjectMetadata, known types.UID) (*v1alpha1.ClusterReport, verdict, error) {
	const name = v1alpha1.MailboxName
	target, exists, read := reports.empty(), false, false
	l := look{found: true, same: true}
	if at := copies[name]; at == nil || !r.Seen.has(reports.name, source.root, at) {
		var err error
		if target, exists, read, err = r.copy(ctx, source.root, at); err != nil {
			return nil, leave, err
		}
		l = reports.compare(source.root, target, exists, r.Seen)
	}
	v := decideRoot(l, known, source.root.ClusterUID)
	if v == leave && exists {
		r.Seen.equal(reports.name, source.root, target)
	}
	if v != ask {
		return target, v, nil
	}
	if !read {
		var err error
		if target, exists, err = get(ctx, r.Hub.Live, reports, r.Hub, onHub, name); err != nil {
			return nil, leave, err
		}
	}
	live, found, err := get(ctx, r.Member.Live, reports, r.Member, inMember, name)
	if err != nil {
		return nil, leave, err
	}
	if !found || stampOf(live) != stampOf(source.root) {
		if *source, err = r.report(ctx, r.Member.Live); err != nil || source.root == nil {
			return nil, leave, err
		}
	}
	l = reports.compare(source.root, target, exists, r.Seen)
	l.live = true
	return target, decideRoot(l, known, source.root.ClusterUID), nil
}

// copy is what there is on the hub of a source. It is not read where it is known to be
// older; then it has neither root nor page.
func (r Relay) copy(ctx context.Context, source *v1alpha1.ClusterReport, at *metav1.PartialObjectMetadata) (target *v1alpha1.ClusterReport, exists, read bool, err error) {
	if target := r.Seen.outdated(source, at); target != nil {
		return target, true, false, nil
	}
	target, exists, err = get(ctx, r.Hub.Live, reports, r.Hub, onHub, source.Name)
	return target, exists, true, err
}

// page carries one page; one that is not there, or of another cluster than the
// root, is none.
func (r Relay) page(ctx context.Context, source report, name string, copies map[string]*metav1.PartialObjectMetadata) (wrote bool, err error) {
	page := source.pages[name]
	if page == nil || page.ClusterUID != source.root.ClusterUID {
		return false, nil
	}
	if at := copies[name]; at != nil && r.Seen.has(reports.name, page, at) {
		return false, nil
	}
	target, exists, _, err := r.copy(ctx, page, copies[name])
	if err != nil {
		return false, err
	}
	l := reports.compare(page, target, exists, r.Seen)
	v := decidePage(l)
	if v == ask {
		var found bool
		page, found, err = get(ctx, r.Member.Live, reports, r.Member, inMember, name)
		if err != nil || !found || page.Page == nil || page.ClusterUID != source.root.ClusterUID {
			return false, err
		}
		l = reports.compare(page, target, exists, r.Seen)
		l.live = true
		v = decidePage(l)
	}
	if v == write {
		if target, err = put(ctx, reports, r.Hub, onHub, page, target, exists); err != nil {
			return false, err
		}
	}
	r.Seen.equal(reports.name, page, target)
	return v == write, nil
}

// sweep deletes the pages on the hub that the root does not list. It does so only
// while that root is the newest: a page may be there because another relay
// carries a newer one just now, or has carried it and its root.
func (r Relay) sweep(ctx context.Context, source report, copies map[string]*metav1.PartialObjectMetadata) (deleted int, err error) {
	lists := map[string]bool{v1alpha1.MailboxName: true}
	for _, ref := range source.root.Root.Pages {
		lists[ref.Name] = true
	}
	r.Seen.keep(reports.name, func(name string) bool { return lists[name] })
	names := unlisted(slices.Sorted(maps.Keys(copies)), lists)
	if len(names) == 0 {
		return 0, nil
	}
	root, found, err := get(ctx, r.Member.Live, reports, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil || !found || stampOf(root) != stampOf(source.root) {
		return 0, err
	}
	for _, name := range names {
		at := copies[name]
		page := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: r.Hub.Namespace, Name: name}}
		err := r.Hub.Live.Delete(ctx, page, client.Preconditions{UID: &at.UID, ResourceVersion: ptr.To(at.ResourceVersion)})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return deleted, fmt.Errorf("deleting page ClusterReport %s/%s on the hub, which the report no longer lists: %w", r.Hub.Namespace, name, err)
		default:
			deleted++
		}
	}
	return deleted, nil
}

// refused: the API server will not have this object, whoever writes it when.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}
