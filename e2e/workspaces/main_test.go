//go:build linux

// Package workspaces runs what authors of workspaces do, against real CDI and
// KubeVirt's real virt-controller on a real control plane; the virt-handler is
// simulated.
package workspaces

import (
	"testing"

	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

var place *scene.Scene

func TestMain(m *testing.M) {
	scene.Main(m, &place, member.Options{Name: "workspaces", KubeVirt: true}, true)
}
