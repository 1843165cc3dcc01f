package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/top"
	"github.com/pelotech/ot-fleet/cli/tree"
)

func (e *environment) newTopCommand() *cobra.Command {
	once, selector, sortBy, filter := false, "", "", ""
	names := make([]string, len(top.Subjects))
	for i, subject := range top.Subjects {
		names[i] = string(subject)
	}
	cmd := &cobra.Command{
		Use:   "top [" + strings.Join(names, "|") + "]",
		Short: "Show running and queued imports, by cluster and source",
		Long: `top shows live which imports run in the fleet, how fast, and until when; what waits in which
cluster; and how much comes from which source. With --live it is of one member alone. Where
the output is no terminal, and with --once, it is a table.

Keys:
  ` + strings.Join(top.Keys, "\n  "),
		Example:   "  kubectl ot top clusters -l region=nordics --once",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: names,
	}
	useScopeFlags(cmd, objectFlags...)
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "a table, then end")
	flags.StringVarP(&selector, "selector", "l", "", "clusters by their labels, as in region=nordics")
	flags.StringVar(&sortBy, "sort-by", "", "column to sort by: "+orderNames())
	flags.StringVar(&filter, "filter", "", "only rows that contain a text")
	cmd.RunE = e.run(func(ctx context.Context, args []string) error {
		subject := top.Imports
		if len(args) > 0 {
			subject = top.Subject(args[0])
		}
		if sortBy != "" && !slices.Contains(top.Orders(subject), sortBy) {
			return fmt.Errorf("--sort-by %s: %s are sorted by %s", sortBy, subject, strings.Join(top.Orders(subject), ", "))
		}
		if selector != "" && (e.live || e.Member != "") {
			return errors.New("-l selects clusters of the hub, and one member is asked: leave it out, or leave out --live and --member-context")
		}
		if err := e.checkSelector(selector); err != nil {
			return err
		}
		if err := e.requireMemberForNamespace(cmd); err != nil {
			return err
		}
		poll, end, err := e.gatherTop(selector)
		if err != nil {
			return err
		}
		defer end()
		first, err := poll(ctx)
		if err != nil {
			return err
		}
		if _, isTerminal := e.terminalWidth(); once || !isTerminal || !e.format.Screen() {
			return e.show(top.New(first, subject, filter, sortBy), exit.Yes)
		}
		m := top.NewModel(ctx, first, subject, e.options(), watchInterval)
		m.Poll, m.Open = poll, e.openRow
		m.SetRows(filter, sortBy)
		program := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(e.In), tea.WithOutput(e.Out), tea.WithoutSignalHandler())
		if _, err := program.Run(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("drawing on the terminal: %w", err)
		}
		if m.Interrupted {
			return exit.With(exit.Interrupted)
		}
		return ctx.Err()
	})
	return cmd
}

func orderNames() string {
	var all []string
	for _, subject := range top.Subjects {
		all = append(all, string(subject)+" by "+strings.Join(top.Orders(subject), ", "))
	}
	return strings.Join(all, "; ")
}

// gatherTop returns how to poll the hub or one member, and how to end.
func (e *environment) gatherTop(selector string) (poll func(context.Context) (top.Snapshot, error), end func(), err error) {
	if e.live || e.Member != "" {
		return func(ctx context.Context) (top.Snapshot, error) {
			_, m, err := e.gatherMember(ctx)
			if err != nil {
				return top.Snapshot{}, err
			}
			c := top.ClusterActivity{Name: m.Cluster, Activity: m.OfImage("", "").Activity}
			if c.Activity == nil {
				c.Unknown = "its SyncLedger cannot be read"
			}
			return top.Snapshot{Now: m.Now, Clusters: []top.ClusterActivity{c}}, nil
		}, func() {}, nil
	}
	hub, err := e.ConnectHub()
	if err != nil {
		return nil, nil, err
	}
	if _, err := connect.ParseSelector(selector); err != nil {
		return nil, nil, err
	}
	// Screens are opened while this polls: each has a connection to the read API of its own.
	own := *e
	return func(ctx context.Context) (top.Snapshot, error) { return own.gatherActivities(ctx, hub, selector) }, own.closeReadAPI, nil
}

// gatherActivities reads what members have reported: of their ClusterReports, which administrators
// may read, else of the read API.
func (e *environment) gatherActivities(ctx context.Context, hub *connect.Cluster, selector string) (top.Snapshot, error) {
	s := top.Snapshot{Now: e.now()}
	members, err := hub.ListMembers(ctx, selector)
	if err != nil {
		return s, err
	}
	activities, err := e.listActivities(ctx, hub)
	if err != nil {
		return s, err
	}
	var running, queued map[string][]readapi.Transfer
	if e.reportsForbidden {
		if running, queued, s.Unread, err = e.listTransfers(ctx, hub); err != nil {
			return s, err
		}
	}
	for i := range members {
		m := &members[i]
		if e.cluster != "" && m.Name != e.cluster {
			continue
		}
		c := top.ClusterActivity{Name: m.Name}
		if m.Status.Images != nil {
			c.Failed = &m.Status.Images.Failed
		}
		if m.Status.Transfers != nil {
			c.Granted = &m.Status.Transfers.Granted
		}
		activity, unknown := activities[v1alpha1.MemberNamespacePrefix+m.Name], findUnknown(running[m.Name], queued[m.Name])
		switch {
		case m.Spec.Quarantine != nil:
			c.Unknown = v1alpha1.ReasonQuarantined
		case m.Status.LastReport == nil:
			c.Unknown = v1alpha1.ReasonNeverReported
		case m.Status.SilentSince != nil:
			c.Unknown = v1alpha1.ReasonSilent
		case unknown != "":
			c.Unknown = unknown
		case e.reportsForbidden && (isIdle(m) || len(running[m.Name])+len(queued[m.Name]) > 0):
			c.Listed = newListed(m, running[m.Name], queued[m.Name])
		case activity == nil && !isIdle(m):
			c.Unknown = v1alpha1.ReasonActivityMissing
		case activity == nil:
			c.Activity = &v1alpha1.ReportedActivity{} // nothing was imported since its agent tells
		default:
			c.Activity = activity
		}
		// An idle member does not tell that its budget has changed.
		if c.Activity != nil && c.Activity.Slots == 0 && c.Activity.Queued == 0 && m.Status.Budget != nil {
			c.Activity.Budget = *m.Status.Budget
		}
		s.Clusters = append(s.Clusters, c)
	}
	if e.cluster != "" && len(s.Clusters) == 0 {
		return s, hub.NoMember(e.cluster)
	}
	return s, nil
}

// listActivities lists what members import. The server leaves out all other reports. Where the caller
// may not read them, there are none, and reportsForbidden is set.
func (e *environment) listActivities(ctx context.Context, hub *connect.Cluster) (map[string]*v1alpha1.ReportedActivity, error) {
	activities := map[string]*v1alpha1.ReportedActivity{}
	if e.reportsForbidden {
		return activities, nil
	}
	reports := &v1alpha1.ClusterReportList{}
	err := hub.List(ctx, reports, client.MatchingFields{"metadata.name": v1alpha1.ActivityName})
	if apierrors.IsForbidden(err) {
		e.reportsForbidden = true
		return activities, nil
	}
	for i := range reports.Items {
		activities[reports.Items[i].Namespace] = reports.Items[i].Activity
	}
	return activities, err
}

const (
	// transferPage is how many transfers are asked for at once, the most that the read API gives.
	transferPage = 1000
	// maxTransfers bounds how many of each list are read at each poll.
	maxTransfers = 5 * transferPage
)

// listTransfers asks the read API for what runs and waits, by cluster. unread says what it does not
// have.
func (e *environment) listTransfers(ctx context.Context, hub *connect.Cluster) (running, queued map[string][]readapi.Transfer, unread string, err error) {
	var all readapi.Transfers
	closed, err := e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) error {
		all = readapi.Transfers{}
		for offset := 0; offset < maxTransfers; offset += transferPage {
			page, err := api.Transfers(ctx, readapi.TransfersQuery{Cluster: e.cluster, Sort: readapi.TransfersByExpected, Offset: offset, Limit: transferPage})
			if err != nil {
				return err
			}
			all.Running, all.Queued = append(all.Running, page.Running...), append(all.Queued, page.Queued...)
			all.RunningTotal, all.QueuedTotal = page.RunningTotal, page.QueuedTotal
			if offset+transferPage >= max(page.RunningTotal, page.QueuedTotal) {
				return nil
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, nil, "", err
	case closed != "":
		return nil, nil, "", errors.New("what clusters import cannot be read: you may not list ClusterReports. " + closed)
	}
	unread = "From the hub's read API, since you may not list ClusterReports: how much was transferred is not known"
	if more := max(all.RunningTotal, all.QueuedTotal) - maxTransfers; more > 0 {
		unread += fmt.Sprintf(", and %d entries are not read", more)
	}
	return top.ByCluster(all.Running), top.ByCluster(all.Queued), unread, nil
}

// findUnknown returns why what is listed of a member may no longer be so; empty if it is.
func findUnknown(lists ...[]readapi.Transfer) string {
	for _, list := range lists {
		for i := range list {
			if list[i].Unknown != "" {
				return list[i].Unknown
			}
		}
	}
	return ""
}

// newListed returns what the hub's kinds and its read API say of a member.
func newListed(m *v1alpha1.MemberCluster, running, queued []readapi.Transfer) *top.Listed {
	l := &top.Listed{Running: running, Queued: queued}
	if m.Status.SlotsUsed != nil {
		l.Slots = *m.Status.SlotsUsed
	}
	if m.Status.Budget != nil {
		l.Budget = *m.Status.Budget
	}
	if m.Status.Images != nil {
		l.Waiting = m.Status.Images.Queued
	}
	return l
}

// isIdle reports whether a member imports nothing, and nothing waits.
func isIdle(m *v1alpha1.MemberCluster) bool {
	return m.Status.SlotsUsed != nil && *m.Status.SlotsUsed == 0 && m.Status.Images != nil && m.Status.Images.Queued == 0
}

// openRow returns a screen about a row of top.
func (e *environment) openRow(ctx context.Context, verb string, row top.Row, options render.Options) (string, error) {
	about := *e
	about.toldUnread = true // the screen is in use
	defer func() {
		if about.api != e.api {
			about.closeReadAPI()
		}
	}()
	if !e.live && e.Member == "" {
		about.cluster = row.Cluster
	}
	page := &render.Page{}
	switch {
	case verb == "tree" && row.Image != "" && about.asksHub():
		page.Line(render.Text("Cluster %s itself knows what belongs to %s/%s:", row.Cluster, row.Namespace, row.Image))
		page.Command(shellword.FormatCommand("kubectl ot tree image %s -n %s --cluster %s", row.Image, row.Namespace, row.Cluster))
	case verb == "tree" && row.Image != "":
		member, err := about.ConnectMember(ctx, about.cluster)
		if err != nil {
			return "", err
		}
		member.Namespace = row.Namespace
		s, unread, err := about.gatherImageTree(ctx, member, row.Image)
		if err != nil {
			return "", err
		}
		tree.New(e.now(), tree.NewImage(s), unread, 0).Draw(page)
	case row.Image != "":
		a, err := about.whyImageIn(ctx, row.Namespace, row.Image)
		if err != nil {
			return "", err
		}
		a.Draw(page)
	default:
		a, err := about.whyCluster(ctx, row.Cluster)
		if err != nil {
			return "", err
		}
		a.Draw(page)
	}
	return render.Print(page, options), nil
}
