package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/prune"
)

// prunerRole is the ClusterRole of chart ot-hub that may approve prunes.
const prunerRole = "ot-fleet-pruner"

func (e *environment) newPruneCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "prune", Short: "Find what nobody needs, review it, and delete exactly that", Args: cobra.NoArgs}
	cmd.AddCommand(e.newPruneReportCommand(), e.newPruneReviewCommand(), e.newPruneApproveCommand(), e.newPruneUndoCommand(), e.newPruneStatusCommand())
	return cmd
}

// reportFlags are what a new PruneReport is made of.
type reportFlags struct {
	unreferencedFor, answerDeadline *time.Duration // nil where they are not given
	selector, schedule, timeZone    string
	images, namespaces, clusters    []string
}

func (e *environment) newPruneReportCommand() *cobra.Command {
	f, timeout := &reportFlags{unreferencedFor: new(time.Duration), answerDeadline: new(time.Duration)}, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "report [NAME]",
		Short: "Ask all clusters what nobody needs, and wait for the report",
		Long: `report makes a PruneReport and waits until it is complete. It deletes nothing. Exit codes:
0 complete; 1 it failed; 3 not by --timeout; 5 clusters are unknown, which --allow-unknown
accepts.`,
		Example: "  kubectl ot prune report spring --unreferenced-for 168h --images 'ubuntu-*'",
		Args:    cobra.MaximumNArgs(1),
	}
	flags := cmd.Flags()
	addDuration(flags, f.unreferencedFor, "unreferenced-for", 0, "images that no machine has referenced for so long")
	flags.StringSliceVar(&f.images, "images", nil, "names of images; * stands for any characters. Default: all")
	flags.StringSliceVar(&f.namespaces, "namespaces", nil, "namespaces of images in the clusters. Default: all")
	flags.StringVarP(&f.selector, "selector", "l", "", "clusters by their labels, as in region=nordics. Default: all")
	flags.StringSliceVar(&f.clusters, "clusters", nil, "clusters by their names. Default: all")
	addDuration(flags, f.answerDeadline, "answer-deadline", 0, "how long to wait for clusters that are online. Default: 10m")
	flags.StringVar(&f.schedule, "schedule", "", "make a report at these times, as in '0 6 * * 1', rather than one now")
	flags.StringVar(&f.timeZone, "time-zone", "", "time zone of --schedule. Default: UTC")
	addNeed(cmd, "schedule", "time-zone")
	addDuration(flags, &timeout, "timeout", 30*time.Minute, "how long to wait; exit code 3 after it")
	flags.BoolVar(&e.allowUnknown, "allow-unknown", false, "exit code 0 where clusters are unknown")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		if !flags.Changed("unreferenced-for") {
			f.unreferencedFor = nil
		}
		if !flags.Changed("answer-deadline") {
			f.answerDeadline = nil
		}
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		_, look, lookTime, cancel := boundWait(ctx, timeout)
		defer cancel()
		report, err := within(look, func(ctx context.Context) (*v1alpha1.PruneReport, error) { return e.createReport(ctx, hub, args, f) })
		if err != nil {
			return notWithin(look, lookTime, err)
		}
		view, err := e.awaitReport(look, hub, report.Name, timeout)
		if err != nil {
			return err
		}
		return e.show(view, view.ExitCode(e.allowUnknown))
	})
	return cmd
}

func (e *environment) createReport(ctx context.Context, hub *connect.Cluster, args []string, f *reportFlags) (*v1alpha1.PruneReport, error) {
	report := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: e.now().UTC().Format("report-20060102-150405")}}
	if len(args) > 0 {
		report.Name = args[0]
	}
	report.Spec.Schedule, report.Spec.TimeZone = f.schedule, f.timeZone
	if f.unreferencedFor != nil {
		report.Spec.UnreferencedFor = &metav1.Duration{Duration: *f.unreferencedFor}
	}
	if f.answerDeadline != nil {
		report.Spec.AnswerDeadline = &metav1.Duration{Duration: *f.answerDeadline}
	}
	if len(f.images)+len(f.namespaces) > 0 {
		report.Spec.ImageSelector = &v1alpha1.ImageSelector{Names: f.images, Namespaces: f.namespaces}
	}
	if f.selector != "" || len(f.clusters) > 0 {
		report.Spec.Placement = &v1alpha1.Placement{ClusterNames: f.clusters}
	}
	if f.selector != "" {
		selector, err := connect.ParseLabelSelector(f.selector)
		if err != nil {
			return nil, err
		}
		report.Spec.Placement.ClusterSelector = selector
	}
	err := hub.Client.Create(ctx, report)
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("there is a PruneReport %s already: review it (%s), or choose another name", report.Name, shellword.FormatCommand("kubectl ot prune review %s", report.Name))
	}
	return report, hub.Explain(err)
}

// awaitReport waits until a report is made, and says on standard error how far it is.
func (e *environment) awaitReport(ctx context.Context, hub *connect.Cluster, name string, timeout time.Duration) (*prune.Review, error) {
	waiting, look, _, cancel := boundWait(ctx, timeout)
	defer cancel()
	lastNote := ""
	for reading := look; ; reading = waiting {
		report, err := within(reading, func(ctx context.Context) (*v1alpha1.PruneReport, error) {
			report := &v1alpha1.PruneReport{}
			return report, hub.Client.Get(ctx, client.ObjectKey{Name: name}, report)
		})
		switch {
		case err == nil:
			view := prune.NewReport(e.now(), report)
			if view.Ended() {
				return view, nil
			}
			if progress := view.Summary(); progress != lastNote {
				e.printNote("%s", progress)
				lastNote = progress
			}
		case reading.Err() != nil:
			lastNote = cmp.Or(lastNote, hub.Explain(err).Error())
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("PruneReport %s was deleted", name)
		case lastNote == "":
			return nil, hub.Explain(err)
		default:
			if problem := hub.Explain(err).Error(); problem != lastNote {
				e.printNote("%s; trying again", problem)
				lastNote = problem
			}
		}
		select {
		case <-waiting.Done():
			if !errors.Is(waiting.Err(), context.DeadlineExceeded) {
				return nil, waiting.Err()
			}
			return nil, exit.Because(exit.NotYet, fmt.Errorf("PruneReport %s is not complete within %s: %s", name, timeout, lastNote))
		case <-time.After(watchInterval):
		}
	}
}

func (e *environment) newPruneUndoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "undo NAME",
		Short:   "Take a prune back: what is not deleted yet stays",
		Long:    `undo keeps every image of an ImagePrune that is not deleted yet. Exit code 1: nothing is left to take back.`,
		Example: "  kubectl ot prune undo spring",
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		p, err := getPrune(ctx, hub, args[0])
		if err != nil {
			return err
		}
		if err := prune.CheckUndoable(p); err != nil {
			return exit.Because(exit.No, err)
		}
		if !p.Spec.Undo {
			if err := hub.Client.Patch(ctx, p, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"undo":true}}`))); err != nil {
				return hub.Explain(err)
			}
		}
		return e.show(prune.NewProgress(e.now(), p), exit.Yes)
	})
	return cmd
}

func (e *environment) newPruneStatusCommand() *cobra.Command {
	timeout := time.Duration(0)
	cmd := &cobra.Command{
		Use:     "status [NAME]",
		Short:   "How far a prune is; without a name, all reports and prunes",
		Long:    `status of a prune. Exit codes: 0 it goes on, or is done; 1 it failed; 5 it is over, and clusters did not say what became of images.`,
		Example: "  kubectl ot prune status spring -w",
		Args:    cobra.MaximumNArgs(1),
	}
	e.addWatchFlag(cmd)
	addDuration(cmd.Flags(), &timeout, "timeout", noTimeout, "with -w, how long to watch; exit code 3 after it. Default: until it ends")
	addNeed(cmd, "watch", "timeout")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		hub, err := e.ConnectHub()
		if err != nil {
			return err
		}
		return e.showOrWatchWithin(ctx, e.watching, timeout, func(ctx context.Context) (watchState, error) {
			if len(args) == 0 {
				view, err := e.gatherPrunes(ctx, hub)
				return watchState{view: view}, err
			}
			p, err := getPrune(ctx, hub, args[0])
			if err != nil {
				return watchState{}, err
			}
			view := prune.NewProgress(e.now(), p)
			return watchState{view: view, code: view.ExitCode(), end: view.Phase.IsFinal()}, nil
		})
	})
	return cmd
}

func (e *environment) gatherPrunes(ctx context.Context, hub *connect.Cluster) (*prune.Overview, error) {
	var reports v1alpha1.PruneReportList
	if err := hub.List(ctx, &reports); err != nil {
		return nil, err
	}
	var prunes v1alpha1.ImagePruneList
	if err := hub.List(ctx, &prunes); err != nil {
		return nil, err
	}
	return prune.NewOverview(e.now(), reports.Items, prunes.Items), nil
}

func getPrune(ctx context.Context, hub *connect.Cluster, name string) (*v1alpha1.ImagePrune, error) {
	p := &v1alpha1.ImagePrune{}
	err := hub.Client.Get(ctx, client.ObjectKey{Name: name}, p)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no ImagePrune %s: kubectl ot prune status lists them", name)
	}
	return p, hub.Explain(err)
}

func getReport(ctx context.Context, hub *connect.Cluster, name string) (*v1alpha1.PruneReport, error) {
	report := &v1alpha1.PruneReport{}
	err := hub.Client.Get(ctx, client.ObjectKey{Name: name}, report)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no PruneReport %s: kubectl ot prune status lists them", name)
	}
	return report, hub.Explain(err)
}

// errReportChanged: what is stored differs from what the digest stands for.
var errReportChanged = errors.New("its pages do not match its digest: make another report")
