//go:build linux

package relay_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestReportIsCopiedUp(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, b.mustUp(r))
	const pages = 60
	for i := range pages {
		a.writePage(fmt.Sprintf("page-%03b", i), "")
	}
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, b.mustUp(r), "pages without a root are no report")
	a.writeRoot()
	up, err := r.SyncUp(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, mailbox.UpResult{Written: pages + 1}, b.withoutRootSequence(up))
	b.requireSameReports()
	b.requireWrites(pages+1, 0)

	forgetful := r
	forgetful.Copies = nil
	assert.Equal(t, mailbox.UpResult{}, b.mustUp(forgetful))
	b.resetCounts()
	assert.Equal(t, mailbox.UpResult{}, b.mustUp(r))
	b.requireWrites(0, 0)
	assert.EqualValues(t, 0, b.hubReads.Load(), "reads of the hub, past the cache, when nothing has changed")
	assert.EqualValues(t, 0, b.memberReads.Load(), "reads of the member past the cache")

	a.writeRoot()
	b.resetCounts()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r), "a heartbeat")
	assert.EqualValues(t, 0, b.hubReads.Load(), "reads of the hub, past the cache, for a heartbeat")
	assert.EqualValues(t, 0, b.memberReads.Load(), "reads of the member past the cache")

	root := &v1alpha1.ClusterReport{}
	require.NoError(t, hubClient.Get(t.Context(), client.ObjectKey{Namespace: b.hubNamespace, Name: v1alpha1.MailboxName}, root))
	assert.Empty(t, root.ManagedFields)

	a.writePage("page-001", "changed")
	a.writeRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.mustUp(r))
	b.requireSameReports()

	a.dropPage("page-001")
	a.writeRoot()
	a.deletePage("page-001")
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.mustUp(r), "the root, and a page less")
	b.requireSameReports()
}

func TestPartiallyWrittenReport(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	a.writePage("page-0", "")
	a.writePage("page-1", "")
	a.writeRoot()
	b.mustUp(r)

	a.writePage("page-0", "the agent crashed before it wrote the root")
	a.writePage("page-00", "")
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r))
	onHub := b.listReports(hubClient, b.hubNamespace)
	assert.NotContains(t, onHub, "page-00", "no root lists it")
	assert.Equal(t, b.listReports(memberClient, b.agentNamespace)["page-0"], onHub["page-0"])
	a.writeRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.mustUp(r))
	b.requireSameReports()

	before := b.listReports(hubClient, b.hubNamespace)["page-1"]
	a.writeRoot()
	a.deletePage("page-1")
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r), "a page that is missing does not hold up the root")
	assert.Equal(t, before, b.listReports(hubClient, b.hubNamespace)["page-1"], "what is known of it stays")
	a.writePage("page-1", "")
	a.writeRoot()
	b.mustUp(r)
	b.requireSameReports()
}

func TestEditedHubCopyIsRestored(t *testing.T) {
	for name, edit := range map[string]func(*mailboxEnd){
		"page": func(b *mailboxEnd) {
			b.editHubCopy("page-0", func(r *v1alpha1.ClusterReport) { r.Page.Images[0].Message = "edited" })
		},
		"sequence of a page": func(b *mailboxEnd) {
			b.editHubCopy("page-0", func(r *v1alpha1.ClusterReport) { r.Sequence += 1000 })
		},
		"root": func(b *mailboxEnd) {
			b.editHubCopy(v1alpha1.MailboxName, func(r *v1alpha1.ClusterReport) { r.Root.Pages = nil })
		},
		"page deleted": func(b *mailboxEnd) {
			require.NoError(b, hubClient.Delete(b.Context(), &v1alpha1.ClusterReport{ObjectMeta: objectMeta(b.hubNamespace, "page-0")}))
		},
		"root deleted": func(b *mailboxEnd) {
			require.NoError(b, hubClient.Delete(b.Context(), &v1alpha1.ClusterReport{ObjectMeta: objectMeta(b.hubNamespace, v1alpha1.MailboxName)}))
		},
		"page added": func(b *mailboxEnd) {
			b.createObject(hubClient, &v1alpha1.ClusterReport{ObjectMeta: objectMeta(b.hubNamespace, "page-1"), ClusterUID: cluster, Sequence: 1, Page: &v1alpha1.ReportPage{}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMailbox(t)
			r, a := b.newRelay(), newReportWriter(b)
			a.writePage("page-0", "")
			a.writeRoot()
			b.mustUp(r)
			edit(b)
			assert.Equal(t, mailbox.UpResult{Written: 1}, b.mustUp(r))
			b.requireSameReports()
			b.resetCounts()
			assert.Equal(t, mailbox.UpResult{}, b.mustUp(r))
			b.requireWrites(0, 0)
		})
	}
}

func TestReportOfOtherCluster(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	const other types.UID = "another"
	a.writePage("page-0", "")
	a.writePage("page-1", "")
	a.writeRoot()
	b.mustUp(r)
	before := b.listReports(hubClient, b.hubNamespace)

	rebuilt := newReportWriter(b)
	rebuilt.uid = other
	require.NoError(t, memberClient.DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(b.agentNamespace)))
	rebuilt.writePage("page-0", "rebuilt")
	rebuilt.writeRoot()
	b.resetCounts()
	for _, known := range []types.UID{cluster, ""} {
		up, err := r.SyncUp(t.Context(), known)
		require.NoError(t, err)
		assert.Equal(t, mailbox.UpResult{OtherCluster: other}, up, "known is %q", known)
	}
	b.requireWrites(0, 0)
	assert.Equal(t, before, b.listReports(hubClient, b.hubNamespace))

	up, err := r.SyncUp(t.Context(), other)
	require.NoError(t, err)
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.withoutRootSequence(up), "a page, the root, and a page less, whatever their sequences")
	b.requireSameReports()
}

func TestMemberRestored(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	a.writePage("page-0", "as in the backup")
	a.writeRoot()
	backup := b.listReports(memberClient, b.agentNamespace)
	b.mustUp(r)
	a.writePage("page-0", "later")
	a.writeRoot()
	b.mustUp(r)
	later := b.listReports(hubClient, b.hubNamespace)

	for name, was := range backup {
		require.NoError(t, memberClient.Delete(t.Context(), &v1alpha1.ClusterReport{ObjectMeta: objectMeta(b.agentNamespace, name)}))
		was.ObjectMeta = objectMeta(b.agentNamespace, name)
		b.createObject(memberClient, &was)
	}
	b.resetCounts()
	for range 2 {
		assert.Equal(t, mailbox.UpResult{ReportOlder: true}, b.mustUp(r))
	}
	b.requireWrites(0, 0)
	assert.Equal(t, later, b.listReports(hubClient, b.hubNamespace))

	a.sequences["page-0"] = backup["page-0"].Sequence
	a.writeRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.mustUp(r), "the page's sequence is lower than on the hub, and the root lists it so")
	b.requireSameReports()
}

func TestPausedRelayWritesNoOlderReport(t *testing.T) {
	for name, change := range map[string]struct{ early, late func(*reportWriter) }{
		"page": {
			early: func(a *reportWriter) { a.writePage("page-0", "old"); a.writeRoot() },
			late:  func(a *reportWriter) { a.writePage("page-0", "new"); a.writeRoot() },
		},
		"new page": {
			early: func(a *reportWriter) { a.writePage("page-1", "old"); a.writeRoot() },
			late:  func(a *reportWriter) { a.writePage("page-1", "new"); a.writeRoot() },
		},
		"root": {
			early: func(a *reportWriter) { a.writeRoot() },
			late:  func(a *reportWriter) { a.writeRoot() },
		},
		"page that comes back": {
			early: func(a *reportWriter) { a.dropPage("page-0") },
			late:  func(a *reportWriter) { a.writePage("page-0", "new"); a.writeRoot() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMailbox(t)
			late, r, a := b.newRelay(), b.newRelay(), newReportWriter(b)
			a.writePage("page-0", "")
			a.writeRoot()
			b.mustUp(r)
			change.early(a)
			if _, listed := a.sequences["page-0"]; !listed {
				a.writeRoot()
				kept := r
				kept.Hub.Live = withoutDeletes(hubClient)
				b.mustUp(kept)
			}
			late.Member.Cached = b.frozenReader(memberClient, b.agentNamespace)
			var reached <-chan struct{}
			var release func()
			late.Hub.Live, reached, release = pauseBeforeWrite(hubClient)
			ended := make(chan error, 1)
			go func() {
				_, err := late.SyncUp(t.Context(), cluster)
				ended <- err
			}()
			<-reached
			change.late(a)
			b.mustUp(r)
			release()
			err := <-ended
			require.Truef(t, apierrors.IsConflict(err), "%v", err)
			b.requireSameReports()
			assert.Equal(t, mailbox.UpResult{}, b.mustUp(late), "called again, it asks the member and finds nothing to do")
		})
	}
}

// withoutDeletes returns a client for a relay that is killed before it deletes anything.
func withoutDeletes(c client.WithWatch) client.Client {
	return interceptor.NewClient(c, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return nil },
	})
}

func TestRefusedPageDoesNotBlockOthers(t *testing.T) {
	b := newMailbox(t)
	r, a := b.newRelay(), newReportWriter(b)
	for _, name := range []string{"page-00", "page-01", "page-1"} {
		a.writePage(name, "")
	}
	a.writeRoot()
	r.Hub.Live = interceptor.NewClient(hubClient, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			if object.GetName() == "page-01" {
				return apierrors.NewInvalid(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "ClusterReport"}, object.GetName(), nil)
			}
			return c.Create(ctx, object, o...)
		},
	})
	up, err := r.SyncUp(t.Context(), cluster)
	require.True(t, apierrors.IsInvalid(err))
	require.ErrorContains(t, err, "creating ClusterReport "+b.hubNamespace+"/page-01 on the hub")
	assert.Equal(t, mailbox.UpResult{Written: 3, OnlyRefused: true}, b.withoutRootSequence(up))
	want := b.listReports(memberClient, b.agentNamespace)
	delete(want, "page-01")
	assert.Equal(t, want, b.listReports(hubClient, b.hubNamespace))
}
