//go:build linux

package cli_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// newcomer has what make up and make down run, with a directory of its own.
type newcomer struct {
	dir     string
	program string
	path    string // PATH, with kubectl-ot
}

func newNewcomer(t *testing.T) *newcomer {
	t.Helper()
	built, err := plugin.Build()
	require.NoError(t, err)
	n := &newcomer{dir: filepath.Join(t.TempDir(), "up"), program: filepath.Join(t.TempDir(), "demo"), path: filepath.Dir(built)}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", n.program, "github.com/pelotech/ot-fleet/e2e/demo").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		//nolint:usetesting // the test's context has ended
		out, err := exec.CommandContext(context.Background(), n.program, "down", n.dir).CombinedOutput()
		assert.NoError(t, err, "%s", out)
		assert.Empty(t, n.processes(), "processes that make down has left")
		assert.NoDirExists(t, n.dir)
	})
	return n
}

func (n *newcomer) up(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), n.program, "up", n.dir)
	cmd.Env = append(os.Environ(), "PATH="+n.path+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// processes returns those of the fleet.
func (n *newcomer) processes() (pids []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if environ, err := os.ReadFile(file); err == nil && strings.Contains(string(environ), "OT_FLEET_UP="+n.dir+"\x00") {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// commands returns those that up has printed.
func commands(printed string) (all []string) {
	for line := range strings.Lines(printed) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "bin/kubectl-ot ") {
			all = append(all, strings.TrimPrefix(line, "bin/"))
		}
	}
	return all
}

var numbers, spaces = regexp.MustCompile(`[0-9]+`), regexp.MustCompile(` +`)

// shape is a screen without what differs from run to run: numbers, and so widths of columns.
func shape(text string) string {
	return spaces.ReplaceAllString(numbers.ReplaceAllString(text, "#"), " ")
}

// run runs a command as it is printed, in a shell that has the kubeconfig.
func (n *newcomer) run(t *testing.T, command string) (screen string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), "PATH="+n.path+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(n.dir, "kubeconfig"), "OT_HUB=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		var ended *exec.ExitError
		require.ErrorAs(t, err, &ended)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// openPrinted opens the address of the dashboard that up has printed.
func openPrinted(t *testing.T, printed string) *openedDashboard {
	t.Helper()
	found := regexp.MustCompile(`(http://127\.0\.0\.1:\d+)/#key=(\w+)`).FindStringSubmatch(printed)
	require.NotNil(t, found, printed)
	d := &openedDashboard{origin: found[1], key: found[2]}
	d.signIn(t)
	var summary readapi.Summary
	require.Equal(t, http.StatusOK, d.send(t, "GET", summaryPath, "", &summary))
	assert.Equal(t, 3, summary.Members.Total)
	user, may := d.may(t)
	assert.Equal(t, "admin", user)
	assert.True(t, may["approve fleetdiskimages"])
	return d
}

// The first five minutes with OT Fleet: make up, the dashboard and the commands that it
// prints, and make down.
func TestFirstFiveMinutes(t *testing.T) {
	testenv.RunInTurn(t, 0)
	n := newNewcomer(t)
	printed := n.up(t)
	tried := commands(printed)
	require.Len(t, tried, 5, printed)
	servers := n.servers(t)
	require.Len(t, servers, 4, "the hub and three clusters")

	opened := openPrinted(t, printed)
	// The read API shows what is stored a moment later.
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		screen, code := n.run(t, tried[0])
		assert.Equal(check, 1, code, "an image of lab has failed\n%s", screen)
		for _, wanted := range []string{
			"FLEET hub · # clusters", "✗ # failing (lab", "TRANSFERS # of # slots", "golden #.#.# ! AwaitingApproval", "kubectl ot rollout approve golden --wave production",
			"lab vmdi-farm/no-such-image NotFound",
		} {
			assert.Contains(check, shape(screen), wanted, screen)
		}
	}, testenv.Patience, time.Second)

	// Its place in the queue comes with the next activity of its cluster.
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		screen, code := n.run(t, tried[1])
		assert.Equal(check, 3, code, "it waits\n%s", screen)
		assert.Regexp(check, `^◌ vmdi-farm/nightly-\d+ in bergen: Queued, WaitingForSlot, for \d`, screen)
		for _, wanted := range []string{"Waits for a slot. # of # are taken, # image", "vmdi-farm/nightly-#", " # GiB ", "WHY THE BUDGET IS # policy: concurrency # (fleet default)"} {
			assert.Contains(check, shape(screen), wanted, screen)
		}
	}, testenv.Patience, 500*time.Millisecond)

	screen, code := n.run(t, tried[2])
	assert.Equal(t, 4, code, "a person is waited for\n%s", screen)
	for _, wanted := range []string{"FleetDiskImage golden #.#.# ! Waiting AwaitingApproval # of #", "─ wave canary ✓ done", "─ wave production ! # of #"} {
		assert.Contains(t, shape(screen), wanted)
	}

	n.testUnlike(t, tried[3], tried[4])

	again := n.up(t)
	assert.Contains(t, again, "The fleet is running already, since ")
	require.Len(t, commands(again), 5)
	openPrinted(t, again)
	_, err := http.Get(opened.origin) //nolint:bodyclose,noctx // nothing answers
	require.Error(t, err, "another dashboard serves in its place")
	assert.Equal(t, servers, n.servers(t), "it is the same fleet")

	t.Run("prune", n.testPrune)

	t.Run("killed", func(t *testing.T) { n.testKilled(t, servers) })
}

// testKilled: a fleet that is killed takes all its processes with it, the next up cleans up, and
// one whose directory is removed ends by itself. It starts a second fleet.
func (n *newcomer) testKilled(t *testing.T, servers []string) {
	var state struct{ Pid int }
	text, err := os.ReadFile(filepath.Join(n.dir, "state.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &state))
	require.NoError(t, syscall.Kill(state.Pid, syscall.SIGKILL))
	// Race: on a busy machine it answers for a moment longer, and counts as running.
	require.Eventually(t, func() bool { return !slices.Contains(n.processes(), strconv.Itoa(state.Pid)) }, testenv.Patience, 10*time.Millisecond)
	printed := n.up(t)
	assert.Contains(t, printed, "Cleaned up a fleet that had ended without make down.")
	for _, server := range servers {
		assert.NotContains(t, n.servers(t), server, "another fleet")
	}

	servers = n.servers(t)
	require.NoError(t, os.RemoveAll(n.dir))
	require.Eventually(t, func() bool { return len(n.processes()) == 0 }, 5*time.Minute, 100*time.Millisecond, "it runs without its files")
	for _, server := range servers {
		_, err := net.Dial("tcp", server)
		require.Error(t, err, "%s is still taken", server)
	}
}

// testUnlike reads by what the clusters are unlike: edge's mirror, lab's storage class and its
// window, which is open at some times of the day.
func (n *newcomer) testUnlike(t *testing.T, where, policy string) {
	t.Helper()
	screen, code := n.run(t, where)
	assert.Equal(t, 0, code, screen)
	for _, wanted := range []string{"/cellar/golden-#.#.#.qcow#, storage class sim-csi, from overrides[#]", "golden.qcow#, storage class sim-local, from overrides[#]", "storage class sim-csi, from the template"} {
		assert.Contains(t, shape(screen), wanted, screen)
	}
	screen, code = n.run(t, policy)
	assert.Equal(t, 0, code, screen)
	for _, wanted := range []string{`"timeZone":"Europe/Oslo","concurrency":#}] override cluster=lab`, "policy: concurrency # · this cluster's own ConfigMap: none · its ledger: #, # taken"} {
		assert.Contains(t, shape(screen), wanted, screen)
	}
	screen, code = n.run(t, "kubectl-ot policy diff --set cluster=lab,windows=[]")
	assert.Equal(t, 1, code, screen)
	assert.Contains(t, shape(screen), "windows #→# override cluster=lab", screen)
	screen, code = n.run(t, "kubectl-ot policy diff --set cluster=bergen,concurrency=9")
	assert.Equal(t, 1, code, screen)
	assert.Contains(t, shape(screen), "# of # members would have windows: concurrency is that in force now, and the next window opens or closes at ", screen)
}

// servers returns the addresses of the fleet's API servers.
func (n *newcomer) servers(t *testing.T) (addresses []string) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(filepath.Join(n.dir, "kubeconfig"))
	require.NoError(t, err)
	for _, name := range []string{"hub", "bergen", "edge", "lab"} {
		require.Contains(t, config.Contexts, name)
		server, err := url.Parse(config.Clusters[config.Contexts[name].Cluster].Server)
		require.NoError(t, err)
		addresses = append(addresses, server.Host)
	}
	return addresses
}

// testPrune reports, reviews, approves and takes back, by the commands that the screens print.
func (n *newcomer) testPrune(t *testing.T) {
	overview, code := n.run(t, "kubectl-ot prune status")
	require.Equal(t, 0, code, overview)
	assert.Contains(t, overview, "kubectl ot prune report")
	report, code := n.run(t, "kubectl-ot prune report tour --images 'debian-*,fedora-*'")
	require.Equal(t, 0, code, report)
	assert.Contains(t, shape(report), "✓ complete #:# · # of # clusters answered", report)
	assert.Contains(t, shape(report), "CAN GO # images, # GiB; # of them made by people (# GiB), which stay without --include-others")

	review, code := n.run(t, "kubectl-ot prune review tour --include-others")
	require.Equal(t, 0, code, review)
	assert.Contains(t, shape(review), "vmdi-farm/debian-# # # GiB", review)
	approve := regexp.MustCompile(`kubectl ot (prune approve tour --digest [0-9a-f]{32} --include-others)`).FindStringSubmatch(review)
	require.NotNil(t, approve, review)

	refused, code := n.run(t, "kubectl-ot prune approve tour -y")
	require.Equal(t, 2, code, refused)
	assert.Contains(t, refused, "--digest of the report that was reviewed")
	refused, code = n.run(t, "kubectl-ot prune approve tour -y --include-others --digest 0")
	require.Equal(t, 2, code, refused)
	assert.Contains(t, refused, "another report than the one that was reviewed")
	refused, code = n.run(t, "kubectl-ot "+approve[1]+" </dev/null")
	require.Equal(t, 2, code, "nobody can be asked\n%s", refused)

	approved, code := n.run(t, "kubectl-ot "+approve[1]+" -y")
	require.Equal(t, 0, code, approved)
	assert.Contains(t, approved, "ImagePrune tour created, approved by admin")
	undone, code := n.run(t, "kubectl-ot prune undo tour")
	require.Equal(t, 0, code, undone)
	ended, code := n.run(t, "kubectl-ot prune status tour -w --timeout 5m")
	require.Equal(t, 0, code, ended)
	assert.Contains(t, ended, "ImagePrune tour: Undone Undone, 0 of ")
	_, code = n.run(t, "kubectl-ot prune undo tour")
	require.Equal(t, 0, code, "it is as it is wanted")
}
