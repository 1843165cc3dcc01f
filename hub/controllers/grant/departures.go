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

// Departed names the ConfigMap in the hub's namespace that tells what clusters may be
// running that are no members any more. Whoever is elected next knows of them by it.
const Departed = "ot-hub-departed"

// keyDeparted of it has all of them.
const keyDeparted = "departed"

const (
	// mostDeparted are told apart; of more, the others are one.
	mostDeparted = 1000
	// refresh is how often it is written, at the most, to tell that less is held.
	refresh = 30 * time.Second
)

// departure is one of that list. Seconds count from when it is read: nobody knows for
// how long nobody was elected.
type departure struct {
	Member  string `json:"member"`
	Cluster string `json:"cluster"`
	Slots   int32  `json:"slots"`
	Seconds int64  `json:"seconds"`
}

// departures is the ConfigMap as this process has read or written it last.
type departures struct {
	object  *corev1.ConfigMap // nil: there is none
	list    []departure
	written time.Time
	// unread: somebody else has written it. again is when to go on after a failure.
	unread bool
	again  time.Time
}

// recall reads what has departed, and has the book count it. It is read after the
// grants: a grant is removed once it is stored what is held by it.
func (r *Reconciler) recall(ctx context.Context, book *budget.Book) error {
	cm := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: r.Namespace, Name: Departed}
	err := r.Live.Get(ctx, key, cm)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading ConfigMap %s, what clusters may be running that are no members any more: %w", key, err)
	}
	next := departures{written: r.departed.written}
	if err == nil {
		next.object = cm
		if text := cm.Data[keyDeparted]; text != "" {
			if err := json.Unmarshal([]byte(text), &next.list); err != nil {
				return fmt.Errorf("reading key %s of ConfigMap %s, of this hub's own making: %w; delete the ConfigMap once what it told of must have ended", keyDeparted, key, err)
			}
		}
	}
	now := time.Now()
	for _, d := range next.list {
		book.Recall(budget.Departure{Member: d.Member, Cluster: d.Cluster, Slots: d.Slots, Left: time.Duration(d.Seconds) * time.Second}, now)
	}
	r.departed = next
	return nil
}

// keep stores what has departed, and what is held by members that are about to leave.
// kept: all of it is stored.
func (r *Reconciler) keep(ctx context.Context, leaving []string, now time.Time) (kept bool) {
	if r.departed.unread && !now.Before(r.departed.again) {
		if err := r.recall(ctx, r.book); err != nil {
			log.FromContext(ctx).Error(err, "What has departed is not known")
			r.departed.again = now.Add(soon)
		}
	}
	next := listed(r.book.Departures(leaving, now))
	kept = covered(next, r.departed.list)
	switch {
	case kept && (now.Sub(r.departed.written) < refresh || !less(next, r.departed.list)):
		return true
	case r.departed.unread || now.Before(r.departed.again):
		return kept
	}
	text, err := json.Marshal(next)
	if err != nil {
		panic(err) // plain types of our own
	}
	cm := &corev1.ConfigMap{}
	if r.departed.object != nil {
		cm = r.departed.object.DeepCopy()
	}
	cm.Namespace, cm.Name, cm.Data = r.Namespace, Departed, map[string]string{keyDeparted: string(text)}
	if cm.ResourceVersion == "" {
		err = r.Live.Create(ctx, cm)
	} else {
		err = r.Live.Update(ctx, cm)
	}
	if err != nil {
		r.departed.again = now.Add(soon)
		r.departed.unread = apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
		log.FromContext(ctx).Error(err, "It is not stored what clusters may be running that are no members any more: no member is let go of", "configmap", Departed)
		return kept
	}
	r.departed = departures{object: cm, list: next, written: now}
	return true
}

// listed is what is stored of departures.
func listed(all []budget.Departure) []departure {
	list := make([]departure, 0, len(all))
	for _, d := range all {
		next := departure{Member: d.Member, Cluster: d.Cluster, Slots: d.Slots, Seconds: int64(d.Left/time.Second) + 1}
		if last := len(list) - 1; last >= mostDeparted-1 {
			next = departure{Member: list[last].Member, Cluster: list[last].Cluster, Slots: list[last].Slots + next.Slots, Seconds: max(list[last].Seconds, next.Seconds)}
			list = list[:last]
		}
		list = append(list, next)
	}
	return list
}

// covered tells that each of a list is in another, with no less.
func covered(list, by []departure) bool {
	for _, d := range list {
		if !slices.ContainsFunc(by, func(o departure) bool {
			return o.Member == d.Member && o.Cluster == d.Cluster && o.Slots >= d.Slots && o.Seconds >= d.Seconds
		}) {
			return false
		}
	}
	return true
}

// less tells that a list has clearly less than what is stored.
func less(list, stored []departure) bool {
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

// leaving are the members that are about to be removed, or whose cluster is another
// member's: their grants go as soon as it is stored what is held by them.
func leaving(all []seen) (names []string) {
	for i := range all {
		if all[i].leaves {
			names = append(names, all[i].member.Name)
		}
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names
}

// part stores what those hold that have gone, or are about to, before their grants go,
// or are written over by those of another cluster. It tells whether nobody waits for
// that any more.
func (r *Reconciler) part(ctx context.Context, all []seen, now time.Time) bool {
	r.kept = r.keep(ctx, leaving(all), now)
	left, done := map[string]types.UID{}, r.kept
	for i := range all {
		s := &all[i]
		if !s.leaves {
			done = done && !r.another(s)
			continue
		}
		// What another process may have granted since counts, too.
		settled := r.lost[s.member.Name].IsZero() && (s.fenced || r.stored[s.member.Name] == nil) || !now.Before(r.began.Add(learning))
		if r.kept && settled {
			left[s.member.Name] = s.member.UID
		} else {
			done = false
		}
	}
	r.Shares.letGo(left)
	return done
}

// another tells that the grant that is stored is for another cluster.
func (r *Reconciler) another(s *seen) bool {
	g := r.stored[s.member.Name]
	return s.writable && g != nil && g.Spec.ClusterUID != s.uid()
}
