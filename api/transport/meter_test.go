package transport

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// countValues returns the values in decoded JSON, itself included.
func countValues(v any) int64 {
	n := int64(1)
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			n += countValues(item)
		}
	case map[string]any:
		for _, item := range v {
			n += countValues(item)
		}
	}
	return n
}

// Whatever the values, and wherever the stream is cut into reads: each value ends where
// JSON says, and none costs less than its bytes and values.
func TestMeterFindsEveryValue(t *testing.T) {
	leaf := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Int(), func(i int) any { return i }),
		rapid.Map(rapid.OneOf(rapid.String(), rapid.StringMatching(`[{}\[\],"\\]*`)), func(s string) any { return s }))
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		if depth == 0 {
			return leaf
		}
		return rapid.OneOf(leaf,
			rapid.Map(rapid.SliceOfN(rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) }), 0, 4), func(l []any) any { return l }),
			rapid.Map(rapid.MapOfN(rapid.String(), rapid.Deferred(func() *rapid.Generator[any] { return value(depth - 1) }), 0, 4), func(m map[string]any) any { return m }))
	}
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.MapOfN(rapid.String(), value(3), 0, 4), 1, 4).Draw(t, "events")
		var stream []byte
		var ends []int
		var minimum []int64
		for _, event := range events {
			text, err := json.Marshal(event)
			require.NoError(t, err)
			stream = append(stream, text...)
			ends = append(ends, len(stream))
			stream = append(stream, '\n')
			minimum = append(minimum, int64(len(text))+valueCost*countValues(event)/2)
		}
		m := meter{}
		found, at := 0, 0
		for at < len(stream) {
			part := stream[at:min(len(stream), at+rapid.IntRange(1, 64).Draw(t, "read"))]
			n, ended := m.add(part)
			at += n
			if ended {
				require.Equal(t, ends[found], at, "event %d", found)
				require.GreaterOrEqual(t, m.cost, minimum[found])
				m.cost = 0
				found++
			}
		}
		require.Len(t, events, found)
	})
}
