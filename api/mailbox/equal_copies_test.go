package mailbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestOutdatedCopyIsKnownWithoutReading(t *testing.T) {
	report := func(resourceVersion string, cluster types.UID, sequence int64) *v1alpha1.ClusterReport {
		return &v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Name: "page", UID: "1", ResourceVersion: resourceVersion}, ClusterUID: cluster, Sequence: sequence,
		}
	}
	const left = "7" // the copy's resourceVersion when it was made equal to sequence 10
	for _, test := range []struct {
		name   string
		source *v1alpha1.ClusterReport
		copied string
		want   bool
	}{
		{"the source is newer", report("b", "here", 11), left, true},
		{"it is as it was", report("a", "here", 10), left, false},
		{"it went back to an older state", report("c", "here", 9), left, false},
		{"it is of another cluster", report("b", "elsewhere", 11), left, false},
		{"somebody else has written the copy", report("b", "here", 11), "8", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var seen EqualCopies
			copied := report(left, "here", 10)
			seen.recordEqual(reportKind.name, report("a", "here", 10), copied)
			copied.ResourceVersion = test.copied
			got := seen.outdatedCopy(test.source, &metav1.PartialObjectMetadata{ObjectMeta: copied.ObjectMeta})
			assert.Equal(t, test.want, got != nil)
			if got != nil {
				assert.Equal(t, copied, got, "what is written over has the metadata that was listed")
			}
		})
	}
	assert.Nil(t, (&EqualCopies{}).outdatedCopy(report("b", "here", 11), &metav1.PartialObjectMetadata{ObjectMeta: report(left, "", 0).ObjectMeta}), "nothing was seen")
	assert.Nil(t, (&EqualCopies{}).outdatedCopy(report("b", "here", 11), nil), "there is no copy")
	assert.Nil(t, (*EqualCopies)(nil).outdatedCopy(report("b", "here", 11), nil))
}

// TestReportWithOtherContentIsNotEqual: a watch may deliver a page without the fields that a
// changed CustomResourceDefinition has, and a later list the same version with them.
func TestReportWithOtherContentIsNotEqual(t *testing.T) {
	newPage := func(source string) *v1alpha1.ClusterReport {
		return &v1alpha1.ClusterReport{
			ObjectMeta: metav1.ObjectMeta{Name: "page", UID: "1", ResourceVersion: "7"}, ClusterUID: "here", Sequence: 10,
			Page: &v1alpha1.ReportPage{Images: []v1alpha1.ReportedImage{{Name: "ubuntu", Source: source}}},
		}
	}
	var seen EqualCopies
	first, copied := newPage(""), newPage("")
	seen.recordEqual(reportKind.name, first, copied)
	assert.True(t, seen.isEqual(reportKind.name, first, copied))
	assert.True(t, seen.isEqual(reportKind.name, newPage(""), copied), "it was read again")
	assert.False(t, seen.isEqual(reportKind.name, newPage("http https://a/b"), copied))
	assert.True(t, seen.isEqual(reportKind.name, newPage(""), copied))
}
