package hubclient

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStaleWatchIsDetected(t *testing.T) {
	type look struct {
		after        time.Duration
		cached, live string
		wantDeaf     bool
	}
	for name, looks := range map[string][]look{
		"up to date":                  {{0, "5", "5", false}, {time.Hour, "5", "5", false}},
		"no report":                   {{0, "", "", false}, {time.Hour, "", "", false}},
		"a little behind":             {{0, "5", "7", false}, {staleWatchTimeout / 2, "7", "9", false}, {staleWatchTimeout, "9", "11", false}},
		"behind for long":             {{0, "5", "7", false}, {staleWatchTimeout / 2, "5", "9", false}, {staleWatchTimeout, "5", "11", true}},
		"caught up in between":        {{0, "5", "7", false}, {staleWatchTimeout / 2, "7", "7", false}, {staleWatchTimeout, "7", "9", false}},
		"gone back":                   {{0, "50", "7", true}},
		"more digits are no less":     {{0, "9", "10", false}},
		"gone, told later":            {{0, "5", "", false}, {time.Second, "", "", false}},
		"gone, never told":            {{0, "5", "", false}, {staleWatchTimeout, "5", "", true}},
		"there, never told":           {{0, "", "5", false}, {staleWatchTimeout, "", "6", true}},
		"versions that say no order":  {{0, "b", "a", false}, {time.Second, "a", "a", false}},
		"no order, and never told of": {{0, "b", "a", false}, {staleWatchTimeout, "b", "a", true}},
	} {
		t.Run(name, func(t *testing.T) {
			h, start := watchStaleness{}, time.Now()
			for i, l := range looks {
				require.Equal(t, l.wantDeaf, h.isStale(l.cached, l.live, start.Add(l.after)), "look %d", i)
			}
		})
	}
}
