package report

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// changeTracker is what events tell between two reports: names only, what is behind them
// is read when it is needed.
type changeTracker struct {
	mu            sync.Mutex
	changedImages map[types.NamespacedName]struct{}
	// staleObjects are objects of the report that may not be as they are known to be, and
	// which version was last told of; empty for their end.
	staleObjects map[string]string
	// knownVersions of the report's objects, as known; none for what is not there.
	knownVersions map[string]string
	// existingImages are the UIDs of the images that there are.
	existingImages map[types.UID]bool
	// storage: there may be other storage than before that belongs to no image.
	storageDirty bool
}

func newChangeTracker() changeTracker {
	return changeTracker{
		changedImages: map[types.NamespacedName]struct{}{}, existingImages: map[types.UID]bool{},
		staleObjects: map[string]string{}, knownVersions: map[string]string{}, storageDirty: true,
	}
}

// imageChanged takes note of one that has come or changed.
func (n *changeTracker) imageChanged(img client.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changedImages[client.ObjectKeyFromObject(img)] = struct{}{}
	n.existingImages[img.GetUID()] = true
}

// imageDeleted takes note of one that is not there any more.
func (n *changeTracker) imageDeleted(img client.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changedImages[client.ObjectKeyFromObject(img)] = struct{}{}
	delete(n.existingImages, img.GetUID())
	n.storageDirty = true
}

// isOrphanedChild tells whether an object that was made for an image has lost it: what happens
// to all the others makes no orphan.
func (n *changeTracker) isOrphanedChild(o client.Object) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.existingImages[types.UID(o.GetLabels()[v1alpha1.LabelImageUID])] {
		return false
	}
	n.storageDirty = true
	return true
}

func (n *changeTracker) isStorageDirty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.storageDirty
}

func (n *changeTracker) clearStorageDirty() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.storageDirty = false
}

// objectChanged tells whether a version of an object, empty for its end, is news.
func (n *changeTracker) objectChanged(name, version string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.knownVersions[name] == version {
		return false
	}
	n.staleObjects[name] = version
	return true
}

// setKnownVersion takes note of an object's version, empty for none. A doubt stays that
// came from another version: that one may be the later.
func (n *changeTracker) setKnownVersion(name, version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.staleObjects[name] == version {
		delete(n.staleObjects, name)
	}
	if version == "" {
		delete(n.knownVersions, name)
		return
	}
	n.knownVersions[name] = version
}

// markStale has an object read again, whatever is told of it.
func (n *changeTracker) markStale(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.staleObjects[name] = unknownVersion
}

// unknownVersion is no version.
const unknownVersion = "?"

// isStale tells whether an object may not be as it is known to be.
func (n *changeTracker) isStale(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	version, doubted := n.staleObjects[name]
	return doubted && n.knownVersions[name] != version
}

func (n *changeTracker) takeStaleObjects() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for name, version := range n.staleObjects {
		if n.knownVersions[name] != version {
			names = append(names, name)
		}
	}
	n.staleObjects = map[string]string{}
	return names
}

func (n *changeTracker) takeChangedImages() map[types.NamespacedName]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	images := n.changedImages
	n.changedImages = map[types.NamespacedName]struct{}{}
	return images
}
