//go:build linux

// Package journeys runs what people do with the agent, against real CDI on a
// real control plane.
package journeys

import (
	"testing"

	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var testScene *testenv.Env

func TestMain(m *testing.M) { testenv.RunTests(m, &testScene, member.Options{Name: "journeys"}, true) }
