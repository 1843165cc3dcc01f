package relay

import "k8s.io/apimachinery/pkg/types"

// verdict is what a relay does next about one object.
type verdict uint8

const (
	// leave the copy as it is: it is what it should be.
	leave verdict = iota
	// ask the source once more, past any cache, and decide again.
	ask
	// write the source over the copy.
	write
	// ahead: the copy is newer, of the same cluster, and is left alone.
	ahead
	// another: this is for or of another cluster, and is not carried.
	another
)

// look is what is seen of a source and its copy.
type look struct {
	// found: there is a copy. Without one, what follows says nothing.
	found bool
	// order is below 0 where the source is older than the copy by its own version.
	order int
	// same content.
	same bool
	// foreign: source and copy are of different clusters.
	foreign bool
	// live: the source was read past any cache, after the copy was read. So
	// whatever the copy holds had been at the source before.
	live bool
}

// decide goes by versions where they tell that the source is newer. Everything
// else is either nothing to do, or rare enough to read the source once more: a
// cache that is behind must neither bring back what is gone, nor take a copy for
// one that somebody changed. Versions of different clusters do not compare: what
// the source holds is for the cluster that is there now.
func decide(l look) verdict {
	switch {
	case l.found && l.order == 0 && l.same:
		return leave
	case l.found && l.order > 0 && !l.foreign:
		return write
	case !l.live:
		return ask
	case l.found && l.order < 0 && !l.foreign:
		return ahead
	default:
		return write
	}
}

// decideDown decides about plan or grant, made for a cluster, where the agent
// reports to be in one; reported is empty where it has not reported.
func decideDown(l look, reported, source types.UID) verdict {
	switch {
	case reported == "" || reported == source:
		return decide(l)
	case !l.live:
		return ask
	default:
		return another
	}
}

// decideRoot decides about the root of a report, and so about the report. known
// is the cluster that the hub knows; where it knows none, the copy tells it.
// Sequences of different clusters do not compare: that of the known one holds.
func decideRoot(l look, known, source types.UID) verdict {
	stranger := known != source
	if known == "" {
		stranger = l.found && l.foreign
	}
	switch {
	case stranger && !l.live:
		return ask
	case stranger:
		return another
	}
	return decide(l)
}

// decidePage decides about a page that a root lists which is not older than the
// hub's. A copy of a higher sequence then is from before the member was restored
// to an older state, and the agent has had no reason yet to write the page anew.
func decidePage(l look) verdict {
	if v := decide(l); v != ahead {
		return v
	}
	return write
}

// unlisted tells which of the pages on the hub a root does not list.
func unlisted(onHub []string, lists map[string]bool) (names []string) {
	for _, name := range onHub {
		if !lists[name] {
			names = append(names, name)
		}
	}
	return names
}
