package history

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// ring holds the last values by the number of their step. Those that were never set are NaN.
type ring struct {
	values []float32
	newest int64
}

func newRing(length int) ring {
	r := ring{values: make([]float32, length)}
	for i := range r.values {
		r.values[i] = float32(math.NaN())
	}
	return r
}

// set sets the value of a step. Steps that were left out are unknown. A clock that was set
// back changes the newest step only.
func (r *ring) set(at int64, value float64) {
	length := int64(len(r.values))
	if length == 0 {
		return
	}
	if r.newest == 0 {
		r.newest = at
	}
	for missing := max(r.newest+1, at-length+1); missing < at; missing++ {
		r.values[missing%length] = float32(math.NaN())
	}
	r.newest = max(r.newest, at)
	r.values[r.newest%length] = float32(value)
}

// get returns the value of a step, NaN for one that is not remembered.
func (r *ring) get(at int64) float64 {
	length := int64(len(r.values))
	if length == 0 || at > r.newest || at <= r.newest-length {
		return math.NaN()
	}
	return float64(r.values[at%length])
}

// read returns count values from a step on.
func (r *ring) read(first int64, count int) []float64 {
	values := make([]float64, count)
	for i := range values {
		values[i] = r.get(first + int64(i))
	}
	return values
}

// means returns points, each the mean of what is known of as many steps as are merged.
func (r *ring) means(first int64, points, merge int) readapi.Values {
	out := make(readapi.Values, points)
	for i := range out {
		sum, known := 0.0, 0
		for _, v := range r.read(first+int64(i*merge), merge) {
			if !math.IsNaN(v) {
				sum, known = sum+v, known+1
			}
		}
		out[i] = math.NaN()
		if known > 0 {
			out[i] = sum / float64(known)
		}
	}
	return out
}

// maxima returns the greatest of the merged steps of each point.
func (r *ring) maxima(first int64, points, merge int) []int {
	out := make([]int, points)
	for i := range out {
		for _, v := range r.read(first+int64(i*merge), merge) {
			if !math.IsNaN(v) {
				out[i] = max(out[i], int(v))
			}
		}
	}
	return out
}

// sum adds up what is known of count steps.
func (r *ring) sum(first int64, count int) (sum float64) {
	for _, v := range r.read(first, count) {
		if !math.IsNaN(v) {
			sum += v
		}
	}
	return sum
}

func timestamp(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0).UTC()) }
