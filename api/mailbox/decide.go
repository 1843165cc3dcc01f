package mailbox

import "k8s.io/apimachinery/pkg/types"

// action is what a relay does next about one object.
type action uint8

const (
	// keepCopy the copy as it is: it is what it should be.
	keepCopy action = iota
	// rereadSource the source once more, past any cache, and decide again.
	rereadSource
	// overwriteCopy the source over the copy.
	overwriteCopy
	// ahead: the copy is newer, of the same cluster, and is left alone.
	copyIsNewer
	// another: this is for or of another cluster, and is not carried.
	otherCluster
)

// comparison is what is seen of a source and its copy.
type comparison struct {
	// found: there is a copy. Without one, what follows says nothing.
	exists bool
	// order is below 0 where the source is older than the copy by its own version.
	order int
	// equal content.
	equal bool
	// foreign: source and copy are of different clusters.
	otherCluster bool
	// live: the source was read past any cache, after the copy was read. So
	// whatever the copy holds had been at the source before.
	sourceLive bool
}

// decideCopy goes by versions where they tell that the source is newer. Everything
// else is either nothing to do, or rare enough to read the source once more: a
// cache that is behind must neither bring back what is gone, nor take a copy for
// one that somebody changed. Versions of different clusters do not compare: what
// the source holds is for the cluster that is there now.
func decideCopy(l comparison) action {
	switch {
	case l.exists && l.order == 0 && l.equal:
		return keepCopy
	case l.exists && l.order > 0 && !l.otherCluster:
		return overwriteCopy
	case !l.sourceLive:
		return rereadSource
	case l.exists && l.order < 0 && !l.otherCluster:
		return copyIsNewer
	default:
		return overwriteCopy
	}
}

// decideDown decides about plan or grant, made for a cluster, where the agent
// reports to be in one; reported is empty where it has not reported.
func decideDown(l comparison, reported, source types.UID) action {
	switch {
	case reported == "" || reported == source:
		return decideCopy(l)
	case !l.sourceLive:
		return rereadSource
	default:
		return otherCluster
	}
}

// decideRoot decides about the root of a report, and so about the report. known
// is the cluster that the hub knows; where it knows none, the copy tells it.
// Sequences of different clusters do not compare: that of the known one holds.
func decideRoot(l comparison, known, source types.UID) action {
	stranger := known != source
	if known == "" {
		stranger = l.exists && l.otherCluster
	}
	switch {
	case stranger && !l.sourceLive:
		return rereadSource
	case stranger:
		return otherCluster
	}
	return decideCopy(l)
}

// decidePage decides about a page that a root lists which is not older than the
// hub's. A copy of a higher sequence then is from before the member was restored
// to an older state, and the agent has had no reason yet to write the page anew.
func decidePage(l comparison) action {
	if v := decideCopy(l); v != copyIsNewer {
		return v
	}
	return overwriteCopy
}

// unlistedPages tells which of the pages on the hub a root does not list.
func unlistedPages(onHub []string, lists map[string]bool) (names []string) {
	for _, name := range onHub {
		if !lists[name] {
			names = append(names, name)
		}
	}
	return names
}
