package readapi

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// OrderDescending and OrderAscending are the order of a sorted list.
const (
	OrderAscending  = "asc"
	OrderDescending = "desc"
)

// Paging asks for a page of a list. The zero Paging is the first page.
type Paging struct {
	// Limit of the entries of a page; the hub's default for 0.
	Limit int
	// After is the Next of the page before.
	After string
}

func (p Paging) query() url.Values {
	q := url.Values{}
	if p.Limit > 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	setText(q, "after", p.After)
	return q
}

func setText(q url.Values, key, text string) {
	if text != "" {
		q.Set(key, text)
	}
}

func getAnswer[T any](ctx context.Context, c *Client, path string, query url.Values) (*T, error) {
	answer := new(T)
	if err := c.Get(ctx, path, query, answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// Summary asks for the fleet on one page.
func (c *Client) Summary(ctx context.Context) (*Summary, error) {
	return getAnswer[Summary](ctx, c, "summary", nil)
}

// Why asks for what is known of an image of a member.
func (c *Client) Why(ctx context.Context, cluster, namespace, name string) (*Why, error) {
	return getAnswer[Why](ctx, c, "why", url.Values{"cluster": {cluster}, "namespace": {namespace}, "name": {name}})
}

// MatrixQuery is what a Matrix shows.
type MatrixQuery struct {
	// Rows is RowsFleetDiskImages or RowsSources; RowsFleetDiskImages by default.
	Rows string
	// Images are the FleetDiskImages of RowsFleetDiskImages; all by default.
	Images []string
	// Clusters are the columns, and Selector is of their labels; all by default.
	Clusters []string
	Selector string
	// Group is the key of the label whose values group the clusters; none by default.
	Group string
	// Since is the Seq of a Matrix of the same query: only what changed is sent.
	Since string
}

// Matrix asks for images × clusters.
func (c *Client) Matrix(ctx context.Context, of MatrixQuery) (*Matrix, error) {
	q := url.Values{}
	setText(q, "rows", of.Rows)
	setText(q, "images", strings.Join(of.Images, ","))
	setText(q, "cols", strings.Join(of.Clusters, ","))
	setText(q, "selector", of.Selector)
	setText(q, "group", of.Group)
	setText(q, "since", of.Since)
	m, err := getAnswer[Matrix](ctx, c, "matrix", q)
	if err != nil {
		return nil, err
	}
	return m, m.Check()
}

// HistoryQuery is what a History shows.
type HistoryQuery struct {
	// Series are SeriesBytes, SeriesSlots and SeriesQueued; all by default.
	Series []string
	// By is ByFleet, BySource or ByCluster; ByFleet by default.
	By string
	// Window is how far back it goes; as far as the hub remembers by default.
	Window time.Duration
	// Points is how many there are at most; the hub's default for 0.
	Points int
	// Clusters of ByCluster; those with the most by default, up to Limit.
	Clusters []string
	Limit    int
}

// History asks for what the hub remembers of transfers.
func (c *Client) History(ctx context.Context, of HistoryQuery) (*History, error) {
	q := url.Values{}
	setText(q, "series", strings.Join(of.Series, ","))
	setText(q, "by", of.By)
	setText(q, "clusters", strings.Join(of.Clusters, ","))
	if of.Window > 0 {
		q.Set("window", of.Window.String())
	}
	if of.Points > 0 {
		q.Set("points", strconv.Itoa(of.Points))
	}
	if of.Limit > 0 {
		q.Set("limit", strconv.Itoa(of.Limit))
	}
	return getAnswer[History](ctx, c, "history", q)
}

// TransfersQuery is what Transfers show.
type TransfersQuery struct {
	// State is TransferRunning or TransferQueued; both by default.
	State string
	// Cluster and Source limit them; Search is a part of a cluster's or an image's name.
	Cluster, Source, Search string
	// Sort is one of TransferOrders.
	Sort string
	// Offset is how many entries of each list to leave out; Limit how many to return, the
	// hub's default for 0.
	Offset, Limit int
}

// Transfers asks for the imports that run and the images that wait.
func (c *Client) Transfers(ctx context.Context, of TransfersQuery) (*Transfers, error) {
	q := Paging{Limit: of.Limit}.query()
	setText(q, "state", of.State)
	setText(q, "cluster", of.Cluster)
	setText(q, "source", of.Source)
	setText(q, "search", of.Search)
	setText(q, "sort", of.Sort)
	if of.Offset > 0 {
		q.Set("offset", strconv.Itoa(of.Offset))
	}
	return getAnswer[Transfers](ctx, c, "transfers", q)
}

// BlastRadius asks for what a policy would change: the data of its ConfigMap, as JSON or
// YAML. limit bounds the rows; the hub's default for 0.
func (c *Client) BlastRadius(ctx context.Context, policy string, limit int) (*BlastRadius, error) {
	q := Paging{Limit: limit}.query()
	q.Set("policy", policy)
	return getAnswer[BlastRadius](ctx, c, "blastradius", q)
}

// Member asks for one member.
func (c *Client) Member(ctx context.Context, name string) (*MemberDetail, error) {
	return getAnswer[MemberDetail](ctx, c, "members/detail", url.Values{"member": {name}})
}

// Images asks for a page of the distinct images.
func (c *Client) Images(ctx context.Context, page Paging) (*ImageList, error) {
	return getAnswer[ImageList](ctx, c, "images", page.query())
}

// ImageDetail asks for one distinct image, by its source or URL.
func (c *Client) ImageDetail(ctx context.Context, source string) (*ImageDetail, error) {
	return getAnswer[ImageDetail](ctx, c, "images/detail", url.Values{"source": {source}})
}

// ImageClusters asks what clusters have, and are to have, of a FleetDiskImage: those that have a version
// in a state, or all for "", as a page from an offset on.
func (c *Client) ImageClusters(ctx context.Context, name string, state ImageState, offset int) (*ImageClusters, error) {
	q := url.Values{"name": {name}, "offset": {strconv.Itoa(offset)}}
	setText(q, "state", string(state))
	return getAnswer[ImageClusters](ctx, c, "images/clusters", q)
}

// MemberImages asks for one page of a member's report, the Next of the page before; the
// first for "".
func (c *Client) MemberImages(ctx context.Context, member, page string) (*MemberImages, error) {
	q := url.Values{"member": {member}}
	setText(q, "page", page)
	return getAnswer[MemberImages](ctx, c, "members/images", q)
}

// RolloutClusters asks for a page of the clusters of a FleetDiskImage, those in a state, or
// all for "".
func (c *Client) RolloutClusters(ctx context.Context, name, state string, page Paging) (*RolloutClusters, error) {
	q := page.query()
	q.Set("name", name)
	setText(q, "state", state)
	return getAnswer[RolloutClusters](ctx, c, "rollouts/clusters", q)
}

// Each iterates over all entries of a list, page by page: getPage returns a page, and the Next
// of it. It ends with the first error.
func Each[T any](getPage func(Paging) (entries []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		page := Paging{}
		for {
			entries, next, err := getPage(page)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, entry := range entries {
				if !yield(entry, nil) {
					return
				}
			}
			if next == "" || next == page.After {
				return
			}
			page.After = next
		}
	}
}
