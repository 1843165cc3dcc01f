package render_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/cli/render"
)

var completion = render.Completion{
	OT: []string{"--hub", "'pro d'"}, Hub: []string{"--context", "prod"}, Any: []string{"--kubeconfig", "/k"},
}

func TestCommandsWithinTextsAreCompleted(t *testing.T) {
	for text, want := range map[string]string{
		"kubectl ot rollout resume ubuntu":                          "kubectl ot --hub 'pro d' rollout resume ubuntu",
		"it waits: kubectl ot why x -w, then kubectl ot get images": "it waits: kubectl ot --hub 'pro d' why x -w, then kubectl ot --hub 'pro d' get images",
		"kubectl annotate --overwrite membercluster lab a=b":        "kubectl --kubeconfig /k --context prod annotate --overwrite membercluster lab a=b",
		"kubectl delete membercluster lab":                          "kubectl --kubeconfig /k --context prod delete membercluster lab",
		"kubectl wait prunereport/spring --for=condition=Ready":     "kubectl --kubeconfig /k --context prod wait prunereport/spring --for=condition=Ready",
		"kubectl --context lab -n ot-hub delete secret x":           "kubectl --kubeconfig /k --context lab -n ot-hub delete secret x",
		"kubectl label namespace ot-member-lab a=b":                 "kubectl --kubeconfig /k --context prod label namespace ot-member-lab a=b",
		"kubectl -n capi label clusters.cluster.x-k8s.io lab a-":    "kubectl --kubeconfig /k --context prod -n capi label clusters.cluster.x-k8s.io lab a-",
		"kubectl annotate storageclass gp3 a=true":                  "kubectl --kubeconfig /k annotate storageclass gp3 a=true",
		"a kubectl plugin; kubectl otters":                          "a kubectl plugin; kubectl otters",
		"kubectl ot --hub 'pro d' why cluster lab":                  "kubectl ot --hub 'pro d' why cluster lab",
	} {
		assert.Equal(t, want, completion.Complete(text))
		assert.Equal(t, text, render.Completion{}.Complete(text))
		assert.Equal(t, want, completion.Complete(want), "a message is printed through another")
	}
}

// The dashboard completes the commands in its messages by a function of its own, which the same file
// tests.
func TestCompletedTextsAreThoseOfTheDashboard(t *testing.T) {
	text, err := os.ReadFile("testdata/completed.json")
	require.NoError(t, err)
	var all []struct{ Text, Want string }
	require.NoError(t, json.Unmarshal(text, &all))
	require.NotEmpty(t, all)
	for _, one := range all {
		assert.Equal(t, one.Want, completion.Complete(one.Text))
	}
}

// Commands about a member name its context where that is known, whatever its namespaces are called.
func TestCommandsAboutAMemberNameIt(t *testing.T) {
	known := completion
	known.Member = []string{"--context", "lab"}
	for _, command := range []string{
		"annotate storageclass gp3 a=true", "patch storageprofile gp3 --type=merge", "create namespace vmdi-farm", "create rolebinding secrets-for-ot-agent --namespace a",
		"--namespace ot-hub delete secret ot-hub-token", "-n ot-hub delete secret lab", "describe syncledger",
	} {
		assert.Equal(t, "kubectl --kubeconfig /k "+command, completion.Complete("kubectl "+command), "of a member whose context is not known")
		assert.Equal(t, "kubectl --kubeconfig /k --context lab "+command, known.Complete("kubectl "+command))
	}
	for _, text := range []string{"kubectl delete membercluster lab", "kubectl --context other -n a get pods", "kubectl ot why x"} {
		assert.Equal(t, completion.Complete(text), known.Complete(text))
	}
	assert.Equal(t, "kubectl --context lab get pods", render.Completion{Member: known.Member}.Complete("kubectl get pods"))
}

// The message of a wave that waits names a kind by a short name, as people do.
func TestAllKindsOfTheHubAreKnown(t *testing.T) {
	paths, err := filepath.Glob("../../charts/ot-hub/files/crds/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		var crd struct {
			Spec struct {
				Group string
				Names struct {
					Plural, Singular string
					ShortNames       []string
				}
			}
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, &crd))
		names := crd.Spec.Names
		require.NotEmpty(t, names.ShortNames, path)
		for _, name := range append(names.ShortNames, names.Plural, names.Singular, names.Plural+"."+crd.Spec.Group) {
			assert.Equal(t, "kubectl --kubeconfig /k --context prod patch "+name+" x", completion.Complete("kubectl patch "+name+" x"))
			assert.NotContains(t, completion.Complete("kubectl delete secret "+name), "prod", "it is another kind's name")
		}
	}
	approve := `kubectl patch fdi ubuntu --type=json -p '[{"op":"add","path":"/spec/approvals/-","value":{"wave":"canary","version":"2.1.0","by":"<your user name>"}}]'`
	assert.Equal(t, "kubectl --kubeconfig /k --context prod"+approve[len("kubectl"):], completion.Complete(approve))
}

// commands has a command in each place of a page and of its JSON.
type commands struct {
	Command string `json:"command"`
}

func (commands) Draw(p *render.Page) {
	p.Section("SECTION kubectl ot a", render.Text("kubectl ot b"))
	p.Line(render.Text("in prose kubectl ot c"))
	p.Command("kubectl ot d")
	t := p.Table(render.Column{Title: "TITLE"})
	t.Row(render.Words("kubectl ot e"))
	t.AddNote(render.Text("kubectl ot f"))
	t.Command("kubectl ot g")
	root := &render.Node{Label: render.Words("kubectl ot h")}
	root.Add(render.Words("child"), render.Words("kubectl ot i"))
	p.Tree(root)
}

var commandStart = regexp.MustCompile(`kubectl ot (--hub )?`)

func TestEachCommandOnAPageIsCompleted(t *testing.T) {
	for _, format := range []string{"", "wide", "markdown", "json", "yaml", "jsonpath={.command}", "go-template={{.command}}", "custom-columns=C:.command"} {
		parsed, err := render.ParseFormat(format)
		require.NoError(t, err)
		for _, width := range []int{0, 60} {
			var out bytes.Buffer
			c := completion
			c.OT = []string{"--hub", `$'a\'"'`}
			require.NoError(t, parsed.Write(&out, commands{"kubectl ot x"}, render.Options{Width: width, Completion: c}))
			found := commandStart.FindAllStringSubmatch(out.String(), -1)
			require.NotEmpty(t, found)
			if width == 0 && parsed.Screen() {
				assert.Len(t, found, 9)
			}
			for _, command := range found {
				assert.NotEmpty(t, command[1], "%s: a command without the flags:\n%s", format, out.String())
			}
			if format == "json" {
				assert.Contains(t, out.String(), `"command": "kubectl ot --hub $'a\\'\"' x"`)
			}
		}
	}
}
