package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/render"
)

const (
	// completionTimeout bounds how long a shell waits for names.
	completionTimeout = 2 * time.Second
	// maxCompletions is how many names are asked for.
	maxCompletions = 500
)

// addCompletion adds cobra's completion command with install, and what completes names of clusters
// and images in all commands. It comes after all other commands.
func (e *environment) addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Short = "Let the shell complete commands and names: completion install"
			for _, shell := range cmd.Commands() {
				shell.Example = shellword.FormatCommand("  kubectl-ot completion %s", shell.Name())
			}
			cmd.AddCommand(e.newCompletionInstallCommand())
		}
	}
	e.completeNames(root)
	register := func(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
		if cmd.LocalFlags().Lookup(flag) == nil {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil && !strings.Contains(err.Error(), "already registered") {
			panic(err) // a flag that is not there: a mistake of this program
		}
	}
	register(root, "cluster", e.completeCluster)
	register(root, "output", cobra.FixedCompletions(render.Formats, cobra.ShellCompDirectiveNoFileComp))
	register(root, "color", cobra.FixedCompletions([]cobra.Completion{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
	for _, flag := range []string{"hub", "member-context", "context"} {
		register(root, flag, e.completeContexts)
	}
	noFiles := func(of *cobra.Command) func(*pflag.Flag) {
		return func(flag *pflag.Flag) {
			if !slices.Contains(fileFlags, flag.Name) {
				register(of, flag.Name, cobra.NoFileCompletions)
			}
		}
	}
	for _, cmd := range allCommands(root) {
		register(cmd, "member", e.completeContexts)
		register(cmd, "clusters", e.completeClusters)
		for flag, words := range flagWords {
			if of, known := words[cmd.Name()]; known {
				register(cmd, flag, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
			}
		}
		cmd.LocalNonPersistentFlags().VisitAll(noFiles(cmd))
	}
	root.PersistentFlags().VisitAll(noFiles(root))
}

// fileFlags take the name of a file or folder.
var fileFlags = []string{"filename", "file", "kubeconfig", "cache-dir", "certificate-authority", "client-certificate", "client-key", "dir", "output", "output-file"}

// flagWords are the words that a flag of a command takes.
var flagWords = map[string]map[string][]cobra.Completion{
	"type":    {"publish": {"http", "s3", "gcs", "registry", "blank"}},
	"dry-run": {"publish": {"client", "server"}},
	"for":     {"wait": {"ready", "finished", "wave=", "in="}},
	"by":      {"review": {"image", "cluster", "age"}},
}

// completeClusters completes the last of several names of clusters.
func (e *environment) completeClusters(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	before, last := "", typed
	if at := strings.LastIndexByte(typed, ','); at >= 0 {
		before, last = typed[:at+1], typed[at+1:]
	}
	names, directive := e.completeKind(clusterKind)(cmd, nil, last)
	for i := range names {
		names[i] = before + names[i]
	}
	return names, directive
}

func allCommands(cmd *cobra.Command) (all []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		all = append(append(all, sub), allCommands(sub)...)
	}
	return all
}

// nameKind is what a NAME of a command's usage is the name of.
type nameKind string

const (
	noKind          nameKind = ""
	clusterKind     nameKind = "MemberCluster"
	fleetImageKind  nameKind = "FleetDiskImage"
	pruneReportKind nameKind = "PruneReport"
	imagePruneKind  nameKind = "ImagePrune"
	imageKind       nameKind = "VMDiskImage"
	machineKind     nameKind = "VirtualMachine"
)

// kindOf returns what the first argument of a command names, by its words.
func kindOf(words []string) nameKind {
	has := func(word string) bool { return slices.Contains(words, word) }
	if len(words) == 0 || has("join") || has("completion") || has("help") {
		return noKind // a name that is new
	}
	switch last := words[len(words)-1]; {
	case has("accept"), has("leave"), has("quarantine"), last == "cluster", last == "clusters":
		return clusterKind
	case words[0] == "prune" && (has("undo") || has("status")):
		return imagePruneKind
	case words[0] == "prune" && !has("report"): // whose name is new
		return pruneReportKind
	case words[0] == "rollout", words[0] == "image", words[0] == "preload", last == "rollout", last == "rollouts":
		return fleetImageKind
	case words[0] == "logs", last == "image", last == "images":
		return imageKind
	case last == "machine", last == "machines":
		return machineKind
	}
	return noKind
}

// completeNames completes the names of all commands that take one, and have no completion of their
// own.
func (e *environment) completeNames(root *cobra.Command) {
	for _, cmd := range allCommands(root) {
		words := strings.Fields(cmd.CommandPath())
		kind := kindOf(words[min(len(words), len(strings.Fields(root.CommandPath()))):])
		if kind != noKind && cmd.Runnable() && cmd.ValidArgsFunction == nil && strings.Contains(cmd.Use, "NAME") {
			cmd.ValidArgsFunction = e.completeKind(kind)
		}
	}
}

// completeKind completes the first argument, or a flag, with the names of objects.
func (e *environment) completeKind(kinds ...nameKind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !slices.Contains(kinds, clusterKind) { // --cluster follows names
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		var names []string
		for _, kind := range kinds {
			some, err := e.listNames(ctx, kind)
			if err != nil && kind == imageKind && e.cluster != "" && !e.live {
				some, err = e.listReportedNames(ctx)
			} else if err != nil && kind == imageKind && e.cluster == "" { // on the hub, images are those of the fleet
				some, err = e.listNames(ctx, fleetImageKind)
			}
			if err != nil {
				cobra.CompDebugln(err.Error(), false)
				return nil, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveError
			}
			names = append(names, some...)
		}
		return withPrefix(names, typed), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeCluster completes --cluster where the command uses it.
func (e *environment) completeCluster(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if !slices.Contains(usedScopeFlags(cmd), "cluster") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return e.completeKind(clusterKind)(cmd, args, typed)
}

// listNames lists names: of the hub, or of the member for what only members have.
func (e *environment) listNames(ctx context.Context, kind nameKind) (names []string, err error) {
	inMember := kind == imageKind || kind == machineKind
	var cluster *connect.Cluster
	if inMember {
		cluster, err = e.ConnectMember(ctx, e.cluster)
	} else {
		cluster, err = e.ConnectHub()
	}
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(string(kind) + "List"))
	options := []client.ListOption{client.Limit(maxCompletions)}
	if inMember {
		options = append(options, client.InNamespace(cluster.Namespace))
	}
	if err := cluster.Client.List(ctx, list, options...); err != nil {
		return nil, cluster.Explain(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// listReportedNames lists the names of the images that --cluster has reported, of the namespace in which
// a command looks for them.
func (e *environment) listReportedNames(ctx context.Context) (names []string, err error) {
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, err
	}
	api, err := e.OpenReadAPI(ctx, hub)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	for page := ""; ; {
		answer, err := api.MemberImages(ctx, e.cluster, page)
		if err != nil {
			return nil, err
		}
		for i := range answer.Images {
			if answer.Images[i].Namespace == hub.Namespace {
				names = append(names, answer.Images[i].Name)
			}
		}
		if page = answer.Next; page == "" || len(names) >= maxCompletions {
			return names, nil
		}
	}
}

func (e *environment) completeContexts(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	config, err := e.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveError
	}
	var names []string
	for name := range config.Contexts {
		names = append(names, name)
	}
	return withPrefix(names, typed), cobra.ShellCompDirectiveNoFileComp
}

// withPrefix returns the names that begin with what was typed, and are one word to a shell.
func withPrefix(names []string, typed string) []string {
	kept := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !strings.HasPrefix(name, typed) || strings.ContainsAny(name, " \t\n") || render.Printable(name) != name
	})
	slices.Sort(kept)
	return kept
}

// completionMark tells files of completion install from others.
const completionMark = "kubectl ot completion install"

// completionFile returns the program that kubectl asks for completions of the plugin, and its name.
func completionFile(system, plugin string) (name, content string) {
	if system == "windows" {
		return "kubectl_complete-ot.cmd", "@rem " + completionMark + " wrote this.\r\n@\"%~dp0" + plugin + "\" __complete %*\r\n"
	}
	return "kubectl_complete-ot", "#!/bin/sh\n# " + completionMark + " wrote this.\nexec \"$(dirname \"$0\")/" + plugin + "\" __complete \"$@\"\n"
}

func (e *environment) newCompletionInstallCommand() *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Write kubectl_complete-ot beside this plugin, which kubectl asks",
		Long: `install writes kubectl_complete-ot beside this plugin. kubectl asks it what may follow kubectl ot,
wherever its own completion is set up: kubectl completion --help.`,
		Example: "  kubectl ot completion install --dir ~/.local/bin",
		Args:    cobra.NoArgs,
		RunE: e.run(func(context.Context, []string) error {
			plugin, err := findPlugin(dir)
			if err != nil {
				return err
			}
			path, err := installCompletion(plugin)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(e.Out, render.Printable(path))
			return err
		}),
	}
	cmd.Flags().StringVar(&dir, "dir", "", "folder of PATH that has kubectl-ot. Default: the one that this program runs from")
	return cmd
}

// findPlugin returns the plugin's path as PATH has it: a link to it lies where kubectl looks.
func findPlugin(dir string) (string, error) {
	running, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	name := "kubectl-ot"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("--dir %s has no %s: put the plugin there first", dir, name)
		}
		return path, nil
	}
	if found, err := exec.LookPath(name); err == nil && sameFile(found, running) {
		return found, nil
	}
	return running, nil
}

func sameFile(a, b string) bool {
	first, err := os.Stat(a)
	second, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(first, second)
}

// installCompletion writes the file beside the plugin. It replaces none that it has not written.
func installCompletion(plugin string) (string, error) {
	name, content := completionFile(runtime.GOOS, filepath.Base(plugin))
	path := filepath.Join(filepath.Dir(plugin), name)
	before, err := os.ReadFile(path)
	switch {
	case err == nil && !strings.Contains(string(before), completionMark):
		return "", fmt.Errorf("%s is there, and is not of kubectl ot completion install: move it away", path)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return "", err
	}
	next := path + ".new"
	if err := os.WriteFile(next, []byte(content), 0o755); err != nil {
		return "", fmt.Errorf("%w: run this as somebody who may write there, or name another folder of PATH with --dir", err)
	}
	if err := os.Chmod(next, 0o755); err != nil { // the umask may have cut it
		return "", err
	}
	return path, os.Rename(next, path)
}
