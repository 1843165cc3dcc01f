package inventory

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Agents up to 0.2 report whole URLs: also beside clusters that report the redacted one, and once the index
// has it, only that is kept.
func TestSourcesAreRedacted(t *testing.T) {
	const whole = "http https://user:secret@images.example.com/a.qcow2?token=1"
	redacted := v1alpha1.RedactSource(whole)
	assert.NotContains(t, redacted, "secret")
	x := NewIndex()
	for i, source := range []string{whole, redacted, whole, "http https://images.example.com/b.qcow2"} {
		member := string(rune('a' + i))
		x.SetRoot(member, &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page", Sequence: 1}}})
		x.SetPage(member, "page", 1, []v1alpha1.ReportedImage{{Namespace: "farm", Name: "a", Source: source}})
	}
	assert.Equal(t, []string{redacted, "http https://images.example.com/b.qcow2"}, slices.Collect(x.AllSources()))
}
