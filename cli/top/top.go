// Package top decides what verb top shows: which imports run, what waits in which
// cluster, and how much comes from which source. Model shows it live.
package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/eta"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Subject is what the rows are.
type Subject string

// Subjects.
const (
	Clusters Subject = "clusters"
	Imports  Subject = "imports"
	Sources  Subject = "sources"
)

// Subjects lists all, in the order in which tab goes through them.
var Subjects = []Subject{Imports, Clusters, Sources}

// Snapshot is what clusters import and queue.
type Snapshot struct {
	Now      time.Time
	Clusters []ClusterActivity
	// Unread says what could not be read.
	Unread string
}

// ClusterActivity is one cluster. Activity and Listed are nil, and Unknown says why, where it is not
// known what the cluster imports.
type ClusterActivity struct {
	Name     string
	Unknown  string
	Activity *v1alpha1.ReportedActivity
	Listed   *Listed
	Granted  *int32
	Failed   *int32
}

// Top is the answer of kubectl ot top.
type Top struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	Subject    Subject     `json:"subject"`
	Filter     string      `json:"filter,omitempty"`
	SortedBy   string      `json:"sortedBy"`
	Totals     Totals      `json:"totals"`
	Imports    []Import    `json:"imports,omitempty"`
	Clusters   []Cluster   `json:"clusters,omitempty"`
	Sources    []Source    `json:"sources,omitempty"`
	// Unread says what could not be read.
	Unread string `json:"unread,omitempty"`

	now time.Time
	// cursor is the row that is marked; -1 for none. Rows before from are not drawn.
	cursor, from, limit int
}

// Totals are of all clusters, whatever the filter.
type Totals struct {
	Slots          int32 `json:"slots"`
	Budget         int32 `json:"budget"`
	Queued         int32 `json:"queued"`
	BytesPerSecond int64 `json:"bytesPerSecond"`
	// Unknown is of how many clusters it is not known what they import.
	Unknown int `json:"unknownClusters"`
	// NextFreeAt is when the first slot is free.
	NextFreeAt *metav1.Time `json:"nextFreeAt,omitempty"`
}

// Import is one that runs.
type Import struct {
	Cluster        string       `json:"cluster"`
	Namespace      string       `json:"namespace"`
	Name           string       `json:"name"`
	BytesDone      int64        `json:"bytesDone"`
	Bytes          int64        `json:"bytes,omitempty"`
	AtMost         bool         `json:"atMost,omitempty"`
	Share          float64      `json:"share"`
	BytesPerSecond int64        `json:"bytesPerSecond,omitempty"`
	Slow           bool         `json:"slow,omitempty"`
	ExpectedAt     *metav1.Time `json:"expectedAt,omitempty"`
	NoEstimate     string       `json:"expectedReason,omitempty"`
	Attempt        int32        `json:"attempt,omitempty"`
	MaxAttempts    int32        `json:"maxAttempts,omitempty"`
	Source         string       `json:"source,omitempty"`
}

// Cluster is one cluster's slots and queue.
type Cluster struct {
	Name           string       `json:"name"`
	Unknown        string       `json:"unknown,omitempty"`
	Slots          int32        `json:"slots"`
	Budget         int32        `json:"budget"`
	Granted        *int32       `json:"granted,omitempty"`
	Queued         int32        `json:"queued"`
	OldestQueuedAt *metav1.Time `json:"oldestQueuedAt,omitempty"`
	BytesPerSecond int64        `json:"bytesPerSecond"`
	Failed         *int32       `json:"failed,omitempty"`
}

// Source is what is downloaded from one group of sources.
type Source struct {
	Name           string `json:"name"`
	Imports        int    `json:"imports"`
	Clusters       int    `json:"clusters"`
	BytesPerSecond int64  `json:"bytesPerSecond"`
	// Waiting are images at the heads of queues.
	Waiting int `json:"waiting"`
	// TransferredBytes since the clusters' agents started; absent where no report says.
	TransferredBytes *int64 `json:"transferredBytes,omitempty"`
}

// orders are what rows can be sorted by, the default first.
var orders = map[Subject][]string{
	Imports:  {"left", "rate", "cluster", "image"},
	Clusters: {"queued", "rate", "slots", "cluster"},
	Sources:  {"rate", "imports", "waiting", "source"},
}

// Orders returns what the rows of a subject can be sorted by.
func Orders(s Subject) []string { return orders[s] }

// New decides what the screen says. Rows that do not contain filter are left out.
func New(s Snapshot, subject Subject, filter, sortBy string) *Top {
	if !slices.Contains(orders[subject], sortBy) {
		sortBy = orders[subject][0]
	}
	t := &Top{Envelope: render.NewEnvelope("Top"), ObservedAt: metav1.NewTime(s.Now), Subject: subject, Filter: filter, SortedBy: sortBy, Unread: s.Unread, now: s.Now, cursor: -1}
	bySource := map[string]*Source{}
	for i := range s.Clusters {
		t.addCluster(&s.Clusters[i], bySource)
	}
	for _, source := range bySource {
		t.Sources = append(t.Sources, *source)
	}
	t.keepMatching()
	t.sortRows()
	switch subject {
	case Imports:
		t.Clusters, t.Sources = nil, nil
	case Clusters:
		t.Imports, t.Sources = nil, nil
	case Sources:
		t.Imports, t.Clusters = nil, nil
	}
	return t
}

func (t *Top) addCluster(c *ClusterActivity, bySource map[string]*Source) {
	row := Cluster{Name: c.Name, Unknown: c.Unknown, Granted: c.Granted, Failed: c.Failed}
	sourceOf := func(name string) *Source {
		if bySource[name] == nil {
			bySource[name] = &Source{Name: name}
		}
		return bySource[name]
	}
	switch {
	case c.Activity != nil:
		t.addReported(row, c.Activity, sourceOf)
	case c.Listed != nil:
		t.addListed(row, c.Listed, sourceOf)
	default:
		t.Totals.Unknown++
		t.Clusters = append(t.Clusters, row)
	}
}

// addReported adds what a cluster has reported.
func (t *Top) addReported(row Cluster, a *v1alpha1.ReportedActivity, sourceOf func(string) *Source) {
	estimates := eta.Snapshot{Activity: a, ObservedAt: t.now, Now: t.now}
	row.Slots, row.Budget, row.Queued = a.Slots, a.Budget, a.Queued
	seen := map[string]bool{}
	for i := range a.Active {
		r := &a.Active[i]
		imported := newImport(row.Name, r, estimates.Active(i))
		imported.Slow = eta.IsSlow(a, r)
		source := sourceOf(r.Source)
		source.addTransferred(0)
		t.addImport(&row, imported, source, seen)
	}
	for i := range a.Head {
		q := &a.Head[i]
		source := sourceOf(q.Source)
		source.addTransferred(0)
		source.Waiting++
		if row.OldestQueuedAt == nil || q.QueuedAt.Before(row.OldestQueuedAt) {
			row.OldestQueuedAt = &q.QueuedAt
		}
	}
	for i := range a.Rates {
		if r := &a.Rates[i]; r.TransferredBytes > 0 {
			sourceOf(r.Name).addTransferred(r.TransferredBytes)
		}
	}
	var nextFree *metav1.Time
	if at, ok := estimates.NextFreeSlot(); ok {
		next := metav1.NewTime(at)
		nextFree = &next
	}
	t.addRow(row, nextFree)
}

// addImport adds a running import to its cluster and its source. seen has the sources of the cluster's
// imports before.
func (t *Top) addImport(row *Cluster, imported Import, source *Source, seen map[string]bool) {
	t.Imports = append(t.Imports, imported)
	row.BytesPerSecond += imported.BytesPerSecond
	source.Imports++
	source.BytesPerSecond += imported.BytesPerSecond
	if !seen[imported.Source] {
		seen[imported.Source] = true
		source.Clusters++
	}
}

func (s *Source) addTransferred(bytes int64) {
	if s.TransferredBytes == nil {
		s.TransferredBytes = new(int64)
	}
	*s.TransferredBytes += bytes
}

// addRow adds a cluster to the rows and to the totals. nextFree is when a slot of it is free.
func (t *Top) addRow(row Cluster, nextFree *metav1.Time) {
	t.Clusters = append(t.Clusters, row)
	t.Totals.Slots += row.Slots
	t.Totals.Budget += row.Budget
	t.Totals.Queued += row.Queued
	t.Totals.BytesPerSecond += row.BytesPerSecond
	if readapi.CompareTimes(nextFree, t.Totals.NextFreeAt) < 0 {
		t.Totals.NextFreeAt = nextFree
	}
}

func newImport(cluster string, r *v1alpha1.ActiveImport, e eta.Estimate) Import {
	out := Import{
		Cluster: cluster, Namespace: r.Namespace, Name: r.Name, BytesDone: r.BytesDone, Bytes: r.BytesTotal, BytesPerSecond: r.BytesPerSecond,
		Attempt: r.Attempt, MaxAttempts: r.MaxAttempts, Source: r.Source, NoEstimate: string(e.Why),
	}
	if out.Bytes > 0 {
		out.Share = min(1, float64(r.BytesDone)/float64(out.Bytes))
	} else {
		out.Bytes, out.AtMost = r.AtMostBytes, true
	}
	if e.Why == "" {
		at := metav1.NewTime(e.At)
		out.ExpectedAt = &at
	}
	return out
}

func (t *Top) keepMatching() {
	misses := func(texts ...string) bool {
		return !strings.Contains(strings.ToLower(strings.Join(texts, " ")), strings.ToLower(t.Filter))
	}
	t.Imports = slices.DeleteFunc(t.Imports, func(i Import) bool { return misses(i.Cluster, i.Namespace+"/"+i.Name, i.Source) })
	t.Clusters = slices.DeleteFunc(t.Clusters, func(c Cluster) bool { return misses(c.Name, c.Unknown) })
	t.Sources = slices.DeleteFunc(t.Sources, func(s Source) bool { return misses(s.Name) })
}

func (t *Top) sortRows() {
	slices.SortFunc(t.Imports, func(a, b Import) int {
		byName := cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		switch t.SortedBy {
		case "rate":
			return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), byName)
		case "image":
			return cmp.Or(cmp.Compare(a.Name, b.Name), byName)
		case "left":
			return cmp.Or(readapi.CompareTimes(a.ExpectedAt, b.ExpectedAt), byName)
		default:
			return byName
		}
	})
	slices.SortFunc(t.Clusters, func(a, b Cluster) int {
		byName := cmp.Compare(a.Name, b.Name)
		switch t.SortedBy {
		case "queued":
			return cmp.Or(cmp.Compare(b.Queued, a.Queued), cmp.Compare(b.Slots, a.Slots), byName)
		case "rate":
			return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), byName)
		case "slots":
			return cmp.Or(cmp.Compare(b.Slots, a.Slots), byName)
		default:
			return byName
		}
	})
	slices.SortFunc(t.Sources, func(a, b Source) int {
		byName := cmp.Compare(a.Name, b.Name)
		switch t.SortedBy {
		case "rate":
			return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), byName)
		case "imports":
			return cmp.Or(cmp.Compare(b.Imports, a.Imports), byName)
		case "waiting":
			return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), byName)
		default:
			return byName
		}
	})
}
