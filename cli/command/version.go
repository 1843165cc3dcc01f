package command

import (
	"context"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/versions"
)

func (e *environment) newVersionCommand() *cobra.Command {
	clientOnly := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Versions of this plugin, the hub and the agents",
		Long: `version shows the versions of this plugin, the hub and its members' agents. Exit codes: 0 they
work together; 1 some are too far apart; 2 the hub is not reached, which --client does not need;
5 the hub's version is unknown.`,
		Example: "  kubectl ot version --client",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "this plugin's version only")
	cmd.RunE = e.run(func(ctx context.Context, _ []string) error {
		s := versions.Snapshot{Client: e.version}
		if !clientOnly {
			if err := e.gatherVersions(ctx, &s); err != nil {
				e.printNote("client  %s", e.version)
				return err
			}
		}
		v := versions.New(s)
		return e.show(v, v.ExitCode())
	})
	return cmd
}

func (e *environment) gatherVersions(ctx context.Context, s *versions.Snapshot) error {
	hub, err := e.ConnectHub()
	if err != nil {
		return err
	}
	var members v1alpha1.MemberClusterList
	if err := hub.List(ctx, &members); err != nil {
		return err
	}
	s.Hub, s.Members = hub.Context, members.Items
	var leases coordinationv1.LeaseList
	switch err := hub.List(ctx, &leases, client.InNamespace(e.HubNamespace)); {
	case apierrors.IsForbidden(err):
		s.LeasesUnread = "you may not list Leases in namespace " + e.HubNamespace + " (chart ot-hub, value cli.readers)"
	case err != nil:
		return err
	}
	s.Leases = leases.Items
	return nil
}
