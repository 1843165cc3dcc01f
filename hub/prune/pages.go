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

// ErrTooLarge is returned for a report that exceeds MaxPruneReportPages.
var ErrTooLarge = errors.New("the report exceeds the limit of pages")

// maxPageBytes is the approximate JSON size of a page. An API server accepts 1.5 MiB.
const maxPageBytes = 400 << 10

// Paginate distributes clusters over pages, by name, and returns the digest of the pages.
// A cluster that does not fit on a page is continued in another part on the next: each row
// is in one part, and what is not a row is in the first. Pages and clusters share memory.
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

// maxClusterPages is what a cluster may take of a report that does not fit.
const maxClusterPages = 25

// OmitLargest makes clusters with more rows than maxClusterPages hold unknown: such a member costs the
// others no report.
func OmitLargest(clusters []v1alpha1.ReportedCluster) []v1alpha1.ReportedCluster {
	clusters = slices.Clone(clusters)
	for i := range clusters {
		if c := &clusters[i]; clusterSize(c) > maxClusterPages*maxPageBytes {
			omitted := continuationOf(c)
			omitted.Unknown = v1alpha1.ReasonReportTooLarge
			omitted.Message = fmt.Sprintf("it alone takes more than %d of %d pages: create a PruneReport for this cluster, or for a part of its images (spec.imageSelector); if it makes up images, put it in quarantine",
				maxClusterPages, v1alpha1.MaxPruneReportPages)
			clusters[i] = omitted
		}
	}
	return clusters
}

func clusterSize(c *v1alpha1.ReportedCluster) int {
	size := partSize(c)
	for i := range c.Candidates {
		size += candidateSize(&c.Candidates[i])
	}
	for i := range c.Kept {
		size += groupSize(&c.Kept[i])
	}
	return size
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
		part = p.partWithRoom(c, part, candidateSize(&c.Candidates[i]))
		part.Candidates = append(part.Candidates, c.Candidates[i])
	}
	for i := range c.Kept {
		part = p.partWithRoom(c, part, groupSize(&c.Kept[i]))
		part.Kept = append(part.Kept, c.Kept[i])
	}
}

// partWithRoom returns the part of a cluster that gets a row of a size: its last one, or another where
// the page has no room for the row.
func (p *paginator) partWithRoom(c, last *v1alpha1.ReportedCluster, row int) *v1alpha1.ReportedCluster {
	if p.size+row > maxPageBytes {
		last = p.startPart(continuationOf(c), row)
	}
	p.size += row
	return last
}

// startPart adds a part, on a new page where the last has no room for it and its first row.
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

// continuationOf returns another part of a cluster, without rows.
func continuationOf(c *v1alpha1.ReportedCluster) v1alpha1.ReportedCluster {
	return v1alpha1.ReportedCluster{Cluster: c.Cluster, ClusterUID: c.ClusterUID, Plan: c.Plan, ObservedAt: c.ObservedAt}
}

// The sizes overestimate JSON: the constants stand for field names, quotes and numbers.
// Invariant: each is at least 100, so no list on a page exceeds the API's limit of 4096.
func partSize(c *v1alpha1.ReportedCluster) int {
	size := 400 + nameLength(c.Cluster, string(c.ClusterUID), c.Unknown) + escapedLength(c.Message)
	for i := range c.Orphans {
		o := &c.Orphans[i]
		size += 110 + nameLength(o.Kind, o.Namespace, o.Name, o.Image, string(o.ImageUID))
	}
	return size
}

func candidateSize(c *v1alpha1.PruneCandidate) int {
	return 220 + nameLength(c.Namespace, c.Name, string(c.UID), c.Revision, string(c.Phase), string(c.Origin), c.DeclaredBy)
}

func groupSize(g *v1alpha1.KeptImages) int {
	size := 100 + nameLength(string(g.Reason)) + escapedLength(g.Detail)
	for _, name := range g.Images {
		size += 3 + nameLength(name)
	}
	return size
}

// maxEscape is the length of the longest escape of a byte in JSON.
const maxEscape = 6

// escapedLength bounds the JSON length of any text.
func escapedLength(text string) int { return maxEscape * len(text) }

// nameLength bounds the JSON length of names. Members choose them: one may be of escapes only.
func nameLength(names ...string) (length int) {
	for _, name := range names {
		length += len(name)
		for i := range len(name) {
			if c := name[i]; c < ' ' || c >= 0x7f || strings.IndexByte(`"\\<>&`, c) >= 0 {
				length += maxEscape - 1
			}
		}
	}
	return length
}

// Digest covers a report's UID and its pages, in order. It is the same before and after a
// round trip through an API server: empty fields do not count, and JudgeCluster drops
// fractions of seconds.
func Digest(report types.UID, pages [][]v1alpha1.ReportedCluster) string {
	d := NewDigester(report)
	for _, page := range pages {
		d.AddPage(page)
	}
	return d.Digest()
}

// PageDigest is the digest of a report with a single page, to compare pages.
func PageDigest(report types.UID, page []v1alpha1.ReportedCluster) string {
	return Digest(report, [][]v1alpha1.ReportedCluster{page})
}

// Digester computes a Digest page by page: a report may exceed the memory.
type Digester struct{ hash hash.Hash }

// NewDigester returns a Digester for a report.
func NewDigester(report types.UID) *Digester {
	d := &Digester{sha256.New()}
	d.writeFramed([]byte(report))
	return d
}

// AddPage adds the next page.
func (d *Digester) AddPage(page []v1alpha1.ReportedCluster) {
	if page == nil {
		page = []v1alpha1.ReportedCluster{}
	}
	text, err := json.Marshal(page)
	if err != nil {
		panic(err) // plain types
	}
	d.writeFramed(text)
}

// writeFramed prefixes the length, so that no two lists of pages write the same bytes.
func (d *Digester) writeFramed(text []byte) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(text)))
	d.hash.Write(length[:])
	d.hash.Write(text)
}

// Digest returns the digest of the pages that were added.
func (d *Digester) Digest() string { return hex.EncodeToString(d.hash.Sum(nil)[:16]) }

// PageName returns the name of page n, from 0. A name stands for one content.
func PageName(report, digest string, n int) string {
	return fmt.Sprintf("%s-%s-%d", report, digest, n)
}
