package grant

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// maxRetryDelay is the longest retry delay of a grant that cannot be written.
const maxRetryDelay = 30 * time.Second

// rereadUnknownGrants reads the grants whose stored state is unknown. The accountant
// keeps what it knows of these members and adds what is stored.
func (r *Reconciler) rereadUnknownGrants(ctx context.Context) {
	for member, until := range r.unknownGrants {
		if time.Now().Before(until) {
			continue
		}
		g := &v1alpha1.TransferGrant{}
		key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}
		switch err := r.Live.Get(ctx, key, g); {
		case apierrors.IsNotFound(err):
			delete(r.storedGrants, member)
		case err != nil:
			r.markUnknown(ctx, member, fmt.Errorf("reading TransferGrant %s: %w", key, err))
			continue
		default:
			r.storedGrants[member] = g
			r.accountant.LearnGrant(member, parseStoredGrant(g), time.Now())
			r.departuresStored = false // the grant may be of a departed cluster
		}
		r.reads++
		r.readNumbers[member] = r.reads
		delete(r.unknownGrants, member)
	}
}

// markUnknown records that the stored grant of a member is unknown.
func (r *Reconciler) markUnknown(ctx context.Context, member string, err error) {
	wait := min(max(2*r.retryDelays[member], retryDelay), maxRetryDelay)
	if wasChanged(err) {
		wait = retryDelay
		log.FromContext(ctx).Info("TransferGrant was changed by somebody else; reading it again", "member", member)
	} else {
		log.FromContext(ctx).Error(err, "Failed to write TransferGrant; counting it as issued", "member", member, "retryAfter", wait)
	}
	r.retryDelays[member] = wait
	r.unknownGrants[member] = time.Now().Add(wait)
}

// wasChanged reports whether a write failed because somebody else has created, changed or
// deleted the object.
func wasChanged(err error) bool { return trigger.IsConflict(err) || apierrors.IsNotFound(err) }

// plannerMark is the annotation of grants that this process has written since it last
// read them.
//
// Invariant: a decision that another process made before, or this one, is refused once
// the mark is written.
func (r *Reconciler) plannerMark(member string) string {
	return fmt.Sprintf("%s/%d", r.Challenge, r.readNumbers[member])
}

// dropDeletedGrants forgets deleted grants; they are created again.
func (r *Reconciler) dropDeletedGrants() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, member := range r.deletedGrants {
		delete(r.storedGrants, member)
	}
	r.deletedGrants = nil
}

// loadGrants reads all stored grants live: a cache may lag behind what the last leader
// wrote.
func (r *Reconciler) loadGrants(ctx context.Context) error {
	var list v1alpha1.TransferGrantList
	if err := r.Live.List(ctx, &list); err != nil {
		return fmt.Errorf("listing TransferGrants: %w", err)
	}
	now := time.Now()
	if r.startedAt.IsZero() {
		r.startedAt = now
	}
	accountant := budget.NewAccountant()
	r.storedGrants, r.unknownGrants = map[string]*v1alpha1.TransferGrant{}, map[string]time.Time{}
	r.retryDelays, r.readNumbers = map[string]time.Duration{}, map[string]int{}
	for i := range list.Items {
		g := &list.Items[i]
		member, ok := report.MemberForNamespace(g.Namespace)
		if !ok || g.Name != v1alpha1.MailboxName {
			continue
		}
		r.storedGrants[member] = g
		accountant.LearnGrant(member, parseStoredGrant(g), now)
	}
	if err := r.loadDepartures(ctx, accountant); err != nil {
		return err
	}
	r.Shares.setChallenge(r.Challenge)
	r.accountant, r.policyCaches, r.nextPlanMark = accountant, map[string]*policyCache{}, map[string]time.Time{}
	return nil
}

// possibleShare is the content of annotationPossible.
type possibleShare struct {
	Slots   int32            `json:"slots"`
	Sources map[string]int32 `json:"sources,omitempty"`
	Seconds int64            `json:"seconds"`
	// Ended is the highest share that the member had before, under which attempts may
	// run on. Nil: an earlier release wrote it, which did not store that.
	Ended *int32 `json:"ended,omitempty"`
}

func parseStoredGrant(g *v1alpha1.TransferGrant) budget.StoredGrant {
	s := budget.StoredGrant{Cluster: string(g.Spec.ClusterUID), Unlimited: g.Spec.Unlimited, Grant: budget.Grant{Sequence: g.Spec.Sequence}}
	if l := g.Spec.Limits; l != nil {
		s.Nonce, s.Duration, s.Slots = l.Nonce, time.Duration(l.DurationSeconds)*time.Second, l.Slots
		for _, group := range l.Sources {
			if s.Sources == nil {
				s.Sources = map[string]int32{}
			}
			s.Sources[group.Name] = group.Slots
		}
	}
	var p possibleShare
	if err := json.Unmarshal([]byte(g.Annotations[annotationPossible]), &p); err == nil {
		if p.Ended != nil {
			s.Ended = budget.Share{Slots: *p.Ended}
		}
		s.EndedUnknown = p.Ended == nil && g.Spec.Limits != nil
		s.MaxPossible, s.PossibleFor = budget.Share{Slots: p.Slots, Sources: p.Sources}, time.Duration(p.Seconds)*time.Second
	}
	return s
}

// completePossible completes what an earlier release stored: what this process assumes
// instead counts once, not with each failover.
func completePossible(g *v1alpha1.TransferGrant) {
	var p possibleShare
	if err := json.Unmarshal([]byte(g.Annotations[annotationPossible]), &p); err == nil && p.Ended == nil {
		p.Ended = new(int32)
		p.annotate(g)
	}
}

func (p possibleShare) annotate(g *v1alpha1.TransferGrant) {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // plain types of this package
	}
	metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPossible, string(text))
}

// grantObject returns the stored grant of a member, or a new one, to be modified and
// written.
func (r *Reconciler) grantObject(member string) *v1alpha1.TransferGrant {
	if g := r.storedGrants[member]; g != nil {
		return g.DeepCopy()
	}
	return &v1alpha1.TransferGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.TransferGrantSpec{Sequence: r.accountant.LastSequence(member)},
	}
}

// fenceGrants writes every grant that this process has not written yet, unchanged, and
// creates missing ones without slots: a pending write of an earlier leader then
// conflicts.
func (r *Reconciler) fenceGrants(ctx context.Context, all []memberState) {
	var writes []*v1alpha1.TransferGrant
	for i := range all {
		s := &all[i]
		// What another cluster holds is stored before its grant is overwritten.
		parted := r.departuresStored && r.accountant.TracksCluster(s.member.Name, string(s.clusterUID()))
		if s.fenced || r.isForOtherCluster(s) && !parted {
			continue
		}
		g := r.grantObject(s.member.Name)
		if s.isLeaving && g.ResourceVersion != "" {
			writes = append(writes, g)
			continue
		}
		if !s.writable {
			continue
		}
		if g.ResourceVersion == "" || g.Spec.ClusterUID != s.clusterUID() {
			ahead := int64(0)
			if s.link != nil {
				ahead = v1alpha1.ClaimedSequence(s.link.Status.AheadGrant)
			}
			if t := s.root.Report.Transfers; t != nil {
				ahead = max(ahead, v1alpha1.ClaimedSequence(t.Grant))
			}
			delete(g.Annotations, annotationPossible) // it describes the other cluster
			g.Spec = v1alpha1.TransferGrantSpec{
				ClusterUID: s.clusterUID(), Sequence: max(g.Spec.Sequence, ahead) + 1,
				Limits: &v1alpha1.TransferLimits{Nonce: budget.NoRequest, DurationSeconds: 1},
			}
		}
		completePossible(g)
		writes = append(writes, g)
	}
	r.writeGrants(ctx, writes)
	for i := range all {
		if name := all[i].member.Name; r.isFenced(name) && !r.isForOtherCluster(&all[i]) {
			all[i].fenced = true
			r.accountant.RecordSequence(name, r.storedGrants[name].Spec.Sequence)
		}
	}
}

// isFenced reports whether this process has written a member's grant since it last read
// it.
func (r *Reconciler) isFenced(member string) bool {
	g := r.storedGrants[member]
	return g != nil && g.Annotations[annotationPlanner] == r.plannerMark(member)
}

// setLimits sets the content of a grant as allocated.
func setLimits(g *v1alpha1.TransferGrant, s *memberState, next budget.GrantWrite) {
	g.Spec = v1alpha1.TransferGrantSpec{
		ClusterUID: s.clusterUID(), Sequence: next.Sequence,
		Limits: &v1alpha1.TransferLimits{Slots: next.Slots, Nonce: next.Nonce, DurationSeconds: int32(next.Duration / time.Second)},
	}
	for _, name := range slices.Sorted(maps.Keys(next.Sources)) {
		g.Spec.Limits.Sources = append(g.Spec.Limits.Sources, v1alpha1.SourceGrant{Name: name, Slots: next.Sources[name]})
	}
	possibleShare{Slots: next.MaxPossible.Slots, Sources: next.MaxPossible.Sources, Seconds: int64(next.PossibleFor/time.Second) + 1, Ended: &next.Ended.Slots}.annotate(g)
}

// allocatedGrants returns the grants of an allocation, to be written.
func (r *Reconciler) allocatedGrants(decided []budget.GrantWrite, members []memberState) []*v1alpha1.TransferGrant {
	byName := make(map[string]*memberState, len(members))
	for i := range members {
		byName[members[i].member.Name] = &members[i]
	}
	writes := make([]*v1alpha1.TransferGrant, len(decided))
	for i, next := range decided {
		writes[i] = r.grantObject(next.Member)
		setLimits(writes[i], byName[next.Member], next)
	}
	return writes
}

// grantUnlimited writes the grants without a fleet-wide budget, and returns when to do so
// again; 0 for never. Their sequence rises above what the member has shown, unless another
// hub raises it in turn.
func (r *Reconciler) grantUnlimited(ctx context.Context, all []memberState) (after time.Duration) {
	var writes []*v1alpha1.TransferGrant
	var raised []string
	now := time.Now()
	for i := range all {
		s := &all[i]
		if !s.writable {
			continue
		}
		ahead := int64(0)
		if s.link != nil {
			ahead = v1alpha1.ClaimedSequence(s.link.Status.AheadGrant)
		}
		g := r.grantObject(s.member.Name)
		if ahead > g.Spec.Sequence {
			if contestedFor := r.Raises.Contested(s.member.Name, now); contestedFor > 0 {
				after = trigger.Earliest(after, contestedFor)
				continue
			}
			raised = append(raised, s.member.Name)
		} else if g.ResourceVersion != "" && g.Spec.ClusterUID == s.clusterUID() && g.Spec.Unlimited {
			continue
		}
		g.Spec = v1alpha1.TransferGrantSpec{ClusterUID: s.clusterUID(), Unlimited: true, Sequence: max(g.Spec.Sequence, ahead) + 1}
		r.accountant.RecordSequence(s.member.Name, g.Spec.Sequence)
		writes = append(writes, g)
	}
	r.writeGrants(ctx, writes)
	for _, member := range raised {
		if _, unknown := r.unknownGrants[member]; !unknown {
			r.Raises.Record(member, now)
		}
	}
	return after
}

// writeGrants writes grants in parallel, each guarded by its resourceVersion. One that
// cannot be written does not block the others.
func (r *Reconciler) writeGrants(ctx context.Context, grants []*v1alpha1.TransferGrant) {
	failed := make([]error, len(grants))
	workqueue.ParallelizeUntil(ctx, maxConcurrentWrites, len(grants), func(i int) {
		g := grants[i]
		member, _ := report.MemberForNamespace(g.Namespace)
		if _, unknown := r.unknownGrants[member]; unknown {
			return
		}
		metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPlanner, r.plannerMark(member))
		if g.ResourceVersion == "" {
			failed[i] = r.Live.Create(ctx, g)
		} else {
			ownership.Untrack(g)
			failed[i] = r.Live.Update(ctx, g)
		}
		if failed[i] == nil {
			r.mu.Lock()
			r.storedGrants[member] = g
			r.mu.Unlock()
			r.Metrics.CountWrite()
		}
	})
	for i, g := range grants {
		member, _ := report.MemberForNamespace(g.Namespace)
		if failed[i] != nil {
			r.markUnknown(ctx, member, fmt.Errorf("writing TransferGrant %s/%s: %w", g.Namespace, g.Name, failed[i]))
		} else if _, unknown := r.unknownGrants[member]; !unknown {
			delete(r.retryDelays, member)
		}
	}
}
