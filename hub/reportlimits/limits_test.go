package reportlimits

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestPageBudget(t *testing.T) {
	var b PageBudget
	assert.False(t, b.TakePage(v1alpha1.MaxReportObjectBytes+1), "a page that is too large")
	for range v1alpha1.MaxReportBytes / v1alpha1.MaxReportObjectBytes {
		assert.True(t, b.TakePage(v1alpha1.MaxReportObjectBytes))
	}
	assert.False(t, b.TakePage(1), "the report is full")
	assert.True(t, b.TakePage(0))
}

func TestUnlistedAreDeletedAfterGrace(t *testing.T) {
	start := time.Unix(1000, 0)
	u := Unlisted{}
	assert.Equal(t, Deletions{NextAfter: UnlistedGrace}, u.Observe([]string{"a"}, start))
	assert.Equal(t, Deletions{NextAfter: UnlistedGrace - time.Minute}, u.Observe([]string{"a", "b"}, start.Add(time.Minute)))
	assert.Equal(t, Deletions{Names: []string{"a"}, NextAfter: time.Minute}, u.Observe([]string{"a", "b"}, start.Add(UnlistedGrace)))
	assert.Equal(t, Deletions{NextAfter: time.Minute}, u.Observe([]string{"b"}, start.Add(UnlistedGrace)), "the root lists a again")
	assert.Equal(t, Deletions{NextAfter: UnlistedGrace}, u.Observe([]string{"a"}, start.Add(UnlistedGrace)), "its time begins anew")
}

// Whatever is stored, at most MaxReportPages unlisted objects are left, none of them for
// longer than UnlistedGrace, and what a page's writer needs is not deleted before.
func TestUnlistedStayBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u, now, since := Unlisted{}, time.Unix(1000, 0), map[string]time.Time{}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
			first, count := rapid.IntRange(0, 500).Draw(t, "first"), rapid.IntRange(0, 600).Draw(t, "count")
			stored, next := make([]string, count), map[string]time.Time{}
			for i := range stored {
				stored[i] = fmt.Sprintf("page-%d", first+i)
				next[stored[i]] = now
				if at, known := since[stored[i]]; known {
					next[stored[i]] = at
				}
			}
			since = next
			d := u.Observe(stored, now)
			assert.Len(t, u, count, "nothing else is remembered")
			left := slices.DeleteFunc(slices.Clone(stored), func(name string) bool { return slices.Contains(d.Names, name) })
			assert.LessOrEqual(t, len(left), v1alpha1.MaxReportPages)
			for _, name := range left {
				assert.Less(t, now.Sub(since[name]), UnlistedGrace)
				assert.LessOrEqual(t, now.Add(d.NextAfter), since[name].Add(UnlistedGrace))
			}
			if count <= v1alpha1.MaxReportPages {
				assert.Zero(t, d.Surplus)
				for _, name := range d.Names {
					assert.GreaterOrEqual(t, now.Sub(since[name]), UnlistedGrace)
				}
			}
		}
	})
}
