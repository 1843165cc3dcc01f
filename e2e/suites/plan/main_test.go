//go:build linux

// Package plan runs the agent in one member cluster without a hub, against real CDI, under the
// ClusterPlans that a hub sends and the policies that people and hubs write: good, bad, late, lost
// and at odds with each other, and with windows of time. Only a real API server shows which of two
// writers owns a field.
package plan

import (
	"fmt"
	"os"
	"testing"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{Name: "plan", LogDir: os.Getenv("OT_FLEET_LOG_DIR")}, true)
}

// createImages creates n images of one source.
func createImages(t *testing.T, ns string, n int, path string) []*v1alpha1.VMDiskImage {
	t.Helper()
	var images []*v1alpha1.VMDiskImage
	for i := range n {
		images = append(images, env.NewImage(ns, fmt.Sprintf("image-%d", i), path))
		env.Create(t, images[i])
	}
	return images
}
