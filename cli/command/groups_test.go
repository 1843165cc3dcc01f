package command

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/cli/exit"
)

// runLine runs a command line where there is no kubeconfig.
func runLine(t *testing.T, args []string) (code exit.Code, out, errOut string) {
	t.Helper()
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	var stdout, stderr bytes.Buffer
	code = Run(args, genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &stdout, ErrOut: &stderr}, "v1.2.3")
	return code, stdout.String(), stderr.String()
}

// A script that misspells a command must not go on as if it was done.
func TestUnknownCommandsAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"rollout puase ubuntu": "error: kubectl ot rollout has no command puase (did you mean pause?): see kubectl ot rollout --help\n",
		"rollout abrot ubuntu": "error: kubectl ot rollout has no command abrot (did you mean abort?): see kubectl ot rollout --help\n",
		"get fdi":              "error: kubectl ot get has no command fdi: see kubectl ot get --help\n",
		"completion basj":      "error: kubectl ot completion has no command basj (did you mean bash?): see kubectl ot completion --help\n",
		"policy x\x1b[2J":      "error: kubectl ot policy has no command x\ufffd[2J: see kubectl ot policy --help\n",
		"statsu":               "error: kubectl ot has no command statsu (did you mean status?): see kubectl ot --help\n",
		"help statsu":          "error: kubectl ot has no command statsu (did you mean status?): see kubectl ot --help\n",
		"help rollout puase":   "error: kubectl ot rollout has no command puase (did you mean pause?): see kubectl ot rollout --help\n",
		"help rollout nothing": "error: kubectl ot rollout has no command nothing: see kubectl ot rollout --help\n",
		"help join psuh":       "error: kubectl ot join has no command psuh (did you mean push?): see kubectl ot join --help\n",
		"help join frankfurt":  "error: kubectl ot join has no command frankfurt: see kubectl ot join --help\n",
		"help events imgae":    "error: kubectl ot events has no command imgae (did you mean image?): see kubectl ot events --help\n",
	} {
		t.Run(line, func(t *testing.T) {
			code, out, errOut := runLine(t, strings.Split(line, " "))
			assert.Equal(t, exit.Unanswered, code)
			assert.Empty(t, out)
			assert.Equal(t, want, errOut)
		})
	}
}

func TestHelpOfTopics(t *testing.T) {
	for line, want := range map[string]string{
		"help":                      "Available Commands:",
		"":                          "Available Commands:",
		"help rollout":              "kubectl ot rollout [command]",
		"help rollout pause":        "kubectl ot rollout pause NAME",
		"help rollout pause ubuntu": "kubectl ot rollout pause NAME",
		"help events ubuntu":        "kubectl ot events [image|cluster] NAME",
		"help help":                 "kubectl ot help [path to command]",
	} {
		t.Run(line, func(t *testing.T) {
			code, out, errOut := runLine(t, strings.Fields(line))
			assert.Equal(t, exit.Yes, code)
			assert.Contains(t, out, want)
			assert.Empty(t, errOut)
		})
	}
}

// TestGroupsPrintTheirHelp goes through all groups: without a name they say what they have, and with a
// wrong one they fail.
func TestGroupsPrintTheirHelp(t *testing.T) {
	root, _ := newCompletedRoot()
	groups := 0
	for _, cmd := range allCommands(root) {
		words := strings.Fields(cmd.CommandPath())[2:]
		if !cmd.HasSubCommands() || words[0] == "join" || words[0] == "events" { // which have arguments of their own
			continue
		}
		groups++
		code, out, errOut := runLine(t, words)
		assert.Equal(t, exit.Yes, code, "%q", words)
		assert.Contains(t, out, "Available Commands:")
		assert.Empty(t, errOut)
		code, _, errOut = runLine(t, append(slices.Clone(words), "unheard-of"))
		assert.Equal(t, exit.Unanswered, code, "%q", words)
		assert.Contains(t, errOut, "has no command unheard-of")
	}
	assert.GreaterOrEqual(t, groups, 9)
}

func TestMissingArgumentsNameTheHelp(t *testing.T) {
	code, _, errOut := runLine(t, []string{"image", "wait"})
	assert.Equal(t, exit.Unanswered, code)
	assert.Equal(t, "error: accepts 1 arg(s), received 0: see kubectl ot image wait --help\n", errOut)
}

// TestEachCommandHasAnExample also parses the examples: they must be command lines that work.
func TestEachCommandHasAnExample(t *testing.T) {
	root, _ := newCompletedRoot()
	word := regexp.MustCompile(`'[^']*'|\S+`)
	for _, listed := range allCommands(root) {
		if !listed.Runnable() || listed.Hidden || isGroup(listed) {
			continue
		}
		path := listed.CommandPath()
		assert.NotEmpty(t, listed.Example, "%s has no example", path)
		for line := range strings.Lines(listed.Example) {
			line, _, _ = strings.Cut(line, "#")
			words := word.FindAllString(strings.Replace(line, "kubectl-ot", "kubectl ot", 1), -1)
			require.Greater(t, len(words), 2, "%s: %q", path, line)
			require.Equal(t, []string{"kubectl", "ot"}, words[:2], path)
			fresh, _ := newCompletedRoot()
			cmd, rest, err := fresh.Find(words[2:])
			require.NoError(t, err, line)
			if path != "kubectl ot join" { // which is an example of a command below it
				assert.Equal(t, path, cmd.CommandPath(), line)
			}
			require.NoError(t, cmd.ParseFlags(rest), line)
			if dash := cmd.ArgsLenAtDash(); dash < 0 {
				require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), line)
			}
			require.NoError(t, preRun(cmd), line)
		}
	}
}
