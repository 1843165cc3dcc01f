package command

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
)

// preRun runs what cobra runs before a command: the nearest one above it.
func preRun(cmd *cobra.Command) error {
	for c := cmd; c != nil; c = c.Parent() {
		if c.PersistentPreRunE != nil {
			return c.PersistentPreRunE(cmd, nil)
		}
	}
	return nil
}

// TestScopeFlagsAreRefusedWhereNotUsed goes through all commands: one that ignored --cluster would
// go by the whole fleet.
func TestScopeFlagsAreRefusedWhereNotUsed(t *testing.T) {
	all := []string{"cluster", "live", "member-context"}
	object := append(slices.Clip(all), "namespace")
	wantUsed := map[string][]string{
		"tree image": object, "tree machine": object, "get images": object, "get machines": object, "why image": object, "why machine": object,
		"image where": {"cluster"}, "image retry": object, "preload": object, "policy show": {"cluster"}, "top": object, "doctor": object, "logs": object,
		"support-bundle": {"cluster", "member-context"}, "events": object, "events image": object, "events cluster": {"live", "member-context"},
		"join push": {"member-context"}, "join pull": {"member-context"}, "accept": {"member-context"}, "leave": {"member-context"},
	}
	values := map[string]string{"cluster": "--cluster=lab", "live": "--live", "member-context": "--member-context=lab", "namespace": "--namespace=farm"}
	seen := map[string]bool{}
	root, _ := newCompletedRoot()
	for _, listed := range allCommands(root) {
		name := strings.TrimPrefix(listed.CommandPath(), "kubectl ot ")
		for _, flag := range object {
			fresh, _ := newCompletedRoot()
			cmd, _, err := fresh.Find(strings.Fields(name))
			require.NoError(t, err, name)
			require.NoError(t, cmd.ParseFlags([]string{values[flag]}), "%s %s", name, flag)
			err = preRun(cmd)
			switch {
			case slices.Contains(wantUsed[name], flag):
				seen[name] = true
				require.NoError(t, err, "%s --%s", name, flag)
			case cmd.Flags().Lookup("clusters") != nil && flag == "cluster":
				require.ErrorContains(t, err, "kubectl ot "+name+" does not use --cluster: name clusters with --clusters")
			default:
				require.ErrorContains(t, err, "kubectl ot "+name+" does not use --"+flag+": ")
			}
		}
	}
	assert.Len(t, seen, len(wantUsed), "commands that are listed here, and are not there")
}

func TestScopeFlagsOfCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"prune approve spring --digest D -y --cluster lab": "error: kubectl ot prune approve does not use --cluster: name clusters with --clusters\n",
		"--cluster lab prune report spring":                "error: kubectl ot prune report does not use --cluster: name clusters with --clusters\n",
		"rollout abort ubuntu --cluster lab":               "error: kubectl ot rollout abort does not use --cluster: leave it out\n",
		"policy show -n farm":                              "error: kubectl ot policy show does not use --namespace: leave it out\n",
		"rollout pause ubuntu --live":                      "error: kubectl ot rollout pause does not use --live: leave it out\n",
		"image retry ubuntu --cluster=":                    "error: --cluster is empty: give it a name, or leave it out\n",
		"prune approve spring --digest D -y --clusters=":   "error: --clusters is empty: give it a value, or leave it out\n",
		"prune approve spring --digest D -y --images=":     "error: --images is empty: give it a value, or leave it out\n",
		"prune report --clusters bergen,":                  "error: --clusters is empty: give it a value, or leave it out\n",
		"rollout approve ubuntu -y --wave=":                "error: --wave is empty: give it a value, or leave it out\n",
		"rollout abort ubuntu --back-to=":                  "error: --back-to is empty: give it a value, or leave it out\n",
		"image publish ubuntu --checksum=":                 "error: --checksum is empty: give it a value, or leave it out\n",
		"preload ubuntu --selector=":                       "error: --selector is empty: give it a value, or leave it out\n",
		"top -n farm":                                      "error: kubectl ot top --namespace has no effect without --live: add that, or leave it out\n",
		"preload ubuntu -l region=nordics -n farm":         "error: kubectl ot preload --namespace has no effect without --live: add that, or leave it out\n",
		"top --live -l region=nordics":                     "error: -l selects clusters of the hub, and one member is asked: leave it out, or leave out --live and --member-context\n",
		"image retry ubuntu --member-context lab":          "error: --member-context lab: add --live, which asks the member itself\n",
	} {
		t.Run(line, func(t *testing.T) {
			t.Setenv("KUBECONFIG", t.TempDir()+"/none")
			errOut := &bytes.Buffer{}
			code := Run(strings.Fields(line), genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3")
			assert.Equal(t, exit.Unanswered, code)
			assert.Equal(t, want, errOut.String())
		})
	}
}

// TestEmptyFlagsAreRefused goes through all flags of all commands: an empty value, as of a variable
// that is not set, would select or change what the default does.
func TestEmptyFlagsAreRefused(t *testing.T) {
	root, _ := newCompletedRoot()
	checked := 0
	for _, listed := range allCommands(root) {
		name := strings.TrimPrefix(listed.CommandPath(), "kubectl ot ")
		flags := listed.LocalFlags()
		if name == "status" {
			flags = listed.Flags() // those of every command, once
		}
		flags.VisitAll(func(flag *pflag.Flag) {
			_, isList := flag.Value.(pflag.SliceValue)
			values := []string{"", " "}
			switch {
			case !listed.Runnable(), !isList && flag.Value.Type() != "string", name == "status" && slices.Contains(objectFlags, flag.Name):
				return
			case flag.Value.Type() == "stringSlice":
				values = append(values, "a,")
			}
			for _, value := range values {
				fresh, _ := newCompletedRoot()
				cmd, _, err := fresh.Find(strings.Fields(name))
				require.NoError(t, err, name)
				require.NoError(t, cmd.ParseFlags([]string{"--" + flag.Name + "=" + value}), "%s --%s", name, flag.Name)
				err = preRun(cmd)
				if name == "image publish" && flag.Name == "selector" { // all clusters, as its usage says
					require.NoError(t, err)
					continue
				}
				require.ErrorContains(t, err, "--"+flag.Name+" is empty: give it a value", "%s --%s=%q", name, flag.Name, value)
				checked++
			}
		})
	}
	assert.Greater(t, checked, 150)
}

func TestClusterIsCompletedWhereUsed(t *testing.T) {
	e := &environment{Flags: connect.NewFlags()}
	names, directive := e.completeCluster(&cobra.Command{Use: "status"}, nil, "b")
	assert.Empty(t, names)
	assert.Equal(t, cobra.ShellCompDirectiveNoFileComp, directive)
}

func TestScopeOfCommandsToCopy(t *testing.T) {
	e := &environment{Flags: connect.NewFlags()}
	assert.Empty(t, e.scope())
	e.cluster, e.live, e.Member = "bergen", true, "the lab"
	assert.Equal(t, []string{"--cluster", "bergen", "--live", "--member-context", "'the lab'"}, e.scope())
}
