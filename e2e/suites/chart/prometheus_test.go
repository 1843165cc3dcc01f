//go:build linux

package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// loadPrometheusOperatorCRDs are those that the charts make objects of, as the operator's
// own module has them.
func loadPrometheusOperatorCRDs(ctx context.Context) ([]*unstructured.Unstructured, error) {
	const module = "github.com/prometheus-operator/prometheus-operator"
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir, cmd.Env = "prometheusoperator", append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("downloading %s: %w\n%s", module, err, out)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return nil, fmt.Errorf("downloading %s: %w", module, err)
	}
	var kinds []*unstructured.Unstructured
	for _, name := range []string{"servicemonitors", "prometheusrules"} {
		text, err := os.ReadFile(filepath.Join(downloaded.Dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+name+".yaml"))
		if err != nil {
			return nil, err
		}
		kind := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &kind.Object); err != nil {
			return nil, fmt.Errorf("reading the kind %s: %w", name, err)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// Prometheus' operator knows every field of what the charts make for it, in each way
// that they can be set: the API server is asked to apply it strictly, and keep nothing.
func TestPrometheusOperatorKnowsEveryField(t *testing.T) {
	kinds, err := loadPrometheusOperatorCRDs(t.Context())
	require.NoError(t, err)
	for _, kind := range kinds {
		require.NoError(t, adminClient.Create(t.Context(), kind))
		t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), kind)) })
	}
	apply := func(object *unstructured.Unstructured) error {
		return adminClient.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.DryRunAll, client.FieldOwner("helm"), client.ForceOwnership)
	}
	for variant, test := range map[string]struct{ values, fails string }{
		"as it comes":           {values: `{}`},
		"all that can be set":   {values: `{rules: {labels: {a: b}, alertLabels: {team: images}}, serviceMonitor: {labels: {a: b}, interval: 1m, scrapeTimeout: 20s, authorization: {type: Bearer, credentials: {name: token, key: token}}, tlsConfig: {serverName: ot, ca: {configMap: {name: ca, key: ca.crt}}}, relabelings: [{action: replace, targetLabel: cluster, replacement: frankfurt}], metricRelabelings: [{action: drop, sourceLabels: [le], regex: "0.1"}]}}`},
		"in plain text":         {values: `{secure: false}`},
		"what it does not know": {values: `{serviceMonitor: {relabelings: [{actoin: replace}]}}`, fails: "actoin"},
		"no such action":        {values: `{serviceMonitor: {relabelings: [{action: paint}]}}`, fails: "paint"},
	} {
		t.Run(variant, func(t *testing.T) {
			for name, path := range chartPaths {
				metrics := map[string]any{}
				require.NoError(t, yaml.Unmarshal([]byte(test.values), &metrics))
				for _, key := range []string{"serviceMonitor", "rules"} {
					of, _ := metrics[key].(map[string]any)
					if of == nil {
						of = map[string]any{}
					}
					of["enabled"] = true
					metrics[key] = of
				}
				rendered, err := chart.Render(t.Context(), path, name, map[string]string{"ot-agent": agentNamespace, "ot-hub": hubNamespace}[name], map[string]any{"metrics": metrics})
				require.NoError(t, err)
				made := 0
				for _, object := range rendered {
					if !strings.HasPrefix(object.GetAPIVersion(), "monitoring.coreos.com/") {
						continue
					}
					made++
					// The kinds were made just now.
					require.EventuallyWithT(t, func(c *assert.CollectT) {
						err := apply(object)
						if test.fails != "" && object.GetKind() == "ServiceMonitor" {
							require.ErrorContains(c, err, test.fails, name)
							return
						}
						require.NoError(c, err, "%s: %s", name, object.GetKind())
					}, testenv.Patience, 100*time.Millisecond)
				}
				assert.Equal(t, 2, made)
			}
		})
	}
}
