//go:build linux

package kind_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestHelmTestPasses(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "`helm test` of each release passes: the metrics are served through the Service, to those alone who may read them", func(t *testing.T) {
		f.requireHelmTest(t, "hub", program.HubNamespace, "ot-hub")
		for _, m := range f.Members() {
			f.requireHelmTest(t, m.Name, program.AgentNamespace, "ot-agent")
		}
	})
}

func (f *kindFleet) requireHelmTest(t *testing.T, cluster, namespace, name string) {
	t.Helper()
	out := f.requireProgram(t, f.Helm, "--kubeconfig", f.kubeconfigPath(cluster), "test", name, "--namespace", namespace, "--timeout", "5m")
	assert.Regexp(t, `TEST SUITE: +`+name+`-test\n(.*\n)+?Phase: +Succeeded`, out, cluster)
}

func TestHelmUpgrade(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "hub and agents are upgraded with helm in the middle of a rollout, which goes on; nothing is downloaded twice", func(t *testing.T) {
		observers := map[string]*observer.Observer{}
		for _, m := range f.Members() {
			observers[m.Name] = fleetjourneys.ObserveMember(t, m)
		}
		img := fleetjourneys.NewFleetImage(f, "kind-upgrade")
		img.Spec.Template = f.imageSpecAt("slow/60", "kind-upgrade", "disk.qcow2")
		img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
		fleetjourneys.CreateFleetImage(t, f, img)
		fleetjourneys.AwaitFleetImage(t, f, img.Name, "on its way", func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Clusters.Progressing > 0 })
		f.upgradeRelease(t, "hub", program.HubNamespace, "ot-hub")
		for _, m := range f.Members() {
			f.upgradeRelease(t, m.Name, program.AgentNamespace, "ot-agent")
		}
		under := &v1alpha1.FleetDiskImage{}
		require.NoError(t, f.hub.Get(t.Context(), client.ObjectKeyFromObject(img), under))
		require.Less(t, under.Status.Clusters.Succeeded, int32(len(f.members)), "the rollout was over before the upgrade was: nothing is shown")
		fleetjourneys.AwaitFleetImage(t, f, img.Name, "in all clusters", fleetjourneys.IsSucceeded)
		for _, m := range f.Members() {
			there := fleetjourneys.AwaitReadyImage(t, f, m, img.ImageNameForVersion("1"))
			assert.Equal(t, 1, testenv.History(t, observers[m.Name]).Attempts(there.UID), m.Name)
		}
	})
}

// upgradeRelease upgrades a release to another image tag, as documented, and waits for the new Pods.
func (f *kindFleet) upgradeRelease(t *testing.T, cluster, namespace, name string) {
	t.Helper()
	tag := fmt.Sprintf("%s-at-%s", f.Version, metav1.Now().UTC().Format("150405"))
	nodes, _, err := f.nodeAddresses(t.Context(), cluster)
	require.NoError(t, err)
	image := "localhost/ot-kind/" + name + ":"
	for _, node := range nodes {
		f.requireProgram(t, "docker", "exec", node, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", image+f.Version, image+tag)
	}
	f.requireProgram(t, f.Helm, "--kubeconfig", f.kubeconfigPath(cluster), "upgrade", name, f.Charts+"/"+name, "--namespace", namespace,
		"--reset-then-reuse-values", "--set", "image.tag="+tag, "--wait", "--timeout", "8m")
}
