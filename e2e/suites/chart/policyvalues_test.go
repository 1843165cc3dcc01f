//go:build linux

package chart_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	hubpolicy "github.com/pelotech/ot-fleet/hub/policy"
)

// valuesGuard is a chart's admission policy of policy values, for a ConfigMap of its own, and
// the parser that has the last word.
type valuesGuard struct {
	chart     string
	configMap string
	keys      []string
	parse     func(map[string]string) []apipolicy.KeyError
	parsedAs  string // the function's name, for people
	client    client.Client
}

var valuesGuards = []valuesGuard{
	{"ot-agent", "corpus-ot-agent", apipolicy.ConfigMapKeys(), func(data map[string]string) []apipolicy.KeyError {
		_, _, errs := apipolicy.ParseConfigMap(data)
		return errs
	}, "ParseConfigMap", nil},
	{"ot-hub", "corpus-ot-hub", hubpolicy.KnownKeys(), func(data map[string]string) []apipolicy.KeyError {
		_, _, errs := hubpolicy.ParsePolicy(data)
		return errs
	}, "ParsePolicy", nil},
}

// install creates the chart's policies under names of their own and waits until they are
// enforced.
func (g *valuesGuard) install(t *testing.T) {
	t.Helper()
	g.client = clientAsUser(t, "admin") // without a limit of requests
	values := map[string]any{"policy": map[string]any{"name": g.configMap, "namespace": imageNamespace}}
	rendered := renderChart(t, agentNamespace, values)
	if slices.Contains(g.keys, hubpolicy.KeyWeight) { // the hub
		rendered = renderHub(t, hubNamespace, values)
	}
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		for _, of := range []string{"values", "keys"} {
			object := rendered[kind+" "+g.chart+"-policy-"+of]
			require.NotNil(t, object, "%s %s", kind, of)
			object.SetName("corpus-" + object.GetName())
			if kind == "ValidatingAdmissionPolicyBinding" {
				require.NoError(t, unstructured.SetNestedField(object.Object, object.GetName(), "spec", "policyName"))
			}
			awaitCreated(t, object)
		}
	}
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: g.configMap}, Data: map[string]string{"concurrency": "probe"}}
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		assert.ErrorContains(check, g.client.Create(t.Context(), probe.DeepCopy(), client.DryRunAll), "concurrency must be")
	}, policyPropagationTimeout, 20*time.Millisecond)
}

// refusal returns why the API server refuses a ConfigMap; empty if it does not.
func (g valuesGuard) refusal(t require.TestingT, data map[string]string) string {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: g.configMap}, Data: data}
	return g.said(t, g.client.Create(context.Background(), cm, client.DryRunAll))
}

func (g valuesGuard) said(t require.TestingT, err error) string {
	if err == nil {
		return ""
	}
	_, said, found := strings.Cut(err.Error(), "ValidatingAdmissionPolicy 'corpus-"+g.chart+"-policy-values' with binding 'corpus-"+g.chart+"-policy-values' denied request: ")
	require.True(t, found, "%v", err)
	return said
}

// agree checks that the API server refuses nothing that the parser accepts, and names a key
// that the parser refuses, too.
func (g valuesGuard) agree(t require.TestingT, data map[string]string) (refused bool) {
	errs := g.parse(data)
	said := g.refusal(t, data)
	if said == "" {
		return false
	}
	require.NotEmpty(t, errs, "%s accepts %q, and the API server does not: %s", g.parsedAs, data, said)
	require.True(t, slices.ContainsFunc(errs, func(e apipolicy.KeyError) bool { return strings.HasPrefix(said, e.Key+" must ") }),
		"%s refuses %v, the API server %q", g.parsedAs, errs, said)
	return true
}

// oddValues are values at and around the limits of all keys.
var oddValues = []string{
	"", " ", "0", "1", "3", "-1", "+1", "-0", "+0", "-00", "007", "00", "100", "101", "256", "257", "1000", "1001", "100000", "100001", "1000000", "9223372036854775808",
	" 3 ", "\n3\t", "\u00a03", "\v3", "3 4", "3\n4", "٣", "1e3", "0x10", "1_000", "3.0", "four", "3s", "0s", "1s", "999ms", "1000ms", "14s", "15s", "14.5s", "720h", "720h1ns", "720h0m1s", "24h", "24h1s", "1d",
	"1h30m", "1.5h", ".5h", "1.h", ".h", ".", "h", "1h-5m", "-1s", "+1s", "-0s", "1us", "1µs", "1μs", "1m1m1m", "1M", "0.0000000000001s", "true", "TRUE", "True", "tRUE", "t", "f", "false", "yes", "on", "null",
	"60m", "59s", "61s", "6h", "6h1s", "30m",
}

// listValues are values of keys that take lists.
var listValues = []string{
	"farm", "farm, ci-*", "farm,,ci-*", ",farm,", "farm\nlab\r\n\t*", "*", "-farm", "farm-", "Farm", "a.b", strings.Repeat("a", 63), strings.Repeat("a", 64), "farm;lab", "farm\vlab",
	"10.20.0.0/16", "10.20.0.1/16", "10.20.0.0/16 *.corp.example.com", "fd00::/8", "::ffff:10.0.0.0/104", "fe80::1%eth0", "IMAGES.example.com.", "images.example.\u212Aom", "http://a.example.com", "a.example.com:8080", "a_b", "[::1]",
}

// parserAlone says what only the parser refuses: lists and YAML beyond their characters, and
// durations that overflow, since an expression that fails allows the write.
func parserAlone(key, value string) bool {
	switch key {
	case apipolicy.KeyAllowedNamespaces, apipolicy.KeyPreflightAllow, hubpolicy.KeyOverrides, apipolicy.KeyFleetSources, apipolicy.KeyWindows:
		return true
	case hubpolicy.KeyGrantDuration:
		return strings.Contains(value, ".5s") // whole seconds only
	}
	return len(value) > 16384
}

// TestPolicyValuesAreRefusedAtOnce wants every key of the policy to be checked when it is
// applied, as the parsers check it later.
func TestPolicyValuesAreRefusedAtOnce(t *testing.T) {
	for _, g := range valuesGuards {
		t.Run(g.chart, func(t *testing.T) {
			g.install(t)
			for _, key := range g.keys {
				t.Run(key, func(t *testing.T) {
					refusals := 0
					for _, value := range append(slices.Clone(oddValues), listValues...) {
						data := map[string]string{key: value}
						refused := g.agree(t, data)
						if refused {
							refusals++
						}
						if !parserAlone(key, value) {
							assert.Equal(t, len(g.parse(data)) > 0, refused, "%s: %q: %v", key, value, g.parse(data))
						}
					}
					if !slices.Contains([]string{hubpolicy.KeyOverrides, apipolicy.KeyFleetSources, apipolicy.KeyWindows}, key) {
						assert.Positive(t, refusals, "nothing checks %s", key)
					}
				})
			}
			for name, data := range map[string]map[string]string{
				"the default backoff is longer":       {"maxRetryBackoff": "59s"},
				"the backoff is longer":               {"maxRetryBackoff": "1h", "retryBackoffDuration": "2h"},
				"the backoff is as long":              {"maxRetryBackoff": "2h", "retryBackoffDuration": " 120m"},
				"the backoff is invalid":              {"maxRetryBackoff": "1h", "retryBackoffDuration": "long"},
				"no maximum":                          {"retryBackoffDuration": "2h"},
				"the tolerance is longer":             {"fleetExcessTolerance": "3h", "attemptTimeout": "2h"},
				"the tolerance is as long":            {"fleetExcessTolerance": "2h", "attemptTimeout": "2h"},
				"longer than the default of attempts": {"fleetExcessTolerance": "7h", "attemptTimeout": "8h"},
				"no data":                             nil,
				"an unknown key":                      {"concurency": "four"},
				"several":                             {"concurrency": "4", "retryLimit": "x", "preflight": "maybe"},
			} {
				t.Run(name, func(t *testing.T) {
					assert.Equal(t, len(g.parse(data)) > 0, g.agree(t, data), "%v", g.parse(data))
				})
			}
			t.Run("not UTF-8", func(t *testing.T) {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: g.configMap}, BinaryData: map[string][]byte{"concurrency": []byte("\xff\xfe0\x00")}}
				assert.Contains(t, g.said(t, g.client.Create(t.Context(), cm, client.DryRunAll)), "concurrency must be text in UTF-8")
			})
			t.Run("overflow", func(t *testing.T) { // known: Go alone refuses it
				g.agree(t, map[string]string{"stallTimeout": "9999999999999h"})
			})
			t.Run("large", func(t *testing.T) {
				g.agree(t, map[string]string{"stallTimeout": strings.Repeat("1m", 300000)})
				g.agree(t, map[string]string{"preflightAllow": strings.Repeat("a,", 300000)})
			})
			t.Run("corpus", func(t *testing.T) {
				for _, data := range readPolicyCorpus(t) {
					g.agree(t, data)
				}
			})
			t.Run("property", rapid.MakeCheck(func(t *rapid.T) {
				g.agree(t, drawPolicyData(g.keys).Draw(t, "data"))
			}))
		})
	}
}

// drawPolicyData draws values that are nearly valid.
func drawPolicyData(keys []string) *rapid.Generator[map[string]string] {
	space := rapid.SampledFrom([]string{"", "", " ", "\n", "\u2003"})
	text := rapid.OneOf(
		rapid.SampledFrom(append(slices.Clone(oddValues), listValues...)),
		rapid.StringMatching(`[+-]?0{0,3}[0-9]{1,7}`),
		rapid.StringMatching(`[+-]?([0-9]{0,4}(\.[0-9]{0,3})?(ns|us|µs|ms|s|m|h)){1,3}`),
		rapid.StringMatching(`[-a-zA-Z0-9.:*/, ]{1,20}`),
	)
	value := rapid.Custom(func(t *rapid.T) string {
		return space.Draw(t, "before") + text.Draw(t, "text") + space.Draw(t, "after")
	})
	return rapid.MapOfN(rapid.SampledFrom(keys), value, 1, 4)
}

// readPolicyCorpus returns the ConfigMaps that the fuzz tests of both parsers have found.
func readPolicyCorpus(t *testing.T) (corpus []map[string]string) {
	t.Helper()
	for _, folder := range []string{"api/policy/testdata/fuzz/FuzzParseConfigMap", "api/policy/testdata/fuzz/FuzzParsePlan", "hub/policy/testdata/fuzz/FuzzParsePolicy"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", folder, "*"))
		require.NoError(t, err)
		require.NotEmpty(t, files, folder)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var fields []string
			for line := range strings.Lines(string(text)) {
				quoted, isString := strings.CutPrefix(strings.TrimSpace(line), "string(")
				if !isString {
					continue
				}
				field, err := strconv.Unquote(strings.TrimSuffix(quoted, ")"))
				require.NoError(t, err, file)
				fields = append(fields, field)
			}
			require.GreaterOrEqual(t, len(fields), 4, file)
			data := map[string]string{fields[0]: fields[1], fields[2]: fields[3]}
			maps.DeleteFunc(data, func(key, value string) bool {
				return len(validation.IsConfigMapKey(key)) > 0 || !utf8.ValidString(value)
			})
			corpus = append(corpus, data)
		}
	}
	return corpus
}

// TestInvalidPolicyFromBefore wants a ConfigMap that was invalid before there was the policy to
// be changed, corrected and deleted.
func TestInvalidPolicyFromBefore(t *testing.T) {
	for _, g := range valuesGuards {
		t.Run(g.chart, func(t *testing.T) {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: g.configMap}, Data: map[string]string{
				"concurrency": "four", "maxRetryBackoff": "1s", "stallTimeout": "never", "preflight": "maybe",
			}}
			require.NoError(t, adminClient.Create(t.Context(), cm))
			g.install(t)
			change := func(patch string) error { return adminClient.Patch(t.Context(), cm.DeepCopy(), newMergePatch(patch)) }
			require.NoError(t, change(`{"metadata":{"labels":{"a":"b"}}}`))
			require.NoError(t, change(`{"data":{"retryLimit":"5"}}`), "another key")
			assert.Equal(t, "concurrency must be a whole number from 0 to 256", g.said(t, change(`{"data":{"concurrency":"five"}}`)))
			assert.Equal(t, "retryLimit must be a whole number from 0 to 100", g.said(t, change(`{"data":{"retryLimit":"101"}}`)))
			assert.Equal(t, "maxRetryBackoff must not be less than retryBackoffDuration, which is 1m by default", g.said(t, change(`{"data":{"retryBackoffDuration":"2s"}}`)))
			require.NoError(t, change(`{"data":{"concurrency":"5","stallTimeout":null}}`))
			require.NoError(t, change(`{"data":{"preflight":"false"}}`))
			require.NoError(t, adminClient.Delete(t.Context(), cm))
		})
	}
}

// TestUnknownPolicyKeysAreWarnedAbout wants a warning for keys that are ignored, and none for
// the others.
func TestUnknownPolicyKeysAreWarnedAbout(t *testing.T) {
	for _, g := range valuesGuards {
		t.Run(g.chart, func(t *testing.T) {
			g.install(t)
			c, heard := clientWithWarnings(t, "admin")
			create := func(t require.TestingT, data map[string]string) []string {
				cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: g.configMap}, Data: data}
				require.NoError(t, c.Create(context.Background(), cm, client.DryRunAll))
				return heard.takeWarnings()
			}
			require.EventuallyWithT(t, func(check *assert.CollectT) {
				said := strings.Join(create(check, map[string]string{"concurency": "5", "concurrency": "5", "retries": "1"}), "\n")
				assert.Regexp(check, "are ignored: (concurency, retries|retries, concurency) [(]", said)
			}, policyPropagationTimeout, 20*time.Millisecond)
			if slices.Contains(g.keys, hubpolicy.KeyWeight) { // the hub
				said := create(t, map[string]string{"concurrency": "5", "fleetSources": "[]"})
				require.Len(t, said, 1)
				assert.Contains(t, said[0], "without fleetConcurrency, these keys have no effect: fleetSources")
			}
			known := map[string]string{}
			for _, key := range append(slices.Clone(g.keys), apipolicy.KeyAllowedNamespaces) {
				for _, value := range []string{"1", "1h", "[]", "farm", "farm.example.com"} {
					if len(g.parse(map[string]string{key: value})) == 0 {
						known[key] = value
						break
					}
				}
				require.Contains(t, known, key)
			}
			assert.Empty(t, create(t, known), "%v", known)
		})
	}
}

// TestUpgradeOfEditedPolicy runs the commands of docs/policy.md: who edits the policy with
// kubectl and changes the chart's value, too, gets the conflict that the page shows, and its way
// out.
func TestUpgradeOfEditedPolicy(t *testing.T) {
	s := startHelmCluster(t)
	var upgrades []string
	var patch string
	for _, command := range pages.Read(t, "docs/policy.md").Commands() {
		switch {
		case strings.HasPrefix(command, "helm upgrade "):
			upgrades = append(upgrades, command)
		case strings.Contains(command, "patch configmap"):
			patch = command
		}
	}
	require.Len(t, upgrades, 2)
	require.NotEmpty(t, patch)
	stored := func() map[string]string {
		policy := &corev1.ConfigMap{}
		require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: "sync-operator", Name: "sync-operator-policy"}, policy))
		return policy.Data
	}
	terminal := pages.OpenTerminal(t, "frankfurt", map[string]string{"frankfurt": s.plane.Kubeconfig()})
	s.requireHelm(t, "install", "ot-agent", chartPath(t, agentChart), "--namespace", "ot-agent", "--create-namespace")
	assert.NotContains(t, stored(), "concurrency")
	refusesInvalid := func() bool {
		said, err := terminal.Run(t, strings.Replace(patch, `"5"`, `"four"`, 1)+" --dry-run=server")
		return err != nil && strings.Contains(said, "denied request: concurrency must be a whole number from 0 to 256")
	}
	require.Eventually(t, refusesInvalid, policyPropagationTimeout, 100*time.Millisecond)

	terminal.MustRun(t, strings.Replace(patch, `"5"`, `"4"`, 1))
	said, err := terminal.Run(t, upgrades[0])
	require.Error(t, err)
	shown := pages.Read(t, "docs/policy.md").Block(t, "console", "--force-conflicts")
	_, shown, _ = strings.Cut(shown, "\nError: ")
	shown, _, _ = strings.Cut(shown, "\n")
	assert.Contains(t, strings.Join(strings.Fields(said), " "), shown)
	assert.Equal(t, "4", stored()["concurrency"])
	terminal.MustRun(t, upgrades[1])
	assert.Equal(t, "5", stored()["concurrency"])
	terminal.MustRun(t, patch)
	assert.Equal(t, "5", stored()["concurrency"])

	// A client-side upgrade removes what its chart no longer sets.
	terminal.MustRun(t, strings.Replace(patch, `"5"`, `"4"`, 1))
	terminal.MustRun(t, patch)
	s.requireHelm(t, "upgrade", "ot-agent", chartPath(t, agentChart), "--namespace", "ot-agent", "--reset-values", "--server-side=false")
	assert.Equal(t, "5", stored()["concurrency"], "edited and set back to the chart's value")
}
