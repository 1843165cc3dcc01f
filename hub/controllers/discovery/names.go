package discovery

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

const (
	// maxNameLength leaves room for the prefix of the member's namespace.
	maxNameLength = 53
	// hashLength is too long to find a Cluster whose name has the hash of another's.
	hashLength = 20
	// qualifier separates namespace and name. With a single hyphen, Cluster b-c of
	// namespace a would have the name of Cluster c of namespace a-b.
	qualifier = "--"
)

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

var invalidCharacters = regexp.MustCompile(`[^a-z0-9]+`)

// namesFor returns the names for a Cluster's member, best first: its own name if its
// namespace may use those, its namespace and name, and one with a hash. Invariant: no
// other Cluster gets a name that is qualified like this one's.
func (r Rules) namesFor(namespace, cluster string) (names []string) {
	if r.hasOwnNames(namespace) && isMemberName(cluster) && !strings.Contains(cluster, qualifier) {
		names = append(names, cluster)
	}
	if qualified := namespace + qualifier + cluster; isMemberName(qualified) && strings.Count(qualified, qualifier) == 1 {
		names = append(names, qualified)
	}
	sum := sha256.Sum256([]byte(namespace + "/" + cluster))
	hash := hex.EncodeToString(sum[:])[:hashLength]
	short := invalidCharacters.ReplaceAllString(namespace+"-"+cluster, "-")
	short = short[:min(len(short), maxNameLength-1-hashLength)]
	return append(names, strings.TrimRight(short, "-")+"-"+hash)
}

func isMemberName(name string) bool {
	return len(name) <= maxNameLength && validName.MatchString(name)
}
