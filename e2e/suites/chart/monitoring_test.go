//go:build linux

package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/agent/ledger"
	agentmetrics "github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/inventory"
	hubmetrics "github.com/pelotech/ot-fleet/hub/metrics"
)

// metricLabels is a Registerer that records metrics with their labels.
type metricLabels map[string][]string

var descPattern = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

func (d metricLabels) Register(c prometheus.Collector) error {
	all := make(chan *prometheus.Desc)
	go func() {
		c.Describe(all)
		close(all)
	}()
	for one := range all {
		found := descPattern.FindStringSubmatch(one.String())
		d[found[1]] = strings.FieldsFunc(found[2], func(r rune) bool { return r == ',' || r == ' ' })
	}
	return nil
}

func (d metricLabels) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = d.Register(c)
	}
}

func (d metricLabels) Unregister(prometheus.Collector) bool { return false }

// registeredMetrics returns the metrics of both programs.
func registeredMetrics() metricLabels {
	d := metricLabels{
		// Metrics of libraries that alerts or dashboards use.
		"leader_election_master_status":             {"name"},
		"controller_runtime_reconcile_errors_total": {"controller"},
		"rest_client_requests_total":                {"method", "code", "host"},
		"process_resident_memory_bytes":             nil,
		"process_start_time_seconds":                nil,
		// Metrics of Prometheus.
		"up": nil,
	}
	agentmetrics.New(d, ledger.NewQueue())
	agentmetrics.NewReport(d)
	agentmetrics.NewPullMode(d)
	agentmetrics.NewMachines(d)
	hubmetrics.New(d)
	hubmetrics.NewGrants(d)
	hubmetrics.NewRegistrations(d)
	hubmetrics.NewApprovals(d)
	hubmetrics.NewInstalls(d)
	hubmetrics.NewShards(d)
	hubmetrics.NewReports(d)
	d.MustRegister(&hubmetrics.FleetCollector{Index: inventory.NewIndex()})
	return d
}

// notInAnchors are the characters of a heading that its link lacks.
var notInAnchors = regexp.MustCompile(`[^a-z0-9 _-]`)

var (
	metricNamePattern    = regexp.MustCompile(`\b(ot_(?:agent|hub)_[a-z0-9_]+|leader_election_[a-z_]+|controller_runtime_[a-z_]+|rest_client_[a-z_]+|process_[a-z_]+|up)(\{[^}]*\})?`)
	labelMatcherPattern  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	groupByPattern       = regexp.MustCompile(`\bby \(([^)]*)\)`)
	legendLabelPattern   = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)
	templateLabelPattern = regexp.MustCompile(`\$labels\.([a-z_]+)`)
)

// scrapeTargetLabels are the labels that Prometheus adds when it scrapes.
var scrapeTargetLabels = []string{"job", "instance", "pod", "namespace", "container", "endpoint", "service"}

// requireRegistered checks that the metrics of an expression exist and have its labels, and
// those that are shown of its result.
func requireRegistered(t *testing.T, known metricLabels, expr string, shown [][]string) {
	t.Helper()
	labels := slices.Clone(scrapeTargetLabels)
	metrics := metricNamePattern.FindAllStringSubmatch(expr, -1)
	require.NotEmpty(t, metrics, "%s uses no metric", expr)
	for _, m := range metrics {
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if _, ok := known[name]; !ok {
				name = strings.TrimSuffix(m[1], suffix)
			}
		}
		of, ok := known[name]
		require.True(t, ok, "%s: metric %s does not exist", expr, m[1])
		labels = append(labels, of...)
		for _, selects := range labelMatcherPattern.FindAllStringSubmatch(m[2], -1) {
			assert.Contains(t, append(slices.Clone(scrapeTargetLabels), of...), selects[1], "%s: %s has no such label", expr, name)
		}
	}
	for _, by := range groupByPattern.FindAllStringSubmatch(expr, -1) {
		for _, label := range strings.Split(by[1], ",") {
			assert.Contains(t, labels, strings.TrimSpace(label), expr)
		}
	}
	for _, label := range shown {
		assert.Contains(t, labels, label[1], "the result of %s lacks a label that is shown", expr)
	}
}

// TestAlertsUseExistingMetrics: an alert on a metric that does not exist silently never fires.
func TestAlertsUseExistingMetrics(t *testing.T) {
	known := registeredMetrics()
	for name, path := range chartPaths {
		pages, err := filepath.Glob(filepath.Join("..", "..", "..", path, "runbooks", "*.md"))
		require.NoError(t, err)
		var described []string
		for _, page := range pages {
			described = append(described, strings.TrimSuffix(filepath.Base(page), ".md"))
		}
		var alerts []string
		groups, _ := readChartFile(t, path, "monitoring/alerts.yaml")["groups"].([]any)
		for _, group := range groups {
			for _, entry := range group.(map[string]any)["rules"].([]any) {
				rule := entry.(map[string]any)
				alert, annotations := rule["alert"].(string), rule["annotations"].(map[string]any)
				alerts = append(alerts, alert)
				requireRegistered(t, known, rule["expr"].(string),
					templateLabelPattern.FindAllStringSubmatch(annotations["summary"].(string)+annotations["description"].(string), -1))
				assert.Contains(t, []any{"critical", "warning", "info"}, rule["labels"].(map[string]any)["severity"], alert)
			}
		}
		require.NotEmpty(t, alerts, name)
		assert.ElementsMatch(t, alerts, described, "alerts and runbooks do not match")
	}
}

func TestDashboardsUseExistingMetrics(t *testing.T) {
	known := registeredMetrics()
	for name, path := range chartPaths {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", path, "monitoring", "dashboard.json"))
		require.NoError(t, err)
		var board struct {
			UID    string
			Panels []struct {
				ID      int
				Title   string
				Type    string
				GridPos struct{ H, W, X, Y int }
				Targets []struct{ RefID, Expr, LegendFormat string }
			}
		}
		require.NoError(t, json.Unmarshal(text, &board))
		assert.Equal(t, name, board.UID)
		ids := map[int]bool{}
		for _, panel := range board.Panels {
			assert.False(t, ids[panel.ID], "%s: panel %q has the ID of another", name, panel.Title)
			ids[panel.ID] = true
			assert.LessOrEqual(t, panel.GridPos.X+panel.GridPos.W, 24, panel.Title)
			assert.Equal(t, panel.Type == "row", len(panel.Targets) == 0, panel.Title)
			for _, target := range panel.Targets {
				requireRegistered(t, known, target.Expr, legendLabelPattern.FindAllStringSubmatch(target.LegendFormat, -1))
			}
		}
	}
}

func TestRunbookLinksResolve(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	for _, path := range chartPaths {
		directory := filepath.Join("..", "..", "..", path, "runbooks")
		pages, err := filepath.Glob(filepath.Join(directory, "*.md"))
		require.NoError(t, err)
		for _, page := range pages {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			for _, to := range link.FindAllStringSubmatch(string(text), -1) {
				target, err := os.ReadFile(filepath.Join(directory, to[1]))
				require.NoError(t, err, "%s links to %s", page, to[1])
				if to[2] == "" {
					continue
				}
				var anchors []string
				for _, line := range strings.Split(string(target), "\n") {
					if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
						anchors = append(anchors, "#"+strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(heading), ""), " ", "-"))
					}
				}
				assert.Contains(t, anchors, to[2], "%s links to %s", page, to[1])
			}
		}
	}
}

func TestMonitoringIsRenderedOnRequest(t *testing.T) {
	for name := range chartPaths {
		rendered, _ := renderWorkload(t, name, `{}`)
		for key := range rendered {
			assert.NotRegexp(t, "^(ServiceMonitor|PrometheusRule) |dashboard", key)
		}
		rendered, _ = renderWorkload(t, name, `
metrics:
  readers: [{kind: ServiceAccount, name: prometheus, namespace: monitoring}]
  serviceMonitor: {enabled: true, labels: {release: p}, interval: 1m}
  rules: {enabled: true, labels: {release: p}, alertLabels: {team: images, severity: page}, runbookURL: "https://wiki.example/"}
  dashboards: {enabled: true, labels: {grafana: "yes"}, annotations: {folder: OT}}`)
		monitor := rendered["ServiceMonitor ot-system/"+name]
		assert.Equal(t, "p", monitor.GetLabels()["release"])
		assert.Equal(t, valueAt(t, rendered["Service ot-system/"+name], "spec", "selector"), valueAt(t, monitor, "spec", "selector", "matchLabels"))
		endpoint := valueAt(t, monitor, "spec", "endpoints", "0").(map[string]any)
		assert.Equal(t, parseYAML(t, `
port: https
scheme: https
path: /metrics
interval: 1m
scrapeTimeout: 10s
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
tlsConfig: {insecureSkipVerify: true}`), endpoint)
		assert.Equal(t, endpoint["port"], valueAt(t, rendered["Service ot-system/"+name], "spec", "ports", "0", "name"))
		assert.Equal(t, parseYAML(t, `[{kind: ServiceAccount, name: prometheus, namespace: monitoring}]`), valueAt(t, rendered["ClusterRoleBinding "+name+"-reader"], "subjects"))

		rule := valueAt(t, rendered["PrometheusRule ot-system/"+name], "spec", "groups", "0", "rules", "0").(map[string]any)
		assert.Equal(t, parseYAML(t, `{team: images, severity: page}`), rule["labels"])
		assert.Equal(t, "https://wiki.example/"+rule["alert"].(string)+".md", rule["annotations"].(map[string]any)["runbook_url"])
		board := rendered["ConfigMap ot-system/"+name+"-dashboard"]
		assert.Equal(t, "yes", board.GetLabels()["grafana"])
		assert.Equal(t, "OT", board.GetAnnotations()["folder"])
		assert.True(t, json.Valid([]byte(valueAt(t, board, "data", name+".json").(string))))

		rendered, deployment := renderWorkload(t, name, `{metrics: {secure: false, serviceMonitor: {enabled: true}}}`)
		assert.Equal(t, parseYAML(t, `{port: http, scheme: http, path: /metrics, interval: 30s, scrapeTimeout: 10s}`), valueAt(t, rendered["ServiceMonitor ot-system/"+name], "spec", "endpoints", "0"))
		assert.Contains(t, deployment("spec", "template", "spec", "containers", "0", "args"), "--metrics-secure=false")
		rendered, _ = renderWorkload(t, name, `{metrics: {serviceMonitor: {enabled: true, authorization: {credentials: {name: token, key: token}}}}}`)
		endpoint = valueAt(t, rendered["ServiceMonitor ot-system/"+name], "spec", "endpoints", "0").(map[string]any)
		assert.NotContains(t, endpoint, "bearerTokenFile")
		assert.Equal(t, parseYAML(t, `{credentials: {name: token, key: token}}`), endpoint["authorization"])
	}
}

// loadPrometheusOperatorCRDs returns the CRDs of the objects that the charts create, from the
// operator's module.
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

// TestPrometheusOperatorKnowsEveryField renders the charts with each set of values and applies
// the operator's objects in a strict dry run.
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
					// Race: the CRDs have just been created.
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
