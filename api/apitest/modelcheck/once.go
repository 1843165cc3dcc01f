package modelcheck

// ComputeOnce returns what compute returned for a key, and calls it for the first time only: most states
// of a model differ in what a decision does not depend on.
func ComputeOnce[K comparable, V any](known map[K]V, key K, compute func() V) V {
	value, ok := known[key]
	if !ok {
		value = compute()
		known[key] = value
	}
	return value
}
