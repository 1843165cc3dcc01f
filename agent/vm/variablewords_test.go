package vm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestDifferOnlyInNumbers: another number, duration, address or identifier is no other failure.
func TestDifferOnlyInNumbers(t *testing.T) {
	long := strings.Repeat("of the webhook, ", 60)
	for name, tt := range map[string]struct {
		a, b string
		want bool
	}{
		"ports":                        {"dial 10.0.0.1:4711: refused", "dial 10.0.0.1:52: refused", true},
		"durations of other units":     {"timed out after 1.5s", "timed out after 2s", true},
		"durations in microseconds":    {"took 850µs", "took 1.2ms", true},
		"versions":                     {"version 17 has changed", "version 2b8 has changed", true},
		"identifiers with hyphens":     {"request 1f0c-aa denied", "request aa-9b denied", true},
		"identifiers without a number": {"request deadbeef denied", "request 1badcafe denied", true},
		"timestamps":                   {"at 2026-01-02T03:04:05Z", "at 2026-01-02T03:04:05.25+01:00", true},
		"cut at another number":        {v1alpha1.Truncate("in 5s "+long, 512), v1alpha1.Truncate("in 12.25s "+long, 512), true},
		"another word":                 {"quota is exceeded by 5", "quota is used up by 5", false},
		"another word, cut":            {v1alpha1.Truncate("quota "+long, 512), v1alpha1.Truncate("rights "+long, 512), false},
		"more to say":                  {"denied", "denied by a policy", false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, differOnlyInNumbers(tt.a, tt.b))
		})
	}
}
