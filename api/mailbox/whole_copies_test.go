package mailbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A process that takes a member over reads the hub's copies with one request, unless there are too
// many, or one cannot be decoded.
func TestCopiesOfMovedMemberAreReadAtOnce(t *testing.T) {
	const few = 3
	gets := func(pages int) []string { // the metadata, the root, and each page
		return append([]string{"list"}, slices.Repeat([]string{"get"}, 1+pages)...)
	}
	for name, c := range map[string]struct {
		pages       int
		undecodable bool
		want        []string
	}{
		"few pages":             {pages: few, want: []string{"list"}},
		"as many as are listed": {pages: maxWholeCopies - 1, want: []string{"list"}},
		"too many":              {pages: maxWholeCopies, want: gets(maxWholeCopies)},
		"one is not decodable":  {pages: few, undecodable: true, want: gets(few)},
	} {
		t.Run(name, func(t *testing.T) {
			hub, member := newCountedSide(t, "ot-member-a"), newCountedSide(t, "ot-agent")
			root := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, ClusterUID: "a", Sequence: 1, Root: &v1alpha1.ReportRoot{}}
			for i := range c.pages {
				page := fmt.Sprintf("page-%d", i)
				root.Root.Pages = append(root.Root.Pages, v1alpha1.PageRef{Name: page})
				require.NoError(t, member.store.Create(t.Context(), &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: page}, ClusterUID: "a", Sequence: 1, Page: &v1alpha1.ReportPage{}}))
			}
			require.NoError(t, member.store.Create(t.Context(), root))
			_, err := Relay{Hub: hub.Side, Member: member.Side}.SyncUp(t.Context(), "a")
			require.NoError(t, err)
			hub.takeAsked()

			relay := Relay{Hub: hub.Side, Member: member.Side, Copies: &EqualCopies{}, Recheck: always}
			wholeLists := 0
			relay.Hub.Live = interceptor.NewClient(hub.Live.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, live client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if _, whole := list.(*v1alpha1.ClusterReportList); whole {
					if wholeLists++; c.undecodable {
						return errors.New("json: cannot unmarshal")
					}
				}
				return live.List(ctx, list, options...)
			}})
			up, err := relay.SyncUp(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, UpResult{RootSequence: 1}, up)
			assert.Equal(t, c.want, hub.takeAsked())
			wholeLists = 0
			up, err = relay.SyncUp(t.Context(), "a")
			require.NoError(t, err)
			assert.Equal(t, UpResult{RootSequence: 1}, up)
			assert.Equal(t, []string{"list"}, hub.takeAsked())
			assert.Zero(t, wholeLists, "of what is known, the metadata is enough")
		})
	}
}
