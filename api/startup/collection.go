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
	// restingIntervals is after how many of them at rest memory is given back. Go's own scavenger takes
	// minutes, and keeps a tenth more than the heap.
	restingIntervals = 5
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

// isBusy reports whether garbage is made faster than a program at rest collects it.
func isBusy(liveBytes, bytesPerSecond uint64) bool {
	untilCollected := float64(liveBytes) * restingGCPercent / 100
	return untilCollected < float64(bytesPerSecond)*busyCollectionInterval.Seconds()
}

// chooseGCPercent returns GOGC by what lives in the heap.
func chooseGCPercent(busy bool, liveBytes, busyHeap uint64) int {
	if busy && liveBytes+liveBytes*busyGCPercent/100 <= busyHeap {
		return busyGCPercent
	}
	return restingGCPercent
}

// restTracker says when a program that was busy is at rest for long enough that what it needed meanwhile
// is given back.
type restTracker struct {
	wasBusy bool
	resting int // for how many paceIntervals
}

func (r *restTracker) mayGiveBack(busy bool) bool {
	if busy {
		r.wasBusy, r.resting = true, 0
		return false
	}
	r.resting++
	if !r.wasBusy || r.resting < restingIntervals {
		return false
	}
	r.wasBusy = false
	return true
}

func paceCollections(busyHeap uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	allocated, at, current := samples[1].Value.Uint64(), time.Now(), restingGCPercent
	var rest restTracker
	for now := range time.Tick(paceInterval) {
		metrics.Read(samples)
		live, perSecond := samples[0].Value.Uint64(), float64(samples[1].Value.Uint64()-allocated)/now.Sub(at).Seconds()
		allocated, at = samples[1].Value.Uint64(), now
		busy := isBusy(live, uint64(perSecond))
		if percent := chooseGCPercent(busy, live, busyHeap); percent != current {
			debug.SetGCPercent(percent)
			current = percent
		}
		if rest.mayGiveBack(busy) {
			debug.FreeOSMemory()
		}
	}
}
