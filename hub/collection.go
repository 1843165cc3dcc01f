package main

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// restingGCPercent is GOGC of a hub at rest. Most of its heap lives as long as its connections to
	// members, and Go's default would hold as much again.
	restingGCPercent = 50
	// While members report much, each second or so half of the heap is garbage, and to collect it the
	// whole heap is marked. Then the heap may grow to busyHeapBytes, as long as collections are more
	// frequent than wantedCollectionInterval: three quarters of what the chart requests.
	busyHeapBytes            = 192 << 20
	wantedCollectionInterval = 5 * time.Second
	// paceInterval is how often that is looked at.
	paceInterval = 2 * time.Second
)

// chooseGCPercent returns GOGC by what lives in the heap and what is allocated per second. It doubles in
// steps, so that it seldom changes.
func chooseGCPercent(liveBytes, bytesPerSecond uint64) int {
	percent := restingGCPercent
	wanted := float64(bytesPerSecond) * wantedCollectionInterval.Seconds()
	garbage := func(percent int) float64 { return float64(liveBytes) * float64(percent) / 100 }
	for liveBytes > 0 && garbage(percent) < wanted && float64(liveBytes)+garbage(2*percent) <= busyHeapBytes {
		percent *= 2
	}
	return percent
}

// paceCollections sets GOGC by how busy this process is, for as long as it runs.
func paceCollections() {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	allocated, at, current := samples[1].Value.Uint64(), time.Now(), restingGCPercent
	for now := range time.Tick(paceInterval) {
		metrics.Read(samples)
		perSecond := float64(samples[1].Value.Uint64()-allocated) / now.Sub(at).Seconds()
		allocated, at = samples[1].Value.Uint64(), now
		if percent := chooseGCPercent(samples[0].Value.Uint64(), uint64(perSecond)); percent != current {
			debug.SetGCPercent(percent)
			current = percent
		}
	}
}
