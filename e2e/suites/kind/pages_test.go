//go:build linux

package kind_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/walkthrough"
)

const (
	agentPage           = "charts/ot-agent/README.md"
	hubPage             = "charts/ot-hub/README.md"
	troubleshootingPage = "docs/operate/troubleshooting.md"
	upgradePage         = "docs/operate/upgrade.md"
)

// TestPages follows the commands of the documentation, also those that need nodes: both charts are
// removed, installed and upgraded, and both members join again.
func TestPages(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "the commands of all pages, as a reader runs them: hub and agents are removed, installed, upgraded and joined again, in push and in pull mode", func(t *testing.T) {
		p := newPagesFleet(t, f)
		resultsPage.notRun = walkthrough.NotRunOn(p)
		walkthrough.FollowPages(t, p,
			walkthrough.Step{Name: "install the hub", Follow: p.installHub},
			walkthrough.Step{Name: "install an agent", Follow: p.installAgent},
			walkthrough.Step{Name: "edit its policy", Follow: p.editPolicy},
			walkthrough.Step{Name: "join in push mode", Follow: p.joinPush},
			walkthrough.Step{Name: "join in pull mode", Follow: p.joinPull},
			walkthrough.Step{Name: "look at Pods", Follow: p.lookAtPods},
		)
	})
}

// pagesFleet is the kind fleet as a walkthrough.Fleet.
type pagesFleet struct {
	*kindFleet
	hubKubeconfig   string
	frankfurt, edge walkthrough.Member
}

func newPagesFleet(t *testing.T, f *kindFleet) *pagesFleet {
	t.Helper()
	p := &pagesFleet{kindFleet: f, hubKubeconfig: f.writeNodeKubeconfig(t, "hub")}
	p.frankfurt, p.edge = p.memberInMode(t, false), p.memberInMode(t, true)
	return p
}

// memberInMode returns the first member in push or pull mode.
func (p *pagesFleet) memberInMode(t *testing.T, pull bool) walkthrough.Member {
	t.Helper()
	i := slices.IndexFunc(p.members, func(m fleetjourneys.Member) bool { return m.PullMode == pull })
	if i < 0 {
		t.Skip("needs a member in push mode and one in pull mode, as scripts/kind-up makes them")
	}
	m := p.members[i]
	return walkthrough.Member{Name: m.Name, Kubeconfig: p.writeNodeKubeconfig(t, m.Name), Client: m.Client}
}

// writeNodeKubeconfig writes a cluster's kubeconfig with the address that its node has in the network of
// all clusters: the one of kind is of this machine only, and the hub could not use it.
func (f *kindFleet) writeNodeKubeconfig(t *testing.T, cluster string) (path string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(f.kubeconfigPath(cluster))
	require.NoError(t, err)
	address, err := f.nodeAddress(t.Context(), f.clusterName(cluster)+"-control-plane")
	require.NoError(t, err)
	for _, c := range config.Clusters {
		c.Server = "https://" + address + ":6443"
	}
	path = filepath.Join(t.TempDir(), cluster)
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	return path
}

// HubKubeconfig implements walkthrough.Fleet.
func (p *pagesFleet) HubKubeconfig() string { return p.hubKubeconfig }

// PageMembers implements walkthrough.Fleet.
func (p *pagesFleet) PageMembers() (frankfurt, edge walkthrough.Member) { return p.frankfurt, p.edge }

// PageImage implements walkthrough.Fleet.
func (p *pagesFleet) PageImage(name string) v1alpha1.VMDiskImageSpec {
	spec := p.imageSpecAt("pages", name, "disk.qcow2")
	spec.StorageClass = "standard"
	return spec
}

// ReadAPI implements walkthrough.Fleet.
func (p *pagesFleet) ReadAPI(t *testing.T, r *walkthrough.Reader) string {
	t.Helper()
	command := walkthrough.FindCommand(t, walkthrough.MembersPage, "port-forward service/ot-hub")
	return "https://localhost:" + r.Start(t, command, forwarding, " 8443:443", " :443")[1]
}

// forwarding is what kubectl says of a forwarded port that it has chosen.
const forwarding = `Forwarding from 127\.0\.0\.1:(\d+) -> `

// NotRun implements walkthrough.Fleet.
func (p *pagesFleet) NotRun() []walkthrough.NotRun {
	return []walkthrough.NotRun{
		{Pattern: `^kubectl ot dashboard`, Reason: "it serves until ctrl-C: e2e/suites/cli TestDashboard"},
		{Pattern: `^helm install ot-agent .*hub\.join\.kubeconfig`, Reason: "the same command with `--kube-context` is run"},
	}
}

// image has helm take the images that were built here, of a chart.
func (p *pagesFleet) image(chart string) string {
	return p.Version + " --set image.repository=localhost/ot-kind/" + chart
}

// inCluster has a command of helm or kubectl run in a member, with the images that were built here.
func (p *pagesFleet) inCluster(m walkthrough.Member) []string {
	return []string{"helm ", "helm --kube-context " + m.Name + " ", "kubectl ", "kubectl --context " + m.Name + " ", "<version>", p.image("ot-agent")}
}

// installHub removes the hub's chart, and installs and upgrades it as each page says.
func (p *pagesFleet) installHub(t *testing.T, r *walkthrough.Reader) {
	authority, err := clientcmd.LoadFromFile(p.hubKubeconfig)
	require.NoError(t, err)
	r.WriteFile(t, "hub-ca.crt", string(authority.Clusters[authority.Contexts[authority.CurrentContext].Cluster].CertificateAuthorityData))
	replace := []string{"https://hub.example:6443", "https://" + p.clusterName("hub") + "-control-plane:6443", "<version>", p.image("ot-hub")}
	r.Run(t, walkthrough.FindCommand(t, walkthrough.InstallPage, "helm uninstall ot-hub"))
	r.Run(t, walkthrough.FindCommand(t, hubPage, "helm install ot-hub"), replace...)
	r.Run(t, walkthrough.CommandsBetween(t, hubPage, "helm uninstall ot-hub", "helm uninstall ot-hub")[0])
	r.Run(t, walkthrough.FindCommand(t, walkthrough.InstallPage, "helm install ot-hub"), replace...)
	r.Run(t, walkthrough.FindCommand(t, walkthrough.InstallPage, "helm test ot-hub"))
	for _, page := range []string{hubPage, upgradePage} {
		r.Run(t, walkthrough.FindCommand(t, page, "helm upgrade ot-hub"), replace...)
	}
}

// installAgent removes the agent's chart from frankfurt, installs it without a hub and upgrades it.
func (p *pagesFleet) installAgent(t *testing.T, r *walkthrough.Reader) {
	replace := p.inCluster(p.frankfurt)
	for _, command := range []string{"helm uninstall ot-agent", "helm install ot-agent", "helm test ot-agent"} {
		r.Run(t, walkthrough.FindCommand(t, walkthrough.InstallPage, command), replace...)
	}
	for _, page := range []string{agentPage, upgradePage} {
		r.Run(t, walkthrough.FindCommand(t, page, "helm upgrade ot-agent"), replace...)
	}
}

// editPolicy edits the policy of frankfurt, which an upgrade with another value has to name.
func (p *pagesFleet) editPolicy(t *testing.T, r *walkthrough.Reader) {
	replace := p.inCluster(p.frankfurt)
	r.Run(t, walkthrough.FindCommand(t, walkthrough.PolicyPage, "patch configmap"), append(replace, `"5"`, `"4"`)...)
	upgrades := walkthrough.CommandsBetween(t, walkthrough.PolicyPage, "helm upgrade ot-agent", "--force-conflicts")
	require.Len(t, upgrades, 2)
	said, err := r.Try(t, upgrades[0], replace...)
	require.Error(t, err)
	assert.Contains(t, said, `conflict with "kubectl-patch" using v1: .data.concurrency`)
	r.Run(t, upgrades[1], replace...)
	assert.Equal(t, "5", r.MustRun(t, "kubectl --context "+p.frankfurt.Name+" -n sync-operator get configmap sync-operator-policy -o jsonpath='{.data.concurrency}'"))
	r.Run(t, upgrades[1], append(replace, "concurrency=5", "concurrency=")...)
}

// joinPush installs the agent of frankfurt anew, for a hub, and joins it twice.
func (p *pagesFleet) joinPush(t *testing.T, r *walkthrough.Reader) {
	replace := p.inCluster(p.frankfurt)
	r.Run(t, walkthrough.CommandsBetween(t, agentPage, "helm uninstall ot-agent", "helm uninstall ot-agent")[0], replace...)
	r.Run(t, walkthrough.FindCommand(t, agentPage, "--set hub.serviceAccount.create=true"), replace...)
	join := walkthrough.FindCommand(t, walkthrough.MembersPage, "kubectl ot join push frankfurt --member frankfurt -- ")
	for range 2 {
		assert.Contains(t, r.Run(t, join, "<version>", p.image("ot-agent")), "MemberCluster "+p.frankfurt.Name+" is Ready")
	}
}

var keyFingerprint = regexp.MustCompile(`SHA256:[\w+/]{43}`)

// joinPull has edge leave the fleet, joins it by hand, and by the command that does the same.
func (p *pagesFleet) joinPull(t *testing.T, r *walkthrough.Reader) {
	replace := []string{"frankfurt", p.edge.Name, "<version>", p.image("ot-agent")}
	for _, command := range walkthrough.CommandsBetween(t, walkthrough.MembersPage, "kubectl delete membercluster", "delete secret ot-hub-join ot-hub-credential") {
		r.Run(t, command, replace...)
	}
	r.MustRun(t, "helm --kube-context "+p.edge.Name+" uninstall ot-agent --namespace ot-agent --ignore-not-found")
	var key string
	awaitKey := func(command string) {
		t.Helper()
		var said string
		fleetjourneys.AwaitCondition(t, "a key in what "+command+" says", func() bool {
			said, _ = r.Try(t, command, replace...)
			key = keyFingerprint.FindString(said)
			return key != ""
		}, func() string { return said })
	}
	for _, command := range walkthrough.CommandsBetween(t, walkthrough.MembersPage, "kubectl apply -f - <<'YAML'", `"acceptedKey"`) {
		switch {
		case strings.Contains(command, "get membercluster"), strings.Contains(command, "get syncledger"):
			before := key
			awaitKey(command)
			assert.Contains(t, []string{"", key}, before, "the hub and the agent show the same key")
		case strings.Contains(command, "acceptedKey"):
			r.Run(t, command, append(replace, "SHA256:…", key)...)
		default:
			r.Run(t, command, replace...)
		}
	}
	r.MustRun(t, "kubectl wait membercluster "+p.edge.Name+" --for=condition=Ready --timeout=5m")
	join := walkthrough.FindCommand(t, walkthrough.MembersPage, "kubectl ot join pull frankfurt --member frankfurt --auto-accept -- ")
	assert.Contains(t, r.Run(t, join, replace...), "MemberCluster "+p.edge.Name+" is Ready")
}

// lookAtPods runs what needs a kubelet.
func (p *pagesFleet) lookAtPods(t *testing.T, r *walkthrough.Reader) {
	describe := walkthrough.FindCommand(t, troubleshootingPage, "kubectl describe pod")
	assert.Contains(t, r.Run(t, describe, "kubectl", "kubectl --context "+p.frankfurt.Name+" -n ot-agent"), "Restart Count")
	forward := walkthrough.FindCommand(t, troubleshootingPage, "port-forward deploy/ot-agent")
	port := r.Start(t, forward, forwarding, "kubectl", "kubectl --context "+p.frankfurt.Name, " 8081", " :8081")[1]
	assert.Contains(t, r.MustRun(t, "curl --silent 'http://localhost:"+port+"/readyz?verbose'"), "[+]rights ok")
}
