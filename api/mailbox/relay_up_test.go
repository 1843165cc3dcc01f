package mailbox_test

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

	"github.com/pelotech/ot-fleet/api/apitest/mailboxtest"
	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestReportIsCopiedUp(t *testing.T) {
	b := newMailbox(t)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, b.MustUp(r))
	const pages = 60
	for i := range pages {
		a.WritePage(fmt.Sprintf("page-%03b", i), "")
	}
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, b.MustUp(r), "pages without a root are no report")
	a.WriteRoot()
	up, err := r.SyncUp(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, mailbox.UpResult{Written: pages + 1}, b.WithoutRootSequence(up))
	b.RequireSameReports()
	b.RequireWrites(pages+1, 0)

	forgetful := r
	forgetful.Copies = nil
	assert.Equal(t, mailbox.UpResult{}, b.MustUp(forgetful))
	b.ResetCounts()
	assert.Equal(t, mailbox.UpResult{}, b.MustUp(r))
	b.RequireWrites(0, 0)
	assert.EqualValues(t, 0, b.HubReads.Load(), "reads of the hub, past the cache, when nothing has changed")
	assert.EqualValues(t, 0, b.MemberReads.Load(), "reads of the member past the cache")

	a.WriteRoot()
	b.ResetCounts()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r), "a heartbeat")
	assert.EqualValues(t, 0, b.HubReads.Load(), "reads of the hub, past the cache, for a heartbeat")
	assert.EqualValues(t, 0, b.MemberReads.Load(), "reads of the member past the cache")

	a.WritePage("page-001", "changed")
	a.WriteRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.MustUp(r))
	b.RequireSameReports()

	a.DropPage("page-001")
	a.WriteRoot()
	a.DeletePage("page-001")
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.MustUp(r), "the root, and a page less")
	b.RequireSameReports()
}

func TestPartiallyWrittenReport(t *testing.T) {
	b := newMailbox(t)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	a.WritePage("page-0", "")
	a.WritePage("page-1", "")
	a.WriteRoot()
	b.MustUp(r)

	a.WritePage("page-0", "the agent crashed before it wrote the root")
	a.WritePage("page-00", "")
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r))
	onHub := b.ListReports(b.Hub, b.HubNamespace)
	assert.NotContains(t, onHub, "page-00", "no root lists it")
	assert.Equal(t, b.ListReports(b.Member, b.AgentNamespace)["page-0"], onHub["page-0"])
	a.WriteRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.MustUp(r))
	b.RequireSameReports()

	before := b.ListReports(b.Hub, b.HubNamespace)["page-1"]
	a.WriteRoot()
	a.DeletePage("page-1")
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r), "a page that is missing does not hold up the root")
	assert.Equal(t, before, b.ListReports(b.Hub, b.HubNamespace)["page-1"], "what is known of it stays")
	a.WritePage("page-1", "")
	a.WriteRoot()
	b.MustUp(r)
	b.RequireSameReports()
}

func TestEditedHubCopyIsRestored(t *testing.T) {
	for name, edit := range map[string]func(*mailboxtest.Mailbox){
		"page": func(b *mailboxtest.Mailbox) {
			b.EditHubCopy("page-0", func(r *v1alpha1.ClusterReport) { r.Page.Images[0].Message = "edited" })
		},
		"sequence of a page": func(b *mailboxtest.Mailbox) {
			b.EditHubCopy("page-0", func(r *v1alpha1.ClusterReport) { r.Sequence += 1000 })
		},
		"root": func(b *mailboxtest.Mailbox) {
			b.EditHubCopy(v1alpha1.MailboxName, func(r *v1alpha1.ClusterReport) { r.Root.Pages = nil })
		},
		"page deleted": func(b *mailboxtest.Mailbox) {
			require.NoError(b, b.Hub.Delete(b.Context(), &v1alpha1.ClusterReport{ObjectMeta: mailboxtest.ObjectMeta(b.HubNamespace, "page-0")}))
		},
		"root deleted": func(b *mailboxtest.Mailbox) {
			require.NoError(b, b.Hub.Delete(b.Context(), &v1alpha1.ClusterReport{ObjectMeta: mailboxtest.ObjectMeta(b.HubNamespace, v1alpha1.MailboxName)}))
		},
		"page added": func(b *mailboxtest.Mailbox) {
			b.CreateObject(b.Hub, &v1alpha1.ClusterReport{ObjectMeta: mailboxtest.ObjectMeta(b.HubNamespace, "page-1"), ClusterUID: mailboxtest.Cluster, Sequence: 1, Page: &v1alpha1.ReportPage{}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMailbox(t)
			r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
			a.WritePage("page-0", "")
			a.WriteRoot()
			b.MustUp(r)
			edit(b)
			assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r))
			b.RequireSameReports()
			b.ResetCounts()
			assert.Equal(t, mailbox.UpResult{}, b.MustUp(r))
			b.RequireWrites(0, 0)
		})
	}
}

func TestReportOfOtherCluster(t *testing.T) {
	b := newMailbox(t)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	const other types.UID = "another"
	a.WritePage("page-0", "")
	a.WritePage("page-1", "")
	a.WriteRoot()
	b.MustUp(r)
	before := b.ListReports(b.Hub, b.HubNamespace)

	rebuilt := mailboxtest.NewReportWriter(b)
	rebuilt.UID = other
	require.NoError(t, b.Member.DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(b.AgentNamespace)))
	rebuilt.WritePage("page-0", "rebuilt")
	rebuilt.WriteRoot()
	b.ResetCounts()
	for _, known := range []types.UID{mailboxtest.Cluster, ""} {
		up, err := r.SyncUp(t.Context(), known)
		require.NoError(t, err)
		assert.Equal(t, mailbox.UpResult{OtherCluster: other}, up, "known is %q", known)
	}
	b.RequireWrites(0, 0)
	assert.Equal(t, before, b.ListReports(b.Hub, b.HubNamespace))

	up, err := r.SyncUp(t.Context(), other)
	require.NoError(t, err)
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.WithoutRootSequence(up), "a page, the root, and a page less, whatever their sequences")
	b.RequireSameReports()
}

func TestMemberRestored(t *testing.T) {
	b := newMailbox(t)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	a.WritePage("page-0", "as in the backup")
	a.WriteRoot()
	backup := b.ListReports(b.Member, b.AgentNamespace)
	b.MustUp(r)
	a.WritePage("page-0", "later")
	a.WriteRoot()
	b.MustUp(r)
	later := b.ListReports(b.Hub, b.HubNamespace)

	for name, was := range backup {
		require.NoError(t, b.Member.Delete(t.Context(), &v1alpha1.ClusterReport{ObjectMeta: mailboxtest.ObjectMeta(b.AgentNamespace, name)}))
		was.ObjectMeta = mailboxtest.ObjectMeta(b.AgentNamespace, name)
		b.CreateObject(b.Member, &was)
	}
	b.ResetCounts()
	for range 2 {
		assert.Equal(t, mailbox.UpResult{ReportOlder: true}, b.MustUp(r))
	}
	b.RequireWrites(0, 0)
	assert.Equal(t, later, b.ListReports(b.Hub, b.HubNamespace))

	a.Sequences["page-0"] = backup["page-0"].Sequence
	a.WriteRoot()
	assert.Equal(t, mailbox.UpResult{Written: 2}, b.MustUp(r), "the page's sequence is lower than on the hub, and the root lists it so")
	b.RequireSameReports()
}

func TestPausedRelayWritesNoOlderReport(t *testing.T) {
	for name, change := range map[string]struct {
		early, late func(*mailboxtest.ReportWriter)
	}{
		"page": {
			early: func(a *mailboxtest.ReportWriter) { a.WritePage("page-0", "old"); a.WriteRoot() },
			late:  func(a *mailboxtest.ReportWriter) { a.WritePage("page-0", "new"); a.WriteRoot() },
		},
		"new page": {
			early: func(a *mailboxtest.ReportWriter) { a.WritePage("page-1", "old"); a.WriteRoot() },
			late:  func(a *mailboxtest.ReportWriter) { a.WritePage("page-1", "new"); a.WriteRoot() },
		},
		"root": {
			early: func(a *mailboxtest.ReportWriter) { a.WriteRoot() },
			late:  func(a *mailboxtest.ReportWriter) { a.WriteRoot() },
		},
		"page that comes back": {
			early: func(a *mailboxtest.ReportWriter) { a.DropPage("page-0") },
			late:  func(a *mailboxtest.ReportWriter) { a.WritePage("page-0", "new"); a.WriteRoot() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMailbox(t)
			late, r, a := b.NewRelay(), b.NewRelay(), mailboxtest.NewReportWriter(b)
			a.WritePage("page-0", "")
			a.WriteRoot()
			b.MustUp(r)
			change.early(a)
			if _, listed := a.Sequences["page-0"]; !listed {
				a.WriteRoot()
				kept := r
				kept.Hub.Live = withoutDeletes(b.Hub)
				b.MustUp(kept)
			}
			late.Member.Cached = frozenReader(b, b.Member, b.AgentNamespace)
			var reached <-chan struct{}
			var release func()
			late.Hub.Live, reached, release = pauseBeforeWrite(b.Hub)
			ended := make(chan error, 1)
			go func() {
				_, err := late.SyncUp(t.Context(), mailboxtest.Cluster)
				ended <- err
			}()
			<-reached
			change.late(a)
			b.MustUp(r)
			release()
			err := <-ended
			require.Truef(t, apierrors.IsConflict(err), "%v", err)
			b.RequireSameReports()
			assert.Equal(t, mailbox.UpResult{}, b.MustUp(late), "called again, it asks the member and finds nothing to do")
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
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	for _, name := range []string{"page-00", "page-01", "page-1"} {
		a.WritePage(name, "")
	}
	a.WriteRoot()
	r.Hub.Live = interceptor.NewClient(b.Hub, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			if object.GetName() == "page-01" {
				return apierrors.NewInvalid(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "ClusterReport"}, object.GetName(), nil)
			}
			return c.Create(ctx, object, o...)
		},
	})
	up, err := r.SyncUp(t.Context(), mailboxtest.Cluster)
	require.True(t, apierrors.IsInvalid(err))
	require.ErrorContains(t, err, "creating ClusterReport "+b.HubNamespace+"/page-01 on the hub")
	assert.Equal(t, mailbox.UpResult{Written: 3, OnlyRefused: true}, b.WithoutRootSequence(up))
	want := b.ListReports(b.Member, b.AgentNamespace)
	delete(want, "page-01")
	assert.Equal(t, want, b.ListReports(b.Hub, b.HubNamespace))
}

func TestActivityIsCopiedUp(t *testing.T) {
	b := newMailbox(t)
	r, a := b.NewRelay(), mailboxtest.NewReportWriter(b)
	a.WriteActivity(1)
	assert.Equal(t, mailbox.UpResult{ReportMissing: true}, b.MustUp(r), "without a root there is no report")
	a.WritePage("page", "")
	a.WriteRoot()
	assert.Equal(t, mailbox.UpResult{Written: 3}, b.MustUp(r))
	b.RequireSameReports()
	b.RequireWrites(3, 0)
	a.WriteActivity(2)
	b.ResetCounts()
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r))
	assert.EqualValues(t, 0, b.HubReads.Load(), "reads of the hub past the cache")
	assert.EqualValues(t, 0, b.MemberReads.Load(), "reads of the member past the cache")
	b.RequireSameReports()

	b.EditHubCopy(v1alpha1.ActivityName, func(o *v1alpha1.ClusterReport) { o.Activity.Slots = 7 })
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r))
	b.RequireSameReports()
	a.DeletePage(v1alpha1.ActivityName)
	assert.Equal(t, mailbox.UpResult{Written: 1}, b.MustUp(r))
	b.RequireSameReports()
	assert.Equal(t, mailbox.UpResult{}, b.MustUp(r))
}
