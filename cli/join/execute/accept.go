package execute

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/join"
)

// agentWordTimeout bounds how long the agent may take to say its key in its own cluster, after
// the hub was sent one.
const agentWordTimeout = 20 * time.Second

// awaitAgent waits until an agent asks to be let in, and has a person accept it. An agent that is
// registered already is not asked for.
func (e *Executor) awaitAgent(ctx context.Context) (result string, err error) {
	var asks bool
	came, err := e.awaitCondition(ctx, func(ctx context.Context) (bool, error) {
		member, err := e.member(ctx)
		if err != nil || member == nil {
			return false, err
		}
		asks = join.AwaitsAcceptance(member)
		return asks || join.Ready(member, e.uid()), nil
	})
	switch {
	case err != nil:
		return "", err
	case !came:
		return "", TimeoutError{"no agent has registered: " + e.said(ctx, v1alpha1.ConditionJoined, "the hub has not said what it waits for")}
	case !asks:
		return "the agent is registered", nil
	}
	hub, err := ReadHub(ctx, e.Hub, e.Namespace, e.Request.Name)
	if err != nil {
		return "", err
	}
	return e.AcceptAgent(ctx, hub, "")
}

// AcceptAgent decides about the agent that asks to be let in, and accepts it where a person agrees.
func (e *Executor) AcceptAgent(ctx context.Context, hub join.HubState, given string) (result string, err error) {
	state := &join.MemberState{}
	if e.Member != nil {
		if err := e.readAgentsWord(ctx, state); err != nil {
			return "", err
		}
	}
	acceptance, err := join.DecideAcceptance(e.Request.Name, hub, state, given)
	if err != nil {
		return "", err
	}
	if acceptance.Key == "" {
		return acceptance.Text, nil
	}
	if err := e.Accept(acceptance); err != nil {
		return "", err
	}
	// The hub lets in only an agent with this key, whatever has asked meanwhile.
	return fmt.Sprintf("key %s is accepted", acceptance.Key), e.changeMember(ctx, func(m *v1alpha1.MemberCluster) {
		if m.Spec.Connection.Pull != nil {
			m.Spec.Connection.Pull.AcceptedKey = acceptance.Key
		}
	})
}

// readAgentsWord reads the agent's own condition. It comes a moment after the hub's.
func (e *Executor) readAgentsWord(ctx context.Context, state *join.MemberState) error {
	err := wait.PollUntilContextTimeout(ctx, pollInterval, min(e.Timeout, agentWordTimeout), true, func(context.Context) (bool, error) {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		var err error
		state.HubConnected, err = readHubConnected(request, e.Member, e.AgentNamespace)
		return join.ReadFingerprints(join.HubState{}, state).Agent != "", err
	})
	if ctx.Err() == nil && wait.Interrupted(err) {
		return nil
	}
	return err
}
