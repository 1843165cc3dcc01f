package mailbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SyncUp copies the report to the hub: first the pages that the root lists, then the
// root; then it deletes the hub's pages that the root does not list, and copies the
// activity. known is the
// member's cluster UID on the hub; if empty, any cluster is accepted unless the hub's
// copy is from another. A caller with an outdated known may copy the report of the
// previous cluster; the next sync with the right one replaces it.
//
// A listed page that is missing in the member is skipped. A page that the hub's API
// server refuses, or has failed to take for LastingFailure, is skipped too, and its error is
// returned after the root is copied.
//
// Errors are as for SyncDown.
func (r Relay) SyncUp(ctx context.Context, known types.UID) (UpResult, error) {
	source, err := r.readReport(ctx, r.Member.Cached)
	if err != nil || source.root == nil {
		return UpResult{ReportMissing: err == nil}, err
	}
	if err := r.checkReport(source.root); err != nil {
		return UpResult{}, err
	}
	copies, root, err := r.listCopies(ctx, source)
	if err != nil {
		return UpResult{}, err
	}
	next := keepCopy
	heartbeat := r.findHeartbeat(source.root, copies[v1alpha1.MailboxName], known)
	if heartbeat == nil {
		root, next, err = r.decideRootCopy(ctx, &source, copies[v1alpha1.MailboxName], root, known)
	}
	switch {
	case err != nil:
		return UpResult{}, err
	case source.root == nil:
		return UpResult{ReportMissing: true}, nil
	case next == otherCluster:
		return UpResult{OtherCluster: source.root.ClusterUID}, nil
	case next == copyIsNewer:
		return UpResult{ReportOlder: true, RootSequence: r.acceptRoot(root.Sequence)}, nil
	}

	if err := r.checkReport(source.root); err != nil { // it may have been read again
		return UpResult{}, err
	}
	var result UpResult
	pages := pagePass{Relay: r, source: source, copies: copies}
	err = pages.syncPages(ctx)
	result.Written = pages.written
	if err != nil {
		return result, err
	}
	if next == overwriteCopy {
		if err := r.writeRoot(ctx, source.root, root); err != nil {
			refusals := append([]error{err}, pages.refusals...)
			if r.Copies.setRootRefused(IsRefused(err)); IsRefused(err) {
				refusals = append([]error{err}, pages.confirmFailures()...)
			}
			result.OnlyRefused = onlyRefused(refusals)
			return result, errors.Join(refusals...)
		}
		result.Written++
	}
	refusals := pages.confirmFailures()
	result.RootSequence, result.Heartbeat = r.acceptRoot(source.root.Sequence), heartbeat
	deleted, err := r.deleteUnlistedPages(ctx, source, copies)
	result.Written += deleted
	if err == nil {
		err = r.syncActivity(ctx, source, copies, &result)
	}
	if err != nil {
		return result, errors.Join(append([]error{err}, refusals...)...)
	}
	result.OnlyRefused = onlyRefused(refusals)
	return result, errors.Join(refusals...)
}

// acceptRoot records that the hub's copy of the root is as it should be, and returns its sequence.
// Invariant: a sync that trusts caches confirms no challenge. Only while the root is refused does one
// do so before the challenge is confirmed; the next one rechecks.
func (r Relay) acceptRoot(sequence int64) int64 {
	if r.Copies.setRootRefused(false) && !r.readsLiveUp() {
		return 0
	}
	return sequence
}

// writeRoot writes the hub's copy of the root, unless it was refused shortly before.
func (r Relay) writeRoot(ctx context.Context, source, target *v1alpha1.ClusterReport) error {
	if err := r.Copies.findRefusal(source, time.Now()); err != nil {
		return err
	}
	written, err := writeCopy(ctx, reportKind, r.Hub, onHub, source, target, target.ResourceVersion != "")
	if err != nil {
		if IsRefused(err) {
			r.Copies.recordRefusal(source, err, time.Now())
		}
		return err
	}
	r.Copies.recordEqual(reportKind.name, source, written)
	return nil
}

// onlyRefused reports whether all errors are about objects that the hub's API server refuses.
func onlyRefused(errs []error) bool {
	return len(errs) > 0 && !slices.ContainsFunc(errs, func(err error) bool { return !IsRefused(err) || errors.As(err, new(*MemberError)) })
}

// ReportError says what is wrong with a report as a whole. Nothing of it is copied.
type ReportError string

// Error implements error.
func (e ReportError) Error() string { return string(e) }

// checkReport refuses a report of no cluster, and one with more pages than the hub keeps.
// The schema refuses them too, but a member's API server may be anything.
func (r Relay) checkReport(root *v1alpha1.ClusterReport) error {
	var problem ReportError
	switch {
	case root.ClusterUID == "":
		problem = "it has no clusterUID"
	case len(root.Root.Pages) > v1alpha1.MaxReportPages:
		problem = ReportError(fmt.Sprintf("it lists more than %d pages", v1alpha1.MaxReportPages))
	default:
		return nil
	}
	return failureOf(inMember, problem, "reading ClusterReport %s/%s %s", r.Member.Namespace, v1alpha1.MailboxName, inMember)
}

// memberReport is a member's report at one point in time.
type memberReport struct {
	root  *v1alpha1.ClusterReport
	pages map[string]*v1alpha1.ClusterReport
	// activity is nil if there is none of the root's cluster.
	activity *v1alpha1.ClusterReport
}

// readReport reads root and pages. The objects may be shared with a cache and must not
// be changed.
func (r Relay) readReport(ctx context.Context, from client.Reader) (memberReport, error) {
	var list v1alpha1.ClusterReportList
	if err := from.List(ctx, &list, client.InNamespace(r.Member.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return memberReport{}, failureOf(inMember, err, "listing ClusterReports in %s %s%s", r.Member.Namespace, inMember, missingKindHint(err, inMember))
	}
	found := memberReport{pages: map[string]*v1alpha1.ClusterReport{}}
	for i := range list.Items {
		item := &list.Items[i]
		switch {
		case item.Name == v1alpha1.MailboxName && item.Root != nil:
			found.root = item
		case item.Name == v1alpha1.ActivityName && item.Activity != nil:
			found.activity = item
		case item.Page != nil:
			found.pages[item.Name] = item
		}
	}
	return found, nil
}

// listCopies returns the metadata of the hub's copies by name, of the cache or as this process
// has written them since. The objects may be shared with a cache and must not be changed.
//
// The first time that every copy is read live, as after a member was moved to this process, they are
// read whole: one request instead of one per page. Then the root is returned, too, if there is one.
func (r Relay) listCopies(ctx context.Context, source memberReport) (copies map[string]*metav1.PartialObjectMetadata, root *v1alpha1.ClusterReport, err error) {
	copies, err = r.listCopiesFrom(ctx, r.Hub.Cached)
	switch {
	case err != nil:
		return nil, nil, err
	case !r.readsLiveUp():
		r.Copies.withOwnWrites(copies)
		return copies, nil, nil
	case r.WholeReads != nil && max(len(source.root.Root.Pages), len(copies)) <= maxWholeCopies && r.Copies.mayReadWhole():
		copies, root, err = r.readWhole(ctx, source)
		if err == nil || !IsUndecodable(ctx, err) {
			return copies, root, err
		}
	}
	copies, err = r.listCopiesFrom(ctx, r.Hub.Live)
	return copies, nil, err
}

// maxWholeCopies bounds how many copies of one member are read at once.
const maxWholeCopies = 32

// readWhole reads all copies with one request, and records those that are equal to their source. The others
// are not held: each is read again where it is compared.
func (r Relay) readWhole(ctx context.Context, source memberReport) (map[string]*metav1.PartialObjectMetadata, *v1alpha1.ClusterReport, error) {
	select {
	case r.WholeReads <- struct{}{}:
		defer func() { <-r.WholeReads }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	var list v1alpha1.ClusterReportList
	if err := r.Hub.Live.List(ctx, &list, client.InNamespace(r.Hub.Namespace)); err != nil {
		if IsUndecodable(ctx, err) {
			r.Copies.recordWholeRead()
		}
		return nil, nil, r.describeListError(err)
	}
	r.Copies.recordWholeRead()
	copies := make(map[string]*metav1.PartialObjectMetadata, len(list.Items))
	var root *v1alpha1.ClusterReport
	for _, o := range list.Items { // a copy: what is kept must not keep the whole answer
		copies[o.Name] = &metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta}
		if o.Name == v1alpha1.MailboxName {
			root = &o
			continue
		}
		part := source.pages[o.Name]
		if o.Name == v1alpha1.ActivityName {
			part = source.activity
		}
		if part != nil && decidePage(reportKind.compareObjects(part, &o, true, r.Copies)) == keepCopy {
			r.Copies.recordEqual(reportKind.name, part, &o)
		}
	}
	return copies, root, nil
}

func (r Relay) describeListError(err error) error {
	return fmt.Errorf("listing ClusterReports in %s %s%s: %w", r.Hub.Namespace, onHub, missingKindHint(err, onHub), err)
}

// IsUndecodable reports whether a read failed because of an object itself. A read that
// failed for another reason may be taken for it, and is to be repeated.
func IsUndecodable(ctx context.Context, err error) bool {
	var status apierrors.APIStatus
	var transport *url.Error
	return err != nil && ctx.Err() == nil && !errors.As(err, &status) && !errors.As(err, &transport)
}

func (r Relay) listCopiesFrom(ctx context.Context, from client.Reader) (map[string]*metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReportList"))
	if err := from.List(ctx, &list, client.InNamespace(r.Hub.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, r.describeListError(err)
	}
	copies := map[string]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		copies[list.Items[i].Name] = &list.Items[i]
	}
	return copies, nil
}

// findHeartbeat returns what the source says of the hub's copy if nothing of it has to be
// written; nil if the copy has to be decided about.
func (r Relay) findHeartbeat(source *v1alpha1.ClusterReport, copied *metav1.PartialObjectMetadata, known types.UID) *Heartbeat {
	if !r.SpareHeartbeats || r.readsLiveUp() || known != "" && known != source.ClusterUID {
		return nil
	}
	return r.Copies.findHeartbeat(source, copied)
}

// decideRootCopy reads the hub's copy of the root, unless it was read or is known to be equal, and
// decides about it. If the source is read again and has changed, *source becomes the
// whole report of that time.
func (r Relay) decideRootCopy(ctx context.Context, source *memberReport, copied *metav1.PartialObjectMetadata, listed *v1alpha1.ClusterReport, known types.UID) (*v1alpha1.ClusterReport, syncAction, error) {
	const name = v1alpha1.MailboxName
	target, exists, read := reportKind.newObject(), false, false
	diff := comparison{exists: true, equal: true}
	if listed != nil || copied == nil || !r.Copies.isEqual(reportKind.name, source.root, copied) {
		var err error
		if listed != nil {
			target, exists, read = listed, true, true
		} else if target, exists, read, err = r.readCopy(ctx, source.root, copied); err != nil {
			return nil, keepCopy, err
		}
		diff = reportKind.compareObjects(source.root, target, exists, r.Copies)
	}
	next := decideRoot(diff, known, source.root.ClusterUID)
	if next == keepCopy && exists {
		r.Copies.recordEqual(reportKind.name, source.root, target)
	}
	if next != rereadSource {
		return target, next, nil
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
	diff = reportKind.compareObjects(source.root, target, exists, r.Copies)
	diff.sourceLive = true
	return target, decideRoot(diff, known, source.root.ClusterUID), nil
}

// readCopy returns the hub's copy of a source. If the copy is known to be older, it is
// not read and has neither root nor page.
func (r Relay) readCopy(ctx context.Context, source *v1alpha1.ClusterReport, copied *metav1.PartialObjectMetadata) (target *v1alpha1.ClusterReport, exists, read bool, err error) {
	if target := r.Copies.outdatedCopy(source, copied); target != nil {
		return target, true, false, nil
	}
	target, exists, err = readObject(ctx, r.Hub.Live, reportKind, r.Hub, onHub, source.Name)
	return target, exists, true, err
}

// deleteUnlistedPages deletes the hub's pages that the root does not list, but only
// while that root is the newest: another relay may be copying a newer report with such
// a page.
func (r Relay) deleteUnlistedPages(ctx context.Context, source memberReport, copies map[string]*metav1.PartialObjectMetadata) (deleted int, err error) {
	listed := map[string]bool{v1alpha1.MailboxName: true, v1alpha1.ActivityName: true}
	for _, ref := range source.root.Root.Pages {
		listed[ref.Name] = true
	}
	r.Copies.forgetExcept(reportKind.name, func(name string) bool { return listed[name] })
	names := unlistedPages(slices.Sorted(maps.Keys(copies)), listed)
	if len(names) == 0 {
		return 0, nil
	}
	if !r.readsLiveUp() {
		// After a restore of the hub, its root may list pages that this one does not.
		if copies, err = r.listCopiesFrom(ctx, r.Hub.Live); err != nil {
			return 0, err
		}
		if copied := copies[v1alpha1.MailboxName]; copied == nil || !r.Copies.isEqual(reportKind.name, source.root, copied) {
			return 0, nil
		}
		names = unlistedPages(slices.Sorted(maps.Keys(copies)), listed)
	}
	root, found, err := readObject(ctx, r.Member.Live, reportKind, r.Member, inMember, v1alpha1.MailboxName)
	if err != nil || !found || versionOf(root) != versionOf(source.root) {
		return 0, err
	}
	for _, name := range names {
		one, err := r.deleteCopy(ctx, copies[name])
		if err != nil {
			return deleted, err
		}
		deleted += one
	}
	return deleted, nil
}

// deleteCopy deletes a page or activity on the hub that the member no longer has, unless it
// was written since it was listed. It returns how many it has deleted.
func (r Relay) deleteCopy(ctx context.Context, copied *metav1.PartialObjectMetadata) (deleted int, err error) {
	part := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: r.Hub.Namespace, Name: copied.Name}}
	err = r.Hub.Live.Delete(ctx, part, client.Preconditions{UID: &copied.UID, ResourceVersion: ptr.To(copied.ResourceVersion)})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("deleting ClusterReport %s/%s on the hub, which the report no longer has: %w", r.Hub.Namespace, copied.Name, err)
	}
	return 1, nil
}
