package prune

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ErrTooLarge says that a report has more rows than it may have pages for.
var ErrTooLarge = errors.New("the report has more rows than it may have pages for")

// maxPageBytes is how many bytes a page has as JSON, about. An API server takes objects
// of 1.5 MiB.
const maxPageBytes = 400 << 10

// Paginate spreads clusters over pages, by name, and returns their digest. One that
// has no room on a page goes on in another part on the next: each part says which
// cluster it is of, and each row is in one of them. The first has what is said once.
// The pages share what the clusters hold.
func Paginate(report types.UID, clusters []v1alpha1.ReportedCluster) (pages [][]v1alpha1.ReportedCluster, digest string, err error) {
	clusters = slices.Clone(clusters)
	slices.SortStableFunc(clusters, func(a, b v1alpha1.ReportedCluster) int { return strings.Compare(a.Cluster, b.Cluster) })
	var p paginator
	for i := range clusters {
		p.addCluster(&clusters[i])
	}
	if len(p.pages) > v1alpha1.MaxPruneReportPages {
		return nil, "", ErrTooLarge
	}
	return p.pages, Digest(report, p.pages), nil
}

type paginator struct {
	pages [][]v1alpha1.ReportedCluster
	size  int // of the last page
}

func (p *paginator) addCluster(c *v1alpha1.ReportedCluster) {
	first := *c
	first.Candidates, first.Kept = nil, nil
	part := p.startPart(first, 0)
	for i := range c.Candidates {
		size := candidateSize(&c.Candidates[i])
		if p.size+size > maxPageBytes {
			part = p.startPart(continuationOf(c), size)
		}
		p.size += size
		part.Candidates = append(part.Candidates, c.Candidates[i])
	}
	for i := range c.Kept {
		size := groupSize(&c.Kept[i])
		if p.size+size > maxPageBytes {
			part = p.startPart(continuationOf(c), size)
		}
		p.size += size
		part.Kept = append(part.Kept, c.Kept[i])
	}
}

// startPart adds a part, on a new page where the last has no room for it and its first
// row.
func (p *paginator) startPart(part v1alpha1.ReportedCluster, row int) *v1alpha1.ReportedCluster {
	size := partSize(&part)
	if n := len(p.pages); n == 0 || p.size+size+row > maxPageBytes {
		p.pages, p.size = append(p.pages, nil), 0
	}
	page := &p.pages[len(p.pages)-1]
	*page = append(*page, part)
	p.size += size
	return &(*page)[len(*page)-1]
}

// continuationOf is another part of a cluster, without what the first says for all.
func continuationOf(c *v1alpha1.ReportedCluster) v1alpha1.ReportedCluster {
	return v1alpha1.ReportedCluster{Cluster: c.Cluster, ClusterUID: c.ClusterUID, Plan: c.Plan, ObservedAt: c.ObservedAt}
}

// Sizes are those of JSON, a little too large: names of fields, quotes and numbers
// are counted as the constant. Each is above 100, so that a page has no more than
// 4096 of anything, which is what the API takes.
func partSize(c *v1alpha1.ReportedCluster) int {
	size := 400 + len(c.Cluster) + len(c.ClusterUID) + len(c.Unknown) + escapedLength(c.Message)
	for i := range c.Orphans {
		o := &c.Orphans[i]
		size += 110 + len(o.Kind) + len(o.Namespace) + len(o.Name) + len(o.Image) + len(o.ImageUID)
	}
	return size
}

func candidateSize(c *v1alpha1.PruneCandidate) int {
	return 220 + len(c.Namespace) + len(c.Name) + len(c.UID) + len(c.Revision) + len(c.Phase) + len(c.Origin) + len(c.DeclaredBy)
}

func groupSize(g *v1alpha1.KeptImages) int {
	size := 100 + len(g.Reason) + escapedLength(g.Detail)
	for _, name := range g.Images {
		size += 3 + len(name)
	}
	return size
}

// escapedLength is the length of a text that people may have written: JSON has up to six
// bytes for one.
func escapedLength(text string) int { return 6 * len(text) }

// Digest is over a report's UID and its pages, in their order. It is the same for
// pages that an API server gives back as it was for what Judge and Paginate made:
// fields that are empty are no part of it, and times are in whole seconds.
func Digest(report types.UID, pages [][]v1alpha1.ReportedCluster) string {
	sum := NewDigester(report)
	for _, page := range pages {
		sum.AddPage(page)
	}
	return sum.Digest()
}

// PageDigest is the digest of a report with a single page, to compare pages.
func PageDigest(report types.UID, page []v1alpha1.ReportedCluster) string {
	return Digest(report, [][]v1alpha1.ReportedCluster{page})
}

// Digester comes to the Digest of a report whose pages need not be in memory all at once.
type Digester struct{ hash hash.Hash }

// NewDigester returns that of a report without pages.
func NewDigester(report types.UID) *Digester {
	s := &Digester{sha256.New()}
	s.writeFramed([]byte(report))
	return s
}

// AddPage takes the next page.
func (s *Digester) AddPage(page []v1alpha1.ReportedCluster) {
	if page == nil {
		page = []v1alpha1.ReportedCluster{}
	}
	text, err := json.Marshal(page)
	if err != nil {
		panic(err) // plain types of our own
	}
	s.writeFramed(text)
}

func (s *Digester) writeFramed(text []byte) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(text)))
	s.hash.Write(length[:])
	s.hash.Write(text)
}

// Digest of the pages that were added.
func (s *Digester) Digest() string { return hex.EncodeToString(s.hash.Sum(nil)[:16]) }

// PageName is the name of a page, from 0. It is the name of one content: a page that
// is there under it already is as it is to be.
func PageName(report, digest string, n int) string {
	return fmt.Sprintf("%s-%s-%d", report, digest, n)
}
