//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// Replicas of the hub: the first is elected and killed; the second serves the read API.
const (
	firstReplica, secondReplica = "ot-hub-0", "ot-hub-1"
	// pullModeReplica stands for the replica of a member in pull mode.
	pullModeReplica = "agent"
)

// replicaState is what the demo has seen of the hub's replicas.
type replicaState struct {
	// before and after have the replica that relays for each member.
	before, after map[string]string
	// unhealthy are the members whose reports were late in between.
	unhealthy map[string]bool
}

// startReplica starts a replica of the hub.
func (f *demoFleet) startReplica(ctx context.Context, name string) (*program.Hub, error) {
	args := []string{
		"--cluster-api-selector=" + clusterAPILabel + "=ot", "--cluster-api-namespaces=clusters", "--cluster-api-own-names=clusters",
		"--cluster-api-label-prefixes=" + canaryLabel, "--replica-name=" + name, "--advertise-address=127.0.0.1",
	}
	if !f.background {
		args = append(args, "--probe-interval=1s", "--member-timeout=5s")
	}
	h, err := program.StartHub(ctx, f.plane, program.Options{Log: cmp.Or(os.Getenv("OT_FLEET_HUB_LOG"), f.logFile(f.plane, name+".log")), Args: args})
	if err != nil {
		return nil, fmt.Errorf("starting replica %s of the hub: %w", name, err)
	}
	_, err = h.ReadMetrics(ctx)
	return h, err
}

// replicaActs kill the first replica once edge is back.
func (s *demoStory) replicaActs() []storyAct {
	return []storyAct{
		{func() bool {
			return s.caughtUp && s.conditionStatus(edge, v1alpha1.ConditionReachable) == metav1.ConditionTrue && s.isRelayedBy(firstReplica, secondReplica)
		}, func(context.Context) error {
			s.before = s.relayReplicas()
			s.killExpected(s.replicas[firstReplica])
			s.screen.printNote("replica %s of the hub killed; it relayed for %s", firstReplica, strings.Join(s.membersOfReplica(firstReplica), " and "))
			return nil
		}},
		{func() bool { return s.isRelayedBy(secondReplica) }, func(context.Context) error {
			s.after = s.relayReplicas()
			s.screen.printNote("replica %s has taken over: it relays for %s", secondReplica, strings.Join(s.membersOfReplica(secondReplica), " and "))
			return nil
		}},
	}
}

// killExpected kills a program, which restartEnded then ignores.
func (f *demoFleet) killExpected(h *program.Hub) {
	for i, p := range f.programs {
		if p.process == h.Process {
			f.programs = append(f.programs[:i:i], f.programs[i+1:]...)
			break
		}
	}
	h.Kill()
	<-h.Done()
}

// relayReplicas returns the replica that relays for each member.
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

// isRelayedBy reports whether each of these replicas relays for a member, and no other for any.
// Agents in pull mode relay for themselves.
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

// noteReplicas records which members become unhealthy with the loss of the replica.
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
	check(moved > 0 && moved+stayed == len(memberNames), "only the members of the killed replica moved (%d moved, %d stayed)", moved, stayed)
	check(len(s.unhealthy) == 0, "no member became unhealthy meanwhile")
}
