package mailbox

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestReportWithTooManyPagesIsRefused(t *testing.T) {
	root := &v1alpha1.ClusterReport{ClusterUID: "a", Root: &v1alpha1.ReportRoot{Pages: make([]v1alpha1.PageRef, v1alpha1.MaxReportPages)}}
	require.NoError(t, Relay{}.checkReport(root))
	root.Root.Pages = append(root.Root.Pages, v1alpha1.PageRef{})
	require.ErrorContains(t, Relay{}.checkReport(root), "lists more than 256 pages")
	require.ErrorContains(t, Relay{}.checkReport(&v1alpha1.ClusterReport{Root: &v1alpha1.ReportRoot{}}), "has no clusterUID")
}
