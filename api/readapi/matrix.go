package readapi

import (
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the rows of a Matrix are.
const (
	// RowsFleetDiskImages: the versions of the FleetDiskImages.
	RowsFleetDiskImages = "fdi"
	// RowsSources: the distinct sources of images.
	RowsSources = "source"
)

// Bounds of a Matrix.
const (
	MaxMatrixCells = 2 << 20
	MaxMatrixRows  = 10_000
	// MaxMatrixLabels is how many keys of labels it names.
	MaxMatrixLabels = 32
)

// Matrix is images × clusters, one byte a cell.
//
// Invariant: unknown is never absent. A cell of a member that may have more than is known
// is stale, and a cell of which nothing is known is CellUnknown, the zero Cell.
type Matrix struct {
	// Seq identifies this state: the since of the next request.
	Seq string `json:"seq"`
	// Since is set where Cells are changes of the Matrix with that Seq, which has the same
	// rows and columns; Cols are there where what is known of a cluster changed. Otherwise
	// it is a whole one.
	Since string         `json:"since,omitempty"`
	Rows  []MatrixRow    `json:"rows,omitempty"`
	Cols  []MatrixColumn `json:"cols,omitempty"`
	// Labels are the keys of labels that group the clusters: fewer values than clusters, and
	// more than one. They are there with Cols.
	Labels []string `json:"labels,omitempty"`
	// Cells by row: that of row r and column c is at r × columns + c. With Since they are
	// those at the indexes in Changed.
	Cells   []byte `json:"cells"`
	Changed []int  `json:"changed,omitempty"`
}

// MatrixRow is an image.
type MatrixRow struct {
	// Source that the image is downloaded from, for RowsSources.
	Source string `json:"source,omitempty"`
	// Image and Version are a FleetDiskImage and one of its versions, and Namespace and Name
	// the VMDiskImage in the members, for RowsFleetDiskImages.
	Image     string `json:"image,omitempty"`
	Version   string `json:"version,omitempty"`
	Current   bool   `json:"current,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// MatrixColumn is a cluster. Unknown is why it may have more than is known.
type MatrixColumn struct {
	Cluster string `json:"cluster"`
	Unknown string `json:"unknown,omitempty"`
	// Group is the value of the label that the request groups by; empty for none.
	Group string `json:"group,omitempty"`
	// State of the cluster in one word, and since when it is silent.
	State       MemberState  `json:"state,omitempty"`
	SilentSince *metav1.Time `json:"silentSince,omitempty"`
}

// Equal reports whether two columns say the same.
func (c MatrixColumn) Equal(other MatrixColumn) bool {
	return c.Cluster == other.Cluster && c.Unknown == other.Unknown && c.Group == other.Group && c.State == other.State && c.SilentSince.Equal(other.SilentSince)
}

// EqualColumns reports whether two matrices say the same of their clusters.
func (m *Matrix) EqualColumns(other *Matrix) bool {
	return slices.EqualFunc(m.Cols, other.Cols, MatrixColumn.Equal) && slices.Equal(m.Labels, other.Labels)
}

// Cell is the state of an image in a cluster, and what is to be said of it.
type Cell byte

// States of a Cell, in its lower four bits.
const (
	// CellUnknown: nothing is known of it.
	CellUnknown Cell = iota
	// CellAbsent: it is not there, and not meant to be.
	CellAbsent
	// CellPlanned: it is meant to be there, and is not yet.
	CellPlanned
	// CellQueued: it waits.
	CellQueued
	// CellSyncing: it is imported.
	CellSyncing
	// CellReady: machines can use it.
	CellReady
	// CellFailed: its import failed.
	CellFailed
	// CellLeaving: it is pruned or deleted.
	CellLeaving
	// CellOther: it is in a phase that this hub does not know.
	CellOther
)

// Flags of a Cell.
const (
	// CellReferenced: a machine needs it.
	CellReferenced Cell = 1 << (iota + 4)
	// CellStale: it may have changed since the member's last report.
	CellStale
	// CellBehind: it is another version or revision than is wanted.
	CellBehind
	// CellMessage: there is a message about it.
	CellMessage
)

// State returns the state of a cell.
func (c Cell) State() Cell { return c & 0xf }

// Has reports whether a cell has a flag.
func (c Cell) Has(flag Cell) bool { return c&flag != 0 }

// At returns a cell of a whole Matrix.
func (m *Matrix) At(row, col int) Cell { return Cell(m.Cells[row*len(m.Cols)+col]) }

// Check returns an error for a Matrix whose parts contradict each other.
func (m *Matrix) Check() error {
	switch {
	case m.Since == "" && len(m.Cells) != len(m.Rows)*len(m.Cols):
		return fmt.Errorf("the matrix has %d cells for %d rows and %d columns", len(m.Cells), len(m.Rows), len(m.Cols))
	case m.Since != "" && len(m.Cells) != len(m.Changed):
		return fmt.Errorf("the matrix has %d cells for %d changes", len(m.Cells), len(m.Changed))
	}
	return nil
}

// ErrOtherMatrix is the error of Apply for changes of another Matrix: ask for a whole one.
var ErrOtherMatrix = errors.New("the changes are of another matrix")

// Apply makes a whole Matrix the one that next says: next itself, or with its changes.
func (m *Matrix) Apply(next *Matrix) error {
	if err := next.Check(); err != nil {
		return err
	}
	if next.Since == "" {
		*m = *next
		return nil
	}
	if next.Since != m.Seq {
		return ErrOtherMatrix
	}
	for _, at := range next.Changed {
		if at < 0 || at >= len(m.Cells) {
			return fmt.Errorf("%w: there is no cell %d", ErrOtherMatrix, at)
		}
	}
	for i, at := range next.Changed {
		m.Cells[at] = next.Cells[i]
	}
	if len(next.Cols) > 0 && len(next.Cols) == len(m.Cols) {
		m.Cols, m.Labels = next.Cols, next.Labels
	}
	m.Seq = next.Seq
	return nil
}
