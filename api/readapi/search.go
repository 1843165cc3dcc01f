package readapi

// MaxFound bounds what a search finds.
const MaxFound = 20

// FoundKind is what a Found is.
type FoundKind string

// Kinds of what is found.
const (
	FoundCluster FoundKind = "Cluster"
	// FoundRollout is a FleetDiskImage by its name, and FoundVersion one of its versions.
	FoundRollout FoundKind = "Rollout"
	FoundVersion FoundKind = "Version"
	// FoundSource is what images are downloaded from.
	FoundSource FoundKind = "Source"
)

// FoundKinds lists all kinds, in the order of equally good matches.
func FoundKinds() []FoundKind {
	return []FoundKind{FoundCluster, FoundRollout, FoundVersion, FoundSource}
}

// SearchAnswer is what has all words that were searched for in its name, the best first.
type SearchAnswer struct {
	Found []Found `json:"found"`
	// More than those match.
	More bool `json:"more,omitempty"`
}

// Found is one match.
type Found struct {
	Kind FoundKind `json:"kind"`
	// Name of the cluster or FleetDiskImage, or the source.
	Name string `json:"name"`
	// Version, for FoundVersion.
	Version string `json:"version,omitempty"`
	// State of a cluster, or phase of a rollout; empty if unknown.
	State string `json:"state,omitempty"`
}
