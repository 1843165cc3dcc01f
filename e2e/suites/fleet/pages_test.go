//go:build linux

package fleet_test

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/walkthrough"
)

// TestPages follows the commands of the documentation. suites/kind does the same on nodes.
func TestPages(t *testing.T) { walkthrough.FollowPages(t, pagesFleet{}) }

// pagesFleet is the shared fleet as a walkthrough.Fleet.
type pagesFleet struct{}

// Hub implements walkthrough.Fleet.
func (pagesFleet) Hub() client.Client { return shared }

// HubKubeconfig implements walkthrough.Fleet.
func (pagesFleet) HubKubeconfig() string { return shared.Plane.Kubeconfig() }

// PageMembers implements walkthrough.Fleet.
func (pagesFleet) PageMembers() (first, second walkthrough.Member) {
	of := func(name string) walkthrough.Member {
		m := shared.Members[name]
		return walkthrough.Member{Name: name, Kubeconfig: m.ControlPlane.Kubeconfig(), Client: m}
	}
	return of(frankfurt), of(edge)
}

// PageImage implements walkthrough.Fleet.
func (pagesFleet) PageImage(name string) v1alpha1.VMDiskImageSpec { return fleet.NewImageSpec(name) }

// ReadAPI implements walkthrough.Fleet: the hub is a process, without a Service.
func (pagesFleet) ReadAPI(*testing.T, *walkthrough.Reader) string { return shared.Hub.APIURL }

// NotRun implements walkthrough.Fleet.
func (pagesFleet) NotRun() []walkthrough.NotRun {
	return []walkthrough.NotRun{
		{Pattern: `^helm (--kube-context \S+ )?(install|upgrade) `, Reason: "e2e/suites/chart TestHelmCommandsInDocs"},
		{Pattern: `^kubectl -n sync-operator patch configmap `, Reason: "e2e/suites/chart TestUpgradeOfEditedPolicy"},
		{Pattern: `^helm (test|uninstall) `, Reason: "e2e/suites/kind TestPages, e2e/suites/chart TestHelmLifecycle"},
		{Pattern: `^kubectl ot join (push|pull) `, Reason: "e2e/suites/registration TestJoinPushCommand, TestJoinPullCommand"},
		{Pattern: `^kubectl ot dashboard`, Reason: "it serves until ctrl-C: e2e/suites/cli TestDashboard"},
		{Pattern: `^kubectl wait otvm/`, Reason: "needs KubeVirt: e2e/suites/kind TestPages"},
		{Pattern: `port-forward|^kubectl describe pod`, Reason: "needs a kubelet: e2e/suites/kind TestPages"},
	}
}
