package modelcheck

// ComputeOnce calls compute only for a key that known lacks: most states of a model differ in what a
// decision does not depend on. It is not for concurrent use.
func ComputeOnce[K comparable, V any](known map[K]V, key K, compute func() V) V {
	value, ok := known[key]
	if !ok {
		value = compute()
		known[key] = value
	}
	return value
}
