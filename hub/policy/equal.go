package policy

import (
	"maps"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
)

// Equal compares what two policies mean: an older version may have written
// fewer keys.
func Equal(a, b map[string]string) bool {
	p, _, bad := apipolicy.Parse(a)
	q, _, worse := apipolicy.Parse(b)
	if len(bad)+len(worse) > 0 {
		return maps.Equal(a, b)
	}
	return p.Equal(q)
}
