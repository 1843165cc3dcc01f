package grant

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/hub/budget"
)

// DepartedConfigMap names the ConfigMap in the hub's namespace with the departures, for
// the next elected replica.
const DepartedConfigMap = "ot-hub-departed"

// Keys of the ConfigMap.
const (
	// departedKey has the list of departures.
	departedKey = "departed"
	// excessKey has what members were seen to claim beyond what the hub knows.
	excessKey = "excess"
)

const (
	// maxDepartures bounds the list; further departures are merged into the last one.
	maxDepartures = 1000
	// departuresRefreshInterval is the shortest interval of writes that only lower what
	// is held.
	departuresRefreshInterval = 30 * time.Second
)

// storedDeparture is an entry of the list. Seconds count from when it is read: nobody
// knows how long there was no elected replica.
type storedDeparture struct {
	Member  string `json:"member"`
	Cluster string `json:"cluster"`
	Slots   int32  `json:"slots"`
	Seconds int64  `json:"seconds"`
	Claimed bool   `json:"claimed,omitempty"`
}

// departureStore is the ConfigMap as this process last read or wrote it.
type departureStore struct {
	configMap *corev1.ConfigMap // nil: it does not exist
	stored    []storedDeparture
	excess    storedExcesses
	writtenAt time.Time
	// stale: somebody else has written the ConfigMap. retryAt is when to retry after a
	// failure.
	stale   bool
	retryAt time.Time
	// readWriteOffAt is when to read the ConfigMap for a write-off. writtenOff: one is
	// taken up and not stored yet.
	readWriteOffAt time.Time
	writtenOff     bool
}

// loadDepartures reads the stored departures into an accountant. It runs after the grants
// are read: a grant is removed only after its departure is stored.
func (r *Reconciler) loadDepartures(ctx context.Context, accountant *budget.Accountant) error {
	cm := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: r.Namespace, Name: DepartedConfigMap}
	err := r.Live.Get(ctx, key, cm)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the departed members in ConfigMap %s: %w", key, err)
	}
	next := departureStore{writtenAt: r.departures.writtenAt}
	if err == nil {
		next.configMap = cm
		if text := cm.Data[departedKey]; text != "" {
			if err := json.Unmarshal([]byte(text), &next.stored); err != nil {
				return fmt.Errorf("parsing key %s of ConfigMap %s, which this hub wrote: %w; delete the ConfigMap once all transfers of departed members have ended", departedKey, key, err)
			}
		}
	}
	if next.excess, err = parseExcesses(next.configMap); err != nil {
		return err
	}
	now := time.Now()
	next.excess.learn(accountant, now)
	for _, d := range next.stored {
		accountant.LearnDeparture(budget.Departure{Member: d.Member, Cluster: d.Cluster, Slots: d.Slots, Remaining: time.Duration(d.Seconds) * time.Second, Claimed: d.Claimed}, now)
	}
	r.departures = next
	return nil
}

// storeDepartures stores the departures, what leaving members hold, and the excess of
// members. It returns whether all departures are stored.
func (r *Reconciler) storeDepartures(ctx context.Context, leaving []string, now time.Time) (stored bool) {
	if r.departures.stale && !now.Before(r.departures.retryAt) {
		if err := r.loadDepartures(ctx, r.accountant); err != nil {
			log.FromContext(ctx).Error(err, "Failed to read departed members; retrying")
			r.departures.retryAt = now.Add(retryDelay)
		}
	}
	r.applyWriteOff(ctx, leaving, now)
	next := encodeDepartures(r.accountant.Departures(leaving, now))
	excess := encodeExcesses(r.accountant, now)
	stored = coversAll(next, r.departures.stored)
	refresh := now.Sub(r.departures.writtenAt) >= departuresRefreshInterval && (isClearlyLess(next, r.departures.stored) || excess.hasDecreased(r.departures.excess))
	switch {
	case stored && excess.sameMembers(r.departures.excess) && !refresh && !r.departures.writtenOff:
		return true
	case r.departures.stale || now.Before(r.departures.retryAt):
		return stored
	}
	text, err := json.Marshal(next)
	if err != nil {
		panic(err) // plain types of this package
	}
	cm := &corev1.ConfigMap{}
	if r.departures.configMap != nil {
		cm = r.departures.configMap.DeepCopy()
		r.dropEarlyWriteOff(ctx, cm, leaving)
	}
	cm.Namespace, cm.Name, cm.Data = r.Namespace, DepartedConfigMap, map[string]string{departedKey: string(text), excessKey: excess.String(), writtenOffKey: cm.Data[writtenOffKey]}
	if cm.ResourceVersion == "" {
		err = r.Live.Create(ctx, cm)
	} else {
		err = r.Live.Update(ctx, cm)
	}
	if err != nil {
		r.departures.retryAt = now.Add(retryDelay)
		r.departures.stale = wasChanged(err)
		log.FromContext(ctx).Error(err, "Failed to persist slots of departed members; blocking member removal", "configMap", DepartedConfigMap)
		return stored
	}
	r.departures = departureStore{configMap: cm, stored: next, excess: excess, writtenAt: now, readWriteOffAt: r.departures.readWriteOffAt}
	return true
}

// encodeDepartures returns the list to store.
func encodeDepartures(all []budget.Departure) []storedDeparture {
	list := make([]storedDeparture, 0, len(all))
	for _, d := range all {
		next := storedDeparture{Member: d.Member, Cluster: d.Cluster, Slots: d.Slots, Seconds: int64(d.Remaining/time.Second) + 1, Claimed: d.Claimed}
		if last := len(list) - 1; last >= maxDepartures-1 {
			next = storedDeparture{Member: list[last].Member, Cluster: list[last].Cluster, Slots: list[last].Slots + next.Slots, Seconds: max(list[last].Seconds, next.Seconds), Claimed: list[last].Claimed && next.Claimed}
			list = list[:last]
		}
		list = append(list, next)
	}
	return list
}

// coversAll reports whether by has every entry of list, with at least as much.
func coversAll(list, by []storedDeparture) bool {
	for _, d := range list {
		if !slices.ContainsFunc(by, func(o storedDeparture) bool {
			return o.Member == d.Member && o.Cluster == d.Cluster && o.Claimed == d.Claimed && o.Slots >= d.Slots && o.Seconds >= d.Seconds
		}) {
			return false
		}
	}
	return true
}

// isClearlyLess reports whether list is worth a write over stored.
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

// leavingMembers returns the members that are being removed, or whose cluster belongs to
// another member. Their grants are removed once what they hold is stored.
func leavingMembers(all []memberState) (names []string) {
	for i := range all {
		if all[i].isLeaving {
			names = append(names, all[i].member.Name)
		}
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names
}

// releaseLeaving stores what departed and leaving members hold, before their grants are
// removed or overwritten for another cluster. It returns whether no member waits for that
// any more.
func (r *Reconciler) releaseLeaving(ctx context.Context, all []memberState, now time.Time) bool {
	r.departuresStored = r.storeDepartures(ctx, leavingMembers(all), now)
	left, done := map[string]types.UID{}, r.departuresStored
	for i := range all {
		s := &all[i]
		if !s.isLeaving {
			done = done && !r.isForOtherCluster(s)
			continue
		}
		// What another process may have granted since then counts, too.
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

// isForOtherCluster reports whether the stored grant is for another cluster than the
// member's.
func (r *Reconciler) isForOtherCluster(s *memberState) bool {
	g := r.storedGrants[s.member.Name]
	return s.writable && g != nil && g.Spec.ClusterUID != s.clusterUID()
}
