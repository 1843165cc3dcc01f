package mailbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// movedMember is a member of cluster a whose copies another process has written.
type movedMember struct {
	hub   *countedSide
	relay Relay
	// wholeReads counts the lists of copies with their contents, which fail with err if it is set.
	wholeReads int
	err        error
}

func newMovedMember(t *testing.T, pages int) *movedMember {
	t.Helper()
	hub, member := newCountedSide(t, "ot-member-a"), newCountedSide(t, "ot-agent")
	root := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, ClusterUID: "a", Sequence: 1, Root: &v1alpha1.ReportRoot{}}
	for i := range pages {
		page := fmt.Sprintf("page-%d", i)
		root.Root.Pages = append(root.Root.Pages, v1alpha1.PageRef{Name: page})
		require.NoError(t, member.store.Create(t.Context(), &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: page}, ClusterUID: "a", Sequence: 1, Page: &v1alpha1.ReportPage{}}))
	}
	require.NoError(t, member.store.Create(t.Context(), root))
	_, err := Relay{Hub: hub.Side, Member: member.Side}.SyncUp(t.Context(), "a")
	require.NoError(t, err)
	hub.takeAsked()
	m := &movedMember{hub: hub, relay: Relay{Hub: hub.Side, Member: member.Side, Copies: &EqualCopies{}, Recheck: always, WholeReads: make(chan struct{}, 1)}}
	m.relay.Hub.Live = interceptor.NewClient(hub.Live.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, live client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, whole := list.(*v1alpha1.ClusterReportList); whole {
			if m.wholeReads++; m.err != nil {
				return m.err
			}
		}
		return live.List(ctx, list, options...)
	}})
	return m
}

// A process that takes a member over reads the hub's copies with one request, unless there are too
// many, or one cannot be decoded. Later it rechecks them by their metadata.
func TestCopiesOfMovedMemberAreReadAtOnce(t *testing.T) {
	const few = 3
	gets := func(pages int) []string { // the metadata, the root, and each page
		return append([]string{"list"}, slices.Repeat([]string{"get"}, 1+pages)...)
	}
	for name, c := range map[string]struct {
		pages   int
		noCache bool // the hub's cache shows no copy yet
		err     error
		want    []string
	}{
		"few pages":                    {pages: few, want: []string{"list"}},
		"as many as are read":          {pages: maxWholeCopies - 1, want: []string{"list"}},
		"too many":                     {pages: maxWholeCopies, want: gets(maxWholeCopies)},
		"too many, not in a cache yet": {pages: maxWholeCopies + 1, noCache: true, want: gets(maxWholeCopies + 1)},
		"one is not decodable":         {pages: few, err: errors.New("json: cannot unmarshal"), want: gets(few)},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMovedMember(t, c.pages)
			m.err = c.err
			if c.noCache {
				m.relay.Hub.Cached = fake.NewClientBuilder().WithScheme(m.hub.store.Scheme()).Build()
			}
			up, err := m.relay.SyncUp(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, UpResult{RootSequence: 1}, up)
			assert.Equal(t, c.want, m.hub.takeAsked())
			m.wholeReads = 0
			up, err = m.relay.SyncUp(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, UpResult{RootSequence: 1}, up)
			assert.Equal(t, []string{"list"}, m.hub.takeAsked())
			assert.Zero(t, m.wholeReads)
		})
	}
}

// A member that answers as another cluster is never confirmed, so each sync rechecks it: only the first
// one reads all.
func TestCopiesOfOtherClusterAreReadAtOnceOnce(t *testing.T) {
	m := newMovedMember(t, 3)
	for _, want := range [][]string{{"list"}, {"list", "get"}, {"list", "get"}} {
		up, err := m.relay.SyncUp(t.Context(), "b")
		require.NoError(t, err)
		assert.Equal(t, UpResult{OtherCluster: "a"}, up)
		assert.Equal(t, want, m.hub.takeAsked())
	}
	assert.Equal(t, 1, m.wholeReads)
}

// An API server that does not serve is not asked twice, and the next sync reads all at once.
func TestFailedReadOfAllCopiesIsRepeated(t *testing.T) {
	m := newMovedMember(t, 3)
	m.err = apierrors.NewServiceUnavailable("overloaded")
	_, err := m.relay.SyncUp(t.Context(), "a")
	require.ErrorContains(t, err, "overloaded")
	assert.Empty(t, m.hub.takeAsked())
	m.err = nil
	_, err = m.relay.SyncUp(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, []string{"list"}, m.hub.takeAsked())
}

// Copies that differ, of pages and of the root, are overwritten, whatever else was equal; of an agent that
// syncs its own mailbox, each copy is read by itself.
func TestDifferingCopiesAreOverwritten(t *testing.T) {
	for name, atOnce := range map[string]bool{"read at once": true, "one by one": false} {
		t.Run(name, func(t *testing.T) {
			m := newMovedMember(t, 3)
			if !atOnce {
				m.relay.WholeReads = nil
			}
			for _, name := range []string{"page-1", v1alpha1.MailboxName} {
				copied := &v1alpha1.ClusterReport{}
				require.NoError(t, m.hub.store.Get(t.Context(), client.ObjectKey{Namespace: m.hub.Namespace, Name: name}, copied))
				if copied.Page != nil {
					copied.Page.Images = []v1alpha1.ReportedImage{{Namespace: "farm", Name: "by-hand", UID: "uid"}}
				} else {
					copied.Root.AgentVersion = "by hand"
				}
				require.NoError(t, m.hub.store.Update(t.Context(), copied))
			}
			up, err := m.relay.SyncUp(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, UpResult{Written: 2, RootSequence: 1}, up)
			assert.Equal(t, atOnce, m.wholeReads > 0)
			up, err = m.relay.SyncUp(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, UpResult{RootSequence: 1}, up)
			var reports v1alpha1.ClusterReportList
			require.NoError(t, m.hub.store.List(t.Context(), &reports))
			for _, r := range reports.Items {
				assert.True(t, r.Page == nil || len(r.Page.Images) == 0, "page %s is as by hand", r.Name)
				assert.True(t, r.Root == nil || r.Root.AgentVersion == "", "the root is as by hand")
			}
		})
	}
}

// All copies of a member are read once there is room for them.
func TestReadsOfAllCopiesAreBounded(t *testing.T) {
	m := newMovedMember(t, 3)
	m.relay.WholeReads <- struct{}{}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := m.relay.SyncUp(ended, "a")
	require.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, m.wholeReads)
	<-m.relay.WholeReads
	_, err = m.relay.SyncUp(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, 1, m.wholeReads)
	assert.Empty(t, m.relay.WholeReads, "the room is given back")
}
