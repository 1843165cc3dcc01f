package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestAnswersStayCheap compares the CPU of each answer about many members and images with that
// of listing the members, in one run.
func TestAnswersStayCheap(t *testing.T) {
	names := make([]string, 300)
	for i := range names {
		names[i] = fmt.Sprintf("member-%03d", i)
	}
	f := newTestFleet(t, names...)
	f.Changes = nil // nothing is remembered
	images := make([]v1alpha1.ReportedImage, 128)
	for i := range images {
		name := "image-" + strconv.Itoa(i)
		images[i] = v1alpha1.ReportedImage{Namespace: "images", Name: name, UID: types.UID(name), Source: "http " + name, Phase: v1alpha1.PhaseSucceeded}
	}
	for _, name := range names {
		setReport(f.Index, name, 2, images)
	}
	best := func(do func()) time.Duration {
		least := time.Hour
		for range 5 {
			start := time.Now()
			do()
			least = min(least, time.Since(start))
		}
		return least
	}
	duration := func(path string) time.Duration {
		return best(func() { require.Equal(t, http.StatusOK, f.get(t, path, nil).Code, path) })
	}
	members := duration("members?limit=1000")
	for path, size := range map[string]int{"summary": 8 << 10, "history?by=source": 64 << 10, "blastradius?policy=%7B%7D": 64 << 10} {
		assert.Less(t, f.get(t, path, nil).Body.Len(), size, path)
		assert.Less(t, duration(path), 20*members, "%s against %s of all members", path, members)
	}
	var m readapi.Matrix
	f.read(t, "matrix?rows=source", &m)
	objects := make([]v1alpha1.ImageSummary, len(m.Cells))
	for i := range objects {
		objects[i] = v1alpha1.ImageSummary{Namespace: m.Cols[i%len(m.Cols)].Cluster, Name: m.Rows[i/len(m.Cols)].Source}
	}
	encoding := best(func() {
		_, err := json.Marshal(objects)
		require.NoError(t, err)
	})
	assert.Less(t, duration("matrix?rows=source"), 20*encoding, "against %s for its cells as objects", encoding)
	assert.Less(t, f.get(t, "matrix?rows=source", nil).Body.Len(), 2*len(m.Cells)+len(names)*64)
	assert.Less(t, f.get(t, "matrix?rows=source&since="+m.Seq, nil).Body.Len(), 256)
}
