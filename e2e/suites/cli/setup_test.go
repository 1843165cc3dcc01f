//go:build linux

// Package cli_test runs kubectl ot against a real hub and real agents, as people and
// pipelines do: by its arguments, screens and exit codes. What a screen says is decided and
// tested in the pure packages below cli.
package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// The members. Their contexts have these names, and that of the hub is hubContext.
const (
	bergen     = "bergen"
	kiel       = "kiel"
	hubContext = "hub"
)

// shared is the fleet of all tests. A test leaves it as it found it; its objects have names
// of their own.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	*plugin.Plugin
	// source has all images but those below /missing/.
	source *httptest.Server
}

func TestMain(m *testing.M) {
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/missing/") {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	fleet.RunTests(m, fleet.Options{
		Policy: map[string]string{"concurrency": "3", "retryLimit": "0", "retryBackoffDuration": "1s", "preflightAllow": testenv.SourceNetwork},
		Members: []fleet.MemberOptions{
			{Name: bergen, Labels: map[string]string{"region": "nordics"}, ImportDuration: 300 * time.Millisecond},
			{Name: kiel, Labels: map[string]string{"region": "south"}, ImportDuration: 300 * time.Millisecond, Pull: program.UsesPullMode(kiel, kiel)},
		},
	}, func(ctx context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f, source: source}
		f.OnStop(source.Close)
		anna, err := plugin.CreateAdministrator(ctx, f.Plane, "anna")
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "ot-fleet-cli-")
		if err != nil {
			return err
		}
		f.OnStop(func() { _ = os.RemoveAll(dir) })
		contexts := []plugin.Context{{Name: hubContext, Config: anna}}
		for name, m := range f.Members {
			contexts = append(contexts, plugin.Context{Name: name, Config: m.ControlPlane.Config(), Hub: hubContext})
		}
		shared.Plugin, err = plugin.New(dir, contexts...)
		return err
	})
}

// awaitFailing waits until the hub knows these failed images of bergen, and no longer those of other
// tests.
func (f *testFleet) awaitFailing(t *testing.T, names ...string) {
	t.Helper()
	f.AwaitMember(t, bergen, "with exactly these failed images: "+strings.Join(names, ", "), func(m *v1alpha1.MemberCluster) bool {
		var failing []string
		for _, img := range m.Status.Failing {
			failing = append(failing, img.Name)
		}
		slices.Sort(failing)
		return slices.Equal(failing, names)
	})
}

// run runs kubectl ot and fails the test unless it ends with an exit code.
func (f *testFleet) run(t *testing.T, wantCode int, args ...string) plugin.Result {
	t.Helper()
	result, err := f.Run(t.Context(), nil, args...)
	require.NoError(t, err)
	require.Equal(t, wantCode, result.Code, "kubectl ot %s:\n%s%s", strings.Join(args, " "), result.Out, result.Err)
	return result
}

// runJSON runs kubectl ot with -o json and decodes what it prints.
func (f *testFleet) runJSON(t *testing.T, wantCode int, into any, args ...string) {
	t.Helper()
	result := f.run(t, wantCode, append(args, "-o", "json")...)
	require.NoError(t, json.Unmarshal([]byte(result.Out), into), result.Out)
}
