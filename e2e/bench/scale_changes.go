//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
)

const (
	// changesPerSecond changes are made for changesDuration.
	changesPerSecond = 100
	changesDuration  = 10 * time.Second
	// concurrentChanges bounds the changes in flight: slow API servers get fewer changes per
	// second, so that replicas keep their Leases.
	concurrentChanges = 16
	// sentPrefix begins the message of a timed change; the time follows, in nanoseconds.
	sentPrefix = "sent "
)

// makeChanges calls do for each change, changesPerSecond times a second.
func makeChanges(ctx context.Context, do func(ctx context.Context, n int) error) (total int, err error) {
	group, changing := errgroup.WithContext(ctx)
	group.SetLimit(concurrentChanges)
	ticker := time.NewTicker(time.Second / changesPerSecond)
	defer ticker.Stop()
	total = int(changesDuration.Seconds()) * changesPerSecond
	for n := range total {
		select {
		case <-ticker.C:
		case <-changing.Done():
			return 0, group.Wait()
		}
		group.Go(func() error { return do(changing, n) })
	}
	return total, group.Wait()
}

// newSentMessage returns the message of a change that is made now.
func newSentMessage() string { return fmt.Sprint(sentPrefix, time.Now().UnixNano()) }

// parseSentMessage returns the time of the change from a message.
func parseSentMessage(message string) (time.Time, bool) {
	text, ok := strings.CutPrefix(message, sentPrefix)
	if !ok {
		return time.Time{}, false
	}
	at, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, at), err == nil
}

// measureRelayedChanges changes images in members and watches the hub's copies.
func (s *hubSetup) measureRelayedChanges(ctx context.Context, members []*fakemember.Member) (made int, took latencies, err error) {
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	var mu sync.Mutex
	shown := map[string]bool{}
	see := func(o any) {
		r, ok := o.(*v1alpha1.ClusterReport)
		if !ok || r.Page == nil || len(r.Page.Images) == 0 {
			return
		}
		message := r.Page.Images[0].Message
		mu.Lock()
		defer mu.Unlock()
		if at, ok := parseSentMessage(message); ok && !shown[message] {
			shown[message] = true
			took = append(took, time.Since(at))
		}
	}
	if err := s.watchCopies(watching, see); err != nil {
		return 0, nil, err
	}
	// The hub may see only the second of two successive changes.
	type change struct {
		sync.Mutex
		message string
	}
	last := make([]change, len(members))
	made, err = makeChanges(ctx, func(ctx context.Context, n int) error {
		n %= len(members)
		c := &last[n]
		c.Lock()
		defer c.Unlock()
		c.message = newSentMessage()
		return members[n].SetImages(ctx, pageName(0), newPage(0, imagesPerPage, c.message))
	})
	if err != nil {
		return 0, nil, err
	}
	err = s.awaitCondition(ctx, pollInterval, "all changes are on the hub", func(context.Context) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		for i := range last {
			if message := last[i].message; message != "" && !shown[message] {
				return false, nil
			}
		}
		return true, nil
	})
	mu.Lock()
	defer mu.Unlock()
	return made, slices.Clone(took), err
}

// watchCopies calls see for each of the hub's copies and for each change of one until ctx ends. The
// API server ends a watch that a busy machine reads too slowly: then they are listed again.
func (s *hubSetup) watchCopies(ctx context.Context, see func(o any)) error {
	copies, err := cache.New(s.plane.Config(), cache.Options{Scheme: s.client.Scheme(), Mapper: s.client.RESTMapper()})
	if err != nil {
		return err
	}
	go func() { _ = copies.Start(ctx) }() // returns nil when ctx ends
	informer, err := copies.GetInformer(ctx, &v1alpha1.ClusterReport{})
	if err != nil {
		return fmt.Errorf("watching the hub's copies: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }})
	return err
}
