package readapi_test

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
)

var rewrite = flag.Bool("rewrite", false, "write the corpus of the dashboard's tests anew")

// matrixCase is a series of answers, and what each makes of the Matrix before it.
type matrixCase struct {
	Answers []json.RawMessage `json:"answers"`
	Want    []matrixWant      `json:"want"`
}

type matrixWant struct {
	// Refused: the answer contradicts itself, or is of another Matrix.
	Refused  bool                   `json:"refused,omitempty"`
	Seq      string                 `json:"seq,omitempty"`
	Cells    []int                  `json:"cells,omitempty"`
	Clusters []readapi.MatrixColumn `json:"clusters,omitempty"`
	Labels   []string               `json:"labels,omitempty"`
}

// The dashboard's tests read the answers as they are here, and make the same of them: they
// and Apply cannot drift apart.
func TestMatrixCorpus(t *testing.T) {
	const path = "../../ui/src/testdata/matrix.json"
	random := rand.New(rand.NewPCG(1, 2))
	var corpus []matrixCase
	for range 24 {
		corpus = append(corpus, newMatrixCase(t, random))
	}
	var got []byte
	for i, c := range corpus {
		line, err := json.Marshal(c)
		require.NoError(t, err)
		got = append(got, "[,"[min(i, 1)], '\n')
		got = append(got, line...)
	}
	got = append(got, "\n]\n"...)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "run go test ./api/readapi -rewrite, and npm test in ui")
}

func newMatrixCase(t *testing.T, random *rand.Rand) (c matrixCase) {
	t.Helper()
	var m *readapi.Matrix
	for step := range 6 {
		next := newMatrixAnswer(random, m, strconv.Itoa(step))
		answer, err := json.Marshal(next)
		require.NoError(t, err)
		c.Answers = append(c.Answers, answer)
		before := m
		if before == nil {
			before = &readapi.Matrix{}
		}
		if before.Apply(next) != nil {
			c.Want = append(c.Want, matrixWant{Refused: true})
			continue
		}
		m = before
		w := matrixWant{Seq: m.Seq, Clusters: slices.Clone(m.Cols), Labels: m.Labels}
		for _, cell := range m.Cells {
			w.Cells = append(w.Cells, int(cell))
		}
		c.Want = append(c.Want, w)
	}
	return c
}

// newMatrixAnswer returns a whole Matrix, changes of the one before, or what is neither.
func newMatrixAnswer(random *rand.Rand, before *readapi.Matrix, seq string) *readapi.Matrix {
	kind := random.IntN(8)
	if before == nil || kind == 0 {
		m := &readapi.Matrix{Seq: seq, Rows: make([]readapi.MatrixRow, random.IntN(4)), Labels: []string{"region"}}
		for i := range m.Rows {
			m.Rows[i] = readapi.MatrixRow{Image: "ubuntu", Version: strconv.Itoa(i), Current: i == 0, Namespace: "images", Name: "ubuntu-" + strconv.Itoa(i)}
		}
		m.Cols = newMatrixColumns(random, random.IntN(5))
		m.Cells = randomBytes(random, len(m.Rows)*len(m.Cols))
		if kind == 7 {
			m.Cells = append(m.Cells, 1)
		}
		return m
	}
	m := &readapi.Matrix{Seq: seq, Since: before.Seq, Cells: []byte{}}
	for i := range before.Cells {
		if random.IntN(3) == 0 {
			m.Changed = append(m.Changed, i)
		}
	}
	m.Cells = append(m.Cells, randomBytes(random, len(m.Changed))...)
	switch kind {
	case 1:
		m.Since = "of another"
	case 2:
		m.Cells = append(m.Cells, 0)
	case 3:
		m.Changed, m.Cells = append(m.Changed, len(before.Cells)), append(m.Cells, 5)
	case 4:
		m.Cols = newMatrixColumns(random, len(before.Cols))
		m.Labels = []string{"env"}
	}
	return m
}

func newMatrixColumns(random *rand.Rand, n int) []readapi.MatrixColumn {
	columns := make([]readapi.MatrixColumn, n)
	for i := range columns {
		columns[i] = readapi.MatrixColumn{Cluster: "c" + strconv.Itoa(i), State: readapi.MemberReady}
		if random.IntN(2) == 0 {
			since := metav1.NewTime(time.Unix(1_700_000_000+random.Int64N(1000), 0).UTC())
			columns[i] = readapi.MatrixColumn{Cluster: columns[i].Cluster, Unknown: "Silent", Group: "edge", State: readapi.MemberSilent, SilentSince: &since}
		}
	}
	return columns
}

func randomBytes(random *rand.Rand, n int) []byte {
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(random.Uint32())
	}
	return all
}
