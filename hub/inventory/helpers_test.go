package inventory_test

import (
	"runtime"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func timeAt(second int) *metav1.Time {
	t := metav1.NewTime(now.Add(time.Duration(second) * time.Second))
	return &t
}

// measureHeap returns the heap that is in use because of x.
func measureHeap(x any) float64 {
	held := heapInUse()
	runtime.KeepAlive(x)
	return float64(held) - float64(heapInUse())
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
