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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/light"
)

const (
	// changesPerSecond are made for changesFor.
	changesPerSecond = 100
	changesFor       = 10 * time.Second
	// changesAtOnce are under way: where the API servers are slower than that, there
	// are fewer changes a second, and replicas keep their Leases.
	changesAtOnce = 16
	// sent begins the message of an image that was changed to be timed; the time
	// follows, in nanoseconds.
	sent = "sent "
)

// changes has images change, so many a second, each by do.
func changes(ctx context.Context, do func(ctx context.Context, n int) error) (total int, err error) {
	group, changing := errgroup.WithContext(ctx)
	group.SetLimit(changesAtOnce)
	ticker := time.NewTicker(time.Second / changesPerSecond)
	defer ticker.Stop()
	total = int(changesFor.Seconds()) * changesPerSecond
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

// sentNow is the message of an image that is being changed.
func sentNow() string { return fmt.Sprint(sent, time.Now().UnixNano()) }

// sentAt is when an image was changed whose message tells.
func sentAt(message string) (time.Time, bool) {
	text, is := strings.CutPrefix(message, sent)
	if !is {
		return time.Time{}, false
	}
	at, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, at), err == nil
}

// changesCarried has images change and watches the hub's copies for them.
func (s *hubStage) changesCarried(ctx context.Context, members []*light.Member) (made int, took latencies, err error) {
	at := &metav1.PartialObjectMetadataList{}
	at.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReportList"))
	if err := s.client.List(ctx, at, client.Limit(1)); err != nil {
		return 0, nil, err
	}
	watching, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := s.client.Watch(watching, &v1alpha1.ClusterReportList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: at.ResourceVersion}})
	if err != nil {
		return 0, nil, err
	}
	defer w.Stop()
	var mu sync.Mutex
	shown := map[string]bool{}
	go func() {
		for e := range w.ResultChan() {
			r, is := e.Object.(*v1alpha1.ClusterReport)
			if !is || r.Page == nil || len(r.Page.Images) == 0 {
				continue
			}
			message := r.Page.Images[0].Message
			mu.Lock()
			if at, is := sentAt(message); is && !shown[message] {
				shown[message] = true
				took = append(took, time.Since(at))
			}
			mu.Unlock()
		}
	}()
	// Of two changes that follow each other the hub may see the second alone.
	type change struct {
		sync.Mutex
		message string
	}
	last := make([]change, len(members))
	made, err = changes(ctx, func(ctx context.Context, n int) error {
		n %= len(members)
		c := &last[n]
		c.Lock()
		defer c.Unlock()
		c.message = sentNow()
		return members[n].SetImages(ctx, pageName(0), pageOf(0, imagesPage, c.message))
	})
	if err != nil {
		return 0, nil, err
	}
	err = s.await(ctx, tick, "all changes are on the hub", func(context.Context) (bool, error) {
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
