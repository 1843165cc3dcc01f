package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

const (
	// maxMatrices and maxMatrixBytes bound the matrices that are kept to say what changed.
	maxMatrices    = 32
	maxMatrixBytes = 16 << 20
)

// matrixCache keeps the last matrices by Seq, which is a digest of content and query. Its
// zero value is ready for use.
type matrixCache struct {
	mu    sync.Mutex
	known map[string]*readapi.Matrix
	order []string
	bytes int
}

func (c *matrixCache) get(seq string) *readapi.Matrix {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[seq]
}

func (c *matrixCache) add(m *readapi.Matrix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[string]*readapi.Matrix{}
	}
	if c.known[m.Seq] != nil {
		return
	}
	c.known[m.Seq], c.order, c.bytes = m, append(c.order, m.Seq), c.bytes+sizeOfMatrix(m)
	for len(c.order) > maxMatrices || c.bytes > maxMatrixBytes && len(c.order) > 1 {
		c.bytes -= sizeOfMatrix(c.known[c.order[0]])
		delete(c.known, c.order[0])
		c.order = c.order[1:]
	}
}

// sizeOfMatrix is about what a matrix takes of the memory.
func sizeOfMatrix(m *readapi.Matrix) int {
	const headers = 100 // of the strings of a row or column
	size := len(m.Cells) + headers*(len(m.Rows)+len(m.Cols))
	for i := range m.Rows {
		r := &m.Rows[i]
		size += len(r.Source) + len(r.Image) + len(r.Version) + len(r.Namespace) + len(r.Name)
	}
	for i := range m.Cols {
		size += len(m.Cols[i].Cluster) + len(m.Cols[i].Unknown) + len(m.Cols[i].Group)
	}
	return size
}

func (a *API) getMatrix(request *http.Request) (any, error) {
	m, err := a.computeMatrix(request.Context(), request.URL.Query())
	if err != nil {
		return nil, err
	}
	a.matrices.add(m)
	if before := a.matrices.get(request.URL.Query().Get("since")); before != nil {
		if changes, ok := diffMatrices(before, m); ok {
			return changes, nil
		}
	}
	return m, nil
}

// diffMatrices returns the changed cells; false where rows or columns are others.
func diffMatrices(before, after *readapi.Matrix) (*readapi.Matrix, bool) {
	sameColumns := slices.EqualFunc(before.Cols, after.Cols, func(a, b readapi.MatrixColumn) bool { return a.Cluster == b.Cluster })
	if !sameColumns || !slices.Equal(before.Rows, after.Rows) {
		return nil, false
	}
	diff := &readapi.Matrix{Seq: after.Seq, Since: before.Seq, Cells: []byte{}}
	for i, c := range after.Cells {
		if c != before.Cells[i] {
			diff.Changed, diff.Cells = append(diff.Changed, i), append(diff.Cells, c)
		}
	}
	if !before.EqualColumns(after) {
		diff.Cols, diff.Labels = after.Cols, after.Labels
	}
	return diff, true
}

func (a *API) computeMatrix(ctx context.Context, query url.Values) (*readapi.Matrix, error) {
	columns, err := a.selectColumns(ctx, query)
	if err != nil {
		return nil, err
	}
	clusters := make([]string, len(columns))
	for i, m := range columns {
		clusters[i] = m.Name
	}
	if group := query.Get("group"); group != "" {
		if problems := validation.IsQualifiedName(group); len(problems) > 0 {
			return nil, httpError{http.StatusBadRequest, fmt.Sprintf("group=%s is no key of a label such as region: %s", v1alpha1.Truncate(group, maxKeyBytes), problems[0])}
		}
	}
	m := &readapi.Matrix{Rows: []readapi.MatrixRow{}}
	var unknown []string
	switch query.Get("rows") {
	case readapi.RowsFleetDiskImages, "":
		var images v1alpha1.FleetDiskImageList
		if err := a.list(ctx, &images); err != nil {
			return nil, err
		}
		names := splitNames(query.Get("images"))
		for _, name := range names {
			if !slices.ContainsFunc(images.Items, func(img v1alpha1.FleetDiskImage) bool { return img.Name == name }) {
				return nil, notFound("FleetDiskImage", name)
			}
		}
		m.Rows = append(m.Rows, answers.VersionRows(images.Items, names)...)
		if err := checkMatrixSize(len(m.Rows), len(columns)); err != nil {
			return nil, err
		}
		keys := make([][2]string, len(m.Rows))
		for i, row := range m.Rows {
			keys[i] = [2]string{row.Namespace, row.Name}
		}
		m.Cells, unknown = a.Index.CellsOfImages(keys, clusters)
		answers.MarkVersions(m.Rows, m.Cells, images.Items, columns)
	case readapi.RowsSources:
		if query.Get("images") != "" {
			return nil, httpError{http.StatusBadRequest, "images are FleetDiskImages: they need rows=" + readapi.RowsFleetDiskImages}
		}
		limit := maxMatrixRows(len(columns))
		sources, ok := a.Index.SourcesOf(clusters, limit)
		if !ok {
			return nil, httpError{http.StatusBadRequest, fmt.Sprintf("the chosen clusters report more than %d sources, the most for %d columns: %s", limit, len(columns), readapi.ChooseClustersMessage)}
		}
		for _, source := range sources {
			m.Rows = append(m.Rows, readapi.MatrixRow{Source: source})
		}
		m.Cells, unknown = a.Index.CellsOfSources(sources, clusters)
	default:
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("rows=%s: must be %s or %s", v1alpha1.Truncate(query.Get("rows"), maxKeyBytes), readapi.RowsFleetDiskImages, readapi.RowsSources)}
	}
	m.Cols, m.Labels = answers.MatrixColumns(columns, unknown, query.Get("group")), answers.GroupingLabels(columns)
	m.Seq, err = digestMatrix(m)
	return m, err
}

// maxMatrixRows returns how many rows a matrix of so many columns may have.
func maxMatrixRows(columns int) int {
	return min(readapi.MaxMatrixRows, readapi.MaxMatrixCells/max(1, columns))
}

func checkMatrixSize(rows, columns int) error {
	if rows > maxMatrixRows(columns) {
		return httpError{http.StatusBadRequest, fmt.Sprintf("the matrix would have %d rows and %d columns, and may have %d rows and %d cells: %s, or FleetDiskImages with images", rows, columns, readapi.MaxMatrixRows, readapi.MaxMatrixCells, readapi.ChooseClustersMessage)}
	}
	return nil
}

func digestMatrix(m *readapi.Matrix) (string, error) {
	names, err := json.Marshal([]any{m.Rows, m.Cols, m.Labels})
	if err != nil {
		return "", fmt.Errorf("encoding the names of the matrix: %w", err)
	}
	h := sha256.New()
	h.Write(names)
	h.Write(m.Cells)
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// selectColumns returns the MemberClusters of a request, by name.
func (a *API) selectColumns(ctx context.Context, query url.Values) ([]*v1alpha1.MemberCluster, error) {
	selector, err := parseSelector(query.Get("selector"))
	if err != nil {
		return nil, err
	}
	var members v1alpha1.MemberClusterList
	if err := a.list(ctx, &members); err != nil {
		return nil, err
	}
	wanted, found := splitNames(query.Get("cols")), map[string]bool{}
	isWanted := make(map[string]bool, len(wanted))
	for _, name := range wanted {
		isWanted[name] = true
	}
	columns := make([]*v1alpha1.MemberCluster, 0, len(members.Items))
	for i := range members.Items {
		m := &members.Items[i]
		isNamed := isWanted[m.Name]
		found[m.Name] = isNamed
		if (len(wanted) == 0 || isNamed) && selector.Matches(labels.Set(m.Labels)) {
			columns = append(columns, m)
		}
	}
	for _, name := range wanted {
		if !found[name] {
			return nil, notFound("MemberCluster", name)
		}
	}
	slices.SortFunc(columns, func(a, b *v1alpha1.MemberCluster) int { return strings.Compare(a.Name, b.Name) })
	return columns, nil
}

// parseSelector returns a selector of members by their labels.
func parseSelector(text string) (labels.Selector, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("selector=%s is no label selector such as region=nordics: %s", v1alpha1.Truncate(text, maxKeyBytes), err)}
	}
	return selector, nil
}

// splitNames splits a list of names at commas; nil for an empty one.
func splitNames(text string) (names []string) {
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}
