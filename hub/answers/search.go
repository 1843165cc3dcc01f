package answers

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SearchTerms are what may be found.
type SearchTerms struct {
	Members []v1alpha1.MemberCluster
	Images  []v1alpha1.FleetDiskImage
	Sources iter.Seq[string]
}

// match is a Found with how well it matches: the smaller, the better.
type match struct {
	found readapi.Found
	rank  int
}

// Ranks of a match.
const (
	rankExact = iota
	rankPrefix
	rankWord // begins a word of the name
	rankPart
	noMatch
)

// Search finds what has all words of a text in its name.
func Search(text string, in *SearchTerms) readapi.SearchAnswer {
	words := strings.Fields(strings.ToLower(text))
	answer := readapi.SearchAnswer{Found: []readapi.Found{}}
	if len(words) == 0 {
		return answer
	}
	var best bestMatches
	add := func(name string, found readapi.Found) {
		if rank := rankName(strings.ToLower(name), words); rank < noMatch {
			best.add(match{found, rank})
		}
	}
	for i := range in.Members {
		m := &in.Members[i]
		state, _ := StateOfMember(m)
		add(m.Name, readapi.Found{Kind: readapi.FoundCluster, Name: m.Name, State: string(state)})
	}
	for i := range in.Images {
		img := &in.Images[i]
		add(img.Name, readapi.Found{Kind: readapi.FoundRollout, Name: img.Name, State: string(observedStatus(img).Phase)})
		for _, version := range versionsOf(img) {
			// What the name alone matches is found once, as the rollout.
			if rankName(strings.ToLower(img.Name), words) == noMatch {
				add(img.Name+" "+version, readapi.Found{Kind: readapi.FoundVersion, Name: img.Name, Version: version})
			}
		}
	}
	if in.Sources != nil {
		for source := range in.Sources {
			add(source, readapi.Found{Kind: readapi.FoundSource, Name: source})
		}
	}
	answer.More = len(best) > readapi.MaxFound
	for _, m := range firstOf(best, readapi.MaxFound) {
		answer.Found = append(answer.Found, m.found)
	}
	return answer
}

// bestMatches are the best of all matches, sorted: one more than an answer has, which tells
// that there are more. They are few however many match, for example where one member reports tens of
// thousands of sources.
type bestMatches []match

func (b *bestMatches) add(m match) {
	const limit = readapi.MaxFound + 1
	if len(*b) == limit && compareMatches(m, (*b)[limit-1]) >= 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(*b, m, compareMatches)
	*b = firstOf(slices.Insert(*b, at, m), limit)
}

var foundKinds = readapi.FoundKinds()

func compareMatches(a, b match) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(slices.Index(foundKinds, a.found.Kind), slices.Index(foundKinds, b.found.Kind)),
		strings.Compare(a.found.Name, b.found.Name), strings.Compare(a.found.Version, b.found.Version))
}

// versionsOf returns the versions of a FleetDiskImage, each once.
func versionsOf(img *v1alpha1.FleetDiskImage) []string {
	versions := []string{img.Spec.Version}
	for _, v := range img.Status.Versions {
		if !slices.Contains(versions, v.Version) {
			versions = append(versions, v.Version)
		}
	}
	return versions
}

// rankName returns how well a name matches words: as its worst word does.
func rankName(name string, words []string) int {
	worst := rankExact
	for _, word := range words {
		if worst = max(worst, rankWordIn(name, word)); worst == noMatch {
			break
		}
	}
	return worst
}

func rankWordIn(name, word string) int {
	at := strings.Index(name, word)
	switch {
	case at < 0:
		return noMatch
	case name == word:
		return rankExact
	case at == 0:
		return rankPrefix
	case strings.ContainsRune("-./_: ", rune(name[at-1])):
		return rankWord
	default:
		return rankPart
	}
}
