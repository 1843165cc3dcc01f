package render_test

import (
	"bytes"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/cli/render"
)

var completion = render.Completion{
	OT: []string{"--hub", "'pro d'"}, Hub: []string{"--context", "prod"}, Any: []string{"--kubeconfig", "/k"}, HubNamespace: "ot-hub",
}

func TestCommandsWithinTextsAreCompleted(t *testing.T) {
	for text, want := range map[string]string{
		"kubectl ot rollout resume ubuntu":                          "kubectl ot --hub 'pro d' rollout resume ubuntu",
		"it waits: kubectl ot why x -w, then kubectl ot get images": "it waits: kubectl ot --hub 'pro d' why x -w, then kubectl ot --hub 'pro d' get images",
		"kubectl annotate --overwrite membercluster lab a=b":        "kubectl --kubeconfig /k --context prod annotate --overwrite membercluster lab a=b",
		"kubectl delete membercluster lab":                          "kubectl --kubeconfig /k --context prod delete membercluster lab",
		"kubectl wait prunereport/spring --for=condition=Ready":     "kubectl --kubeconfig /k --context prod wait prunereport/spring --for=condition=Ready",
		"kubectl -n ot-hub delete secret lab":                       "kubectl --kubeconfig /k --context prod -n ot-hub delete secret lab",
		"kubectl -n capi label cluster lab pelotech.ot/fleet-":      "kubectl --kubeconfig /k --context prod -n capi label cluster lab pelotech.ot/fleet-",
		"kubectl --context lab -n ot-hub delete secret x":           "kubectl --kubeconfig /k --context lab -n ot-hub delete secret x",
		"kubectl annotate storageclass gp3 a=true":                  "kubectl --kubeconfig /k annotate storageclass gp3 a=true",
		"a kubectl plugin; kubectl otters":                          "a kubectl plugin; kubectl otters",
		"kubectl ot --hub 'pro d' why cluster lab":                  "kubectl ot --hub 'pro d' why cluster lab",
	} {
		assert.Equal(t, want, completion.Complete(text))
		assert.Equal(t, text, render.Completion{}.Complete(text))
		assert.Equal(t, want, completion.Complete(want), "a message is printed through another")
	}
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
	for _, format := range []string{"", "wide", "markdown", "json", "yaml", "jsonpath={.command}"} {
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
