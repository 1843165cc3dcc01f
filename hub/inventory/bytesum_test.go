package inventory_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// What a member adds is subtracted again, whatever it says.
func TestSumsOfBytesDoNotOverflow(t *testing.T) {
	x := inventory.NewIndex()
	page := make([]v1alpha1.ReportedImage, 128)
	for i := range page {
		page[i] = reportedImage(fmt.Sprint("i", i), "ubuntu", v1alpha1.PhaseSucceeded, 0, nil)
		page[i].Bytes = 1 << 47
	}
	x.SetRoot("honest", newRoot(pageRef("page", 1)))
	x.SetPage("honest", "page", 1, []v1alpha1.ReportedImage{reportedImage("u", "ubuntu", v1alpha1.PhaseSucceeded, 0, nil)})
	for _, member := range []string{"a", "b"} {
		pages := make([]v1alpha1.PageRef, 256)
		for i := range pages {
			pages[i] = pageRef(fmt.Sprint("page-", i), 1)
			x.SetPage(member, pages[i].Name, 1, page)
		}
		x.SetRoot(member, newRoot(pages...))
	}
	assert.Equal(t, int64(math.MaxInt64), x.TotalCounts().Bytes)
	detail, _ := x.Image("ubuntu")
	assert.Equal(t, int64(math.MaxInt64), detail.Bytes)
	x.Forget("b")
	assert.Equal(t, int64(1<<62+10), x.TotalCounts().Bytes)
	x.Forget("a")
	assert.Equal(t, int64(10), x.TotalCounts().Bytes)
}
