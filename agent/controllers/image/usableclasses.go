package image

import (
	"sync"
	"time"
)

const (
	// usableClassAge is for how long a VolumeSnapshotClass that was found is not read again:
	// each image would read it at each step. What is missing or does not fit is always read.
	usableClassAge = 10 * time.Second
	// maxUsableClasses bounds what is remembered; authors choose the names.
	maxUsableClasses = 256
)

// classPair are a StorageClass, empty for the default one, and a VolumeSnapshotClass.
type classPair struct{ storage, snapshot string }

// usableClasses remembers the pairs that were found to fit. The zero value is empty; it is safe
// for concurrent use.
type usableClasses struct {
	mu    sync.Mutex
	until map[classPair]time.Time
}

func (u *usableClasses) isUsable(pair classPair, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return now.Before(u.until[pair])
}

func (u *usableClasses) add(pair classPair, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.until == nil || len(u.until) >= maxUsableClasses {
		u.until = map[classPair]time.Time{}
	}
	u.until[pair] = now.Add(usableClassAge)
}
