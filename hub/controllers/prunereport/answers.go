package prunereport

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
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
	// A member whose pages differ from what its root lists is about to write the others:
	// it is read so many times, with this delay in between.
	readAttempts   = 5
	readRetryDelay = 200 * time.Millisecond
	// unsettledRetryDelay is the requeue delay when a member still differed.
	unsettledRetryDelay = time.Second
)

// placedMembers returns the members that spec.placement selects, by name. They belong
// to the cache and must not be changed. invalid is what is wrong with the placement.
func (r *Reconciler) placedMembers(ctx context.Context, spec *v1alpha1.PruneReportSpec) (placed []*v1alpha1.MemberCluster, invalid string, err error) {
	matches, err := prune.PlacementMatcher(spec)
	if err != nil {
		return nil, err.Error(), nil
	}
	var list v1alpha1.MemberClusterList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, "", fmt.Errorf("listing MemberClusters: %w", err)
	}
	for i := range list.Items {
		if m := &list.Items[i]; m.DeletionTimestamp.IsZero() && matches(m.Name, m.Labels) {
			placed = append(placed, m)
		}
	}
	slices.SortFunc(placed, func(a, b *v1alpha1.MemberCluster) int { return strings.Compare(a.Name, b.Name) })
	return placed, "", nil
}

// gatherAnswers returns for each placed member whether it has answered.
func (r *Reconciler) gatherAnswers(ctx context.Context, stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster) ([]prune.AnswerState, error) {
	var list v1alpha1.ClusterPlanList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ClusterPlans: %w", err)
	}
	plans := make(map[string]*v1alpha1.ClusterPlanSpec, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		if member, ok := report.MemberForNamespace(p.Namespace); ok && p.Name == v1alpha1.MailboxName {
			plans[member] = &p.Spec
		}
	}
	answers := make([]prune.AnswerState, len(placed))
	for i, m := range placed {
		answers[i] = r.answerState(stored, m, plans[m.Name], r.Roots.Root(m.Name))
	}
	return answers, nil
}

// answerState returns whether a member has answered, given its plan and report root.
func (r *Reconciler) answerState(stored *v1alpha1.PruneReport, m *v1alpha1.MemberCluster, plan *v1alpha1.ClusterPlanSpec, root report.Root) prune.AnswerState {
	offline, _ := rollout.Availability(m)
	s := prune.AnswerState{Cluster: m.Name, Offline: offline != ""}
	s.Unknown, s.Message = prune.UnansweredReason(prune.AnswerView{
		ReportUID: stored.UID, Plan: plan, Root: root.Report, RootClusterUID: root.ClusterUID,
		StaleReason: cmp.Or(memberstatus.StaleReason(m), r.Index.UnknownReason(m.Name)), Offline: s.Offline,
	})
	return s
}

// judgeMembers judges the images of every placed member. settled is false where a
// member has answered but its pages do not show that answer; past the deadline such a
// member is unknown.
func (r *Reconciler) judgeMembers(ctx context.Context, stored *v1alpha1.PruneReport, placed []*v1alpha1.MemberCluster, answers []prune.AnswerState) (clusters []v1alpha1.ReportedCluster, settled bool, err error) {
	clusters = make([]v1alpha1.ReportedCluster, len(placed))
	judged, former := make([]*judgedMember, len(placed)), r.reusableJudged(stored)
	var unsettled atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelPages)
	for i, m := range placed {
		if s := &answers[i]; s.Unknown != "" {
			root := r.Roots.Root(m.Name)
			clusters[i] = prune.JudgeCluster(&stored.Spec, prune.Cluster{
				Name: m.Name, ClusterUID: memberstatus.ResolveClusterUID(m, root.ClusterUID), Unknown: s.Unknown, Message: s.Message,
			})
			continue
		}
		group.Go(func() (err error) {
			if judged[i], err = r.judgeMember(ctx, stored, m, former[m.Name]); err != nil {
				return err
			}
			if judged[i].result.Unknown != "" && time.Now().Before(prune.AnswerDeadline(stored)) {
				unsettled.Store(true)
			}
			clusters[i] = judged[i].result
			return nil
		})
	}
	err = group.Wait()
	r.keepJudged(stored, placed, judged)
	if err != nil {
		return nil, false, err
	}
	return clusters, !unsettled.Load(), nil
}

// judgeMember reads and judges a member that has answered, or returns its former
// judgement where that still holds. The result is unknown where no attempt found the
// pages as the root lists them.
func (r *Reconciler) judgeMember(ctx context.Context, stored *v1alpha1.PruneReport, m *v1alpha1.MemberCluster, former *judgedMember) (*judgedMember, error) {
	var c prune.Cluster
	for attempt := range readAttempts {
		if attempt > 0 {
			if err := trigger.Sleep(ctx, readRetryDelay); err != nil {
				return nil, err
			}
		}
		var err error
		if c, err = r.gatherCluster(ctx, stored, m); err != nil {
			return nil, err
		}
		if r.stillHolds(former, &c) {
			return former, nil
		}
		if c.Unknown != "" {
			continue
		}
		if err := r.readImages(ctx, &c); err != nil {
			return nil, err
		}
		if c.Unknown == "" {
			break
		}
	}
	return &judgedMember{root: c.Root, wantedBy: c.WantedBy, result: prune.JudgeCluster(&stored.Spec, c)}, nil
}

// gatherCluster returns a member's answer without its images.
func (r *Reconciler) gatherCluster(ctx context.Context, stored *v1alpha1.PruneReport, m *v1alpha1.MemberCluster) (c prune.Cluster, err error) {
	root := r.Roots.Root(m.Name)
	c = prune.Cluster{Name: m.Name, ClusterUID: memberstatus.ResolveClusterUID(m, root.ClusterUID)}
	var plan *v1alpha1.ClusterPlanSpec
	cached := &v1alpha1.ClusterPlan{}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + m.Name, Name: v1alpha1.MailboxName}
	switch err := r.Get(ctx, key, cached); {
	case err == nil:
		plan = &cached.Spec
	case !apierrors.IsNotFound(err):
		return c, fmt.Errorf("reading ClusterPlan %s: %w", key, err)
	}
	s := r.answerState(stored, m, plan, root)
	if c.Unknown, c.Message = s.Unknown, s.Message; c.Unknown != "" {
		return c, nil
	}
	desired, known := r.Rollouts.ForMember(m.Name)
	if !known {
		c.Unknown, c.Message = v1alpha1.ReasonNotAnswered, "the rollouts for this cluster are not decided yet"
		return c, nil
	}
	c.ClusterUID, c.Root, c.WantedBy = root.ClusterUID, root.Report, r.wantedImages(plan, &desired)
	return c, nil
}

// readImages reads the pages that a root lists. Each page must have the listed
// sequence: only then do they show together what the member had when it answered.
func (r *Reconciler) readImages(ctx context.Context, c *prune.Cluster) error {
	newest := map[types.NamespacedName]v1alpha1.PageRef{}
	index := map[types.NamespacedName]int{}
	for _, ref := range c.Root.Pages {
		page, err := r.Pages.LivePage(ctx, c.Name, ref.Name)
		if err != nil {
			return err
		}
		if page == nil || page.Sequence != ref.Sequence || page.ClusterUID != c.ClusterUID {
			c.Unknown, c.Message = v1alpha1.ReasonPagesMissing, fmt.Sprintf("page %s of its report is missing or differs from what the report lists", ref.Name)
			c.Images = nil
			return nil
		}
		for _, img := range page.Page.Images {
			k := types.NamespacedName{Namespace: img.Namespace, Name: img.Name}
			i, found := index[k]
			switch {
			case !found:
				index[k], newest[k] = len(c.Images), ref
				c.Images = append(c.Images, img)
			case ref.Supersedes(newest[k]):
				c.Images[i], newest[k] = img, ref
			}
		}
	}
	c.DeclaredBy = map[types.NamespacedName]string{}
	for i := range c.Images {
		img := &c.Images[i]
		if name := r.Rollouts.DeclaredBy(img.Namespace, img.Name); name != "" {
			c.DeclaredBy[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}] = name
		}
	}
	return nil
}

// wantedImages returns the images that a cluster is to have, and who wants each.
func (r *Reconciler) wantedImages(plan *v1alpha1.ClusterPlanSpec, desired *rollout.DesiredImages) map[types.NamespacedName]string {
	wantedBy := map[types.NamespacedName]string{}
	add := func(namespace, name string) {
		by := "ClusterPlan"
		if declared := r.Rollouts.DeclaredBy(namespace, name); declared != "" {
			by = "FleetDiskImage " + declared
		}
		wantedBy[types.NamespacedName{Namespace: namespace, Name: name}] = by
	}
	for _, images := range [][]v1alpha1.PlannedImage{plan.Images, desired.Images} {
		for i := range images {
			add(images[i].Namespace, images[i].Name)
		}
	}
	for _, images := range [][]v1alpha1.KeptImage{plan.Kept, desired.Kept} {
		for i := range images {
			add(images[i].Namespace, images[i].Name)
		}
	}
	return wantedBy
}
