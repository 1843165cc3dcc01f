package mailbox

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

// SyncUp carries the report to the hub: the pages that the root lists, then the root,
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
func (r Relay) SyncUp(ctx context.Context, known types.UID) (UpResult, error) {
	source, err := r.readReport(ctx, r.Member.Cached)
	if err != nil || source.root == nil {
		return UpResult{ReportMissing: err == nil}, err
	}
	copies, err := r.listCopies(ctx)
	if err != nil {
		return UpResult{}, err
	}
	root, v, err := r.decideRootCopy(ctx, &source, copies, known)
	switch {
	case err != nil:
		return UpResult{}, err
	case source.root == nil:
		return UpResult{ReportMissing: true}, nil
	case v == otherCluster:
		return UpResult{OtherCluster: source.root.ClusterUID}, nil
	case v == copyIsNewer:
		return UpResult{ReportOlder: true, RootSequence: root.Sequence}, nil
	}

	var up UpResult
	var refusals []error
	for _, ref := range source.root.Root.Pages {
		wrote, err := r.syncPage(ctx, source, ref.Name, copies)
		if wrote {
			up.Written++
		}
		if isRefused(err) {
			refusals = append(refusals, err)
		} else if err != nil {
			return up, err
		}
	}
	if v == overwriteCopy {
		written, err := writeCopy(ctx, reportKind, r.Hub, onHub, source.root, root, root.ResourceVersion != "")
		if err != nil {
			return up, errors.Join(append([]error{err}, refusals...)...)
		}
		r.Copies.recordEqual(reportKind.name, source.root, written)
		up.Written++
	}
	up.RootSequence = source.root.Sequence
	deleted, err := r.deleteUnlistedPages(ctx, source, copies)
	up.Written += deleted
	if err != nil {
		return up, errors.Join(append([]error{err}, refusals...)...)
	}
	return up, errors.Join(refusals...)
}

// memberReport is a member's report as it was at one time.
type memberReport struct {
	root  *v1alpha1.ClusterReport
	pages map[string]*v1alpha1.ClusterReport
}

// readReport reads root and pages. They may be shared with a cache.
func (r Relay) readReport(ctx context.Context, from client.Reader) (memberReport, error) {
	var list v1alpha1.ClusterReportList
	if err := from.List(ctx, &list, client.InNamespace(r.Member.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return memberReport{}, fmt.Errorf("listing ClusterReports in %s %s%s: %w", r.Member.Namespace, inMember, missingKindHint(err, inMember), err)
	}
	found := memberReport{pages: map[string]*v1alpha1.ClusterReport{}}
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

// listCopies are what there is on the hub, by name, without content.
func (r Relay) listCopies(ctx context.Context) (map[string]*metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReportList"))
	if err := r.Hub.Live.List(ctx, &list, client.InNamespace(r.Hub.Namespace)); err != nil {
		return nil, fmt.Errorf("listing ClusterReports in %s %s%s: %w", r.Hub.Namespace, onHub, missingKindHint(err, onHub), err)
	}
	copies := map[string]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		copies[list.Items[i].Name] = &list.Items[i]
	}
	return copies, nil
}

// decideRootCopy reads the hub's copy of the root, unless it was seen to be equal, and
// decides about it. Where the source had to be read once more, and had changed,
// the whole report is as of then.
func (r Relay) decideRootCopy(ctx context.Context, source *memberReport, copies map[string]*metav1.PartialObjectMetadata, known types.UID) (*v1alpha1.ClusterReport, action, error) {
	const name = v1alpha1.MailboxName
	target, exists, read := reportKind.newObject(), false, false
	l := comparison{exists: true, equal: true}
	if at := copies[name]; at == nil || !r.Copies.isEqual(reportKind.name, source.root, at) {
		var err error
		if target, exists, read, err = r.readCopy(ctx, source.root, at); err != nil {
			return nil, keepCopy, err
		}
		l = reportKind.compareObjects(source.root, target, exists, r.Copies)
	}
	v := decideRoot(l, known, source.root.ClusterUID)
	if v == keepCopy && exists {
		r.Copies.recordEqual(reportKind.name, source.root, target)
	}
	if v != rereadSource {
		return target, v, nil
	}
	if !read {
		var err error
		if target, exists, err = readObject(ctx, r.Hub.Live, reportKind, r.Hub, onHub, name); err != nil {
			return nil, keepCopy, err
		}
	}
	live, found, err := readObject(ctx, r.Member.Live, reportKind, r.Member, inMember, name)
	if err != nil {
		return nil, keepCopy, err
	}
	if !found || versionOf(live) != versionOf(source.root) {
		if *source, err = r.readReport(ctx, r.Member.Live); err != nil || source.root == nil {
			return nil, keepCopy, err
		}
	}
	l = reportKind.compareObjects(source.root, target, exists, r.Copies)
	l.sourceLive = true
	return target, decideRoot(l, known, source.root.ClusterUID), nil
}

// readCopy is what there is on the hub of a source. It is not read where it is known to be
// older; then it has neither root nor page.
func (r Relay) readCopy(ctx context.Context, source *v1alpha1.ClusterReport, at *metav1.PartialObjectMetadata) (target *v1alpha1.ClusterReport, exists, read bool, err error) {
	if target := r.Copies.outdatedCopy(source, at); target != nil {
		return target, true, false, nil
	}
	target, exists, err = readObject(ctx, r.Hub.Live, reportKind, r.Hub, onHub, source.Name)
	return target, exists, true, err
}

// syncPage carries one page; one that is not there, or of another cluster than the
// root, is none.
func (r Relay) syncPage(ctx context.Context, source memberReport, name string, copies map[string]*metav1.PartialObjectMetadata) (wrote bool, err error) {
	page := source.pages[name]
	if page == nil || page.ClusterUID != source.root.ClusterUID {
		return false, nil
	}
	if at := copies[name]; at != nil && r.Copies.isEqual(reportKind.name, page, at) {
		return false, nil
	}
	target, exists, _, err := r.readCopy(ctx, page, copies[name])
	if err != nil {
		return false, err
	}
	l := reportKind.compareObjects(page, target, exists, r.Copies)
	v := decidePage(l)
	if v == rereadSource {
		var found bool
		page, found, err = readObject(ctx, r.Member.Live, reportKind, r.Member, inMember, name)
		if err != nil || !found || page.Page == nil || page.ClusterUID != source.root.ClusterUID {
			return false, err
		}
		l = reportKind.compareObjects(page, target, exists, r.Copies)
		l.sourceLive = true
		v = decidePage(l)
	}
	if v == overwriteCopy {
		if target, err = writeCopy(ctx, reportKind, r.Hub, onHub, page, target, exists); err != nil {
			return false, err
		}
	}
	r.Copies.recordEqual(reportKind.name, page, target)
	return v == overwriteCopy, nil
}

// deleteUnlistedPages deletes the pages on the hub that the root does not list. It does so only
// while that root is the newest: a page may be there because another relay
// carries a newer one just now, or has carried it and its root.
func (r Relay) deleteUnlistedPages(ctx context.Context, source memberReport, copies map[string]*metav1.PartialObjectMetadata) (deleted int, err error) {
	lists := map[string]bool{v1alpha1.MailboxName: true}
	for _, ref := range source.root.Root.Pages {
		lists[ref.Name] = true
	}
	r.Copies.forgetExcept(reportKind.name, func(name string) bool { return lists[name] })
	names := unlistedPages(slices.Sorted(maps.Keys(copies)), lists)
	if len(names) == 0 {
		return 0, nil
	}
	root, found, err := readObject(ctx, r.Member.Live, reportKind, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil || !found || versionOf(root) != versionOf(source.root) {
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
func isRefused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}
