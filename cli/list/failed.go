package list

import (
	"fmt"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/numbers"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// maxNamedClusters is how many clusters a sentence names.
const maxNamedClusters = 5

// FailedImages is a list of the images that failed, of which the hub lists the first of each cluster.
// That an image is not in it says nothing of it: it may be well, or not be listed.
type FailedImages struct {
	rows      *List[Image]
	namespace string
	// listed images of failed ones; unknown are the clusters of which it is not known what failed.
	listed, failed int
	unknown        []string
}

// NewFailedImages returns an empty list of those in a namespace; empty for all.
func NewFailedImages(now time.Time, q Query, namespace string) (*FailedImages, error) {
	rows, err := NewImages(now, q)
	return &FailedImages{rows: rows, namespace: namespace}, err
}

// AddMember adds what a MemberCluster lists.
func (f *FailedImages) AddMember(m *v1alpha1.MemberCluster) {
	isUnknown := rollout.WhyUnknown(m) != ""
	if isUnknown {
		f.unknown = append(f.unknown, m.Name)
	}
	for i := range m.Status.Failing {
		f.listed++
		if summary := &m.Status.Failing[i]; f.namespace == "" || f.namespace == summary.Namespace {
			row := NewFailedImage(m.Name, summary)
			row.Unknown = isUnknown
			f.rows.Add(row)
		}
	}
	if m.Status.Images != nil {
		f.failed += int(m.Status.Images.Failed)
	}
}

// Finish returns the list, which says what is not known.
func (f *FailedImages) Finish() *List[Image] {
	f.rows.Finish()
	var notes []string
	if missing := f.rows.Missing(); len(missing) > 0 {
		notes = append(notes, fmt.Sprintf("No failed image that is listed has the name %s", strings.Join(missing, ", ")))
	}
	if more := f.failed - f.listed; more > 0 {
		note := "The hub lists the first failed images of each cluster: --cluster NAME lists all of one"
		if f.namespace == "" && len(f.rows.query.Names) == 0 {
			f.rows.NotListed = more
		} else {
			note = numbers.Sprintf("%d more failed images are not listed. ", more) + note
		}
		notes = append(notes, note)
	}
	if n := len(f.unknown); n > 0 {
		named := strings.Join(f.unknown[:min(n, maxNamedClusters)], ", ")
		if n > maxNamedClusters {
			named += numbers.Sprintf(" and %d more", n-maxNamedClusters)
		}
		notes = append(notes, "There is no current report of "+named)
	}
	f.rows.Unread = strings.Join(notes, ". ")
	return f.rows
}
