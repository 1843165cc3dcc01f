//go:build linux

// Package journeys runs what people do with the agent, against real CDI on a
// real control plane.
package journeys

import (
	"testing"

	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

var testScene *scene.Env

func TestMain(m *testing.M) { scene.RunTests(m, &testScene, member.Options{Name: "journeys"}, true) }
