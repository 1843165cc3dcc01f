package discovery

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// A MemberCluster's name makes that of its namespace.
const maxNameLength = 53

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

var invalidCharacters = regexp.MustCompile(`[^a-z0-9]+`)

// namesFor a Cluster, the best first: its own, that with its namespace before it,
// and one that no other Cluster has.
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
