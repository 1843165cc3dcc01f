//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// failoverSize is a fleet whose replicas are killed.
type failoverSize struct {
	members, pages int
	planes         hubSetupOptions
}

var (
	smallFailover = failoverSize{members: 150, pages: 4}
	// largeFailover has 200 images per member.
	largeFailover = failoverSize{members: 1000, pages: 8, planes: scaleHubOptions}
)

const (
	// Of failoverReplicas one that is not elected is killed, then the elected one.
	failoverReplicas = 3
	// What may pass beyond the Lease of a killed replica until the first and all of its members are
	// served again, and until the read API of another replica has all members.
	maxFirstServedDelay = 2 * time.Second
	maxAllServedDelay   = 8 * time.Second
	maxReadAPIDelay     = 10 * time.Second
)

func (size failoverSize) describe() string {
	return fmt.Sprintf("%d replicas of a hub with %d light members of %d images, two of them killed in turn", failoverReplicas, size.members, size.pages*imagesPerPage)
}

// measureHubFailover kills replicas of the hub.
func (size failoverSize) measureHubFailover(ctx context.Context) (_ []figureRow, _ []string, err error) {
	s, err := startHubPlanes(ctx, size.planes)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := s.startHub(ctx, failoverReplicas); err != nil {
		return nil, nil, err
	}
	members, err := s.joinMembers(ctx, "failover", size.members)
	if err != nil {
		return nil, nil, err
	}
	if err := s.reportImages(ctx, members, size.pages, imagesPerPage); err != nil {
		return nil, nil, err
	}
	if _, _, err := s.awaitRelayed(ctx, time.Now()); err != nil {
		return nil, nil, err
	}
	leader, err := s.findElected(ctx)
	if err != nil {
		return nil, nil, err
	}
	victim := s.replicaBeside(leader)
	first, all, moved, err := s.killCarrier(ctx, victim)
	if err != nil {
		return nil, nil, err
	}
	// As a Deployment does.
	if err := s.startReplica(ctx, victim); err != nil {
		return nil, nil, err
	}
	s.replicas = append(s.replicas, victim)
	if _, _, err := s.awaitRelayed(ctx, time.Now()); err != nil {
		return nil, nil, err
	}
	elected, forwarded, err := s.killElected(ctx, size.members)
	if err != nil {
		return nil, nil, err
	}
	lease := program.HubLeaseDuration
	beyond := func(name string, took, limit time.Duration) figureRow {
		return figureAtMost(name+", seconds beyond the Lease", (took - lease).Seconds(), limit.Seconds(), fmt.Sprintf("%+.1f", (took-lease).Seconds()))
	}
	return []figureRow{
			beyond(fmt.Sprintf("replica killed: the first of its %d members served again", moved), first, maxFirstServedDelay),
			beyond("the same: all of them", all, maxAllServedDelay),
			figureInfo("elected replica killed: next one elected, seconds beyond the Lease", fmt.Sprintf("%+.1f", (elected-lease).Seconds())),
			beyond("the same: the read API of another replica has all members", forwarded, maxReadAPIDelay),
		}, []string{
			fmt.Sprintf("hub-failover: %d replicas with the chart's Lease of %s and %d light members of %d images. A killed replica has renewed its Lease up to 2 s before.", failoverReplicas, lease, size.members, size.pages*imagesPerPage),
		}, nil
}

// killCarrier kills a replica, and returns when the first and all of its members were served by
// others. It watches the MemberLinks: listing those of a large fleet again and again takes a core.
func (s *hubSetup) killCarrier(ctx context.Context, victim *replica) (first, all time.Duration, moved int, err error) {
	links, err := s.listMemberLinks(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	t := takeover{left: map[string]bool{}}
	for i := range links.Items {
		if links.Items[i].Spec.Replica == victim.name {
			t.left[links.Items[i].Namespace] = true
		}
	}
	if moved = len(t.left); moved == 0 {
		return 0, 0, 0, fmt.Errorf("replica %s has no members", victim.name)
	}
	stop, err := controlplane.WatchObjects(ctx, s.client, &v1alpha1.MemberLinkList{}, func(c controlplane.Change[*v1alpha1.MemberLink]) {
		if c.Object.Spec.Replica != victim.name && isServed(c.Object) {
			t.recordServed(c.Object.Namespace)
		}
	})
	if err != nil {
		return 0, 0, 0, err
	}
	defer stop()
	s.killReplica(victim)
	since := time.Now()
	err = s.awaitCondition(ctx, pollInterval, "the members of the killed replica are served", func(context.Context) (bool, error) {
		return t.isComplete(), nil
	})
	return t.first.Sub(since), t.last.Sub(since), moved, err
}

// takeover is when the members of a killed replica were served by others.
type takeover struct {
	mu sync.Mutex
	// left are the namespaces of the members that are not served yet.
	left        map[string]bool
	first, last time.Time
}

func (t *takeover) recordServed(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.left[namespace] {
		return
	}
	delete(t.left, namespace)
	t.last = time.Now()
	if t.first.IsZero() {
		t.first = t.last
	}
}

func (t *takeover) isComplete() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.left) == 0
}
