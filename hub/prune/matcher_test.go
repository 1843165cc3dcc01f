package prune

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A selection compares each name with its patterns once, in however many clusters and pages the
// name is: a request with all patterns of a large report took minutes.
func TestSelectionComparesEachNameOnce(t *testing.T) {
	spec := v1alpha1.ImagePruneSpec{Images: []string{"farm/image-0*", "farm/image-1", "other/*"}}
	s := NewSelection(time.Time{}, readapi.PruneByImage, spec)
	compared := map[string]int{}
	s.images.matchesGlob = func(pattern, name string) bool {
		compared[pattern+" "+name]++
		return matchesGlob(pattern, name)
	}
	for page := range 3 {
		var parts []v1alpha1.ReportedCluster
		for n := range 5 {
			c := v1alpha1.ReportedCluster{Cluster: fmt.Sprintf("c%d-%d", page, n)}
			for k := range 4 {
				c.Candidates = append(c.Candidates, v1alpha1.PruneCandidate{Namespace: "farm", Name: fmt.Sprintf("image-%d", k), Origin: v1alpha1.OriginPlan})
			}
			parts = append(parts, c)
		}
		s.Add(parts)
	}
	assert.Equal(t, 30, s.Total().Images)
	assert.Equal(t, []string{"no candidate is named other/*"}, s.Absences())
	for what, times := range compared {
		assert.Equal(t, 1, times, what)
	}
}
