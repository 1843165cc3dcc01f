package mailbox

import "k8s.io/apimachinery/pkg/types"

// syncAction is what a relay does next with one object.
type syncAction uint8

const (
	// keepCopy: the copy is up to date.
	keepCopy syncAction = iota
	// rereadSource: read the source live and decide again.
	rereadSource
	// overwriteCopy: write the source over the copy.
	overwriteCopy
	// copyIsNewer: the copy is of the same cluster and newer than the source; it is
	// left alone.
	copyIsNewer
	// otherCluster: the object is for or from another cluster and is not copied.
	otherCluster
)

// comparison is the result of comparing a source with its copy.
type comparison struct {
	// exists: there is a copy. Otherwise order, equal and otherCluster are not set.
	exists bool
	// order is negative if the source is older than the copy by its own version.
	order int
	// equal content.
	equal bool
	// otherCluster: source and copy belong to different clusters.
	otherCluster bool
	// sourceLive: the source was read live after the copy was read. So every state that
	// the copy holds was at the source before.
	sourceLive bool
}

// decideCopy trusts versions if they say that the source is newer. In all other cases
// nothing is to be done, or the case is rare enough to read the source live: a stale
// cache must neither restore old content nor make a good copy look changed. Versions of
// different clusters cannot be compared: the source is for the current cluster.
func decideCopy(c comparison) syncAction {
	switch {
	case c.exists && c.order == 0 && c.equal:
		return keepCopy
	case c.exists && c.order > 0 && !c.otherCluster:
		return overwriteCopy
	case !c.sourceLive:
		return rereadSource
	case c.exists && c.order < 0 && !c.otherCluster:
		return copyIsNewer
	default:
		return overwriteCopy
	}
}

// decideDown decides about a plan or grant for cluster source, in a member whose agent
// reports another or the same cluster; reported is empty before the first report.
func decideDown(c comparison, reported, source types.UID) syncAction {
	switch {
	case reported == "" || reported == source:
		return decideCopy(c)
	case !c.sourceLive:
		return rereadSource
	default:
		return otherCluster
	}
}

// decideRoot decides about the root of a report, and thereby about the whole report.
// known is the cluster that the hub knows; if empty, the cluster of the copy counts.
// Sequences of different clusters cannot be compared: the report of the known cluster
// wins.
func decideRoot(c comparison, known, source types.UID) syncAction {
	unexpected := known != source
	if known == "" {
		unexpected = c.exists && c.otherCluster
	}
	switch {
	case unexpected && !c.sourceLive:
		return rereadSource
	case unexpected:
		return otherCluster
	}
	return decideCopy(c)
}

// decidePage decides about a page whose root is not older than the hub's. A copy with a
// higher sequence is then from before the member was restored from a backup, and is
// overwritten.
func decidePage(c comparison) syncAction {
	if next := decideCopy(c); next != copyIsNewer {
		return next
	}
	return overwriteCopy
}

// unlistedPages returns the pages on the hub that the root does not list.
func unlistedPages(onHub []string, listed map[string]bool) (names []string) {
	for _, name := range onHub {
		if !listed[name] {
			names = append(names, name)
		}
	}
	return names
}
