//go:build linux

package registration_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func newPage(agent *fakeAgent, name string, images ...v1alpha1.ReportedImage) *v1alpha1.ClusterReport {
	return &v1alpha1.ClusterReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: name},
		ClusterUID: cluster, Sequence: 1, Page: &v1alpha1.ReportPage{Images: images},
	}
}

// largePageBytes is about the size of a page from newLargePage.
const largePageBytes = 128 * 2200

func newLargePage(agent *fakeAgent, n int) *v1alpha1.ClusterReport {
	images := make([]v1alpha1.ReportedImage, v1alpha1.MaxReportedImages)
	for i := range images {
		name := fmt.Sprintf("image-%d-%d", n, i)
		images[i] = v1alpha1.ReportedImage{Namespace: "farm", Name: name, UID: "uid", Source: "http " + name + strings.Repeat("x", 2000)}
	}
	return newPage(agent, fmt.Sprintf("page-%032b", n), images...)
}

// hubMetric returns a metric without labels of the hub.
func hubMetric(t *testing.T, name string) float64 {
	t.Helper()
	text, err := shared.Hub.ReadMetrics(t.Context())
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	value, err := strconv.ParseFloat(found[1], 64)
	require.NoError(t, err)
	return value
}

// hubMemory returns the hub's resident memory in MiB.
func hubMemory(t *testing.T) float64 {
	t.Helper()
	bytes, err := shared.Hub.ResidentMemory()
	require.NoError(t, err)
	return float64(bytes) / (1 << 20)
}

// TestMemberCannotFillTheHub writes as the agent of a member what no agent writes.
func TestMemberCannotFillTheHub(t *testing.T) {
	testenv.RunInTurn(t, 5)
	agent, _, _ := registerFakeAgent(t, "flood")
	ctx := t.Context()
	t.Run("metadata", func(t *testing.T) { requireMetadataBounded(t, agent) })

	root := newPage(agent, v1alpha1.MailboxName)
	root.Page, root.Root = nil, &v1alpha1.ReportRoot{HeartbeatSeconds: 30, BootID: "boot", AgentVersion: "test", ObservedAt: metav1.Now()}
	require.NoError(t, agent.Create(ctx, root))
	writeRoot(t, agent, root, 0)
	pages, before := hubMetric(t, "ot_hub_index_pages"), hubMemory(t)

	const large = 27 << 20 / largePageBytes
	for n := range large {
		require.NoError(t, agent.Create(ctx, newLargePage(agent, n)))
	}
	// The hub has seen the pages once it has read a root that was written after them.
	writeRoot(t, agent, root, 0)
	assert.InDelta(t, pages, hubMetric(t, "ot_hub_index_pages"), 0, "pages that no root lists")
	unlisted := hubMemory(t)

	writeRoot(t, agent, root, large)
	awaitCondition(t, func() bool { return hubMetric(t, "ot_hub_index_pages") == pages+large }, "the listed pages are not read")
	listed := hubMemory(t)
	t.Logf("27 MiB of pages: hub at %.0f MiB before, %.0f MiB while no root lists them, %.0f MiB when it does", before, unlisted, listed)
	assert.Less(t, unlisted-before, (listed-before)/2, "what is not listed costs next to nothing")

	const flood = v1alpha1.MaxReportPages + 20
	writeRoot(t, agent, root, 0)
	for n := large; n < large+flood; n++ {
		require.NoError(t, agent.Create(ctx, newPage(agent, fmt.Sprintf("page-%032b", n))))
	}
	awaitCondition(t, func() bool {
		list := &v1alpha1.ClusterReportList{}
		require.NoError(t, shared.List(ctx, list, client.InNamespace(agent.Namespace)))
		return len(list.Items) <= 1+v1alpha1.MaxReportPages
	}, "more pages are left than an agent writes")
	awaitCondition(t, func() bool {
		c := meta.FindStatusCondition(getMember(t, "flood").Status.Conditions, v1alpha1.ConditionReportComplete)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonUnlistedReports
	}, "the member's condition does not say so")
}

// writeRoot lists the first large pages and waits until the hub has read that root.
func writeRoot(t *testing.T, agent *fakeAgent, root *v1alpha1.ClusterReport, pages int) {
	t.Helper()
	root.Sequence++
	root.Root.Pages, root.Root.AgentVersion = nil, fmt.Sprint("test-", root.Sequence)
	for n := range pages {
		root.Root.Pages = append(root.Root.Pages, v1alpha1.PageRef{Name: fmt.Sprintf("page-%032b", n), Sequence: 1, Images: v1alpha1.MaxReportedImages})
	}
	require.NoError(t, agent.Update(t.Context(), root))
	awaitCondition(t, func() bool { return getMember(t, "flood").Status.AgentVersion == root.Root.AgentVersion }, "the hub does not read root %d", root.Sequence)
}

// requireMetadataBounded writes as much as fits into the metadata of the objects that an
// agent may write.
func requireMetadataBounded(t *testing.T, agent *fakeAgent) {
	ctx := t.Context()
	quota := &corev1.ResourceQuota{}
	require.NoError(t, shared.Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: "ot-member"}, quota))
	const counted = corev1.ResourceName("count/clusterreports.pelotech.ot")
	assert.Contains(t, quota.Spec.Hard, counted)
	// No controller counts here: the status says that the quota is used up.
	quota.Status.Hard = corev1.ResourceList{counted: resource.MustParse("1")}
	quota.Status.Used = corev1.ResourceList{counted: resource.MustParse("1")}
	require.NoError(t, shared.Status().Update(ctx, quota))
	awaitCondition(t, func() bool {
		err := agent.Create(ctx, newPage(agent, "page-0"))
		if err == nil { // the API server's cache lags behind
			require.NoError(t, agent.Delete(ctx, newPage(agent, "page-0")))
		}
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
	}, "the quota is not enforced")
	require.NoError(t, shared.Delete(ctx, quota))

	for name, change := range map[string]func(*v1alpha1.ClusterReport){
		"annotations": func(r *v1alpha1.ClusterReport) { r.Annotations = map[string]string{"a": strings.Repeat("x", 200<<10)} },
		"labels":      func(r *v1alpha1.ClusterReport) { r.Labels = map[string]string{"a": "b"} },
		"finalizers":  func(r *v1alpha1.ClusterReport) { r.Finalizers = []string{"example.com/forever"} },
		"owners": func(r *v1alpha1.ClusterReport) {
			r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "a", UID: "uid"}}
		},
		"a page above 512 KiB": func(r *v1alpha1.ClusterReport) {
			r.Page = newLargePage(agent, 0).Page
			for i := range r.Page.Images {
				r.Page.Images[i].Message, r.Page.Images[i].Source = strings.Repeat("x", 1024), strings.Repeat("x", 2560)
				r.Page.Images[i].Plan = &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied, Message: strings.Repeat("x", 1024)}
			}
		},
		"holders above 512 KiB": func(r *v1alpha1.ClusterReport) {
			r.Page = newLargePage(agent, 0).Page
			for i := range r.Page.Images {
				r.Page.Images[i].Message, r.Page.Images[i].Source = strings.Repeat("x", 1024), strings.Repeat("x", 2048)
				r.Page.Images[i].Holders = slices.Repeat([]string{strings.Repeat("x", 384)}, 5)
			}
		},
	} {
		page := newPage(agent, "page-0")
		change(page)
		assert.Truef(t, apierrors.IsForbidden(agent.Create(ctx, page)), "%s at creation", name)
		page = newPage(agent, "page-1")
		require.NoError(t, agent.Create(ctx, page))
		change(page)
		assert.Truef(t, apierrors.IsForbidden(agent.Update(ctx, page)), "%s by an update", name)
		require.NoError(t, agent.Delete(ctx, page))
	}
	for _, name := range []string{"page-2", "other", "page-" + strings.Repeat("0", 33)} {
		require.ErrorContains(t, agent.Create(ctx, newPage(agent, name)), "must be named default, activity, page", name)
	}
	page := newPage(agent, "page-0", v1alpha1.ReportedImage{Namespace: "farm", Name: "a", UID: "uid"})
	page.Page.Images[0].Reason = v1alpha1.Reason(strings.Repeat("x", 65))
	require.ErrorContains(t, agent.Create(ctx, page), "reason must have at most 64 characters")

	lease := &coordinationv1.Lease{}
	require.NoError(t, agent.Get(ctx, client.ObjectKey{Namespace: agent.Namespace, Name: registration.LeaseName}, lease))
	lease.Spec.HolderIdentity = ptr.To(strings.Repeat("x", 257))
	assert.True(t, apierrors.IsForbidden(agent.Update(ctx, lease)), "a holder without end")
	require.NoError(t, agent.renewLease(context.Background()), "what an agent writes")
}

// TestUndecodableReportHoldsUpNoOtherMember: the schema admits times that Go's types do not.
func TestUndecodableReportHoldsUpNoOtherMember(t *testing.T) {
	testenv.RunInTurn(t, 15)
	agent, _, _ := registerFakeAgent(t, "undecodable")
	undecodable := func(name, part string, content map[string]any) {
		report := &unstructured.Unstructured{Object: map[string]any{"clusterUID": string(cluster), "sequence": int64(1), part: content}}
		report.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReport"))
		report.SetNamespace(agent.Namespace)
		report.SetName(name)
		require.NoError(t, agent.Create(t.Context(), report))
	}
	undecodable("page", "page", map[string]any{"images": []any{map[string]any{"namespace": "farm", "name": "a", "references": int64(0), "syncedAt": "2026-01-01t10:00:00z"}}})
	undecodable(v1alpha1.MailboxName, "root", map[string]any{
		"observedAt": "2026-01-01t10:00:00z", "heartbeatSeconds": int64(30), "bootID": "boot", "agentVersion": "test", "budget": int64(0), "slots": int64(0), "images": int64(0), "references": int64(0),
	})
	shared.Hub.Kill()
	<-shared.Hub.Done()
	shared.RestartHub(t)
	awaitCondition(t, func() bool {
		c := meta.FindStatusCondition(getMember(t, "undecodable").Status.Conditions, v1alpha1.ConditionReportComplete)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonReportUndecodable
	}, "the member's condition does not say so")
	// A hub writes no status and no plan before it has read the reports of all members.
	other, _, _ := registerFakeAgent(t, "decodable")
	root := newPage(other, v1alpha1.MailboxName)
	root.Page, root.Root = nil, &v1alpha1.ReportRoot{HeartbeatSeconds: 30, BootID: "boot", AgentVersion: "test", ObservedAt: metav1.Now()}
	root.ClusterUID = "22222222-2222-2222-2222-222222222222"
	require.NoError(t, other.Create(t.Context(), root))
	awaitCondition(t, func() bool {
		return meta.IsStatusConditionTrue(getMember(t, "decodable").Status.Conditions, v1alpha1.ConditionAgentHealthy)
	}, "the status of the other member is not written")
}
