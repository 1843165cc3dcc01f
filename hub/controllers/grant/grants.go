package grant

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

// maxRetryDelay is the longest wait before a grant that cannot be written is tried again.
const maxRetryDelay = 30 * time.Second

// rereadUnknownGrants reads live the grants of which it is not known what is stored. The book
// keeps what it has of these members, and takes in what is stored.
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
			r.departuresStored = false // it may be of a cluster that has departed
		}
		r.readCounts[member]++
		delete(r.unknownGrants, member)
	}
}

// markUnknown notes that it is not known what is stored of a member's grant.
func (r *Reconciler) markUnknown(ctx context.Context, member string, err error) {
	wait := min(max(2*r.retryDelays[member], conflictRetryDelay), maxRetryDelay)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		wait = conflictRetryDelay
		log.FromContext(ctx).Info("A TransferGrant is not what this process knows: it is read anew", "member", member)
	} else {
		log.FromContext(ctx).Error(err, "A TransferGrant is not written; what may be stored counts", "member", member, "again", wait)
	}
	r.retryDelays[member] = wait
	r.unknownGrants[member] = time.Now().Add(wait)
}

// plannerMark is what a grant bears that this process has written since it was read last:
// what another has decided before, or this one, and not written by then, is refused.
func (r *Reconciler) plannerMark(member string) string {
	return fmt.Sprintf("%s/%d", r.Challenge, r.readCounts[member])
}

// dropDeletedGrants forgets grants that were seen to be deleted: they are made anew.
func (r *Reconciler) dropDeletedGrants() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, member := range r.deletedGrants {
		delete(r.storedGrants, member)
	}
	r.deletedGrants = nil
}

// loadGrants reads live what grants there are. What is in a cache may be from before what
// the last elected process wrote.
func (r *Reconciler) loadGrants(ctx context.Context) error {
	var list v1alpha1.TransferGrantList
	if err := r.Live.List(ctx, &list); err != nil {
		return fmt.Errorf("reading all TransferGrants: %w", err)
	}
	now := time.Now()
	if r.startedAt.IsZero() {
		r.startedAt = now
	}
	book := budget.NewAccountant()
	r.storedGrants, r.unknownGrants = map[string]*v1alpha1.TransferGrant{}, map[string]time.Time{}
	r.retryDelays, r.readCounts = map[string]time.Duration{}, map[string]int{}
	for i := range list.Items {
		g := &list.Items[i]
		member, is := report.MemberForNamespace(g.Namespace)
		if !is || g.Name != v1alpha1.MailboxName {
			continue
		}
		r.storedGrants[member] = g
		book.LearnGrant(member, parseStoredGrant(g), now)
	}
	if err := r.loadDepartures(ctx, book); err != nil {
		return err
	}
	r.Shares.setChallenge(r.Challenge)
	r.accountant, r.policyCaches, r.nextPlanMark = book, map[string]*policyCache{}, map[string]time.Time{}
	return nil
}

// possibleShare is annotationPossible.
type possibleShare struct {
	Slots   int32            `json:"slots"`
	Sources map[string]int32 `json:"sources,omitempty"`
	Seconds int64            `json:"seconds"`
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
		s.MaxPossible, s.PossibleFor = budget.Share{Slots: p.Slots, Sources: p.Sources}, time.Duration(p.Seconds)*time.Second
	}
	return s
}

// grantObject is a member's grant to be written over, or to be created.
func (r *Reconciler) grantObject(member string) *v1alpha1.TransferGrant {
	if g := r.storedGrants[member]; g != nil {
		return g.DeepCopy()
	}
	return &v1alpha1.TransferGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.TransferGrantSpec{Sequence: r.accountant.LastSequence(member)},
	}
}

// fenceGrants writes to every grant that this process has not written yet, as it is, and
// makes those that are not there, with nothing in them: another process that is
// about to write one finds that it has changed.
func (r *Reconciler) fenceGrants(ctx context.Context, all []memberState) {
	var writes []*v1alpha1.TransferGrant
	for i := range all {
		s := &all[i]
		// What another cluster holds by its grant is stored before that is written over.
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
				ahead = s.link.Status.AheadGrant
			}
			if t := s.root.Report.Transfers; t != nil {
				ahead = max(ahead, t.Grant)
			}
			delete(g.Annotations, annotationPossible) // what the other cluster may have had
			g.Spec = v1alpha1.TransferGrantSpec{
				ClusterUID: s.clusterUID(), Sequence: max(g.Spec.Sequence, ahead) + 1,
				Limits: &v1alpha1.TransferLimits{Nonce: budget.NoRequest, DurationSeconds: 1},
			}
		}
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

// isFenced tells whether a member's grant was written since it was read last.
func (r *Reconciler) isFenced(member string) bool {
	g := r.storedGrants[member]
	return g != nil && g.Annotations[annotationPlanner] == r.plannerMark(member)
}

// setLimits writes what was decided into a grant.
func setLimits(g *v1alpha1.TransferGrant, s *memberState, next budget.GrantWrite) {
	g.Spec = v1alpha1.TransferGrantSpec{
		ClusterUID: s.clusterUID(), Sequence: next.Sequence,
		Limits: &v1alpha1.TransferLimits{Slots: next.Slots, Nonce: next.Nonce, DurationSeconds: int32(next.Duration / time.Second)},
	}
	for _, name := range sortedKeys(next.Sources) {
		g.Spec.Limits.Sources = append(g.Spec.Limits.Sources, v1alpha1.SourceGrant{Name: name, Slots: next.Sources[name]})
	}
	text, err := json.Marshal(possibleShare{Slots: next.MaxPossible.Slots, Sources: next.MaxPossible.Sources, Seconds: int64(next.PossibleFor/time.Second) + 1})
	if err != nil {
		panic(err) // plain types of our own
	}
	metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPossible, string(text))
}

// unlimitedGrants are the grants that are to be written where there is no budget. Their
// sequence rises above what the member is seen to have.
func unlimitedGrants(r *Reconciler, all []memberState) (writes []*v1alpha1.TransferGrant) {
	for i := range all {
		s := &all[i]
		if !s.writable {
			continue
		}
		ahead := int64(0)
		if s.link != nil {
			ahead = s.link.Status.AheadGrant
		}
		g := r.grantObject(s.member.Name)
		if g.ResourceVersion != "" && g.Spec.ClusterUID == s.clusterUID() && g.Spec.Unlimited && g.Spec.Sequence >= ahead {
			continue
		}
		g.Spec = v1alpha1.TransferGrantSpec{ClusterUID: s.clusterUID(), Unlimited: true, Sequence: max(g.Spec.Sequence, ahead) + 1}
		r.accountant.RecordSequence(s.member.Name, g.Spec.Sequence)
		writes = append(writes, g)
	}
	return writes
}

// writeGrants stores grants, each against the resourceVersion that this process knows. One
// that cannot be written holds up no other.
func (r *Reconciler) writeGrants(ctx context.Context, grants []*v1alpha1.TransferGrant) {
	failed := make([]error, len(grants))
	workqueue.ParallelizeUntil(ctx, maxConcurrentWrites, len(grants), func(i int) {
		g := grants[i]
		member, _ := report.MemberForNamespace(g.Namespace)
		if _, is := r.unknownGrants[member]; is {
			return
		}
		metav1.SetMetaDataAnnotation(&g.ObjectMeta, annotationPlanner, r.plannerMark(member))
		if g.ResourceVersion == "" {
			failed[i] = r.Live.Create(ctx, g)
		} else {
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
		} else if _, is := r.unknownGrants[member]; !is {
			delete(r.retryDelays, member)
		}
	}
}
