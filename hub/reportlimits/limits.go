// Package reportlimits decides what the hub keeps of what lies in a member's namespace: the
// pages that the root lists, up to MaxReportBytes. A member in pull mode writes there itself,
// and may write anything that the API server admits.
package reportlimits

import (
	"cmp"
	"slices"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PageBudget adds up the pages of one report. The zero value is an empty report.
type PageBudget struct{ used int }

// FitsPage reports whether another page fits.
func (b *PageBudget) FitsPage(bytes int) bool {
	return bytes <= v1alpha1.MaxReportObjectBytes && b.used+bytes <= v1alpha1.MaxReportBytes
}

// TakePage counts a page if it fits, and reports whether it does. Invariant: pages that were
// taken never exceed MaxReportBytes together, nor MaxReportObjectBytes each.
func (b *PageBudget) TakePage(bytes int) bool {
	fits := b.FitsPage(bytes)
	if fits {
		b.used += bytes
	}
	return fits
}

// UnlistedGrace is how long a page is left that the root does not list. An agent writes its
// pages before the root, and deletes the former ones after it.
const UnlistedGrace = 5 * time.Minute

// Unlisted knows since when objects of one member have been stored that its root does not
// list.
type Unlisted map[string]time.Time

// Deletions are the objects to delete.
type Deletions struct {
	Names []string
	// Surplus is how many of them no agent writes: more than MaxReportPages are unlisted.
	Surplus int
	// NextAfter is when another object is to be deleted; 0 for never.
	NextAfter time.Duration
}

// Observe records which stored objects are unlisted, and returns which of them to delete:
// those that have been unlisted for UnlistedGrace, and at once those beyond the number that
// an agent may be writing.
func (u Unlisted) Observe(unlisted []string, now time.Time) Deletions {
	stored := make(map[string]bool, len(unlisted))
	for _, name := range unlisted {
		stored[name] = true
		if _, known := u[name]; !known {
			u[name] = now
		}
	}
	for name := range u {
		if !stored[name] {
			delete(u, name)
		}
	}
	unlisted = slices.SortedFunc(slices.Values(unlisted), func(a, b string) int {
		return cmp.Or(u[a].Compare(u[b]), cmp.Compare(a, b))
	})
	var d Deletions
	for i, name := range unlisted {
		wait := u[name].Add(UnlistedGrace).Sub(now)
		switch {
		case i >= v1alpha1.MaxReportPages:
			d.Names, d.Surplus = append(d.Names, name), d.Surplus+1
		case wait <= 0:
			d.Names = append(d.Names, name)
		case d.NextAfter == 0 || wait < d.NextAfter:
			d.NextAfter = wait
		}
	}
	return d
}
