package command

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/cli/exit"
)

// TestErrorsOfFlagsSayWhereHelpIs goes through all commands.
func TestErrorsOfFlagsSayWhereHelpIs(t *testing.T) {
	root, _ := newCompletedRoot()
	for _, cmd := range allCommands(root) {
		if !cmd.Runnable() || strings.Contains(cmd.CommandPath(), "completion") || cmd.Name() == "help" || cmd.Hidden {
			continue
		}
		errOut := &bytes.Buffer{}
		args := slices.Concat(strings.Fields(cmd.CommandPath())[2:], []string{"--no-such-flag"})
		assert.Equal(t, exit.Unanswered, Run(args, genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3"))
		assert.Equal(t, "error: unknown flag: --no-such-flag: see "+cmd.CommandPath()+" --help\n", errOut.String())
	}
}

// TestDurationsAreNumbersOfSecondsToo: what is right for one command's --timeout is right for all.
func TestDurationsAreNumbersOfSecondsToo(t *testing.T) {
	checked := 0
	root, _ := newCompletedRoot()
	for _, cmd := range allCommands(root) {
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			if flag.Value.Type() != "duration" {
				return
			}
			checked++
			require.NoError(t, flag.Value.Set("300"), "%s --%s", cmd.CommandPath(), flag.Name)
			assert.Equal(t, "5m0s", flag.Value.String())
			require.NoError(t, flag.Value.Set("1h"))
			require.EqualError(t, flag.Value.Set("-1h"), `"-1h" is negative: must be 0 or more`, "%s --%s", cmd.CommandPath(), flag.Name)
			require.EqualError(t, flag.Value.Set("soon"), `"soon" is neither a duration such as 5m nor a number of seconds`)
		})
	}
	assert.Greater(t, checked, 15)
	var of duration
	require.NoError(t, of.Set("1"))
	assert.Equal(t, time.Second, time.Duration(of))
}

// TestFlagsCompleteNoFiles goes through all flags: a shell offers files where nothing else is known.
func TestFlagsCompleteNoFiles(t *testing.T) {
	root, _ := newCompletedRoot()
	for _, cmd := range allCommands(root) {
		cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
			if _, known := cmd.GetFlagCompletionFunc(flag.Name); !known {
				assert.Contains(t, fileFlags, flag.Name, cmd.CommandPath())
			}
		})
	}
	for line, want := range map[string]string{
		"image publish x --type r":     "http\ns3\ngcs\nregistry\nblank\n:4\n",
		"image wait x --for fin":       "ready\nfinished\nwave=\nin=\n:4\n",
		"rollout abort x --back-to ":   ":4\n",
		"get clusters --sort-by ":      ":4\n",
		"prune review x --by c":        "image\ncluster\nage\n:4\n",
		"image publish x --filename c": ":0\n",
	} {
		fresh, out := newCompletedRoot()
		fresh.SetArgs(append([]string{"__complete"}, strings.Split(line, " ")...))
		require.NoError(t, fresh.ExecuteContext(t.Context()))
		assert.Equal(t, want, out.String(), line)
	}
}
