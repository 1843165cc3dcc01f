//go:build linux

package kind_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// twoWorkerMember is the member with two workers.
const twoWorkerMember = "bergen"

func TestNodeDrain(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "the node of the hub's elected replica is drained: the other one goes on; the node on which an image is downloaded is drained: the image comes when the node is back", func(t *testing.T) {
		m := f.requireMember(t, twoWorkerMember)
		leader := f.awaitLeaderPod(t, f.hub, program.HubNamespace, "ot-hub")
		f.drainNode(t, "hub", leader.Spec.NodeName)
		o := fleetjourneys.ObserveMember(t, m)
		img := fleetjourneys.CreateImage(t, m, "kind-drained", f.ImageSpec(fleetjourneys.SlowDownload, "kind-drained"))
		node := f.awaitImporterNode(t, m, img)
		back := f.drainNode(t, m.Name, node)
		f.awaitNewLeader(t, f.hub, program.HubNamespace, "ot-hub", leader.Name)
		back()
		fleetjourneys.AwaitReadyImage(t, f, m, img.Name)
		h := testenv.History(t, o)
		assert.Empty(t, h.BudgetViolations())
		assert.LessOrEqual(t, h.Attempts(img.UID), 2, "what was drained away is made up for once")
	})
}

// awaitNewLeader waits until another Pod than before holds a program's Lease.
func (f *kindFleet) awaitNewLeader(t *testing.T, c client.Reader, namespace, program, before string) {
	t.Helper()
	var name string
	fleetjourneys.AwaitCondition(t, "another replica leads "+program, func() bool {
		if pod, err := f.findLeaderPod(t.Context(), c, namespace, program); err == nil {
			name = pod.Name
		}
		return name != "" && name != before
	}, func() string { return "led by " + name })
}

// awaitImporterNode waits until an image is being downloaded and returns the node.
func (f *kindFleet) awaitImporterNode(t *testing.T, m fleetjourneys.Member, img *v1alpha1.VMDiskImage) (node string) {
	t.Helper()
	fleetjourneys.AwaitCondition(t, "an importer Pod that runs", func() bool {
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

// drainNode drains a node; back makes it schedulable again.
func (f *kindFleet) drainNode(t *testing.T, cluster, node string) (back func()) {
	t.Helper()
	kubeconfig := f.kubeconfigPath(cluster)
	back = func() {
		_, err := f.runProgram(context.Background(), f.Kubectl, "--kubeconfig", kubeconfig, "uncordon", node)
		require.NoError(t, err)
	}
	t.Cleanup(back)
	f.requireProgram(t, f.Kubectl, "--kubeconfig", kubeconfig, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=5m")
	return back
}

func TestNodeLoss(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "the node on which an image is downloaded loses its power: the budget holds, and all images come when it is back", func(t *testing.T) {
		fleetjourneys.SetPolicy(t, f, map[string]string{"concurrency": "2"})
		m := f.requireMember(t, twoWorkerMember)
		o := fleetjourneys.ObserveMember(t, m)
		var images []*v1alpha1.VMDiskImage
		for i := range 3 {
			name := fmt.Sprintf("kind-lost-%d", i)
			images = append(images, fleetjourneys.CreateImage(t, m, name, f.ImageSpec(fleetjourneys.SlowDownload, name)))
		}
		node := f.awaitImporterNode(t, m, images[0])
		f.requireProgram(t, "docker", "kill", node)
		started := false
		start := func() {
			if !started {
				started = true
				_, err := f.runEngine(context.Background(), "start", node)
				require.NoError(t, err)
			}
		}
		t.Cleanup(start)
		fleetjourneys.AwaitCondition(t, "the node is given up", func() bool {
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
			fleetjourneys.AwaitReadyImage(t, f, m, img.Name)
		}
		h := testenv.History(t, o)
		assert.Empty(t, h.BudgetViolations())
		assert.Empty(t, h.EventsExceeding(2), "importer Pods of a lost node count")
	})
}
