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

	"github.com/pelotech/ot-fleet/api/relay"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestReportGoesUp(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	assert.Equal(t, relay.Up{Missing: true}, b.up(r))
	const pages = 60
	for i := range pages {
		a.page(fmt.Sprintf("page-%03b", i), "")
	}
	assert.Equal(t, relay.Up{Missing: true}, b.up(r), "pages without a root are no report")
	a.root()
	up, err := r.Up(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, relay.Up{Carried: pages + 1}, b.besidesRoot(up))
	b.wantSame()
	b.wantWrites(pages+1, 0)

	forgetful := r
	forgetful.Seen = nil
	assert.Equal(t, relay.Up{}, b.up(forgetful))
	b.forget()
	assert.Equal(t, relay.Up{}, b.up(r))
	b.wantWrites(0, 0)
	assert.EqualValues(t, 1, b.hubReads.Load(), "reads of the hub when nothing has changed")
	assert.EqualValues(t, 0, b.memberReads.Load(), "reads of the member past the cache")

	a.root()
	b.forget()
	assert.Equal(t, relay.Up{Carried: 1}, b.up(r), "a heartbeat")
	assert.EqualValues(t, 1, b.hubReads.Load(), "reads of the hub for a heartbeat")
	assert.EqualValues(t, 0, b.memberReads.Load(), "reads of the member past the cache")

	a.page("page-001", "changed")
	a.root()
	assert.Equal(t, relay.Up{Carried: 2}, b.up(r))
	b.wantSame()

	a.drop("page-001")
	a.root()
	a.deletes("page-001")
	assert.Equal(t, relay.Up{Carried: 2}, b.up(r), "the root, and a page less")
	b.wantSame()
}

func TestHalfWrittenReport(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	a.page("page-0", "")
	a.page("page-1", "")
	a.root()
	b.up(r)

	a.page("page-0", "the agent crashed before it wrote the root")
	a.page("page-00", "")
	assert.Equal(t, relay.Up{Carried: 1}, b.up(r))
	onHub := b.report(hub, b.hubNamespace)
	assert.NotContains(t, onHub, "page-00", "no root lists it")
	assert.Equal(t, b.report(member, b.agentNamespace)["page-0"], onHub["page-0"])
	a.root()
	assert.Equal(t, relay.Up{Carried: 2}, b.up(r))
	b.wantSame()

	before := b.report(hub, b.hubNamespace)["page-1"]
	a.root()
	a.deletes("page-1")
	assert.Equal(t, relay.Up{Carried: 1}, b.up(r), "a page that is missing does not hold up the root")
	assert.Equal(t, before, b.report(hub, b.hubNamespace)["page-1"], "what is known of it stays")
	a.page("page-1", "")
	a.root()
	b.up(r)
	b.wantSame()
}

func TestEditsOfTheHubsCopyAreUndone(t *testing.T) {
	for name, edit := range map[string]func(*box){
		"page": func(b *box) {
			b.onHub("page-0", func(r *v1alpha1.ClusterReport) { r.Page.Images[0].Message = "edited" })
		},
		"sequence of a page": func(b *box) {
			b.onHub("page-0", func(r *v1alpha1.ClusterReport) { r.Sequence += 1000 })
		},
		"root": func(b *box) {
			b.onHub(v1alpha1.MailboxName, func(r *v1alpha1.ClusterReport) { r.Root.Pages = nil })
		},
		"page deleted": func(b *box) {
			require.NoError(b, hub.Delete(b.Context(), &v1alpha1.ClusterReport{ObjectMeta: in(b.hubNamespace, "page-0")}))
		},
		"root deleted": func(b *box) {
			require.NoError(b, hub.Delete(b.Context(), &v1alpha1.ClusterReport{ObjectMeta: in(b.hubNamespace, v1alpha1.MailboxName)}))
		},
		"page added": func(b *box) {
			b.create(hub, &v1alpha1.ClusterReport{ObjectMeta: in(b.hubNamespace, "page-1"), ClusterUID: cluster, Sequence: 1, Page: &v1alpha1.ReportPage{}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			r, a := b.relay(), newAgent(b)
			a.page("page-0", "")
			a.root()
			b.up(r)
			edit(b)
			assert.Equal(t, relay.Up{Carried: 1}, b.up(r))
			b.wantSame()
			b.forget()
			assert.Equal(t, relay.Up{}, b.up(r))
			b.wantWrites(0, 0)
		})
	}
}

func TestReportOfAnotherCluster(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	const other types.UID = "another"
	a.page("page-0", "")
	a.page("page-1", "")
	a.root()
	b.up(r)
	before := b.report(hub, b.hubNamespace)

	rebuilt := newAgent(b)
	rebuilt.uid = other
	require.NoError(t, member.DeleteAllOf(t.Context(), &v1alpha1.ClusterReport{}, client.InNamespace(b.agentNamespace)))
	rebuilt.page("page-0", "rebuilt")
	rebuilt.root()
	b.forget()
	for _, known := range []types.UID{cluster, ""} {
		up, err := r.Up(t.Context(), known)
		require.NoError(t, err)
		assert.Equal(t, relay.Up{Another: other}, up, "known is %q", known)
	}
	b.wantWrites(0, 0)
	assert.Equal(t, before, b.report(hub, b.hubNamespace))

	up, err := r.Up(t.Context(), other)
	require.NoError(t, err)
	assert.Equal(t, relay.Up{Carried: 3}, b.besidesRoot(up), "a page, the root, and a page less, whatever their sequences")
	b.wantSame()
}

func TestMemberRestored(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	a.page("page-0", "as in the backup")
	a.root()
	backup := b.report(member, b.agentNamespace)
	b.up(r)
	a.page("page-0", "later")
	a.root()
	b.up(r)
	later := b.report(hub, b.hubNamespace)

	for name, was := range backup {
		require.NoError(t, member.Delete(t.Context(), &v1alpha1.ClusterReport{ObjectMeta: in(b.agentNamespace, name)}))
		was.ObjectMeta = in(b.agentNamespace, name)
		b.create(member, &was)
	}
	b.forget()
	for range 2 {
		assert.Equal(t, relay.Up{Older: true}, b.up(r))
	}
	b.wantWrites(0, 0)
	assert.Equal(t, later, b.report(hub, b.hubNamespace))

	a.sequences["page-0"] = backup["page-0"].Sequence
	a.root()
	assert.Equal(t, relay.Up{Carried: 2}, b.up(r), "the page's sequence is lower than on the hub, and the root lists it so")
	b.wantSame()
}

func TestRelayThatWakesUpLateWritesNoOlderReport(t *testing.T) {
	for name, change := range map[string]struct{ early, late func(*agent) }{
		"page": {
			early: func(a *agent) { a.page("page-0", "old"); a.root() },
			late:  func(a *agent) { a.page("page-0", "new"); a.root() },
		},
		"new page": {
			early: func(a *agent) { a.page("page-1", "old"); a.root() },
			late:  func(a *agent) { a.page("page-1", "new"); a.root() },
		},
		"root": {
			early: func(a *agent) { a.root() },
			late:  func(a *agent) { a.root() },
		},
		"page that comes back": {
			early: func(a *agent) { a.drop("page-0") },
			late:  func(a *agent) { a.page("page-0", "new"); a.root() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			late, r, a := b.relay(), b.relay(), newAgent(b)
			a.page("page-0", "")
			a.root()
			b.up(r)
			change.early(a)
			if _, listed := a.sequences["page-0"]; !listed {
				a.root()
				kept := r
				kept.Hub.Live = undeleting(hub)
				b.up(kept)
			}
			late.Member.Cached = b.frozen(member, b.agentNamespace)
			var reached <-chan struct{}
			var release func()
			late.Hub.Live, reached, release = paused(hub)
			ended := make(chan error, 1)
			go func() {
				_, err := late.Up(t.Context(), cluster)
				ended <- err
			}()
			<-reached
			change.late(a)
			b.up(r)
			release()
			err := <-ended
			require.Truef(t, apierrors.IsConflict(err), "%v", err)
			b.wantSame()
			assert.Equal(t, relay.Up{}, b.up(late), "called again, it asks the member and finds nothing to do")
		})
	}
}

// undeleting is a client of a relay that ends before it deletes anything.
func undeleting(c client.WithWatch) client.Client {
	return interceptor.NewClient(c, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return nil },
	})
}

func TestPageThatTheHubRefusesDoesNotHoldUpTheRest(t *testing.T) {
	b := newBox(t)
	r, a := b.relay(), newAgent(b)
	for _, name := range []string{"page-00", "page-01", "page-1"} {
		a.page(name, "")
	}
	a.root()
	r.Hub.Live = interceptor.NewClient(hub, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			if object.GetName() == "page-01" {
				return apierrors.NewInvalid(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "ClusterReport"}, object.GetName(), nil)
			}
			return c.Create(ctx, object, o...)
		},
	})
	up, err := r.Up(t.Context(), cluster)
	require.True(t, apierrors.IsInvalid(err))
	require.ErrorContains(t, err, "creating ClusterReport "+b.hubNamespace+"/page-01 on the hub")
	assert.Equal(t, relay.Up{Carried: 3}, b.besidesRoot(up))
	want := b.report(member, b.agentNamespace)
	delete(want, "page-01")
	assert.Equal(t, want, b.report(hub, b.hubNamespace))
}
