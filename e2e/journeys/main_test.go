//go:build linux

// Package journeys runs what people do with the agent, against real CDI on a
// real control plane.
package journeys

import (
	"testing"

	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

var place *scene.Scene

func TestMain(m *testing.M) { scene.Main(m, &place, member.Options{Name: "journeys"}, true) }
