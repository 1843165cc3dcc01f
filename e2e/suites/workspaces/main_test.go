//go:build linux

// Package workspaces runs what authors of workspaces do, against real CDI and
// KubeVirt's real virt-controller on a real control plane; the virt-handler is
// simulated.
package workspaces

import (
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{Name: "workspaces", KubeVirt: true}, true)
}
