//go:build linux

package outage_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// TestPartiallyWrittenReport shows that the hub reports pages that do not match the
// report's root, and that it counts the images on them as unknown, not as zero.
func TestPartiallyWrittenReport(t *testing.T) {
	s, other := shared.Members[bergen], shared.Fakes.List[1]
	t.Cleanup(func() { require.NoError(t, other.SetImages(context.Background(), "page", nil)) })
	require.NoError(t, other.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{
		{Namespace: "default", Name: "elsewhere", Source: "http\nhttp://images.example.com/elsewhere\n", Phase: v1alpha1.PhaseSucceeded},
	}))
	shared.awaitImage(t, "elsewhere", func(image readapi.ImageDetail) bool { return image.Unknown == 0 && len(image.PerMember) == 1 })
	bergenMayHaveIt := func(image readapi.ImageDetail) bool { return image.Unknown == 1 && len(image.PerMember) == 1 }
	s.CreateImageForTest(t, "half-written")
	shared.AwaitMember(t, bergen, "healthy, with an image", isHealthy, hasImages(1))
	s.stopAgent(t)
	var list v1alpha1.ClusterReportList
	require.NoError(t, s.Client().List(t.Context(), &list, client.InNamespace(program.AgentNamespace)))
	var page *v1alpha1.ClusterReport
	for i := range list.Items {
		if list.Items[i].Page != nil {
			require.Nil(t, page, "all images are on one page")
			page = &list.Items[i]
		}
	}
	require.NotNil(t, page)

	// As it was before: one write of two is there.
	page.Sequence--
	page.Page.Images = nil
	require.NoError(t, s.Client().Update(t.Context(), page))
	shared.AwaitMember(t, bergen, "incomplete, and which page",
		hasCondition(v1alpha1.ConditionReportComplete, metav1.ConditionFalse, v1alpha1.ReasonPagesMissing, page.Name, "may be shown wrong"),
		func(m *v1alpha1.MemberCluster) bool { return m.Status.Images != nil && m.Status.Images.Ready == 1 })
	shared.awaitReadMember(t, bergen, isUnknown)
	shared.awaitImage(t, "elsewhere", bergenMayHaveIt)

	// Gone altogether, here and on the hub.
	require.NoError(t, s.Client().Delete(t.Context(), page))
	require.NoError(t, shared.Delete(t.Context(), &v1alpha1.ClusterReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + bergen, Name: page.Name},
	}))
	shared.AwaitMember(t, bergen, "still incomplete",
		hasCondition(v1alpha1.ConditionReportComplete, metav1.ConditionFalse, v1alpha1.ReasonPagesMissing, page.Name))
	shared.awaitReadMember(t, bergen, isUnknown)
	shared.awaitImage(t, "elsewhere", bergenMayHaveIt)

	require.NoError(t, s.StartAgent(t.Context()))
	shared.AwaitMember(t, bergen, "complete", isHealthy, hasImages(1),
		hasCondition(v1alpha1.ConditionReportComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete))
	shared.awaitImage(t, "half-written", func(image readapi.ImageDetail) bool {
		return image.Unknown == 0 && len(image.PerMember) == 1 && image.PerMember[0].Member == bergen
	})
}
