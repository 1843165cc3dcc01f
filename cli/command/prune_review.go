package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/prune"
	"github.com/pelotech/ot-fleet/cli/render"
	hubprune "github.com/pelotech/ot-fleet/hub/prune"
)

// addSelectionFlags adds the flags that select candidates of a report.
func addSelectionFlags(cmd *cobra.Command, spec *v1alpha1.ImagePruneSpec) {
	flags := cmd.Flags()
	flags.StringSliceVar(&spec.Images, "images", nil, "images of the report as namespace/name; * stands for any characters, as in 'vmdi-farm/ubuntu-*'. Default: all")
	flags.StringSliceVar(&spec.Clusters, "clusters", nil, "clusters of the report. Default: all")
	flags.BoolVar(&spec.IncludeOthers, "include-others", false, "images that people made, too")
}

func (e *environment) newPruneReviewCommand() *cobra.Command {
	spec, byText, limit := &v1alpha1.ImagePruneSpec{}, "", 20
	cmd := &cobra.Command{
		Use:     "review NAME",
		Short:   "What a report found: what can go, and why the rest stays",
		Long:    `review reads a report, all of it, and sums it up. It deletes nothing.`,
		Example: "  kubectl ot prune review spring --by cluster",
		Args:    cobra.ExactArgs(1),
	}
	addSelectionFlags(cmd, spec)
	cmd.Flags().StringVar(&byText, "by", string(readapi.PruneByImage), "image, cluster or age")
	cmd.Flags().IntVar(&limit, "limit", limit, "rows on the screen; 0 shows all. Data formats always have all")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		by, err := prune.ParseBy(byText)
		if err != nil {
			return err
		}
		if err := prune.CheckPatterns(spec.Images, spec.Clusters); err != nil {
			return err
		}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		view, err := e.gatherReview(ctx, hub, args[0], by, spec, limit)
		if err != nil {
			return err
		}
		return e.show(view, exit.Yes)
	})
	return cmd
}

func (e *environment) gatherReview(ctx context.Context, hub *connect.Cluster, name string, by readapi.PruneBy, spec *v1alpha1.ImagePruneSpec, limit int) (*prune.Review, error) {
	report, err := getReport(ctx, hub, name)
	if err != nil {
		return nil, err
	}
	if err := prune.CheckApprovable(report, "", spec); err != nil {
		return nil, err
	}
	selection := hubprune.NewSelection(e.now(), by, *spec)
	if err := eachPage(ctx, hub, report, selection.Add); err != nil {
		return nil, err
	}
	var prunes v1alpha1.ImagePruneList
	source := ""
	if err := hub.List(ctx, &prunes); apierrors.IsForbidden(err) {
		source = "what was pruned since is not known: " + err.Error()
	} else if err != nil {
		return nil, err
	}
	return prune.NewReview(e.now(), report, prunes.Items, selection, limit, source), nil
}

// eachPage reads the pages of a report, one after the other, and compares them with the
// report's digest.
func eachPage(ctx context.Context, hub *connect.Cluster, report *v1alpha1.PruneReport, add func([]v1alpha1.ReportedCluster)) error {
	digester := hubprune.NewDigester(report.UID)
	for n := range int(report.Status.Pages) {
		page := &v1alpha1.PruneReportPage{}
		name := hubprune.PageName(report.Name, report.Status.Digest, n)
		if err := hub.Client.Get(ctx, client.ObjectKey{Name: name}, page); err != nil {
			if apierrors.IsNotFound(err) {
				return fmt.Errorf("PruneReport %s lacks its page %s: make another report", report.Name, name)
			}
			return hub.Explain(err)
		}
		digester.AddPage(page.Clusters)
		add(page.Clusters)
	}
	if digester.Digest() != report.Status.Digest {
		return fmt.Errorf("PruneReport %s was changed: %w", report.Name, errReportChanged)
	}
	return nil
}

func (e *environment) newPruneApproveCommand() *cobra.Command {
	p := &v1alpha1.ImagePrune{}
	digest, yes := "", false
	undoWindow, deadline := v1alpha1.DefaultUndoWindow, v1alpha1.DefaultPruneDeadline
	cmd := &cobra.Command{
		Use:   "approve NAME",
		Short: "Delete what a reviewed report found, after an undo window",
		Long: `approve creates an ImagePrune in your name. It shows what goes first and asks; -y, with the
--digest that review prints, does not ask. Exit code 1: it was declined.`,
		Example: "  kubectl ot prune approve spring --digest 5d1f0c9e7a3b8842c0de11faa72b3d90",
		Args:    cobra.ExactArgs(1),
	}
	addSelectionFlags(cmd, &p.Spec)
	flags := cmd.Flags()
	flags.StringVar(&digest, "digest", "", "digest of the report that was reviewed; another one is refused")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask; needs --digest")
	flags.StringVar(&p.Name, "name", "", "name of the ImagePrune. Default: the report's")
	addDuration(flags, &undoWindow, "undo-window", undoWindow, "how long each image serves on, and the prune can be taken back")
	addDuration(flags, &deadline, "deadline", deadline, "how long to wait for clusters beyond --undo-window")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		if yes && digest == "" {
			return fmt.Errorf("-y needs --digest of the report that was reviewed: %s prints it", prune.ReviewCommand(args[0], &p.Spec))
		}
		if err := prune.CheckPatterns(p.Spec.Images, p.Spec.Clusters); err != nil {
			return err
		}
		p.Spec.UndoWindow, p.Spec.Deadline = &metav1.Duration{Duration: undoWindow.Round(time.Second)}, &metav1.Duration{Duration: deadline.Round(time.Second)}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		return e.approvePrune(ctx, hub, args[0], digest, yes, p)
	})
	return cmd
}

// approvePrune shows what would go, asks, and creates the ImagePrune.
func (e *environment) approvePrune(ctx context.Context, hub *connect.Cluster, name, digest string, yes bool, p *v1alpha1.ImagePrune) error {
	report, err := getReport(ctx, hub, name)
	if err != nil {
		return err
	}
	if err := prune.CheckApprovable(report, digest, &p.Spec); err != nil {
		return err
	}
	if p.Name == "" {
		p.Name = report.Name
	}
	if err := hub.CheckMay(ctx, "approve", "imageprunes", p.Name, prunerRole); err != nil {
		return err
	}
	if p.Spec.ApprovedBy, err = hub.CallerName(ctx); err != nil {
		return err
	}
	p.Spec.ReportRef = v1alpha1.PruneReportRef{Name: report.Name, Digest: report.Status.Digest}
	selection := hubprune.NewSelection(e.now(), readapi.PruneByImage, p.Spec)
	if err := eachPage(ctx, hub, report, selection.Add); err != nil {
		return err
	}
	view := prune.NewApproval(e.now(), report, p, selection)
	if err := view.CheckSelected(); err != nil {
		return err
	}
	if !yes {
		// The answer, on standard output, is that the prune exists.
		if err := (render.Format{}).Write(e.ErrOut, view, e.options()); err != nil {
			return err
		}
		agreed, err := e.askWhether(hub.Context, view.Question())
		if err != nil {
			return err
		}
		if !agreed {
			return exit.Because(exit.No, errors.New("nothing was approved"))
		}
	}
	if err := hub.Client.Create(ctx, p); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("there is an ImagePrune %s already (%s): choose another name with --name", p.Name, shellword.FormatCommand("kubectl ot prune status %s", p.Name))
		}
		return hub.Explain(err)
	}
	view.SetCreated()
	return e.show(view, exit.Yes)
}
