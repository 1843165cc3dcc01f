package report

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// news is what events tell between two reports: names only, what is behind them
// is read when it is needed.
type news struct {
	mu     sync.Mutex
	images map[types.NamespacedName]struct{}
	// doubts are objects of the report that may not be as they are known to be, and
	// which version was last told of; empty for their end.
	doubts map[string]string
	// versions of the report's objects, as known; none for what is not there.
	versions map[string]string
	// there are the UIDs of the images that there are.
	there map[types.UID]bool
	// storage: there may be other storage than before that belongs to no image.
	storage bool
}

func newNews() news {
	return news{
		images: map[types.NamespacedName]struct{}{}, there: map[types.UID]bool{},
		doubts: map[string]string{}, versions: map[string]string{}, storage: true,
	}
}

// image takes note of one that has come or changed.
func (n *news) image(img client.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.images[client.ObjectKeyFromObject(img)] = struct{}{}
	n.there[img.GetUID()] = true
}

// imageGone takes note of one that is not there any more.
func (n *news) imageGone(img client.Object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.images[client.ObjectKeyFromObject(img)] = struct{}{}
	delete(n.there, img.GetUID())
	n.storage = true
}

// child tells whether an object that was made for an image has lost it: what happens
// to all the others makes no orphan.
func (n *news) child(o client.Object) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.there[types.UID(o.GetLabels()[v1alpha1.LabelImageUID])] {
		return false
	}
	n.storage = true
	return true
}

func (n *news) storageChanged() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.storage
}

func (n *news) takeStorage() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.storage = false
}

// object tells whether a version of an object, empty for its end, is news.
func (n *news) object(name, version string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.versions[name] == version {
		return false
	}
	n.doubts[name] = version
	return true
}

// know takes note of an object's version, empty for none. A doubt stays that
// came from another version: that one may be the later.
func (n *news) know(name, version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.doubts[name] == version {
		delete(n.doubts, name)
	}
	if version == "" {
		delete(n.versions, name)
		return
	}
	n.versions[name] = version
}

// doubt has an object read again, whatever is told of it.
func (n *news) doubt(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.doubts[name] = unknown
}

// unknown is no version.
const unknown = "?"

// doubted tells whether an object may not be as it is known to be.
func (n *news) doubted(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	version, doubted := n.doubts[name]
	return doubted && n.versions[name] != version
}

func (n *news) takeDoubts() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for name, version := range n.doubts {
		if n.versions[name] != version {
			names = append(names, name)
		}
	}
	n.doubts = map[string]string{}
	return names
}

func (n *news) takeImages() map[types.NamespacedName]struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	images := n.images
	n.images = map[types.NamespacedName]struct{}{}
	return images
}
