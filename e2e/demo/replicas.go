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
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// Replicas of the hub: the first is elected, and lost; what is read is asked of the
// second, whichever is elected.
const (
	firstReplica, secondReplica = "ot-hub-0", "ot-hub-1"
	// pullModeReplica stands for a replica where a member's agent dials in.
	pullModeReplica = "agent"
)

// replicaState is what has been seen of the hub's.
type replicaState struct {
	// before and after are the replicas that carried for each member.
	before, after map[string]string
	// unhealthy are members whose reports have failed to come between.
	unhealthy map[string]bool
}

// startReplica starts one of them.
func (f *demoFleet) startReplica(ctx context.Context, name string) (*program.Hub, error) {
	h, err := program.StartHub(ctx, f.plane, program.Options{Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: []string{
		"--cluster-api-selector=" + clusterAPILabel + "=ot", "--probe-interval=1s", "--member-timeout=5s",
		"--replica-name=" + name, "--advertise-address=127.0.0.1",
	}})
	if err != nil {
		return nil, fmt.Errorf("starting replica %s of the hub: %w", name, err)
	}
	_, err = h.ReadMetrics(ctx)
	return h, err
}

// replicaActs is what becomes of them: the first is killed once edge is back.
func (s *demoStory) replicaActs() []storyAct {
	return []storyAct{
		{func() bool {
			return s.caughtUp && s.conditionStatus(linkedMember, v1alpha1.ConditionReachable) == metav1.ConditionTrue && s.isRelayedBy(firstReplica, secondReplica)
		}, func(context.Context) error {
			s.before = s.relayReplicas()
			s.killExpected(s.first)
			s.screen.printNote("replica %s of the hub killed; it carried for %s", firstReplica, strings.Join(s.membersOfReplica(firstReplica), " and "))
			return nil
		}},
		{func() bool { return s.isRelayedBy(secondReplica) }, func(context.Context) error {
			s.after = s.relayReplicas()
			s.screen.printNote("replica %s has taken over: it carries for %s", secondReplica, strings.Join(s.membersOfReplica(secondReplica), " and "))
			return nil
		}},
	}
}

// killExpected kills a program that is not missed.
func (f *demoFleet) killExpected(h *program.Hub) {
	for i, p := range f.programs {
		if p == h.Process {
			f.programs = append(f.programs[:i:i], f.programs[i+1:]...)
			break
		}
	}
	h.Kill()
	<-h.Done()
}

// relayReplicas are the replicas that carry for each member, as the hub tells.
func (s *demoStory) relayReplicas() map[string]string {
	of := map[string]string{}
	for i := range s.memberClusters {
		of[s.memberClusters[i].Name] = s.memberClusters[i].Status.Shard
	}
	return of
}

func (s *demoStory) membersOfReplica(replica string) (members []string) {
	for _, name := range memberNames {
		if s.relayReplicas()[name] == replica {
			members = append(members, name)
		}
	}
	return members
}

// isRelayedBy tells whether each of these replicas carries for a member, and no other
// for any; agents that dial in carry for themselves.
func (s *demoStory) isRelayedBy(by ...string) bool {
	carriers := map[string]bool{}
	for _, replica := range s.relayReplicas() {
		if replica != pullModeReplica {
			carriers[replica] = true
		}
	}
	for _, replica := range by {
		if !carriers[replica] {
			return false
		}
	}
	return len(carriers) == len(by) && len(s.memberClusters) == len(memberNames)
}

// noteReplicas notes which members seem to be lost with the replica.
func (s *demoStory) noteReplicas() {
	if s.before == nil || s.after != nil {
		return
	}
	for i := range s.memberClusters {
		if meta.IsStatusConditionFalse(s.memberClusters[i].Status.Conditions, v1alpha1.ConditionAgentHealthy) {
			s.unhealthy[s.memberClusters[i].Name] = true
		}
	}
}

func (s *demoStory) checkReplicas(check func(holds bool, format string, args ...any)) {
	moved, stayed := 0, 0
	for name, replica := range s.before {
		switch {
		case replica == firstReplica && s.after[name] == secondReplica:
			moved++
		case replica == s.after[name]:
			stayed++
		}
	}
	check(moved > 0 && moved+stayed == len(memberNames), "the members of the replica that was killed moved (%d), no others did (%d)", moved, stayed)
	check(len(s.unhealthy) == 0, "nobody was taken for lost with it")
}
