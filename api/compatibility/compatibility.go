// Package compatibility says which versions the project works with: of Kubernetes, of CDI
// and KubeVirt, and of hub and agent beside each other. It is pure.
package compatibility

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// MinKubernetes is the oldest minor version that the charts install into: from it on,
// ValidatingAdmissionPolicy v1 is served by default.
const MinKubernetes = "1.30"

// MutatingPolicyKubernetes is the minor version from which on MutatingAdmissionPolicy v1 is
// served by default.
const MutatingPolicyKubernetes = "1.36"

// Minor versions that the project is meant to work with, oldest first. What was run with them
// is in docs/reference/versions.md.
var (
	KubernetesMinors = []string{"1.34", "1.35", "1.36", "1.37"}
	CDIMinors        = []string{"1.64", "1.65", "1.66"}
	KubeVirtMinors   = []string{"1.8", "1.9"}
)

// MaxMinorSkew is the tested distance of the minor versions of hub and agent, in either
// direction.
const MaxMinorSkew = 1

// Distance is how far a version is from another one.
type Distance int

// Distances.
const (
	// Unknown: one of them is a build of no release.
	Unknown Distance = iota
	// Supported: at most MaxMinorSkew minor versions of one major version apart.
	Supported
	// TooOld and TooNew: farther apart.
	TooOld
	TooNew
)

// DistanceOf returns how far the version of an agent is from that of a hub.
func DistanceOf(agentVersion, hubVersion string) Distance {
	hub, hubErr := version.ParseGeneric(hubVersion)
	agent, agentErr := version.ParseGeneric(agentVersion)
	switch {
	case hubErr != nil || agentErr != nil:
		return Unknown
	case agent.Major() == hub.Major() && max(agent.Minor(), hub.Minor())-min(agent.Minor(), hub.Minor()) <= MaxMinorSkew:
		return Supported
	case agent.LessThan(hub):
		return TooOld
	default:
		return TooNew
	}
}

// MinorOf returns the minor version of a version, as 1.36 of v1.36.3-eks-1; empty if it has
// none.
func MinorOf(text string) string {
	v, err := version.ParseGeneric(text)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
}

// IsOlder reports whether a version is older than another one; both are known.
func IsOlder(text, than string) bool {
	a, errA := version.ParseGeneric(text)
	b, errB := version.ParseGeneric(than)
	return errA == nil && errB == nil && a.LessThan(b)
}
