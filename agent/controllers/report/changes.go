package report

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// unknownVersion is not a resourceVersion.
const unknownVersion = "?"

// changeTracker collects what events announce between two reports. It holds names only: the
// objects are read when they are needed.
type changeTracker struct {
	mu            sync.Mutex
	changedImages map[types.NamespacedName]struct{}
	// staleObjects are objects of the report that may differ from what is known of them,
	// with the resourceVersion of their last event; empty for a deletion.
	staleObjects map[string]string
	// knownVersions are the resourceVersions of the report's objects as they are known.
	knownVersions map[string]string
	// existingImages are the UIDs of the images that exist.
	existingImages map[types.UID]bool
	// storageDirty: there may be new orphans.
	storageDirty bool
}

func newChangeTracker() changeTracker {
	return changeTracker{
		changedImages: map[types.NamespacedName]struct{}{}, existingImages: map[types.UID]bool{},
		staleObjects: map[string]string{}, knownVersions: map[string]string{}, storageDirty: true,
	}
}

// imageChanged records an image that was created or changed.
func (c *changeTracker) imageChanged(img client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changedImages[client.ObjectKeyFromObject(img)] = struct{}{}
	c.existingImages[img.GetUID()] = true
}

// imageDeleted records an image that no longer exists.
func (c *changeTracker) imageDeleted(img client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changedImages[client.ObjectKeyFromObject(img)] = struct{}{}
	delete(c.existingImages, img.GetUID())
	c.storageDirty = true
}

// isOrphanedChild: an object of an image may be an orphan, because no such image is known.
// Events of other objects create no orphans.
func (c *changeTracker) isOrphanedChild(o client.Object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.existingImages[types.UID(o.GetLabels()[v1alpha1.LabelImageUID])] {
		return false
	}
	c.storageDirty = true
	return true
}

func (c *changeTracker) isStorageDirty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.storageDirty
}

func (c *changeTracker) clearStorageDirty() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storageDirty = false
}

// objectChanged records the event of an object of the report, with an empty version for a
// deletion. It returns false if that version is known.
func (c *changeTracker) objectChanged(name, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.knownVersions[name] == version {
		return false
	}
	c.staleObjects[name] = version
	return true
}

// setKnownVersion records the version at which an object was just read or written; empty for none.
// An object stays stale if its last event had another version, which may be later.
func (c *changeTracker) setKnownVersion(name, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stale := c.staleObjects[name]; stale == version || stale == unknownVersion {
		delete(c.staleObjects, name)
	}
	if version == "" {
		delete(c.knownVersions, name)
		return
	}
	c.knownVersions[name] = version
}

// markStale has an object read again.
func (c *changeTracker) markStale(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.staleObjects[name] = unknownVersion
}

// isStale: an object may differ from what is known of it.
func (c *changeTracker) isStale(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, stale := c.staleObjects[name]
	return stale && c.knownVersions[name] != version
}

// takeStaleObjects returns the stale objects, and clears them.
func (c *changeTracker) takeStaleObjects() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for name, version := range c.staleObjects {
		if c.knownVersions[name] != version {
			names = append(names, name)
		}
	}
	c.staleObjects = map[string]string{}
	return names
}

func (c *changeTracker) countChangedImages() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.changedImages)
}

// takeChangedImages returns the changed images, and clears them.
func (c *changeTracker) takeChangedImages() map[types.NamespacedName]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	images := c.changedImages
	c.changedImages = map[types.NamespacedName]struct{}{}
	return images
}
