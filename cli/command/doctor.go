package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pelotech/ot-fleet/cli/doctor"
	"github.com/pelotech/ot-fleet/cli/doctor/gather"
	"github.com/pelotech/ot-fleet/cli/join"
)

// junit is a format of doctor alone.
const junit = "junit"

// memberFlags of doctor say what to check in the member, of which the hub knows nothing.
var memberFlags = []string{"storage-class", "probe", "agent-namespace", "namespace"}

func (e *environment) newDoctorCommand() *cobra.Command {
	options := gather.Options{CLIVersion: e.version, Now: e.now}
	explain, asJUnit := "", false
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Whether a cluster has what images and machines need, and how to mend it",
		Long: `doctor checks a cluster: its versions, CDI, storage, quotas, KubeVirt, the agent and the
Secrets of sources. With --member-context, or --live, it reads the cluster; with --cluster
alone it takes what the hub knows of it. It writes nothing, but for --probe. -o junit is for the
test reporters of pipelines.

Exit codes: 0 no check failed; 1 one failed; 2 something could not be read.`,
		Example: `  kubectl ot doctor --member-context frankfurt
  kubectl ot doctor --cluster frankfurt -o junit
  kubectl ot doctor --explain snapshot-class-driver`,
		Args: cobra.NoArgs,
	}
	useScopeFlags(cmd, objectFlags...)
	flags := cmd.Flags()
	flags.StringVar(&options.Asked.StorageClass, "storage-class", "", "a StorageClass to check beside those in use")
	flags.StringVar(&options.Asked.ProbeURL, "probe", "", "send a HEAD request to this URL from a Pod in the cluster, which is deleted afterwards")
	flags.StringVar(&options.ProbeImage, "probe-image", "", "image of ot-agent for --probe. Default: that of the agent")
	flags.StringVar(&options.AgentNamespace, "agent-namespace", join.DefaultAgentNamespace, "namespace of chart ot-agent")
	addNeed(cmd, "probe", "probe-image")
	flags.StringVar(&explain, "explain", "", "print what a check looks at, why, and how to mend what it finds")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if asJUnit = e.output == junit; asJUnit {
			e.output = "json" // data as well, and known to the root's checks
		}
		return cmd.Root().PersistentPreRunE(cmd, args)
	}
	cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
		if explain != "" {
			text, err := doctor.Explain(explain)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(e.Out, text)
			return err
		}
		for _, name := range memberFlags {
			if e.asksHub() && flags.Changed(name) {
				return fmt.Errorf("--%s is for the member itself, and the hub is asked: add --live or --member-context, or leave it out", name)
			}
		}
		snapshot, err := e.gatherDoctor(ctx, options)
		if err != nil {
			return err
		}
		report := doctor.Examine(snapshot)
		if !asJUnit {
			return e.show(report, report.ExitCode())
		}
		text, err := report.JUnit()
		if err == nil {
			_, err = e.Out.Write(text)
		}
		return endPrinted(report.ExitCode(), err)
	})
	return cmd
}

// gatherDoctor reads the member where it is named, or else what the hub knows.
func (e *environment) gatherDoctor(ctx context.Context, o gather.Options) (*doctor.Snapshot, error) {
	if e.ConfigFlags.Namespace != nil {
		o.Asked.Namespace = *e.ConfigFlags.Namespace
	}
	if e.asksHub() {
		hub, err := e.ConnectHub()
		if err != nil {
			return nil, err
		}
		o.Cluster = e.cluster
		return gather.Hub(ctx, hub, o)
	}
	member, err := e.ConnectMember(ctx, e.cluster)
	if err != nil {
		return nil, err
	}
	if e.cluster == "" && e.Member == "" && member.Serves("MemberCluster") && !member.Serves("VMDiskImage") {
		return nil, fmt.Errorf("context %s is the hub, which has no images: name a cluster with --cluster, or its context with --member-context", member.Context)
	}
	if o.Cluster = e.cluster; o.Cluster == "" {
		o.Cluster = member.Context
	}
	return gather.Member(ctx, member, o)
}
