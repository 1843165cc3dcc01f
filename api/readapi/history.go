package readapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Series of a History.
const (
	// SeriesBytes is bytes per second.
	SeriesBytes = "bytes"
	// SeriesSlots is running imports.
	SeriesSlots = "slots"
	// SeriesQueued is images that wait for a slot.
	SeriesQueued = "queued"
)

// What a History is divided by.
const (
	// ByFleet is the whole fleet.
	ByFleet = "fleet"
	// BySource is the groups of sources of the policy, and SourceOther.
	BySource = "source"
	// ByCluster is the members.
	ByCluster = "cluster"
)

// History is what the elected replica remembers. It forgets at a failover: see Since.
type History struct {
	By string `json:"by"`
	// Since is when this replica began to remember.
	Since metav1.Time `json:"since"`
	// Prometheus says which points before Since are from there; absent where the hub has no
	// Prometheus to ask, or has not yet.
	Prometheus *HistoryPrometheus `json:"prometheus,omitempty"`
	// Start is the begin of the first of the points, each of StepSeconds. Points before
	// Since are null where Prometheus has none.
	Start       metav1.Time `json:"start"`
	StepSeconds int         `json:"stepSeconds"`
	// Lines are those with the most in the first series, of Total that there are.
	Lines []HistoryLine `json:"lines"`
	Total int           `json:"total"`
}

// HistoryPrometheus is what a History has from Prometheus.
type HistoryPrometheus struct {
	// From and Until are the first and the end of the last point of the fleet that is from
	// there; absent where none is.
	From  *metav1.Time `json:"from,omitempty"`
	Until *metav1.Time `json:"until,omitempty"`
	// ReadAt is when the hub asked last, and Problem why it got no answer; empty if it did.
	// Without one it asks again every minute.
	ReadAt  *metav1.Time `json:"readAt,omitempty"`
	Problem string       `json:"problem,omitempty"`
}

// HistoryLine is one source or cluster.
type HistoryLine struct {
	// Name of the source or cluster; empty for the fleet.
	Name string `json:"name,omitempty"`
	// Values by series.
	Values map[string]Values `json:"values"`
	// UnknownMembers are how many members were unknown at most at each point, whose part of
	// Values is missing. Not by cluster.
	UnknownMembers []int `json:"unknownMembers,omitempty"`
}

// Values are points in time; NaN stands for unknown, which is null in JSON and never zero.
type Values []float64

// MarshalJSON writes NaN as null.
func (v Values) MarshalJSON() ([]byte, error) {
	out := append(make([]byte, 0, 8*len(v)+2), '[')
	for i, x := range v {
		if i > 0 {
			out = append(out, ',')
		}
		switch {
		case math.IsNaN(x):
			out = append(out, "null"...)
		case math.IsInf(x, 0):
			return nil, fmt.Errorf("value %d is infinite", i)
		default:
			out = strconv.AppendFloat(out, x, 'g', 6, 64)
		}
	}
	return append(out, ']'), nil
}

// UnmarshalJSON reads null as NaN.
func (v *Values) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		*v = nil
		return nil
	}
	var read []*float64
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	*v = make(Values, len(read))
	for i, x := range read {
		(*v)[i] = math.NaN()
		if x != nil {
			(*v)[i] = *x
		}
	}
	return nil
}
