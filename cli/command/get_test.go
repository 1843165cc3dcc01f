package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
)

// serveMembers is an API server that has MemberClusters, and lets KUBECONFIG lead there.
func serveMembers(t *testing.T, members ...v1alpha1.MemberCluster) {
	serveContexts(t, answerWith(t, answersOf(members...)), "hub")
}

// answersOf returns the answers of an API server that has MemberClusters, by their paths.
func answersOf(members ...v1alpha1.MemberCluster) map[string]any {
	group := v1alpha1.GroupVersion
	version := metav1.GroupVersionForDiscovery{GroupVersion: group.String(), Version: group.Version}
	return map[string]any{
		"/api": metav1.APIVersions{Versions: []string{"v1"}},
		"/api/v1": metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", SingularName: "configmap", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"get"}},
			{Name: "namespaces", SingularName: "namespace", Kind: "Namespace", Verbs: metav1.Verbs{"get"}},
		}},
		"/apis":                metav1.APIGroupList{Groups: []metav1.APIGroup{{Name: group.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}}},
		"/apis/" + group.Group: metav1.APIGroup{Name: group.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
		"/apis/" + group.String(): metav1.APIResourceList{GroupVersion: group.String(), APIResources: []metav1.APIResource{
			{Name: "memberclusters", SingularName: "membercluster", Kind: "MemberCluster", Verbs: metav1.Verbs{"list"}},
		}},
		"/apis/" + group.String() + "/memberclusters": v1alpha1.MemberClusterList{TypeMeta: metav1.TypeMeta{APIVersion: group.String(), Kind: "MemberClusterList"}, Items: members},
	}
}

// answerWith answers requests by their path.
func answerWith(t *testing.T, answers map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(answer))
	}
}

// serveContexts is an API server to which contexts of KUBECONFIG lead, the first one as the current one.
func serveContexts(t *testing.T, handler http.HandlerFunc, contexts ...string) {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	var named []string
	for _, name := range contexts {
		named = append(named, fmt.Sprintf(`{"name": %q, "context": {"cluster": "it", "user": "anna"}}`, name))
	}
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": %q, "clusters": [{"name": "it", "cluster": {"server": %q}}],
		"contexts": [%s], "users": [{"name": "anna", "user": {"token": "t"}}]}`, contexts[0], server.URL, strings.Join(named, ", ")), 0o600))
	t.Setenv("KUBECONFIG", path)
	t.Setenv("OT_HUB", "")
}

// Scripts go by rows alone, or by the exit code alone.
func TestOutputsForScripts(t *testing.T) {
	lab := v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}
	lab.Status.Images = &v1alpha1.MemberImages{Failed: 12345678}
	serveMembers(t, lab)
	for line, want := range map[string]struct {
		code        exit.Code
		out, errOut string
	}{
		"get clusters --no-headers --unknown -o custom-columns=NAME:.name,N:.failed": {out: "lab  12345678\n"},
		"get clusters --no-headers bergen --failing":                                 {code: exit.Unanswered, errOut: "Of 1 cluster, none matches.\nerror: not found: bergen\n"},
		"get clusters -o go-template={{range.items}}{{.failed}}{{end}}":              {out: "12345678\n"},
		"get clusters -q":                       {},
		"get clusters bergen -q":                {code: exit.Unanswered, errOut: "error: not found: bergen\n"},
		"get clusters -q -o json":               {code: exit.Unanswered, errOut: "error: -q prints no answer: leave out -o, or -q\n"},
		"get clusters --no-headers -o markdown": {code: exit.Unanswered, errOut: "error: tables of -o markdown have titles: leave out --no-headers, or -o\n"},
	} {
		t.Run(line, func(t *testing.T) {
			out, errOut := &bytes.Buffer{}, &bytes.Buffer{}
			code := Run(strings.Fields(line), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: out, ErrOut: errOut}, "v1.2.3")
			assert.Equal(t, want.code, code)
			assert.Equal(t, want.out, out.String())
			assert.Equal(t, want.errOut, errOut.String())
		})
	}
}

// A selector that selects nothing is mistyped, in lists as in all commands.
func TestGetRefusesASelectorOfNothing(t *testing.T) {
	serveMembers(t)
	for _, line := range []string{"get clusters -l region=nordisc", "get images --failing -l region=nordisc", "status -l region=nordisc"} {
		errOut := &bytes.Buffer{}
		code := Run(strings.Fields(line), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3")
		assert.Equal(t, exit.Unanswered, code, line)
		assert.Equal(t, "error: -l region=nordisc: selects no cluster of the fleet\n", errOut.String(), line)
	}
}

// A bundle of a cluster that does not exist is not begun, and a policy that does not exist is named.
func TestWhatIsMissingIsNamed(t *testing.T) {
	serveMembers(t)
	for line, want := range map[string]string{
		"support-bundle --cluster nope --list": "error: context hub: ",
		"policy diff --set concurrency=1":      "ConfigMap sync-operator/sync-operator-policy is missing: --set changes an empty one\n",
	} {
		out, errOut := &bytes.Buffer{}, &bytes.Buffer{}
		code := Run(strings.Fields(line), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: out, ErrOut: errOut}, "v1.2.3")
		assert.True(t, strings.HasPrefix(errOut.String(), want), errOut.String())
		if strings.HasPrefix(want, "error: ") {
			assert.Equal(t, exit.Unanswered, code)
			assert.Empty(t, out.String())
		}
	}
}

// The hub is no member: what it lacks as one says nothing.
func TestDoctorDoesNotJudgeTheHub(t *testing.T) {
	serveMembers(t)
	errOut := &bytes.Buffer{}
	assert.Equal(t, exit.Unanswered, Run([]string{"doctor"}, genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3"))
	assert.Equal(t, "error: context hub is the hub, which has no images: name a cluster with --cluster, or its context with --member-context\n", errOut.String())
}

func TestNegativeNumbersAreRefused(t *testing.T) {
	serveMembers(t)
	for line, want := range map[string]string{
		"get clusters --limit -1": "--limit -1", "tree rollout ubuntu --depth -1": "--depth -1", "events ubuntu --limit -1": "--limit -1",
		"events cluster lab --limit=-5": "--limit -5", "prune review spring --limit -1": "--limit -1", "logs ubuntu --tail -1": "--tail -1",
	} {
		errOut := &bytes.Buffer{}
		assert.Equal(t, exit.Unanswered, Run(strings.Fields(line), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3"))
		assert.Equal(t, "error: "+want+": must be 0, for all, or more\n", errOut.String())
	}
	root, _ := newCompletedRoot()
	for _, cmd := range allCommands(root) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			if strings.HasPrefix(flag.Value.Type(), "int") && flag.Name != "port" {
				assert.Contains(t, countFlags, flag.Name, cmd.CommandPath())
			}
		})
	}
}

// An image that has not failed is in no list of those that have: it is not one that does not exist.
func TestGetFailedImages(t *testing.T) {
	lab := v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}
	lab.Status.LastReport = ptr.To(metav1.Now())
	lab.Status.Images = &v1alpha1.MemberImages{Failed: 2}
	lab.Status.Failing = []v1alpha1.ImageSummary{{Namespace: "vmdi-farm", Name: "centos-5"}, {Namespace: "other", Name: "debian-9"}}
	serveMembers(t, lab)
	for line, test := range map[string]struct {
		want, wantNot string
	}{
		"get images --failing":               {want: "other/debian-9"},
		"get images --failing -n vmdi-farm":  {want: "vmdi-farm/centos-5", wantNot: "debian-9"},
		"get images --failing ubuntu-24":     {want: "No failed image that is listed has the name ubuntu-24", wantNot: "centos-5"},
		"get images --failing -n x centos-5": {want: "No failed image that is listed has the name centos-5", wantNot: "vmdi-farm"},
	} {
		t.Run(line, func(t *testing.T) {
			out, errOut := &bytes.Buffer{}, &bytes.Buffer{}
			code := Run(strings.Fields(line), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: out, ErrOut: errOut}, "v1.2.3")
			assert.Equal(t, exit.Yes, code, errOut.String())
			assert.Contains(t, out.String(), test.want)
			if test.wantNot != "" {
				assert.NotContains(t, out.String(), test.wantNot)
			}
		})
	}
}
