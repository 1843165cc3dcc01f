package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/cli/bundle"
	"github.com/pelotech/ot-fleet/cli/bundle/gather"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/join"
)

func (e *environment) newSupportBundleCommand() *cobra.Command {
	options := gather.Options{CLIVersion: e.version, Now: e.now}
	file, listOnly := "", false
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "What others need to help: kinds, events, logs, versions and doctor, without secrets",
		Long: `support-bundle writes a tar.gz of the hub: kinds of OT Fleet, events, logs, versions and pages
of the read API. Of clusters that --cluster names, plans, reports and doctor's findings are in it,
too, and the same of the member itself where the kubeconfig has a context of its name.
MANIFEST.txt in it lists every file.

No Secret is read. A field that is not known to be harmless is replaced by its hash, and URLs lose
their query. Look at it before you send it: names of clusters, images and machines are in it.

Exit codes: 0 it is written; 1 a part could not be read, and is listed; 2 nothing could be read.`,
		Example: `  kubectl ot support-bundle --list
  kubectl ot support-bundle --cluster bergen,kiel --since 2h`,
		Args: cobra.NoArgs,
	}
	useScopeFlags(cmd, "cluster", "member-context")
	flags := cmd.Flags()
	addDuration(flags, &options.Since, "since", 6*time.Hour, "logs and events not older than this")
	flags.StringVar(&file, "output-file", "", "the archive to write. Default: ot-support-<time>.tar.gz in this folder")
	flags.BoolVar(&listOnly, "list", false, "show what would go in, and write nothing")
	flags.StringVar(&options.AgentNamespace, "agent-namespace", join.DefaultAgentNamespace, "namespace of chart ot-agent")
	cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
		if options.Since <= 0 {
			return fmt.Errorf("--since %s: must be a duration above 0, as in 6h", options.Since)
		}
		if e.cluster != "" {
			if options.Clusters = strings.Split(e.cluster, ","); slices.ContainsFunc(options.Clusters, func(name string) bool { return strings.TrimSpace(name) == "" }) {
				return fmt.Errorf("--cluster %s: one of the names is empty: leave it out", e.cluster)
			}
		}
		if e.Member != "" && len(options.Clusters) != 1 {
			return errors.New("--member-context is of one cluster: name it alone with --cluster, or let the contexts have the names of the clusters")
		}
		options.HubNamespace = e.HubNamespace
		b, err := e.gatherBundle(ctx, options)
		if err != nil {
			return err
		}
		if !listOnly {
			if file == "" {
				file = "ot-support-" + e.now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			if err := writeArchive(b, file); err != nil {
				return err
			}
		}
		code := exit.Yes
		if len(b.Unread) > 0 || len(b.Omitted) > 0 {
			code = exit.No
		}
		return e.show(b, code)
	})
	return cmd
}

func (e *environment) gatherBundle(ctx context.Context, o gather.Options) (*bundle.Bundle, error) {
	g := gather.New(o)
	hub, err := e.ConnectHub()
	if err != nil {
		g.Unread("hub", err)
	} else {
		for _, name := range o.Clusters {
			if _, err := hub.GetMember(ctx, name); apierrors.IsNotFound(err) {
				return nil, err
			}
		}
		g.Hub(ctx, hub, e.Flags)
	}
	for _, name := range o.Clusters {
		member, err := e.ConnectMember(ctx, name)
		if err != nil {
			g.Unread("members/"+name, err)
			continue
		}
		g.Member(ctx, member, name)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := g.Finish()
	if err != nil {
		return nil, err
	}
	if len(b.Files) == 0 {
		return nil, errors.New("nothing could be read: " + b.Unread[0].Why)
	}
	return b, nil
}

// writeArchive writes the whole file or none, for its owner alone.
func writeArchive(b *bundle.Bundle, file string) error {
	folder := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".gz"), ".tar")
	partial, err := os.CreateTemp(filepath.Dir(file), ".ot-support-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	defer func() { _ = os.Remove(partial.Name()) }()
	if err := errors.Join(b.WriteArchive(partial, folder), partial.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := os.Rename(partial.Name(), file); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	b.Archive = file
	return nil
}
