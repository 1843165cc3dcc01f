//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/e2e/harness/observer"
)

func TestHandOversOfABatch(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	span := func(uid types.UID, from, to int) observer.Span {
		return observer.Span{Image: uid, Begun: start.Add(time.Duration(from) * time.Second), Ended: start.Add(time.Duration(to) * time.Second)}
	}
	p := batchResult{
		spans:   []observer.Span{span("a", 0, 5), span("b", 0, 3), span("d", 4, 6), span("c", 7, 9)},
		created: []types.UID{"a", "b", "c", "d"},
	}
	assert.Equal(t, []time.Duration{time.Second, 2 * time.Second}, p.idleTimes(2))
	assert.Equal(t, 12*time.Second, p.busyTime()) // 5 + 3 + 2 + 2
	assert.Equal(t, []string{"3 at 2", "2 at 3"}, p.findOutOfOrder())
}
