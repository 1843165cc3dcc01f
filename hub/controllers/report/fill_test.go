package report

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// storedFleet serves the stored reports of many members, and counts requests.
type storedFleet struct {
	client.Client
	mu      sync.Mutex
	reports []v1alpha1.ClusterReport
	// undecodable is an object that fails the answers that have it.
	undecodable types.NamespacedName
	lists, gets int
	failAfter   int
}

const imagesOfPage = 2

func newStoredFleet(members, pages int) *storedFleet {
	f := &storedFleet{failAfter: -1}
	for m := range members {
		meta := metav1.ObjectMeta{Namespace: fmt.Sprintf("%s%03d", v1alpha1.MemberNamespacePrefix, m), Name: v1alpha1.MailboxName, ResourceVersion: "1"}
		root := v1alpha1.ClusterReport{ObjectMeta: meta, ClusterUID: "u", Sequence: 9, Root: &v1alpha1.ReportRoot{}}
		f.reports = append(f.reports, root)
		for p := range pages {
			meta.Name = fmt.Sprintf("page-%03b", p)
			page := &v1alpha1.ReportPage{}
			for i := range imagesOfPage {
				page.Images = append(page.Images, v1alpha1.ReportedImage{Namespace: "n", Name: fmt.Sprint(p, i), UID: "i", Source: "http https://a/b", Phase: v1alpha1.PhaseSucceeded})
			}
			f.reports = append(f.reports, v1alpha1.ClusterReport{ObjectMeta: meta, ClusterUID: "u", Sequence: 3, Page: page})
			root.Root.Pages = append(root.Root.Pages, v1alpha1.PageRef{Name: meta.Name, Sequence: 3, Images: imagesOfPage})
		}
	}
	return f
}

func (f *storedFleet) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if member, ok := into.(*v1alpha1.MemberCluster); ok {
		member.Name = key.Name
		return nil
	}
	if ns, ok := into.(*corev1.Namespace); ok {
		ns.Labels = map[string]string{v1alpha1.LabelMember: strings.TrimPrefix(key.Name, v1alpha1.MemberNamespacePrefix)}
		return nil
	}
	f.gets++
	for i := range f.reports {
		if client.ObjectKeyFromObject(&f.reports[i]) == key {
			f.reports[i].DeepCopyInto(into.(*v1alpha1.ClusterReport))
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (f *storedFleet) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	asked := client.ListOptions{}
	asked.ApplyOptions(options)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, whole := into.(*v1alpha1.ClusterReportList); whole {
		f.lists++
		if asked.Raw == nil || asked.Raw.ResourceVersion != "0" {
			return errors.New("it is not read from the cache")
		}
		if f.failAfter >= 0 && f.lists > f.failAfter {
			return apierrors.NewServerTimeout(schema.GroupResource{}, "list", 1)
		}
	}
	for i := range f.reports {
		o := f.reports[i].DeepCopy()
		if o.Namespace != asked.Namespace {
			continue
		}
		switch list := into.(type) {
		case *v1alpha1.ClusterReportList:
			if client.ObjectKeyFromObject(o) == f.undecodable {
				return errors.New("parsing time")
			}
			list.Items = append(list.Items, *o)
		case *metav1.PartialObjectMetadataList:
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
		}
	}
	return nil
}

// Delete leaves what the root does not list as it is.
func (f *storedFleet) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return nil
}

// After a fill the workers read nothing singly but what could not be listed, and what is
// known does not depend on which of both has read it.
func TestFillReadsStoredReports(t *testing.T) {
	const members, pages = 20, 3
	for name, tt := range map[string]struct {
		change   func(*storedFleet)
		wantGets int
	}{
		"all":                   {func(*storedFleet) {}, 0},
		"one cannot be decoded": {func(f *storedFleet) { f.undecodable = client.ObjectKeyFromObject(&f.reports[45]) }, pages + 1},
		"the second list fails": {func(f *storedFleet) { f.failAfter = 1 }, (members - 1) * (pages + 1)},
		"all lists fail":        {func(f *storedFleet) { f.failAfter = 0 }, members * (pages + 1)},
		"a member has too many": {func(f *storedFleet) {
			for i := range maxFilledObjects {
				o := f.reports[1].DeepCopy()
				o.Name = fmt.Sprint("unlisted-", i)
				f.reports = append(f.reports, *o)
			}
		}, pages + 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newStoredFleet(members, pages)
			tt.change(f)
			index := inventory.NewIndex()
			r := New(f, f, events.NewFakeRecorder(16), metrics.NewReports(prometheus.NewRegistry()), index, NewStore())
			known, names := map[string]bool{}, []string{}
			for m := range members {
				names = append(names, fmt.Sprintf("%03d", m))
				known[names[m]] = true
			}
			r.Store.expectMembers(names)
			err := r.readStored(t.Context(), known)
			require.Equal(t, f.failAfter >= 0, err != nil, "%v", err)
			require.False(t, r.Store.HasSynced(), "each member is compared with the cache first")
			for _, member := range names {
				_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: member}})
				require.NoError(t, err)
				totals, found := index.Totals(member)
				require.True(t, found)
				require.Empty(t, totals.MissingPages)
				require.Equal(t, pages*imagesOfPage, totals.Images)
			}
			require.True(t, r.Store.HasSynced())
			require.Equal(t, tt.wantGets, f.gets, "single reads")

			// What changes later is read again.
			before := f.gets
			i := slices.IndexFunc(f.reports, func(o v1alpha1.ClusterReport) bool { return o.Page != nil })
			f.reports[i].ResourceVersion = "2"
			_, err = r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: names[0]}})
			require.NoError(t, err)
			require.Equal(t, before+1, f.gets)
		})
	}
}

// Reports of deleted members are not read.
func TestFillIgnoresDeletedMembers(t *testing.T) {
	f := newStoredFleet(3, 1)
	index := inventory.NewIndex()
	r := New(f, f, events.NewFakeRecorder(1), metrics.NewReports(prometheus.NewRegistry()), index, NewStore())
	require.NoError(t, r.readStored(t.Context(), map[string]bool{"001": true}))
	_, known := index.Totals("000")
	require.False(t, known)
	_, known = index.Totals("001")
	require.True(t, known)
}

// The workers wait for the stored reports to be listed.
func TestReconcileAwaitsFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newStoredFleet(1, 1)
		r := New(f, f, events.NewFakeRecorder(1), metrics.NewReports(prometheus.NewRegistry()), inventory.NewIndex(), NewStore())
		r.filled = make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "000"}})
			done <- err
		}()
		synctest.Wait()
		require.Empty(t, done)
		require.Zero(t, f.gets)
		require.NoError(t, r.readStored(t.Context(), map[string]bool{"000": true}))
		close(r.filled)
		require.NoError(t, <-done)
		require.Zero(t, f.gets)
	})
}
