package apitest

import "runtime"

// HeapBytes returns the size of what is on the heap and in use.
func HeapBytes() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the finalizers of the first one have freed
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
