package report

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/reportlimits"
)

const testMember = "edge"

// testReports has one member, whose namespace anything can be written to.
type testReports struct {
	*memoryClient
	*Reconciler
	t        *testing.T
	registry *prometheus.Registry
	events   *events.FakeRecorder
	clock    time.Time
	sequence int64
}

func newTestReports(t *testing.T) *testReports {
	t.Helper()
	r := &testReports{
		t: t, registry: prometheus.NewRegistry(), events: events.NewFakeRecorder(1000), clock: apitest.Epoch,
		memoryClient: &memoryClient{reports: map[string]*v1alpha1.ClusterReport{}, reads: map[string]int{}, failing: map[string]error{},
			namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelMember: testMember}}}},
	}
	r.Reconciler = New(r.memoryClient, r.memoryClient, r.events, metrics.NewReports(r.registry), inventory.NewIndex(), NewStore())
	r.now = func() time.Time { return r.clock }
	r.Store.expectMembers(nil)
	return r
}

// memoryClient has the reports of one member.
type memoryClient struct {
	client.Client
	reports map[string]*v1alpha1.ClusterReport
	// reads counts the ClusterReports that were read, by name; failing are the errors of
	// these reads.
	reads   map[string]int
	failing map[string]error
	// namespace is that of the member; nil for none.
	namespace *corev1.Namespace
}

func (c *memoryClient) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	member, isMember := into.(*v1alpha1.MemberCluster)
	if isMember {
		member.Name = key.Name
		return nil
	}
	if ns, isNamespace := into.(*corev1.Namespace); isNamespace {
		if c.namespace == nil {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		c.namespace.DeepCopyInto(ns)
		return nil
	}
	stored := c.reports[key.Name]
	if stored == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	switch into := into.(type) {
	case *metav1.PartialObjectMetadata:
		stored.ObjectMeta.DeepCopyInto(&into.ObjectMeta)
	case *v1alpha1.ClusterReport:
		c.reads[key.Name]++
		if err := c.failing[key.Name]; err != nil {
			return err
		}
		stored.DeepCopyInto(into)
	}
	return nil
}

func (c *memoryClient) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	list := into.(*metav1.PartialObjectMetadataList)
	for _, name := range slices.Sorted(maps.Keys(c.reports)) {
		list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: *c.reports[name].ObjectMeta.DeepCopy()})
	}
	return nil
}

func (c *memoryClient) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	delete(c.reports, o.GetName())
	return nil
}

func (r *testReports) write(name string, set func(*v1alpha1.ClusterReport)) {
	r.t.Helper()
	r.sequence++
	report := r.memoryClient.reports[name]
	if report == nil {
		report = &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + testMember, Name: name}}
	}
	report = report.DeepCopy()
	report.Sequence, report.ResourceVersion = r.sequence, strconv.FormatInt(r.sequence, 10)
	set(report)
	r.memoryClient.reports[name] = report
}

// writePage writes a page with one image of about that many bytes.
func (r *testReports) writePage(name string, bytes int) {
	r.t.Helper()
	r.write(name, func(report *v1alpha1.ClusterReport) {
		report.Page = &v1alpha1.ReportPage{Images: []v1alpha1.ReportedImage{{
			Namespace: "farm", Name: name, UID: "uid", Source: "http " + name, Message: strings.Repeat("x", bytes)}}}
	})
}

func (r *testReports) writeRoot(pages ...string) {
	r.t.Helper()
	r.write(v1alpha1.MailboxName, func(report *v1alpha1.ClusterReport) {
		report.Root = &v1alpha1.ReportRoot{HeartbeatSeconds: 30}
		for _, name := range pages {
			report.Root.Pages = append(report.Root.Pages, v1alpha1.PageRef{Name: name, Sequence: r.memoryClient.reports[name].Sequence, Images: 1})
		}
	})
}

func (r *testReports) reconcile() ctrl.Result {
	r.t.Helper()
	result, err := r.Reconcile(r.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: testMember}})
	require.NoError(r.t, err)
	return result
}

func (r *testReports) stored() []string { return slices.Sorted(maps.Keys(r.memoryClient.reports)) }

// deleted is the metric of what was deleted.
func (r *testReports) deleted() (sum float64) {
	r.t.Helper()
	families, err := r.registry.Gather()
	require.NoError(r.t, err)
	for _, family := range families {
		for _, series := range family.GetMetric() {
			sum += series.GetCounter().GetValue()
		}
	}
	return sum
}

func pageNames(count int) (names []string) {
	for i := range count {
		names = append(names, fmt.Sprintf("page-%032b", i))
	}
	return names
}

func TestOnlyListedPagesAreRead(t *testing.T) {
	r := newTestReports(t)
	r.writePage("page-0", 10)
	r.writePage("page-1", 10)
	r.reconcile()
	assert.Empty(t, r.reads, "there is no root")
	r.writeRoot("page-0")
	assert.Equal(t, reportlimits.UnlistedGrace, r.reconcile().RequeueAfter)
	assert.Equal(t, map[string]int{v1alpha1.MailboxName: 1, "page-0": 1}, r.reads)
	assert.Equal(t, 1, r.Index.Stats().Pages)
	_, found, err := r.Page(t.Context(), testMember, "page-1")
	require.NoError(t, err)
	assert.False(t, found)

	r.reconcile()
	assert.Equal(t, 1, r.reads["page-0"], "nothing has changed")
	r.writePage("page-0", 20)
	r.writeRoot("page-0", "page-1")
	r.reconcile()
	assert.Equal(t, 2, r.reads["page-0"])
	assert.Equal(t, 1, r.reads["page-1"])
	assert.Equal(t, 2, r.Index.Stats().Entries)
	assert.Empty(t, r.Index.UnknownReason(testMember))

	r.writeRoot("page-1")
	r.reconcile()
	assert.Equal(t, 1, r.Index.Stats().Pages)
	images, found, err := r.Page(t.Context(), testMember, "page-1")
	require.NoError(t, err)
	assert.True(t, found)
	assert.Len(t, images, 1)
}

func TestUnlistedPagesAreDeletedAfterGrace(t *testing.T) {
	r := newTestReports(t)
	r.writePage("page-0", 10)
	r.writePage("page-1", 10)
	r.writeRoot("page-0")
	r.reconcile()
	assert.Len(t, r.stored(), 3, "the agent may be about to list it")
	r.clock = r.clock.Add(reportlimits.UnlistedGrace)
	r.reconcile()
	assert.Equal(t, []string{v1alpha1.MailboxName, "page-0"}, r.stored())
	assert.InDelta(t, 1, r.deleted(), 0)
	assert.Contains(t, <-r.events.Events, "UnlistedReportsDeleted")
	assert.Nil(t, r.Store.Root(testMember).Excess.FloodedAt, "an agent that crashed leaves a page behind")
	assert.Zero(t, r.reads["page-1"])
}

func TestFloodIsDeletedAtOnce(t *testing.T) {
	r := newTestReports(t)
	r.writePage("page", 10)
	r.writeRoot("page")
	r.reconcile()
	const flood = v1alpha1.MaxReportPages + 2*maxDeletions
	for _, name := range pageNames(flood) {
		r.writePage(name, 10)
	}
	for deleted := range 2 {
		r.reconcile()
		assert.Len(t, r.stored(), 2+flood-(deleted+1)*maxDeletions, "a reconcile deletes a part")
	}
	r.reconcile()
	assert.Len(t, r.stored(), 2+v1alpha1.MaxReportPages)
	assert.Equal(t, r.clock, *r.Store.Root(testMember).Excess.FloodedAt)
	r.clock = r.clock.Add(floodMemory)
	for range 1 + v1alpha1.MaxReportPages/maxDeletions {
		r.reconcile()
	}
	assert.Equal(t, []string{v1alpha1.MailboxName, "page"}, r.stored())
	assert.Nil(t, r.Store.Root(testMember).Excess.FloodedAt)
	assert.InDelta(t, flood, r.deleted(), 0)
	assert.Len(t, r.reads, 2, "none of them was read")
}

func TestPagesBeyondMaxReportBytesAreIgnored(t *testing.T) {
	r := newTestReports(t)
	names := pageNames(v1alpha1.MaxReportBytes/v1alpha1.MaxReportObjectBytes + 2)
	for _, name := range names {
		r.writePage(name, v1alpha1.MaxReportObjectBytes-1000)
	}
	r.writeRoot(names...)
	r.reconcile()
	kept := v1alpha1.MaxReportBytes / v1alpha1.MaxReportObjectBytes
	assert.Equal(t, kept, r.Index.Stats().Pages)
	assert.Equal(t, 2, r.Store.Root(testMember).Excess.IgnoredPages)
	assert.Equal(t, v1alpha1.ReasonPagesMissing, r.Index.UnknownReason(testMember), "what is ignored may reference anything")
	r.reconcile()
	for _, name := range names {
		assert.Equal(t, 1, r.reads[name], "an ignored page is not read again and again")
	}

	r.writePage(names[0], v1alpha1.MaxReportObjectBytes+1)
	r.reconcile()
	assert.Equal(t, kept, r.Index.Stats().Pages)
	assert.Equal(t, 2, r.Store.Root(testMember).Excess.IgnoredPages, "a page that is too large itself, and the last")
	assert.Equal(t, 2, r.reads[names[kept]], "there is room for another one")
	r.writePage(names[0], 10)
	r.writePage(names[1], 10)
	r.writeRoot(names...)
	r.reconcile()
	assert.Zero(t, r.Store.Root(testMember).Excess.IgnoredPages)
	assert.Empty(t, r.Index.UnknownReason(testMember))

	r.writePage(names[0], v1alpha1.MaxReportObjectBytes-1000)
	r.writePage(names[1], v1alpha1.MaxReportObjectBytes-1000)
	r.reconcile()
	assert.Equal(t, kept, r.Index.Stats().Pages, "the last ones make room for the first")
}

func TestRootThatIsTooLargeIsIgnored(t *testing.T) {
	r := newTestReports(t)
	r.writePage("page", 10)
	r.writeRoot("page")
	r.reconcile()
	r.write(v1alpha1.MailboxName, func(report *v1alpha1.ClusterReport) {
		report.Root.Policy = map[string]string{"key": strings.Repeat("x", v1alpha1.MaxReportObjectBytes)}
	})
	r.reconcile()
	assert.True(t, r.Store.Root(testMember).Excess.RootTooLarge)
	assert.Empty(t, r.Store.Root(testMember).Report.Policy)
	assert.Equal(t, 1, r.Index.Stats().Pages, "what was known stays")
	r.writeRoot("page")
	r.reconcile()
	assert.False(t, r.Store.Root(testMember).Excess.RootTooLarge)
}

// TestUndecodableReportHoldsUpNobody: the hub plans for nobody before it has read the reports
// of all members.
func TestUndecodableReportHoldsUpNobody(t *testing.T) {
	_, undecodable := time.Parse(time.RFC3339, "2026-01-01t10:00:00z")
	require.Error(t, undecodable)
	r := newTestReports(t)
	r.Store = NewStore()
	r.writePage("page-0", 10)
	r.writePage("page-1", 10)
	r.writeRoot("page-0", "page-1")
	r.Store.expectMembers([]string{testMember})
	r.failing["page-1"] = undecodable
	assert.Equal(t, undecodableRetryDelay, r.reconcile().RequeueAfter)
	assert.True(t, r.Store.HasSynced())
	assert.True(t, r.Store.Root(testMember).Excess.Undecodable)
	assert.Equal(t, 1, r.Index.Stats().Pages)
	assert.Equal(t, v1alpha1.ReasonPagesMissing, r.Index.UnknownReason(testMember), "it may reference anything")
	page, err := r.LivePage(t.Context(), testMember, "page-1")
	require.NoError(t, err)
	assert.Nil(t, page)

	r.failing[v1alpha1.MailboxName] = undecodable
	r.writeRoot("page-0")
	r.reconcile()
	assert.True(t, r.Store.Root(testMember).Excess.Undecodable)
	assert.Len(t, r.Store.Root(testMember).Report.Pages, 2, "the root that was known stays")

	clear(r.failing)
	r.reconcile()
	assert.Zero(t, r.Store.Root(testMember).Excess)
	assert.Empty(t, r.Index.UnknownReason(testMember))
}

func TestFailedReadIsRepeated(t *testing.T) {
	r := newTestReports(t)
	r.Store = NewStore()
	r.writeRoot()
	r.Store.expectMembers([]string{testMember})
	for _, failure := range []error{apierrors.NewServerTimeout(schema.GroupResource{}, "get", 1), &url.Error{Err: io.EOF}} {
		r.failing[v1alpha1.MailboxName] = failure
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: testMember}})
		require.ErrorIs(t, err, failure)
		assert.False(t, r.Store.HasSynced(), "the report is not known yet")
	}
}

func TestPageCacheIsBounded(t *testing.T) {
	c := newPageCache()
	for i, name := range pageNames(100) {
		c.add(types.NamespacedName{Name: name}, cachedPage{version: "1", bytes: maxCachedPageBytes / 10})
		assert.LessOrEqual(t, c.bytes, maxCachedPageBytes)
		_, found := c.get(types.NamespacedName{Name: name}, "1")
		assert.True(t, found, "page %d", i)
	}
	_, found := c.get(types.NamespacedName{Name: pageNames(1)[0]}, "1")
	assert.False(t, found)
	_, found = c.get(types.NamespacedName{Name: pageNames(100)[99]}, "2")
	assert.False(t, found, "another version")
}

func TestStripMetadata(t *testing.T) {
	stored := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "page", ResourceVersion: "1", Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"a": "b"},
		OwnerReferences: []metav1.OwnerReference{{Name: "a"}}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "a"}},
	}}
	stripped, err := StripMetadata(stored)
	require.NoError(t, err)
	assert.Equal(t, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "page", ResourceVersion: "1"}}, stripped)
}
