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

var testScene *scene.Env

func TestMain(m *testing.M) {
	scene.RunTests(m, &testScene, member.Options{Name: "workspaces", KubeVirt: true}, true)
}
