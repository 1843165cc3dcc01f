//go:build linux

package kind_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
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
		img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromInt32(1))
		backend.Apply(t, f, img)
		backend.WantImage(t, f.Members()[0], img.VMDiskImage("1"), "on its way", backend.InPhase(v1alpha1.PhaseSyncing, v1alpha1.PhaseSucceeded))
		f.upgrade(t, "hub", hub.Namespace, "ot-hub")
		for _, m := range f.Members() {
			f.upgrade(t, m.Name, agent.Namespace, "ot-agent")
		}
		backend.WantFleetImage(t, f, img.Name, "in all clusters", backend.Succeeded)
		for _, m := range f.Members() {
			there := backend.Ready(t, f, m, img.VMDiskImage("1"))
			assert.Equal(t, 1, scene.History(t, observers[m.Name]).Attempts(there.UID), m.Name)
		}
	})
}

// upgrade rolls all Pods of a release, and waits for the new ones.
func (f *fleet) upgrade(t *testing.T, cluster, namespace, name string) {
	t.Helper()
	f.must(t, f.Helm, "--kubeconfig", f.kubeconfig(cluster), "upgrade", name, f.Charts+"/"+name, "--namespace", namespace,
		"--reuse-values", "--set-string", "podAnnotations.rolled="+metav1.Now().Format("150405"), "--wait", "--timeout", "8m")
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
		assert.NotEqual(t, leader.Name, f.leaderOnceThere(t, f.hub, hub.Namespace, "ot-hub", leader.Name))
		back()
		backend.Ready(t, f, m, img.Name)
		assert.Empty(t, scene.History(t, o).OverBudget())
	})
}

// leaderOnceThere waits until a program is led by another Pod than the one before.
func (f *fleet) leaderOnceThere(t *testing.T, c client.Reader, namespace, program, before string) (name string) {
	t.Helper()
	backend.Await(t, "another replica leads "+program, func() bool {
		if pod, err := f.leads(t.Context(), c, namespace, program); err == nil {
			name = pod.Name
		}
		return name != "" && name != before
	}, func() string { return "led by " + name })
	return name
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
		assert.Empty(t, scene.History(t, o).OverBudget())
	})
}

func TestMachine(t *testing.T) {
	f := need(t)
	journey(t, "a machine waits for its image, its disk is cloned from it, byte by byte, and nobody can delete the image meanwhile", func(t *testing.T) {
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
		eventually("KubeVirt's machine", func(vm *v1alpha1.VirtualMachine) bool {
			there, _ := scene.Holds(vm, v1alpha1.ConditionMachineCreated)
			return there
		})
		var disks cdiv1.DataVolumeList
		require.NoError(t, m.List(t.Context(), &disks, client.InNamespace(vm.Namespace), client.MatchingLabels{v1alpha1.LabelMachineUID: string(got.UID)}))
		require.Len(t, disks.Items, 1)
		f.consume(t, m, vm.Namespace, disks.Items[0].Name)
		eventually("its disk", func(vm *v1alpha1.VirtualMachine) bool {
			there, _ := scene.Holds(vm, v1alpha1.ConditionRootDiskReady)
			return there
		})
		f.wantBytes(t, m, vm.Namespace, disks.Items[0].Name)

		require.NoError(t, m.Delete(t.Context(), img.DeepCopy()))
		backend.WantImage(t, m, img.Name, "held by the machine", backend.InPhase(v1alpha1.PhaseTerminating))
		require.NoError(t, m.Delete(t.Context(), vm.DeepCopy()))
		backend.Await(t, "the image goes with the machine", func() bool {
			return apierrors.IsNotFound(m.Get(t.Context(), client.ObjectKeyFromObject(img), &v1alpha1.VMDiskImage{}))
		}, func() string { return "it is still there" })
	})
}

// consume is a claim's first consumer, which a class of kind waits for. virt-controller
// makes such a Pod where it starts a machine.
func (f *fleet) consume(t *testing.T, m backend.Member, namespace, claim string) {
	t.Helper()
	proxy := &appsv1.DaemonSet{}
	require.NoError(t, m.Get(t.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"}, proxy))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claim + "-first-consumer"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				// Each node has it.
				Name: "consumer", Image: proxy.Spec.Template.Spec.Containers[0].Image, Command: []string{"kube-proxy", "--version"},
				VolumeMounts: []corev1.VolumeMount{{Name: "disk", MountPath: "/disk", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	require.NoError(t, m.Create(t.Context(), pod))
	backend.CleanUp(t, m.Client, pod)
}
