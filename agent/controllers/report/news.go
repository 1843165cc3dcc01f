package report

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
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
}

func (n *news) image(key types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.images[key] = struct{}{}
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
