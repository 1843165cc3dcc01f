package command

import (
	"context"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/status"
)

// newFleetCommand has status once more, as kubectl ot fleet status.
func (e *environment) newFleetCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "fleet", Short: "The fleet as a whole", Args: cobra.NoArgs}
	cmd.AddCommand(e.newStatusCommand("kubectl ot fleet status"))
	return cmd
}

func (e *environment) newStatusCommand(path string) *cobra.Command {
	selector, namesAll, failing, unknown := "", false, false, false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "How the fleet is, what moves, what needs a person, what can go",
		Long: `status shows the fleet on one screen. With --failing, --unknown or both it lists these clusters
alone, with their failed images, and the rollouts that failed or wait for unknown clusters. Exit codes,
whatever is listed: 0 all is well; 1 something failed; 5 clusters are unknown, which --allow-unknown
accepts.`,
		Example: "  " + path + " -l region=nordics -w",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "clusters by their labels, as in region=nordics")
	cmd.Flags().BoolVar(&e.allowUnknown, "allow-unknown", false, "exit code 0 where clusters are unknown and all others are well")
	cmd.Flags().BoolVarP(&namesAll, "verbose", "v", false, "name all clusters, rollouts and failed images, however many")
	cmd.Flags().BoolVar(&failing, "failing", false, "those clusters alone that fail, are not ready or are in quarantine, and the rollouts that failed")
	cmd.Flags().BoolVar(&unknown, "unknown", false, "those clusters alone of which nothing current is known, and the rollouts that wait for them")
	e.addWatchFlag(cmd)
	cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		poll := func(ctx context.Context) (watchState, error) {
			snapshot, err := e.gatherStatus(ctx, hub, selector)
			if err != nil {
				return watchState{}, err
			}
			snapshot.NamesAll, snapshot.Failing, snapshot.Unknown = namesAll, failing, unknown
			st := status.New(snapshot)
			return watchState{view: st, code: st.ExitCode(e.allowUnknown)}, nil
		}
		return e.showOrWatch(ctx, e.watching, poll)
	})
	return cmd
}

func (e *environment) gatherStatus(ctx context.Context, hub *connect.Cluster, selector string) (status.Snapshot, error) {
	members, err := hub.ListMembers(ctx, selector)
	if err != nil {
		return status.Snapshot{}, err
	}
	var images v1alpha1.FleetDiskImageList
	if err := hub.List(ctx, &images); err != nil {
		return status.Snapshot{}, err
	}
	var reports v1alpha1.PruneReportList
	if err := hub.List(ctx, &reports); err != nil {
		return status.Snapshot{}, err
	}
	var prunes v1alpha1.ImagePruneList
	prunesUnread := ""
	if err := hub.List(ctx, &prunes); apierrors.IsForbidden(err) {
		prunesUnread = err.Error()
	} else if err != nil {
		return status.Snapshot{}, err
	}
	s := status.Snapshot{Now: e.now(), Hub: hub.Context, Members: members, Images: images.Items, Reports: reports.Items, Prunes: prunes.Items, PrunesUnread: prunesUnread, Selected: selector != ""}
	s.Unread, err = e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) (err error) {
		s.Summary, err = api.Summary(ctx)
		return err
	})
	if s.Unread != "" {
		s.Unread += ". Whether the policy is in force as it is written is not known here"
	}
	return s, err
}
