//go:build linux

// Package walkthrough follows the commands and examples of the documentation on a fleet, whatever
// that runs on. A command that is neither run nor listed as not run fails the test.
package walkthrough

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
)

// Pages that are followed.
const (
	ImagesPage   = "docs/images.md"
	InstallPage  = "docs/operate/install.md"
	MachinesPage = "docs/machines.md"
	MembersPage  = "docs/operate/members.md"
	PolicyPage   = "docs/policy.md"
	RolloutsPage = "docs/rollouts-and-prune.md"
	SourcesPage  = "docs/sources.md"
	WaitingPage  = "docs/waiting.md"
)

// imageNamespace has all images of the pages.
const imageNamespace = "vmdi-farm"

// Fleet is a hub with its members, as the reader of the pages has them.
type Fleet interface {
	// Hub returns a client of the hub's API server with all rights.
	Hub() client.Client
	// HubKubeconfig returns the path of the hub's kubeconfig.
	HubKubeconfig() string
	// PageMembers returns the two members that the pages call frankfurt and edge. The hub
	// connects to frankfurt.
	PageMembers() (frankfurt, edge Member)
	// PageImage returns an image that the source serves.
	PageImage(name string) v1alpha1.VMDiskImageSpec
	// ReadAPI returns where the read API is that the pages reach at https://localhost:8443.
	ReadAPI(t *testing.T, r *Reader) (url string)
	// NotRun lists the commands that are not run on this fleet, but for those of no fleet.
	NotRun() []NotRun
}

// Member is a cluster of the fleet.
type Member struct {
	Name, Kubeconfig string
	// Client has all rights.
	client.Client
}

// NotRun says which commands are not run on a fleet, by a regular expression, and why.
type NotRun struct{ Pattern, Reason string }

// notRunAnywhere lists the commands that are run on no fleet.
var notRunAnywhere = []NotRun{
	{
		`^kubectl .*(ot-hub-ui|wall-display|fleet-readers)|^helm upgrade ot-hub .*ui\.enabled`,
		"needs a hub that serves the dashboard: e2e/suites/signin TestCommandsOfThePage, e2e/suites/chart TestHelmCommandsInDocs",
	},
	{`^make `, "the Makefile's own: it builds, and runs the tests"},
	{`^helm upgrade ot-hub .*pull\.apiURL`, "the hub of each fleet has such an address: e2e/suites/chart TestHelmCommandsInDocs"},
	{`^skopeo `, "needs a registry of the reader's"},
	{`^kubectl config view --minify --flatten --raw `, "reads a CA that each fleet writes itself"},
	{`^kubectl get serviceaccounts --namespace openshift-cnv`, "needs OpenShift"},
	{`^kubectl ot (accept|leave) `, "needs an agent that asks, and ends a member: e2e/suites/registration TestJoinCommandConfirmsKey, TestLeaveCommandInPullMode"},
	{`^kubectl ot (completion|events|logs|quarantine|version)\b`, "e2e/suites/cli TestCompletion, TestEventsAndLogs, TestQuarantine, TestVersion"},
	{`^kubectl ot (doctor|get|policy|prune|status|top|tree|why)\b`, "names a verb, or is one of e2e/suites/cli"},
	{`^kubectl ot join( push| pull)?( --label)?$`, "names the command, and is not one: e2e/suites/registration"},
	{`^kubectl ot (doctor|support-bundle) `, "needs CDI's controllers: e2e/suites/doctor TestCommandsOfThePage"},
	{
		`^kubectl delete (otvm|vmdiskimages|fleetdiskimages,\S+|memberclusters) --all|^kubectl delete (crd|namespace) |^kubectl -n ot-hub delete secret -l |^kubectl label clusters.cluster.x-k8s.io --all`,
		"removes all of a fleet: e2e/suites/chart TestHelmLifecycle",
	},
	{`^kubectl ot (image|rollout|preload) `, "names a verb: e2e/suites/cli TestPipelinesPage, TestRolloutByCommands, TestPreload"},
	{
		`^kubectl label clusters.cluster.x-k8s.io frankfurt |^kubectl label membercluster bergen |^helm upgrade ot-hub .*clusterAPI`,
		"needs Cluster API, or a cluster without an agent: e2e/suites/connect, e2e/suites/install",
	},
}

// NotRunOn returns what is not run on a fleet, and why.
func NotRunOn(f Fleet) []NotRun { return slices.Concat(f.NotRun(), notRunAnywhere) }

// Step follows a part of the pages.
type Step struct {
	Name   string
	Follow func(*testing.T, *Reader)
}

// steps are those of every fleet.
var steps = []Step{
	{"policy", followPolicy},
	{"rollout", followRollout},
	{"readme", followReadme},
	{"helm", followHelm},
	{"prune", followPrune},
	{"images", followImages},
	{"push", followPushByHand},
	{"pull", followPullByHand},
	{"read API", followReadAPI},
	{"reads", followReads},
	{"dry runs", tryWrites},
	{"edit", followEdit},
}

// Reader follows the pages and remembers which commands it has run.
type Reader struct {
	*pages.Terminal
	Frankfurt, Edge Member

	fleet  Fleet
	hub    client.Client
	notRun []*regexp.Regexp
	done   map[string]bool
}

// FollowPages follows all pages on a fleet: first the given steps, then those of every fleet.
func FollowPages(t *testing.T, f Fleet, first ...Step) {
	frankfurt, edge := f.PageMembers()
	r := &Reader{
		Terminal:  pages.OpenTerminal(t, "hub", map[string]string{"hub": f.HubKubeconfig(), frankfurt.Name: frankfurt.Kubeconfig, edge.Name: edge.Kubeconfig}),
		Frankfurt: frankfurt, Edge: edge,
		fleet: f, hub: f.Hub(), done: map[string]bool{},
	}
	for _, n := range NotRunOn(f) {
		r.notRun = append(r.notRun, regexp.MustCompile(n.Pattern))
	}
	for _, m := range []Member{frankfurt, edge} {
		ensureNamespaces(t, m.Client, imageNamespace)
		t.Cleanup(func() {
			assert.NoError(t, m.DeleteAllOf(context.Background(), &v1alpha1.VMDiskImage{}, client.InNamespace(imageNamespace)))
		})
	}
	for _, step := range slices.Concat(first, steps) {
		t.Run(step.Name, func(t *testing.T) { step.Follow(t, r) })
	}
	r.checkAllRun(t)
}

// checkAllRun wants every command of the pages to have been run or to be listed as not run, and
// each entry of that list to name one that was not.
func (r *Reader) checkAllRun(t *testing.T) {
	var left []string
	for _, page := range pages.List(t) {
		for _, command := range page.Commands() {
			if !r.done[command] {
				left = append(left, command)
			}
		}
	}
	unlisted, unused := compareWithList(left, r.notRun)
	assert.Empty(t, unlisted, "commands of pages that no test runs")
	assert.Empty(t, unused, "every command that these match is run: remove them from the list of those that are not")
}

// compareWithList returns those of the commands left that no pattern matches, and the patterns
// that match none of them.
func compareWithList(left []string, notRun []*regexp.Regexp) (unlisted []string, unused []*regexp.Regexp) {
	unlisted = slices.DeleteFunc(slices.Clone(left), func(command string) bool {
		return slices.ContainsFunc(notRun, func(p *regexp.Regexp) bool { return p.MatchString(command) })
	})
	unused = slices.DeleteFunc(slices.Clone(notRun), func(p *regexp.Regexp) bool { return slices.ContainsFunc(left, p.MatchString) })
	return unlisted, unused
}

// isListed reports whether the fleet lists a command as not run.
func (r *Reader) isListed(command string) bool {
	unlisted, _ := compareWithList([]string{command}, r.notRun)
	return len(unlisted) == 0
}

// Run runs a command that a page has, with replacements for what a reader fills in. Where the
// page says frankfurt, the fleet's member is named.
func (r *Reader) Run(t *testing.T, command string, replace ...string) string {
	t.Helper()
	output, err := r.Try(t, command, replace...)
	require.NoError(t, err, "%s\n%s", command, output)
	return output
}

// Try is Run for a command that may fail.
func (r *Reader) Try(t *testing.T, command string, replace ...string) (string, error) {
	t.Helper()
	r.done[command] = true
	return r.Terminal.Run(t, r.fillIn(command, replace...))
}

// Start runs a command of a page until the test ends, and returns the submatches of a pattern in
// its output.
func (r *Reader) Start(t *testing.T, command, wanted string, replace ...string) []string {
	t.Helper()
	r.done[command] = true
	return r.Terminal.Start(t, r.fillIn(command, replace...), regexp.MustCompile(wanted))
}

func (r *Reader) fillIn(command string, replace ...string) string {
	return strings.NewReplacer(slices.Concat(replace, []string{"frankfurt", r.Frankfurt.Name})...).Replace(command)
}

// columns runs a documented `kubectl get` and checks that the page shows the columns it has.
func (r *Reader) columns(t *testing.T, page, command string, replace ...string) {
	t.Helper()
	output := r.Run(t, command, replace...)
	header, _, _ := strings.Cut(output, "\n")
	assert.Equal(t, pages.Read(t, page).ShownColumns(t, command), strings.Fields(header), "%s: %s", page, command)
}

var (
	urlField           = regexp.MustCompile(`(\burl: )"?https://[^",}\s]+"?`)
	diskSizeField      = regexp.MustCompile(`(\bdiskSize: )\w+`)
	storageClassField  = regexp.MustCompile(`(\bstorageClass: )\w+`)
	snapshotClassField = regexp.MustCompile(`(?m)^ +snapshotClass: .*\n`)
)

// example returns the example of a page that contains a text, with an image that the fleet's
// source serves.
func (r *Reader) example(t *testing.T, page, contains, image string) string {
	t.Helper()
	spec := r.fleet.PageImage(image)
	text := pages.Read(t, page).Block(t, "yaml", contains)
	text = urlField.ReplaceAllString(text, `${1}"`+spec.URL+`"`)
	text = diskSizeField.ReplaceAllString(text, "${1}"+spec.DiskSize.String())
	text = storageClassField.ReplaceAllString(text, "${1}"+spec.StorageClass)
	return snapshotClassField.ReplaceAllString(text, "")
}

// FindCommand returns the only command of a page that contains a text.
func FindCommand(t *testing.T, page, contains string) string {
	t.Helper()
	var found []string
	for _, command := range pages.Read(t, page).Commands() {
		if strings.Contains(command, contains) {
			found = append(found, command)
		}
	}
	require.Len(t, found, 1, "%s: commands that contain %q", page, contains)
	return found[0]
}

// CommandsBetween returns the commands of a page from the one that contains first to the one that
// contains last.
func CommandsBetween(t *testing.T, page, first, last string) []string {
	t.Helper()
	commands := pages.Read(t, page).Commands()
	from := slices.IndexFunc(commands, func(c string) bool { return strings.Contains(c, first) })
	require.GreaterOrEqual(t, from, 0, "%s has no command with %q", page, first)
	length := slices.IndexFunc(commands[from:], func(c string) bool { return strings.Contains(c, last) })
	require.GreaterOrEqual(t, length, 0, "%s has no command with %q after that", page, last)
	return commands[from : from+length+1]
}

// ensureNamespaces creates those namespaces that are missing. They stay until their cluster goes:
// some fleets have no controller that could empty them.
func ensureNamespaces(t *testing.T, c client.Client, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, client.IgnoreAlreadyExists(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})))
	}
}

// createOnce creates an object that may be there already, and deletes it only where it was not.
func createOnce(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	err := c.Create(t.Context(), o)
	if apierrors.IsAlreadyExists(err) {
		return
	}
	require.NoError(t, err)
	fleetjourneys.DeleteAfterTest(t, c, o)
}
