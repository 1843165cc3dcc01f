// Package list decides what kubectl ot get says: rows of clusters, images, machines and
// rollouts that match, sorted, and how many there are beside those that are shown.
package list

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/cli/render"
)

// Query says which rows are wanted.
type Query struct {
	// Names of the rows; empty for all.
	Names []string
	// Failing and Unknown rows alone.
	Failing, Unknown bool
	// SortBy is one of the keys of the kind; by name by default.
	SortBy string
	// Limit of the rows; 0 for all.
	Limit int
}

// row is a line of a list.
type row interface {
	// rowName is what Names of a Query are compared with.
	rowName() string
	// reference is kind/name for -o name.
	reference() string
	isFailing() bool
	isUnknown() bool
	cells(now time.Time) []render.Line
}

// kind is what a list is of.
type kind[T row] struct {
	name, noun string
	columns    []render.Column
	// keyColumns are how many of them say which row it is; 0: the first.
	keyColumns int
	// keys to sort by, beside name; the first row is the one that a person looks for.
	keys map[string]func(a, b T) int
}

// Keys are what --sort-by takes of a kind.
func (k kind[T]) sortKeys() []string {
	keys := []string{"name"}
	for key := range k.keys {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// List is the answer of kubectl ot get.
type List[T row] struct {
	render.Envelope
	ObservedAt metav1.Time `json:"observedAt"`
	Items      []T         `json:"items"`
	// Matched rows of Total; Items has fewer of them with --limit.
	Matched int `json:"matched"`
	Total   int `json:"total"`
	// NotListed is how many more there are at least, which the hub does not name.
	NotListed int `json:"notListed,omitempty"`
	// Unread says what the answer lacks, and why.
	Unread string `json:"unread,omitempty"`

	now   time.Time
	kind  kind[T]
	query Query
	// seen are those of the query's names that exist, whether they match or not.
	seen map[string]bool
}

func newList[T row](now time.Time, k kind[T], q Query) (*List[T], error) {
	if _, known := k.keys[q.SortBy]; q.SortBy != "" && q.SortBy != "name" && !known {
		return nil, fmt.Errorf("--sort-by %s: must be one of %s", q.SortBy, strings.Join(k.sortKeys(), ", "))
	}
	if q.Limit < 0 {
		return nil, fmt.Errorf("--limit %d: must be 0, for all, or more", q.Limit)
	}
	return &List[T]{Envelope: render.NewEnvelope(k.name + "List"), ObservedAt: metav1.NewTime(now), Items: []T{}, now: now, kind: k, query: q, seen: map[string]bool{}}, nil
}

// Add adds a row if it matches. At most about twice as many are kept as the limit allows, however
// many there are.
func (l *List[T]) Add(r T) {
	l.Total++
	q := &l.query
	if len(q.Names) > 0 {
		if !slices.Contains(q.Names, r.rowName()) {
			return
		}
		l.seen[r.rowName()] = true
	}
	if wanted := !q.Failing && !q.Unknown || q.Failing && r.isFailing() || q.Unknown && r.isUnknown(); !wanted {
		return
	}
	l.Matched++
	l.Items = append(l.Items, r)
	if q.Limit > 0 && len(l.Items) >= 2*q.Limit+100 {
		l.Finish()
	}
}

// Finish sorts the rows and cuts them at the limit.
func (l *List[T]) Finish() {
	order := l.kind.keys[l.query.SortBy]
	slices.SortStableFunc(l.Items, func(a, b T) int {
		if order != nil {
			if c := order(a, b); c != 0 {
				return c
			}
		}
		return strings.Compare(a.rowName(), b.rowName())
	})
	if l.query.Limit > 0 && len(l.Items) > l.query.Limit {
		clear(l.Items[l.query.Limit:])
		l.Items = l.Items[:l.query.Limit]
	}
}

// Missing returns the names that were asked for and that do not exist.
func (l *List[T]) Missing() []string {
	return slices.DeleteFunc(slices.Clone(l.query.Names), func(name string) bool { return l.seen[name] })
}

// Names are the rows.
func (l *List[T]) Names() []string {
	names := make([]string, len(l.Items))
	for i := range l.Items {
		names[i] = l.Items[i].reference()
	}
	return names
}

// WatchItems are the rows, without ages. Numbers have the titles of their columns.
func (l *List[T]) WatchItems() []render.Item {
	items := make([]render.Item, len(l.Items))
	for i := range l.Items {
		var key string
		var states []render.Line
		for n, cell := range l.Items[i].cells(l.now) {
			column, text := &l.kind.columns[n], cell.Text()
			switch {
			case n < max(1, l.kind.keyColumns):
				key = strings.TrimSpace(key + " " + text)
				continue
			case column.Age, text == "":
				continue
			case column.Right:
				cell = append(render.Words(strings.ToLower(column.Title)+" "), cell...)
			}
			states = append(states, cell)
		}
		items[i] = render.Item{Key: key, State: render.Join(states, "  ")}
	}
	return items
}

// Draw draws the screen.
func (l *List[T]) Draw(p *render.Page) {
	switch {
	case l.Total == 0: // of those that were asked for: there may be others
		p.Aside(render.Text("No %s matches.", l.kind.noun))
	case len(l.Items) == 0:
		p.Aside(render.Text("Of %s, none matches.", render.Count(l.Total, l.kind.noun)))
	default:
		t := p.Table(l.kind.columns...)
		for i := range l.Items {
			t.Row(l.Items[i].cells(l.now)...)
		}
	}
	if len(l.Items) < l.Matched {
		p.Aside(render.Dim("%d of %d are shown: --limit 0 shows all", len(l.Items), l.Matched))
	}
	if l.NotListed > 0 {
		p.Aside(render.Text("and %d more", l.NotListed))
	}
	if l.Unread != "" {
		p.Gap()
		p.Aside(render.Dim("%s", l.Unread))
	}
}

// descending compares numbers, the largest in front and unknown ones last.
func descending[T any, N cmp.Ordered](value func(T) *N) func(a, b T) int {
	return compareKnown(value, func(x, y *N) int { return cmp.Compare(*y, *x) })
}

// oldestFirst compares times; unknown ones are last.
func oldestFirst[T any](value func(T) *metav1.Time) func(a, b T) int {
	return compareKnown(value, func(x, y *metav1.Time) int { return x.Compare(y.Time) })
}

func compareKnown[T, V any](value func(T) *V, compare func(x, y *V) int) func(a, b T) int {
	return func(a, b T) int {
		x, y := value(a), value(b)
		switch {
		case x == nil && y == nil:
			return 0
		case x == nil:
			return 1
		case y == nil:
			return -1
		}
		return compare(x, y)
	}
}

// countOf formats a number that may be unknown, which is not zero.
func countOf[N int | int32 | int64](n *N) string {
	if n == nil {
		return "-"
	}
	return render.Number(*n)
}

func ageOf(now time.Time, since *metav1.Time) string {
	if since == nil {
		return "-"
	}
	return render.Age(now, since.Time)
}
