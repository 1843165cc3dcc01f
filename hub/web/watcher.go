package web

import (
	"context"
	"fmt"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/history"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// Watcher counts in Changes what changes of the hub's objects and of the Index, and samples
// what members import into a History. It runs in the elected replica only.
type Watcher struct {
	Cache   cache.Cache
	Index   *inventory.Index
	Changes *Changes
	// ReportsLoaded reports whether everything stored has been read. Before, absence means
	// nothing.
	ReportsLoaded func() bool
	// Groups returns the groups of sources of the policy in force.
	Groups func() []string
	// Sampled gets the History after each sample; nil: nobody.
	Sampled func(*history.History)

	mu         sync.Mutex
	remembered *history.History
}

// NewWatcher returns a Watcher. Call it before the Index is filled.
func NewWatcher(cached cache.Cache, index *inventory.Index, changes *Changes, reportsLoaded func() bool, groups func() []string) *Watcher {
	index.OnChange(func(c inventory.Change) {
		if c == inventory.ChangedActivity {
			changes.Mark(readapi.TopicTransfers)
			return
		}
		changes.Mark(readapi.TopicImages)
	})
	return &Watcher{Cache: cached, Index: index, Changes: changes, ReportsLoaded: reportsLoaded, Groups: groups, remembered: history.New(time.Now())}
}

// History returns what is remembered, since this replica is elected.
func (w *Watcher) History() *history.History {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.remembered
}

// Start implements manager.Runnable.
func (w *Watcher) Start(ctx context.Context) error {
	w.mu.Lock()
	w.remembered = history.New(time.Now())
	w.mu.Unlock()
	for topic, kind := range map[readapi.Topic][]client.Object{
		readapi.TopicMembers:  {&v1alpha1.MemberCluster{}},
		readapi.TopicRollouts: {&v1alpha1.FleetDiskImage{}},
		readapi.TopicPrunes:   {&v1alpha1.PruneReport{}, &v1alpha1.ImagePrune{}},
	} {
		for _, of := range kind {
			informer, err := w.Cache.GetInformer(ctx, of, cache.BlockUntilSynced(false))
			if err != nil {
				return fmt.Errorf("watching %T: %w", of, err)
			}
			if _, err := informer.AddEventHandler(w.markChanges(topic)); err != nil {
				return fmt.Errorf("watching %T: %w", of, err)
			}
		}
	}
	sampling := time.NewTicker(history.Step)
	defer sampling.Stop()
	for {
		if w.ReportsLoaded() {
			w.sample(time.Now())
		}
		select {
		case <-sampling.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *Watcher) markChanges(topic readapi.Topic) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { w.Changes.Mark(topic) },
		DeleteFunc: func(any) { w.Changes.Mark(topic) },
		UpdateFunc: func(before, after any) {
			// Readers learn of a heartbeat by TopicTransfers, which each sample marks: a topic for each
			// would have all of them ask without a pause.
			if memberstatus.IsHeartbeat(before, after) {
				w.Changes.Mark()
				return
			}
			w.Changes.Mark(topic)
		},
	}
}

// sample adds what all members import now to the History.
func (w *Watcher) sample(now time.Time) {
	members := w.Index.Members()
	samples := make([]history.MemberSample, len(members))
	for i := range members {
		samples[i] = newSample(members[i].Member, w.Index.Activity(members[i].Member))
	}
	remembered := w.History()
	remembered.AddSample(now, w.Groups(), samples)
	if w.Sampled != nil {
		w.Sampled(remembered)
	}
	w.Changes.Mark(readapi.TopicTransfers)
}

// newSample returns what a member imports, by group of sources.
func newSample(member string, a inventory.Activity) history.MemberSample {
	s := history.MemberSample{Member: member, Known: a.Unknown == "" && a.Reported != nil}
	if !s.Known {
		return s
	}
	s.BootID, s.Slots, s.Queued = a.Reported.BootID, int(a.Reported.Slots), int(a.Reported.Queued)
	at := map[string]int{}
	of := func(source string) *history.SourceSample {
		if source == "" {
			source = v1alpha1.SourceOther
		}
		if _, known := at[source]; !known {
			at[source] = len(s.Sources)
			s.Sources = append(s.Sources, history.SourceSample{Name: source})
		}
		return &s.Sources[at[source]]
	}
	for i := range a.Reported.Rates {
		of(a.Reported.Rates[i].Name).TransferredBytes = a.Reported.Rates[i].TransferredBytes
	}
	for i := range a.Reported.Active {
		of(a.Reported.Active[i].Source).Slots++
	}
	for i := range a.Reported.Head {
		of(a.Reported.Head[i].Source).Queued++
	}
	for i := range s.Sources {
		// Where not all are listed, it is unknown which sources the others are from.
		if s.Slots > len(a.Reported.Active) {
			s.Sources[i].Slots = -1
		}
		if s.Queued > len(a.Reported.Head) {
			s.Sources[i].Queued = -1
		}
	}
	return s
}
