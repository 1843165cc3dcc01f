package grant

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/hub/budget"
)

// maxStoredExcesses bounds the list of members.
const maxStoredExcesses = 5000

// storedExcesses are for how many seconds counts what members claim beyond what the hub
// knows. Seconds count from when they are read, as those of departures.
type storedExcesses struct {
	Members map[string]int64 `json:"members,omitempty"`
	// Witnesses are for how many seconds members that have shown an unknown grant are
	// witnesses of a restore.
	Witnesses map[string]int64 `json:"witnesses,omitempty"`
	// AfterRestore are the members whose unknown grant a restore explains.
	AfterRestore map[string]bool `json:"afterRestore,omitempty"`
	// RestoredSeconds is for how long all claims count after a restore of the hub.
	RestoredSeconds int64 `json:"restoredSeconds,omitempty"`
}

func parseExcesses(cm *corev1.ConfigMap) (s storedExcesses, err error) {
	if cm == nil || cm.Data[excessKey] == "" {
		return s, nil
	}
	if err := json.Unmarshal([]byte(cm.Data[excessKey]), &s); err != nil {
		return s, fmt.Errorf("parsing key %s of ConfigMap %s/%s, which this hub wrote: %w; remove that key", excessKey, cm.Namespace, cm.Name, err)
	}
	return s, nil
}

func (s storedExcesses) learn(accountant *budget.Accountant, now time.Time) {
	for member, seconds := range s.Members {
		witness, shown := s.Witnesses[member]
		accountant.LearnExcess(budget.Excess{
			Member: member, Remaining: time.Duration(seconds) * time.Second, AfterRestore: s.AfterRestore[member],
			UnknownGrant: shown, WitnessRemaining: time.Duration(witness) * time.Second,
		}, now)
	}
	accountant.LearnRestore(time.Duration(s.RestoredSeconds)*time.Second, now)
}

func encodeExcesses(accountant *budget.Accountant, now time.Time) (s storedExcesses) {
	all, restored := accountant.Excesses(now)
	// Those that have ended must not begin again.
	slices.SortFunc(all, func(a, b budget.Excess) int {
		return cmp.Or(cmp.Compare(a.Remaining, b.Remaining), cmp.Compare(a.Member, b.Member))
	})
	for _, e := range all[:min(len(all), maxStoredExcesses)] {
		if s.Members == nil {
			s.Members, s.Witnesses, s.AfterRestore = map[string]int64{}, map[string]int64{}, map[string]bool{}
		}
		s.Members[e.Member] = ceilSeconds(e.Remaining)
		if e.UnknownGrant {
			s.Witnesses[e.Member] = ceilSeconds(e.WitnessRemaining)
		}
		if e.AfterRestore {
			s.AfterRestore[e.Member] = true
		}
	}
	s.RestoredSeconds = ceilSeconds(restored)
	return s
}

func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// sameMembers reports whether both have the same members and witnesses, and agree on a
// restore and on what has ended: the next process must not count that again.
func (s storedExcesses) sameMembers(o storedExcesses) bool {
	within := func(a, b int64) bool { return a <= b && (a > 0) == (b > 0) }
	return (s.RestoredSeconds > 0) == (o.RestoredSeconds > 0) && maps.Equal(s.AfterRestore, o.AfterRestore) &&
		maps.EqualFunc(s.Members, o.Members, within) && maps.EqualFunc(s.Witnesses, o.Witnesses, within)
}

// hasDecreased reports whether time has passed since o was stored.
func (s storedExcesses) hasDecreased(o storedExcesses) bool {
	return s.RestoredSeconds < o.RestoredSeconds || !maps.Equal(s.Members, o.Members) || !maps.Equal(s.Witnesses, o.Witnesses)
}

func (s storedExcesses) String() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain types of this package
	}
	return string(text)
}
