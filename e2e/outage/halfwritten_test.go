//go:build linux

package outage_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	hubfleet "github.com/pelotech/ot-fleet/hub/fleet"
)

// Pages of a report that are not those that its root lists are told of, and what
// they leave open is unknown, not zero.
func TestReportHalfWritten(t *testing.T) {
	s := shared.sites[bergen]
	s.image(t, "half-written")
	shared.eventually(t, bergen, "healthy, with an image", healthy, hasImages(1))
	s.stopAgent(t)
	var list v1alpha1.ClusterReportList
	require.NoError(t, s.Client().List(t.Context(), &list, client.InNamespace(agent.Namespace)))
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
	shared.eventually(t, bergen, "incomplete, and which page",
		says(v1alpha1.ConditionReportComplete, metav1.ConditionFalse, v1alpha1.ReasonPagesMissing, page.Name, "may be shown wrong"),
		func(m *v1alpha1.MemberCluster) bool { return m.Status.Images != nil && m.Status.Images.Ready == 1 })
	assert.NotEmpty(t, shared.readAPI(t, bergen).Unknown)
	images, err := shared.hub.Images(t.Context())
	require.NoError(t, err)
	for _, image := range images {
		assert.Positive(t, image.Unknown, "%+v: bergen may have it", image)
	}

	// Gone altogether, here and on the hub.
	require.NoError(t, s.Client().Delete(t.Context(), page))
	require.NoError(t, shared.Delete(t.Context(), &v1alpha1.ClusterReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + bergen, Name: page.Name},
	}))
	shared.eventually(t, bergen, "still incomplete",
		says(v1alpha1.ConditionReportComplete, metav1.ConditionFalse, v1alpha1.ReasonPagesMissing, page.Name))
	assert.NotEmpty(t, shared.readAPI(t, bergen).Unknown)

	require.NoError(t, s.startAgent(t.Context()))
	shared.eventually(t, bergen, "complete", healthy, hasImages(1),
		says(v1alpha1.ConditionReportComplete, metav1.ConditionTrue, v1alpha1.ReasonComplete))
	shared.awaitImage(t, "half-written", func(image hubfleet.ImageDetail) bool {
		return image.Unknown == 0 && len(image.In) == 1 && image.In[0].Member == bergen
	})
}
