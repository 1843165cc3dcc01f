package prune

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/prune"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

const (
	// A member whose pages are not as its root lists them is about to write the one
	// or the other: it is read so often, with a pause between.
	readAttempts   = 5
	readRetryDelay = 200 * time.Millisecond
	// unsettledRetryDelay is when to go on with a report of which a member did not settle.
	unsettledRetryDelay = time.Second
)

// placedMembers returns the members that a report is about, by name. invalid says that its
// placement cannot be read.
func (r *ReportReconciler) placedMembers(ctx context.Context, spec *v1alpha1.PruneReportSpec) (placed []*v1alpha1.MemberCluster, invalid string, err error) {
	has, err := prune.PlacementMatcher(spec)
	if err != nil {
		return nil, err.Error(), nil
	}
	members, err := listMembers(ctx, r.Client)
	if err != nil {
		return nil, "", err
	}
	for _, m := range members {
		if has(m.Name, m.Labels) {
			placed = append(placed, m)
		}
	}
	return placed, "", nil
}

// listMembers returns the MemberClusters that are to stay, by name. They are the
// cache's own, and not to be changed.
func listMembers(ctx context.Context, cached client.Reader) ([]*v1alpha1.MemberCluster, error) {
	var list v1alpha1.MemberClusterList
	if err := cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing MemberClusters: %w", err)
	}
	members := make([]*v1alpha1.MemberCluster, 0, len(list.Items))
	for i := range list.Items {
		if m := &list.Items[i]; m.DeletionTimestamp.IsZero() {
			members = append(members, m)
		}
	}
	sortMembers(members)
	return members, nil
}

// plansByMember returns the plans by member. They are the cache's own, and not to be changed.
func (r *ReportReconciler) plansByMember(ctx context.Context) (map[string]*v1alpha1.ClusterPlanSpec, error) {
	var list v1alpha1.ClusterPlanList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ClusterPlans: %w", err)
	}
	plans := make(map[string]*v1alpha1.ClusterPlanSpec, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		if member, is := report.MemberForNamespace(p.Namespace); is && p.Name == v1alpha1.MailboxName {
			plans[member] = &p.Spec
		}
	}
	return plans, nil
}

// answerState tells whether a member has answered, by a plan and a root of its report.
func (r *ReportReconciler) answerState(stored *v1alpha1.PruneReport, m *v1alpha1.MemberCluster, plan *v1alpha1.ClusterPlanSpec, root report.Root) prune.AnswerState {
	offline, _ := rollout.Availability(m)
	s := prune.AnswerState{Cluster: m.Name, Offline: offline != ""}
	s.Unknown, s.Message = prune.UnansweredReason(prune.AnswerView{
		ReportUID: stored.UID, Plan: plan, Root: root.Report, RootClusterUID: root.ClusterUID,
		StaleReason: cmp.Or(memberstatus.StaleReason(m), r.Index.UnknownReason(m.Name)), Offline: s.Offline,
	})
	return s
}

// judgeMembers says of each member what could go. settled is false where one that had
// answered cannot be read as it answered; past the deadline it is unknown.
func (r *ReportReconciler) judgeMembers(ctx context.Context, stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, standing []prune.AnswerState) (judged []v1alpha1.ReportedCluster, settled bool, err error) {
	judged = make([]v1alpha1.ReportedCluster, len(placed))
	answers, former := make([]*judgedAnswer, len(placed)), r.reusableAnswers(stored)
	var open atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelPages)
	for i, m := range placed {
		if s := &standing[i]; s.Unknown != "" {
			root := r.Roots.Root(m.Name)
			judged[i] = prune.JudgeCluster(&stored.Spec, prune.Cluster{
				Name: m.Name, ClusterUID: memberstatus.ResolveClusterUID(m, root.ClusterUID), Unknown: s.Unknown, Message: s.Message,
			})
			continue
		}
		group.Go(func() (err error) {
			if answers[i], err = r.judgeMember(ctx, stored, m, former[m.Name]); err != nil {
				return err
			}
			if answers[i].judged.Unknown != "" && time.Now().Before(prune.AnswerDeadline(stored)) {
				open.Store(true)
			}
			judged[i] = answers[i].judged
			return nil
		})
	}
	err = group.Wait()
	r.keepAnswers(stored, placed, answers)
	if err != nil {
		return nil, false, err
	}
	return judged, !open.Load(), nil
}

// judgeMember reads and judges a member that has answered, but for one that was judged and
// is as it was. It is unknown where it does not come to show what it has answered.
func (r *ReportReconciler) judgeMember(ctx context.Context, stored *v1alpha1.PruneReport, m *v1alpha1.MemberCluster, former *judgedAnswer) (*judgedAnswer, error) {
	var c prune.Cluster
	for attempt := range readAttempts {
		if attempt > 0 {
			if err := trigger.Sleep(ctx, readRetryDelay); err != nil {
				return nil, err
			}
		}
		var err error
		if c, err = r.gatherAnswer(ctx, stored, m); err != nil {
			return nil, err
		}
		if r.stillHolds(former, &c) {
			return former, nil
		}
		if c.Unknown == "" {
			err = r.readImages(ctx, &c)
		}
		if err != nil {
			return nil, err
		}
		if c.Unknown == "" {
			break
		}
	}
	return &judgedAnswer{root: c.Root, wantedBy: c.WantedBy, judged: prune.JudgeCluster(&stored.Spec, c)}, nil
}

// gatherAnswer is a member as it has answered, without its images.
func (r *ReportReconciler) gatherAnswer(ctx context.Context, stored *v1alpha1.PruneReport, m *v1alpha1.MemberCluster) (c prune.Cluster, err error) {
	root := r.Roots.Root(m.Name)
	c = prune.Cluster{Name: m.Name, ClusterUID: memberstatus.ResolveClusterUID(m, root.ClusterUID)}
	plan := &v1alpha1.ClusterPlan{}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + m.Name, Name: v1alpha1.MailboxName}
	switch err := r.Get(ctx, key, plan); {
	case apierrors.IsNotFound(err):
		plan = nil
	case err != nil:
		return c, fmt.Errorf("reading ClusterPlan %s: %w", key, err)
	}
	var spec *v1alpha1.ClusterPlanSpec
	if plan != nil {
		spec = &plan.Spec
	}
	s := r.answerState(stored, m, spec, root)
	if c.Unknown, c.Message = s.Unknown, s.Message; c.Unknown != "" {
		return c, nil
	}
	wants, known := r.Rollouts.ForMember(m.Name)
	if !known {
		c.Unknown, c.Message = v1alpha1.ReasonNotAnswered, "it is not decided yet what FleetDiskImages want of it"
		return c, nil
	}
	c.ClusterUID, c.Root, c.WantedBy = root.ClusterUID, root.Report, r.wantedImages(spec, &wants)
	return c, nil
}

// readImages reads the pages that a root lists which answers, each of the very sequence
// that the root lists: together they are what the member had when it answered.
func (r *ReportReconciler) readImages(ctx context.Context, c *prune.Cluster) error {
	newest := map[types.NamespacedName]int64{}
	at := map[types.NamespacedName]int{}
	for _, ref := range c.Root.Pages {
		page, err := r.Pages.LivePage(ctx, c.Name, ref.Name)
		if err != nil {
			return err
		}
		if page == nil || page.Sequence != ref.Sequence || page.ClusterUID != c.ClusterUID {
			c.Unknown, c.Message = v1alpha1.ReasonPagesMissing, fmt.Sprintf("page %s of its report is missing, or is not as the report lists it", ref.Name)
			c.Images = nil
			return nil
		}
		// What moved from one page to another may stand on both.
		for _, img := range page.Page.Images {
			k := types.NamespacedName{Namespace: img.Namespace, Name: img.Name}
			i, twice := at[k]
			switch {
			case !twice:
				at[k], newest[k] = len(c.Images), ref.Sequence
				c.Images = append(c.Images, img)
			case ref.Sequence > newest[k]:
				c.Images[i], newest[k] = img, ref.Sequence
			}
		}
	}
	c.DeclaredBy = map[types.NamespacedName]string{}
	for i := range c.Images {
		img := &c.Images[i]
		if by := r.Rollouts.DeclaredBy(img.Namespace, img.Name); by != "" {
			c.DeclaredBy[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}] = by
		}
	}
	return nil
}

// wantedImages are the images that a cluster is to have, and by whom.
func (r *ReportReconciler) wantedImages(plan *v1alpha1.ClusterPlanSpec, wants *rollout.DesiredImages) map[types.NamespacedName]string {
	wanted := map[types.NamespacedName]string{}
	want := func(namespace, name string) {
		by := "ClusterPlan"
		if declared := r.Rollouts.DeclaredBy(namespace, name); declared != "" {
			by = "FleetDiskImage " + declared
		}
		wanted[types.NamespacedName{Namespace: namespace, Name: name}] = by
	}
	for i := range plan.Images {
		want(plan.Images[i].Namespace, plan.Images[i].Name)
	}
	for i := range plan.Kept {
		want(plan.Kept[i].Namespace, plan.Kept[i].Name)
	}
	for i := range wants.Images {
		want(wants.Images[i].Namespace, wants.Images[i].Name)
	}
	for i := range wants.Kept {
		want(wants.Kept[i].Namespace, wants.Kept[i].Name)
	}
	return wanted
}
