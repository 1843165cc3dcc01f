package startup

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// restingGCPercent is GOGC of a program at rest. Most of its heap lives as long as the connections and
	// objects that it is for, and Go's default would hold as much again.
	restingGCPercent = 50
	// busyGCPercent is Go's default. While a program is busy, half of such a heap is garbage each second or
	// so, and to collect that the whole heap is marked. A heap that would grow beyond maxBusyHeap, or a
	// third of the memory limit, is collected as at rest.
	busyGCPercent = 100
	maxBusyHeap   = 192 << 20
	// busyCollectionInterval: a program is busy if at rest it would collect more often.
	busyCollectionInterval = 5 * time.Second
	// paceInterval is how often that is looked at.
	paceInterval = 2 * time.Second
)

// startPacingCollections has garbage collected by how busy this process is, for as long as it runs. An
// environment variable GOGC wins.
func startPacingCollections() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(restingGCPercent)
	go paceCollections(uint64(min(maxBusyHeap, debug.SetMemoryLimit(-1)/3)))
}

// chooseGCPercent returns GOGC by what lives in the heap and what is allocated per second.
func chooseGCPercent(liveBytes, bytesPerSecond, busyHeap uint64) int {
	untilCollected := float64(liveBytes) * restingGCPercent / 100
	busy := untilCollected < float64(bytesPerSecond)*busyCollectionInterval.Seconds()
	if busy && liveBytes+liveBytes*busyGCPercent/100 <= busyHeap {
		return busyGCPercent
	}
	return restingGCPercent
}

func paceCollections(busyHeap uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	allocated, at, current := samples[1].Value.Uint64(), time.Now(), restingGCPercent
	for now := range time.Tick(paceInterval) {
		metrics.Read(samples)
		perSecond := float64(samples[1].Value.Uint64()-allocated) / now.Sub(at).Seconds()
		allocated, at = samples[1].Value.Uint64(), now
		if percent := chooseGCPercent(samples[0].Value.Uint64(), uint64(perSecond), busyHeap); percent != current {
			debug.SetGCPercent(percent)
			current = percent
		}
	}
}
