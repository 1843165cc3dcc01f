package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/quarantine"
)

func (e *environment) newQuarantineCommand() *cobra.Command {
	request := quarantine.Request{}
	cmd := &cobra.Command{
		Use:   "quarantine NAME (--reason TEXT | --end)",
		Short: "Cut a member off that you do not trust, and let it take part again",
		Long: `quarantine cuts a member off at once; it stays a member. --end lets it take part again; in pull
mode once its agent's credentials are revoked.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, for whoever finds it cut off")
	cmd.Flags().BoolVar(&request.End, "end", false, "end the quarantine")
	cmd.Flags().BoolVar(&request.Force, "force-conflicts", false, "change it also where GitOps applies it")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		request.Name = args[0]
		if err := request.Validate(); err != nil {
			return err
		}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		member := &v1alpha1.MemberCluster{}
		if err := hub.Client.Get(ctx, client.ObjectKey{Name: request.Name}, member); err != nil {
			return hub.Explain(err)
		}
		decided, err := quarantine.Decide(request, member)
		if err != nil {
			return err
		}
		if decided.Changed {
			// The decision was made about this version of the object.
			base := client.MergeFromWithOptions(member.DeepCopy(), client.MergeFromWithOptimisticLock{})
			member.Spec.Quarantine = nil
			if !request.End {
				member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: request.Reason}
			}
			if err := hub.Client.Patch(ctx, member, base, client.FieldOwner("kubectl-ot")); err != nil {
				return fmt.Errorf("changing MemberCluster %s: %w", request.Name, hub.Explain(err))
			}
		}
		return e.show(decided, exit.Yes)
	})
	return cmd
}
