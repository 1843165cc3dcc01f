//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/hub"
)

// Replicas of the hub: the first is elected, and lost; what is read is asked of the
// second, whichever is elected.
const (
	firstReplica, secondReplica = "ot-hub-0", "ot-hub-1"
	// dialsIn stands for a replica where a member's agent dials in.
	dialsIn = "agent"
)

// replicas is what has been seen of the hub's.
type replicas struct {
	// before and after are the replicas that carried for each member.
	before, after map[string]string
	// unhealthy are members whose reports have failed to come between.
	unhealthy map[string]bool
}

// startReplica starts one of them.
func (f *fleet) startReplica(ctx context.Context, name string) (*hub.Hub, error) {
	h, err := hub.Start(ctx, f.plane, hub.Options{Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: []string{
		"--cluster-api-selector=" + clusterAPILabel + "=ot", "--probe-interval=1s", "--member-timeout=5s",
		"--replica-name=" + name, "--advertise-address=127.0.0.1",
	}})
	if err != nil {
		return nil, fmt.Errorf("starting replica %s of the hub: %w", name, err)
	}
	_, err = h.Metrics(ctx)
	return h, err
}

// ofReplicas is what becomes of them: the first is killed once edge is back.
func (s *story) ofReplicas() []act {
	return []act{
		{func() bool {
			return s.caughtUp && s.condition(edge, v1alpha1.ConditionReachable) == metav1.ConditionTrue && s.carried(firstReplica, secondReplica)
		}, func(context.Context) error {
			s.before = s.shards()
			s.lose(s.first)
			s.screen.say("replica %s of the hub killed; it carried for %s", firstReplica, strings.Join(s.of(firstReplica), " and "))
			return nil
		}},
		{func() bool { return s.carried(secondReplica) }, func(context.Context) error {
			s.after = s.shards()
			s.screen.say("replica %s has taken over: it carries for %s", secondReplica, strings.Join(s.of(secondReplica), " and "))
			return nil
		}},
	}
}

// lose kills a program that is not missed.
func (f *fleet) lose(h *hub.Hub) {
	for i, p := range f.programs {
		if p == h.Process {
			f.programs = append(f.programs[:i:i], f.programs[i+1:]...)
			break
		}
	}
	h.Kill()
	<-h.Done()
}

// shards are the replicas that carry for each member, as the hub tells.
func (s *story) shards() map[string]string {
	of := map[string]string{}
	for i := range s.seen {
		of[s.seen[i].Name] = s.seen[i].Status.Shard
	}
	return of
}

func (s *story) of(replica string) (members []string) {
	for _, name := range names {
		if s.shards()[name] == replica {
			members = append(members, name)
		}
	}
	return members
}

// carried tells whether each of these replicas carries for a member, and no other
// for any; agents that dial in carry for themselves.
func (s *story) carried(by ...string) bool {
	carriers := map[string]bool{}
	for _, replica := range s.shards() {
		if replica != dialsIn {
			carriers[replica] = true
		}
	}
	for _, replica := range by {
		if !carriers[replica] {
			return false
		}
	}
	return len(carriers) == len(by) && len(s.seen) == len(names)
}

// lookAtReplicas notes which members seem to be lost with the replica.
func (s *story) lookAtReplicas() {
	if s.before == nil || s.after != nil {
		return
	}
	for i := range s.seen {
		if meta.IsStatusConditionFalse(s.seen[i].Status.Conditions, v1alpha1.ConditionAgentHealthy) {
			s.unhealthy[s.seen[i].Name] = true
		}
	}
}

func (s *story) judgeReplicas(check func(holds bool, format string, args ...any)) {
	moved, stayed := 0, 0
	for name, replica := range s.before {
		switch {
		case replica == firstReplica && s.after[name] == secondReplica:
			moved++
		case replica == s.after[name]:
			stayed++
		}
	}
	check(moved > 0 && moved+stayed == len(names), "the members of the replica that was killed moved (%d), no others did (%d)", moved, stayed)
	check(len(s.unhealthy) == 0, "nobody was taken for lost with it")
}
