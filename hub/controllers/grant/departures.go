package grant

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/hub/budget"
)

// DepartedConfigMap names the ConfigMap in the hub's namespace that tells what clusters may be
// running that are no members any more. Whoever is elected next knows of them by it.
const DepartedConfigMap = "ot-hub-departed"

// departedKey of it has all of them.
const departedKey = "departed"

const (
	// maxDepartures are told apart; of more, the others are one.
	maxDepartures = 1000
	// departuresRefreshInterval is how often it is written, at the most, to tell that less is held.
	departuresRefreshInterval = 30 * time.Second
)

// storedDeparture is one of that list. Seconds count from when it is read: nobody knows for
// how long nobody was elected.
type storedDeparture struct {
	Member  string `json:"member"`
	Cluster string `json:"cluster"`
	Slots   int32  `json:"slots"`
	Seconds int64  `json:"seconds"`
}

// departureStore is the ConfigMap as this process has read or written it last.
type departureStore struct {
	configMap *corev1.ConfigMap // nil: there is none
	stored    []storedDeparture
	writtenAt time.Time
	// unread: somebody else has written it. again is when to go on after a failure.
	stale   bool
	retryAt time.Time
}

// loadDepartures reads what has departed, and has the book count it. It is read after the
// grants: a grant is removed once it is stored what is held by it.
func (r *Reconciler) loadDepartures(ctx context.Context, book *budget.Accountant) error {
	cm := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: r.Namespace, Name: DepartedConfigMap}
	err := r.Live.Get(ctx, key, cm)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading ConfigMap %s, what clusters may be running that are no members any more: %w", key, err)
	}
	next := departureStore{writtenAt: r.departures.writtenAt}
	if err == nil {
		next.configMap = cm
		if text := cm.Data[departedKey]; text != "" {
			if err := json.Unmarshal([]byte(text), &next.stored); err != nil {
				return fmt.Errorf("reading key %s of ConfigMap %s, of this hub's own making: %w; delete the ConfigMap once what it told of must have ended", departedKey, key, err)
			}
		}
	}
	now := time.Now()
	for _, d := range next.stored {
		book.LearnDeparture(budget.Departure{Member: d.Member, Cluster: d.Cluster, Slots: d.Slots, Remaining: time.Duration(d.Seconds) * time.Second}, now)
	}
	r.departures = next
	return nil
}

// storeDepartures stores what has departed, and what is held by members that are about to leave.
// kept: all of it is stored.
func (r *Reconciler) storeDepartures(ctx context.Context, leaving []string, now time.Time) (kept bool) {
	if r.departures.stale && !now.Before(r.departures.retryAt) {
		if err := r.loadDepartures(ctx, r.accountant); err != nil {
			log.FromContext(ctx).Error(err, "What has departed is not known")
			r.departures.retryAt = now.Add(conflictRetryDelay)
		}
	}
	next := encodeDepartures(r.accountant.Departures(leaving, now))
	kept = coversAll(next, r.departures.stored)
	switch {
	case kept && (now.Sub(r.departures.writtenAt) < departuresRefreshInterval || !isClearlyLess(next, r.departures.stored)):
		return true
	case r.departures.stale || now.Before(r.departures.retryAt):
		return kept
	}
	text, err := json.Marshal(next)
	if err != nil {
		panic(err) // plain types of our own
	}
	cm := &corev1.ConfigMap{}
	if r.departures.configMap != nil {
		cm = r.departures.configMap.DeepCopy()
	}
	cm.Namespace, cm.Name, cm.Data = r.Namespace, DepartedConfigMap, map[string]string{departedKey: string(text)}
	if cm.ResourceVersion == "" {
		err = r.Live.Create(ctx, cm)
	} else {
		err = r.Live.Update(ctx, cm)
	}
	if err != nil {
		r.departures.retryAt = now.Add(conflictRetryDelay)
		r.departures.stale = apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
		log.FromContext(ctx).Error(err, "It is not stored what clusters may be running that are no members any more: no member is let go of", "configmap", DepartedConfigMap)
		return kept
	}
	r.departures = departureStore{configMap: cm, stored: next, writtenAt: now}
	return true
}

// encodeDepartures is what is stored of departures.
func encodeDepartures(all []budget.Departure) []storedDeparture {
	list := make([]storedDeparture, 0, len(all))
	for _, d := range all {
		next := storedDeparture{Member: d.Member, Cluster: d.Cluster, Slots: d.Slots, Seconds: int64(d.Remaining/time.Second) + 1}
		if last := len(list) - 1; last >= maxDepartures-1 {
			next = storedDeparture{Member: list[last].Member, Cluster: list[last].Cluster, Slots: list[last].Slots + next.Slots, Seconds: max(list[last].Seconds, next.Seconds)}
			list = list[:last]
		}
		list = append(list, next)
	}
	return list
}

// coversAll tells that each of a list is in another, with no less.
func coversAll(list, by []storedDeparture) bool {
	for _, d := range list {
		if !slices.ContainsFunc(by, func(o storedDeparture) bool {
			return o.Member == d.Member && o.Cluster == d.Cluster && o.Slots >= d.Slots && o.Seconds >= d.Seconds
		}) {
			return false
		}
	}
	return true
}

// isClearlyLess tells that a list has clearly less than what is stored.
func isClearlyLess(list, stored []storedDeparture) bool {
	if len(list) != len(stored) {
		return true
	}
	for i, d := range list {
		if d.Slots < stored[i].Slots || d.Seconds < stored[i].Seconds-max(1, stored[i].Seconds/4) {
			return true
		}
	}
	return false
}

// leavingMembers are the members that are about to be removed, or whose cluster is another
// member's: their grants go as soon as it is stored what is held by them.
func leavingMembers(all []memberState) (names []string) {
	for i := range all {
		if all[i].isLeaving {
			names = append(names, all[i].member.Name)
		}
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names
}

// releaseLeaving stores what those hold that have gone, or are about to, before their grants go,
// or are written over by those of another cluster. It tells whether nobody waits for
// that any more.
func (r *Reconciler) releaseLeaving(ctx context.Context, all []memberState, now time.Time) bool {
	r.departuresStored = r.storeDepartures(ctx, leavingMembers(all), now)
	left, done := map[string]types.UID{}, r.departuresStored
	for i := range all {
		s := &all[i]
		if !s.isLeaving {
			done = done && !r.isForOtherCluster(s)
			continue
		}
		// What another process may have granted since counts, too.
		settled := r.unknownGrants[s.member.Name].IsZero() && (s.fenced || r.storedGrants[s.member.Name] == nil) || !now.Before(r.startedAt.Add(learningTimeout))
		if r.departuresStored && settled {
			left[s.member.Name] = s.member.UID
		} else {
			done = false
		}
	}
	r.Shares.setRemovable(left)
	return done
}

// isForOtherCluster tells that the grant that is stored is for another cluster.
func (r *Reconciler) isForOtherCluster(s *memberState) bool {
	g := r.storedGrants[s.member.Name]
	return s.writable && g != nil && g.Spec.ClusterUID != s.clusterUID()
}
