package command

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
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
		"doctor --cluster lab --storage-class lvm":         "error: --storage-class is for the member itself, and the hub is asked: add --live or --member-context, or leave it out\n",
		"doctor --cluster lab -n farm":                     "error: --namespace is for the member itself, and the hub is asked: add --live or --member-context, or leave it out\n",
		"doctor --cluster lab --agent-namespace agents":    "error: --agent-namespace is for the member itself, and the hub is asked: add --live or --member-context, or leave it out\n",
		"doctor --cluster lab --probe https://a.example":   "error: --probe is for the member itself, and the hub is asked: add --live or --member-context, or leave it out\n",
		"doctor --member-context lab --probe-image agent":  "error: kubectl ot doctor --probe-image has no effect without --probe: add that, or leave it out\n",
		"support-bundle --cluster bergen,":                 "error: --cluster bergen,: one of the names is empty: leave it out\n",
		"top --cluster lab -l region=nordics":              "error: name the clusters: either -l, or --cluster\n",
		"image where ubuntu --cluster lab -l region=emea":  "error: name the clusters: either -l, or --cluster\n",
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

// TestNamespaceAsFallback: -n of top and preload counts where the caller may list no other namespace. Where
// it has no effect, that is said once.
func TestNamespaceAsFallback(t *testing.T) {
	newImage := func(namespace string) client.Object {
		return &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ubuntu"}}
	}
	const note = "--namespace farm has no effect: you may list the images of all namespaces here, which are shown.\n"
	for name, test := range map[string]struct {
		flag      string // -n of a command that uses it as a fallback
		forbidden bool   // to list all namespaces
		want      []string
		wantNote  string
	}{
		"all may be listed":              {"farm", false, []string{"farm", "lab"}, note},
		"one may be listed":              {"farm", true, []string{"farm"}, ""},
		"without -n all may be listed":   {"", false, []string{"farm", "lab"}, ""},
		"without -n that of the context": {"", true, []string{"farm"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(newImage("farm"), newImage("lab")).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					o := client.ListOptions{}
					if o.ApplyOptions(options); test.forbidden && o.Namespace == "" {
						return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("vmdiskimages").GroupResource(), "", nil)
					}
					return c.List(ctx, list, options...)
				},
			}).Build()
			e, _, errOut := newTestEnvironment("")
			e.Flags, e.live = connect.NewFlags(), true
			e.Namespace = &test.flag
			require.NoError(t, e.requireMemberForNamespace(&cobra.Command{Use: "top"}))
			for range 2 {
				images, err := e.listImages(t.Context(), &optional{cluster: &connect.Cluster{Client: c, Namespace: "farm"}})
				require.NoError(t, err)
				var got []string
				for i := range images {
					got = append(got, images[i].Namespace)
				}
				assert.Equal(t, test.want, got)
			}
			assert.Equal(t, test.wantNote, errOut.String())
		})
	}
}
