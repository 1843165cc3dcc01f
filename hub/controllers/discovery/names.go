package discovery

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// maxNameLength leaves room for the prefix of the member's namespace.
const maxNameLength = 53

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

var invalidCharacters = regexp.MustCompile(`[^a-z0-9]+`)

// namesFor returns the names for a Cluster's member, best first: its own name, its
// namespace and name, and a name that no other Cluster gets.
func namesFor(namespace, cluster string) (names []string) {
	for _, name := range []string{cluster, namespace + "-" + cluster} {
		if len(name) <= maxNameLength && validName.MatchString(name) {
			names = append(names, name)
		}
	}
	sum := sha256.Sum256([]byte(namespace + "/" + cluster))
	suffix := "-" + hex.EncodeToString(sum[:])[:8]
	short := invalidCharacters.ReplaceAllString(cluster, "-")
	if most := maxNameLength - len(suffix); len(short) > most {
		short = short[:most]
	}
	return append(names, short+suffix)
}
