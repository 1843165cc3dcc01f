//go:build linux

package kind_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/backend"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/observer"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// bergen is the member with two workers.
const bergen = "bergen"

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

func TestNodeDrained(t *testing.T) {
	f := need(t)
	journey(t, "the node of the hub's elected replica is drained: the other one goes on; the node on which an image is downloaded is drained: the image comes when the node is back", func(t *testing.T) {
		m := f.member(t, bergen)
		leader := f.leader(t, f.hub, hub.Namespace, "ot-hub")
		f.drain(t, "hub", leader.Spec.NodeName)
		o := backend.Observe(t, m)
		img := backend.Create(t, m, "kind-drained", f.Image(backend.Downloads, "kind-drained"))
		node := f.importsOn(t, m, img)
		back := f.drain(t, m.Name, node)
		f.ledByAnother(t, f.hub, hub.Namespace, "ot-hub", leader.Name)
		back()
		backend.Ready(t, f, m, img.Name)
		h := scene.History(t, o)
		assert.Empty(t, h.OverBudget())
		assert.LessOrEqual(t, h.Attempts(img.UID), 2, "what was drained away is made up for once")
	})
}

// ledByAnother waits until a program is led by another Pod than the one before.
func (f *fleet) ledByAnother(t *testing.T, c client.Reader, namespace, program, before string) {
	t.Helper()
	var name string
	backend.Await(t, "another replica leads "+program, func() bool {
		if pod, err := f.leads(t.Context(), c, namespace, program); err == nil {
			name = pod.Name
		}
		return name != "" && name != before
	}, func() string { return "led by " + name })
}

// importsOn waits until an image is downloaded, and says on which node.
func (f *fleet) importsOn(t *testing.T, m backend.Member, img *v1alpha1.VMDiskImage) (node string) {
	t.Helper()
	backend.Await(t, "an importer Pod that runs", func() bool {
		var pods corev1.PodList
		if m.List(t.Context(), &pods, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}) != nil {
			return false
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Status.Phase == corev1.PodRunning {
				node = p.Spec.NodeName
			}
		}
		return node != ""
	}, func() string { return "" })
	return node
}

// drain empties a node as people do, and returns how it is taken into use again.
func (f *fleet) drain(t *testing.T, cluster, node string) (back func()) {
	t.Helper()
	kubeconfig := f.kubeconfig(cluster)
	back = func() {
		_, err := f.run(context.Background(), f.Kubectl, "--kubeconfig", kubeconfig, "uncordon", node)
		require.NoError(t, err)
	}
	t.Cleanup(back)
	f.must(t, f.Kubectl, "--kubeconfig", kubeconfig, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=5m")
	return back
}

func TestNodeLost(t *testing.T) {
	f := need(t)
	journey(t, "the node on which an image is downloaded loses its power: the budget holds, and all images come when it is back", func(t *testing.T) {
		backend.SetPolicy(t, f, map[string]string{"concurrency": "2"})
		m := f.member(t, bergen)
		o := backend.Observe(t, m)
		var images []*v1alpha1.VMDiskImage
		for i := range 3 {
			name := fmt.Sprintf("kind-lost-%d", i)
			images = append(images, backend.Create(t, m, name, f.Image(backend.Downloads, name)))
		}
		node := f.importsOn(t, m, images[0])
		f.must(t, "docker", "kill", node)
		started := false
		start := func() {
			if !started {
				started = true
				_, err := f.docker(context.Background(), "start", node)
				require.NoError(t, err)
			}
		}
		t.Cleanup(start)
		backend.Await(t, "the node is given up", func() bool {
			n := &corev1.Node{}
			if m.Get(t.Context(), client.ObjectKey{Name: node}, n) != nil {
				return false
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					return c.Status != corev1.ConditionTrue
				}
			}
			return false
		}, func() string { return node })
		start()
		for _, img := range images {
			backend.Ready(t, f, m, img.Name)
		}
		h := scene.History(t, o)
		assert.Empty(t, h.OverBudget())
		assert.Empty(t, h.Beyond(2), "importer Pods of a lost node count")
	})
}

func TestMachine(t *testing.T) {
	f := need(t)
	journey(t, "a machine waits for its image, its disk is cloned from it, byte by byte, for the Pod that KubeVirt starts; it runs, stops and starts, and nobody can delete the image meanwhile", func(t *testing.T) {
		m := f.Members()[0]
		img := backend.Create(t, m, "kind-machine", f.Image(backend.Downloads, "kind-machine"))
		vm := scene.Machine(img.Namespace, "kind-machine", img)
		require.NoError(t, m.Create(t.Context(), vm))
		backend.CleanUp(t, m.Client, vm.DeepCopy())
		got := &v1alpha1.VirtualMachine{}
		eventually := func(wanted string, holds func(*v1alpha1.VirtualMachine) bool) {
			t.Helper()
			backend.Await(t, wanted, func() bool {
				got = &v1alpha1.VirtualMachine{}
				return m.Get(t.Context(), client.ObjectKeyFromObject(vm), got) == nil && holds(got)
			}, func() string {
				return fmt.Sprintf("%s %s: %s", got.Status.Phase, got.Status.Reason, got.Status.Message)
			})
		}
		eventually("a machine that waits for its image", scene.MachineBecause(v1alpha1.ReasonWaitingForImage))
		eventually("a machine that runs", scene.MachineBecause(v1alpha1.ReasonRunning))
		there, why := scene.Holds(got, v1alpha1.ConditionRootDiskReady)
		require.True(t, there, why)
		var disks cdiv1.DataVolumeList
		require.NoError(t, m.List(t.Context(), &disks, client.InNamespace(vm.Namespace), client.MatchingLabels{v1alpha1.LabelMachineUID: string(got.UID)}))
		require.Len(t, disks.Items, 1)
		if f.Offline { // a guest that runs may write to it
			f.wantBytes(t, m, vm.Namespace, disks.Items[0].Name)
		}
		setRunStrategy(t, m, vm, kubevirtv1.RunStrategyHalted)
		eventually("a machine that is stopped", scene.MachineBecause(v1alpha1.ReasonStopped))
		setRunStrategy(t, m, vm, kubevirtv1.RunStrategyAlways)
		eventually("a machine that runs again", scene.MachineBecause(v1alpha1.ReasonRunning))

		require.NoError(t, m.Delete(t.Context(), img.DeepCopy()))
		backend.WantImage(t, m, img.Name, "held by the machine", backend.InPhase(v1alpha1.PhaseTerminating))
		require.NoError(t, m.Delete(t.Context(), vm.DeepCopy()))
		backend.Await(t, "the image goes with the machine", func() bool {
			return apierrors.IsNotFound(m.Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{}))
		}, func() string { return "it is still there" })
	})
}

// setRunStrategy does what virtctl stop and start come to, by KubeVirt's admission.
func setRunStrategy(t *testing.T, m backend.Member, vm *v1alpha1.VirtualMachine, strategy kubevirtv1.VirtualMachineRunStrategy) {
	t.Helper()
	machine := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Name}}
	require.NoError(t, m.Patch(t.Context(), machine, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec": {"runStrategy": %q}}`, strategy))))
}
