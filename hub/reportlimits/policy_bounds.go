package reportlimits

import (
	"cmp"
	"maps"
	"slices"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
)

// MaxPolicyBytes bounds a policy in a report, keys and values together: the hub copies it into plan
// and status. The largest that is valid, with the longest list in each key that takes one, fits, with
// room for keys of newer agents.
const MaxPolicyBytes = 64 << 10

// boundPolicy reports whether a policy is larger than MaxPolicyBytes. If asked to, it replaces it by
// as many of its keys as fit: those that this hub knows first, and of these the shortest.
func boundPolicy(data *map[string]string, change bool) (beyond bool) {
	bytes := 0
	for key, value := range *data {
		bytes += len(key) + len(value)
	}
	beyond = bytes > MaxPolicyBytes
	if !beyond || !change {
		return beyond
	}
	known := apipolicy.PlanKeys()
	rank := func(key string) int {
		if apipolicy.IsOwnKey(key) || slices.Contains(known, key) {
			return 0
		}
		return 1
	}
	keys := slices.SortedFunc(maps.Keys(*data), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len((*data)[a]), len((*data)[b])), cmp.Compare(a, b))
	})
	kept, left := map[string]string{}, MaxPolicyBytes
	for _, key := range keys {
		if size := len(key) + len((*data)[key]); size <= left {
			kept[key], left = (*data)[key], left-size
		}
	}
	*data = kept
	return true
}
