//go:build linux

package cli_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/ui"
)

// openedDashboard is kubectl ot dashboard, and a browser that is signed in to it.
type openedDashboard struct {
	*exec.Cmd
	origin, key string
	cookies     []*http.Cookie
}

// openDashboard starts the dashboard as a person does, and opens the address that it prints.
func openDashboard(t *testing.T, person *plugin.Plugin) *openedDashboard {
	t.Helper()
	d, problem := tryDashboard(t, person)
	require.NotNil(t, d, problem)
	return d
}

// tryDashboard returns nil, and what was said, where the dashboard ends at once.
func tryDashboard(t *testing.T, person *plugin.Plugin) (d *openedDashboard, problem string) {
	t.Helper()
	command, err := person.Command(t.Context(), "dashboard", "--no-open")
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	problems := &strings.Builder{}
	command.Stderr = problems
	require.NoError(t, command.Start())
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		require.Error(t, command.Wait())
		assert.Equal(t, 2, command.ProcessState.ExitCode())
		return nil, problems.String()
	}
	d = &openedDashboard{Cmd: command}
	var found bool
	d.origin, d.key, found = strings.Cut(strings.TrimSpace(address), "/#key=")
	require.True(t, found, address)
	require.True(t, strings.HasPrefix(d.origin, "http://127.0.0.1:"), d.origin)
	return d, ""
}

func (d *openedDashboard) request(ctx context.Context, t *testing.T, method, path, body string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, method, d.origin+path, strings.NewReader(body))
	require.NoError(t, err)
	for _, c := range d.cookies {
		request.AddCookie(c)
	}
	if method != http.MethodGet {
		request.Header.Set("Origin", d.origin)
		request.Header.Set(ui.WriteHeader, "1")
		request.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	return response
}

// send returns the status of an answer, and decodes it.
func (d *openedDashboard) send(t *testing.T, method, path, body string, into any) int {
	t.Helper()
	response := d.request(t.Context(), t, method, path, body)
	defer func() { _ = response.Body.Close() }()
	d.cookies = append(d.cookies, response.Cookies()...)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if into != nil {
		require.NoError(t, json.Unmarshal(text, into), "%s", text)
	}
	return response.StatusCode
}

func (d *openedDashboard) signIn(t *testing.T) {
	t.Helper()
	require.Equal(t, http.StatusUnauthorized, d.send(t, "GET", "/auth/me", "", nil), "before")
	require.Equal(t, http.StatusNoContent, d.send(t, "POST", "/auth/key", fmt.Sprintf(`{"key":%q}`, d.key), nil))
}

func (d *openedDashboard) may(t *testing.T) (user string, may map[string]bool) {
	t.Helper()
	var me ui.Me
	require.Equal(t, http.StatusOK, d.send(t, "GET", "/auth/me", "", &me))
	may = map[string]bool{}
	for _, p := range me.May {
		may[p.Verb+" "+p.Resource] = p.Allowed
	}
	return me.User, may
}

// interrupt ends it as ctrl-C does, also where a stream is open.
func (d *openedDashboard) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, d.Process.Signal(syscall.SIGINT))
	var ended *exec.ExitError
	require.ErrorAs(t, d.Wait(), &ended)
	assert.Equal(t, 130, ended.ExitCode())
	_, err := http.Get(d.origin) //nolint:bodyclose,noctx // nothing answers
	require.Error(t, err)
}

// summaryPath is what each page reads first.
const summaryPath = readapi.Root + "summary"

// TestDashboard reads and writes as the person who runs it, and what they may not do is refused
// by the API server.
func TestDashboard(t *testing.T) {
	const name = "by-dashboard"
	img := fleet.NewFleetImage(name, bergen)
	img.Spec.Version, img.Spec.Template.URL = "1.0.0", shared.source.URL+"/"+name
	shared.CreateForTest(t, img)
	path := "/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/" + name

	d := openDashboard(t, shared.Plugin)
	response := d.request(t.Context(), t, "GET", "/clusters/bergen", "")
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusOK, response.StatusCode)
	assert.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'none'")
	d.signIn(t)
	var summary readapi.Summary
	require.Equal(t, http.StatusOK, d.send(t, "GET", summaryPath, "", &summary))
	user, may := d.may(t)
	assert.Equal(t, "system:serviceaccount:people:anna", user)
	for what, allowed := range may {
		assert.True(t, allowed, what)
	}
	require.Equal(t, http.StatusOK, d.send(t, "PATCH", path, `{"spec":{"rollout":{"paused":true}}}`, nil))
	changed := getFleetImage(t, name)
	assert.True(t, changed.Spec.Rollout.Paused)
	managers := map[string]bool{}
	for _, entry := range changed.ManagedFields {
		managers[entry.Manager] = true
	}
	assert.True(t, managers[ui.FieldManager], "%v", managers)
	require.Equal(t, http.StatusOK, d.send(t, "PATCH", path+"?dryRun=All", `{"spec":{"rollout":{"paused":false}}}`, nil))
	assert.True(t, getFleetImage(t, name).Spec.Rollout.Paused, "tried only")
	assert.Equal(t, http.StatusNotFound, d.send(t, "PATCH", path+"/status", "{}", nil))

	another := openDashboard(t, shared.Plugin)
	another.cookies = d.cookies
	assert.Equal(t, http.StatusUnauthorized, another.send(t, "GET", summaryPath, "", nil), "a cookie is of one process")
	another.interrupt(t)
	d.interrupt(t)
}

// TestDashboardOfAViewer: who may read sees the fleet, and a write that the page does not offer is
// refused by the API server. Who may not read is told so.
func TestDashboardOfAViewer(t *testing.T) {
	const name = "viewed"
	img := fleet.NewFleetImage(name, bergen)
	img.Spec.Version, img.Spec.Template.URL = "1.0.0", shared.source.URL+"/"+name
	shared.CreateForTest(t, img)
	vera := asViewer(t, "vera")
	grant := func(what string, rule rbacv1.PolicyRule) {
		named := metav1.ObjectMeta{Name: "people-vera-" + what}
		shared.CreateForTest(t, &rbacv1.ClusterRole{ObjectMeta: named, Rules: []rbacv1.PolicyRule{rule}})
		shared.CreateForTest(t, &rbacv1.ClusterRoleBinding{
			ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: named.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: plugin.PeopleNamespace, Name: "vera"}},
		})
	}
	_, problem := tryDashboard(t, vera)
	assert.Contains(t, problem, "the dashboard needs the hub's read API")
	var d *openedDashboard
	// API server and hub remember a refusal for a moment.
	says := func(text string) func() bool {
		return func() bool {
			if d, problem = tryDashboard(t, vera); d != nil {
				return text == ""
			}
			return text != "" && strings.Contains(problem, text)
		}
	}
	grant("leases", rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"list"}})
	require.True(t, testenv.AwaitCondition(t, says("ClusterRole ot-hub-reader")))
	grant("read", rbacv1.PolicyRule{NonResourceURLs: []string{readapi.Root + "*"}, Verbs: []string{"get"}})
	require.True(t, testenv.AwaitCondition(t, says("")))
	d.signIn(t)
	require.Equal(t, http.StatusOK, d.send(t, "GET", summaryPath, "", nil))
	user, may := d.may(t)
	assert.Equal(t, "system:serviceaccount:people:vera", user)
	assert.True(t, may["get fleet"])
	assert.False(t, may["approve fleetdiskimages"])
	assert.False(t, may["update memberclusters"])
	var answer metav1.Status
	forged := "/k8s/apis/pelotech.ot/v1alpha1/memberclusters/" + bergen
	require.Equal(t, http.StatusForbidden, d.send(t, "PATCH", forged, `{"spec":{"quarantine":{"reason":"forged"}}}`, &answer))
	assert.Equal(t, metav1.StatusReasonForbidden, answer.Reason)
	assert.Contains(t, answer.Message, "system:serviceaccount:people:vera", "the API server knows who it was")
	assert.Nil(t, shared.GetMember(t, bergen).Spec.Quarantine)
	d.interrupt(t)
}

// TestDashboardSurvivesTheElectedHub: a page that is open goes on once another hub is elected.
func TestDashboardSurvivesTheElectedHub(t *testing.T) {
	testenv.RunInTurn(t, 1)
	d := openDashboard(t, shared.Plugin)
	d.signIn(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	openStream := func() *bufio.Reader {
		response := d.request(ctx, t, "GET", readapi.Root+"events", "")
		t.Cleanup(func() { _ = response.Body.Close() })
		if response.StatusCode != http.StatusOK {
			return nil
		}
		stream := bufio.NewReader(response.Body)
		_, err := stream.ReadString('\n')
		require.NoError(t, err)
		return stream
	}
	stream := openStream()
	require.NotNil(t, stream)
	shared.Hub.Kill()
	<-shared.Hub.Done()
	t.Cleanup(func() { shared.RestartHub(t) })
	_, err := io.Copy(io.Discard, stream)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the stream ends with its replica")
	var answer readapi.ErrorAnswer
	require.Equal(t, http.StatusServiceUnavailable, d.send(t, "GET", summaryPath, "", &answer))
	assert.NotEmpty(t, answer.Error)
	shared.RestartHub(t)
	require.True(t, testenv.AwaitCondition(t, func() bool { return d.send(t, "GET", summaryPath, "", nil) == http.StatusOK }))
	require.NotNil(t, openStream())
	d.interrupt(t) // while the stream is open
}
