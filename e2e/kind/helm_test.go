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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/backend"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func TestHelmTest(t *testing.T) {
	f := need(t)
	journey(t, "`helm test` of each release passes: the metrics are served through the Service, to those alone who may read them", func(t *testing.T) {
		f.helmTest(t, "hub", hub.Namespace, "ot-hub")
		for _, m := range f.Members() {
			f.helmTest(t, m.Name, agent.Namespace, "ot-agent")
		}
	})
}

func (f *fleet) helmTest(t *testing.T, cluster, namespace, name string) {
	t.Helper()
	out := f.must(t, f.Helm, "--kubeconfig", f.kubeconfig(cluster), "test", name, "--namespace", namespace, "--timeout", "5m")
	assert.Regexp(t, `TEST SUITE: +`+name+`-test\n(.*\n)+?Phase: +Succeeded`, out, cluster)
}

func TestHelmUpgrade(t *testing.T) {
	f := need(t)
	journey(t, "hub and agents are upgraded with helm in the middle of a rollout, which goes on; nothing is downloaded twice", func(t *testing.T) {
		observers := map[string]*observer.Observer{}
		for _, m := range f.Members() {
			observers[m.Name] = backend.Observe(t, m)
		}
		img := backend.FleetImage(f, "kind-upgrade")
		img.Spec.Template = f.image("slow/60", "kind-upgrade", "disk.qcow2")
		img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
		backend.Apply(t, f, img)
		backend.WantFleetImage(t, f, img.Name, "on its way", func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Clusters.Progressing > 0 })
		f.upgrade(t, "hub", hub.Namespace, "ot-hub")
		for _, m := range f.Members() {
			f.upgrade(t, m.Name, agent.Namespace, "ot-agent")
		}
		under := &v1alpha1.FleetDiskImage{}
		require.NoError(t, f.hub.Get(t.Context(), client.ObjectKeyFromObject(img), under))
		require.Less(t, under.Status.Clusters.Succeeded, int32(len(f.members)), "the rollout was over before the upgrade was: nothing is shown")
		backend.WantFleetImage(t, f, img.Name, "in all clusters", backend.Succeeded)
		for _, m := range f.Members() {
			there := backend.Ready(t, f, m, img.VMDiskImage("1"))
			assert.Equal(t, 1, scene.History(t, observers[m.Name]).Attempts(there.UID), m.Name)
		}
	})
}

// upgrade brings a release to an image of another tag, as the README has it, and
// waits for the new Pods.
func (f *fleet) upgrade(t *testing.T, cluster, namespace, name string) {
	t.Helper()
	tag := fmt.Sprintf("%s-at-%s", f.Version, metav1.Now().UTC().Format("150405"))
	nodes, _, err := f.nodes(t.Context(), cluster)
	require.NoError(t, err)
	image := "localhost/ot-kind/" + name + ":"
	for _, node := range nodes {
		f.must(t, "docker", "exec", node, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", image+f.Version, image+tag)
	}
	f.must(t, f.Helm, "--kubeconfig", f.kubeconfig(cluster), "upgrade", name, f.Charts+"/"+name, "--namespace", namespace,
		"--reset-then-reuse-values", "--set", "image.tag="+tag, "--wait", "--timeout", "8m")
}
