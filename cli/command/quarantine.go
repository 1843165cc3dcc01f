package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/quarantine"
)

func (e *environment) newQuarantineCommand() *cobra.Command {
	request := quarantine.Request{}
	cmd := &cobra.Command{
		Use:   "quarantine NAME (--reason TEXT | --end)",
		Short: "Cut a member off that you do not trust, and let it take part again",
		Long: `quarantine cuts a member off at once; it stays a member. --end lets it take part again; in pull
mode, or after it, once its agent's credentials are revoked.`,
		Example: "  kubectl ot quarantine lab --reason 'its disks were stolen'\n  kubectl ot quarantine lab --end",
		Args:    cobra.ExactArgs(1),
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
		decided, err := changeQuarantine(ctx, hub, request)
		if err != nil {
			return err
		}
		return e.show(decided, exit.Yes)
	})
	return cmd
}

// changeQuarantine decides about the member as it is, and writes. The hub writes to it often:
// what was decided about an earlier version is decided anew.
func changeQuarantine(ctx context.Context, hub *connect.Cluster, request quarantine.Request) (decided *quarantine.Quarantine, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		member, err := hub.GetMember(ctx, request.Name)
		if err != nil {
			return err
		}
		if decided, err = quarantine.Decide(request, member); err != nil || !decided.Changed {
			return err
		}
		base := client.MergeFromWithOptions(member.DeepCopy(), client.MergeFromWithOptimisticLock{})
		member.Spec.Quarantine = nil
		if !request.End {
			member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: request.Reason}
		}
		return hub.Client.Patch(ctx, member, base, client.FieldOwner(ownership.FieldManager))
	})
	if err != nil {
		return nil, fmt.Errorf("MemberCluster %s: %w", request.Name, hub.Explain(err))
	}
	return decided, nil
}
