package join

import (
	"fmt"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PlanPull returns the steps by which the agent of a cluster connects to the hub. member is nil
// where the cluster is not reached from here.
func PlanPull(r Request, hub HubState, member *MemberState) ([]Step, error) {
	if hub.Member != nil {
		pull := hub.Member.Spec.Connection.Pull
		if pull == nil {
			return nil, fmt.Errorf("MemberCluster %s is there, and its agent is not in pull mode: take another name, or change its spec.connection (docs/operate/members.md, \"Between the modes\")", r.Name)
		}
		if pull.AutoAccept {
			r.AutoAccept = true
		}
	}
	var steps []Step
	switch {
	case hub.Member == nil:
		steps = append(steps, step(OnHub, CreateMember, "MemberCluster %s, in pull mode", r.Name))
	case r.AutoAccept && !hub.Member.Spec.Connection.Pull.AutoAccept:
		steps = append(steps, step(OnHub, SetAutoAccept, "MemberCluster %s accepts the first agent that presents the join token", r.Name))
	default:
		steps = append(steps, step(OnHub, Keep, "MemberCluster %s, in pull mode", r.Name))
	}
	if hub.Member != nil {
		steps = append(steps, r.labelMember(hub)...)
	}
	register, err := r.planRegistration(hub, member)
	if err != nil {
		return nil, err
	}
	steps = append(steps, register...)
	if member == nil {
		return steps, nil
	}
	if !r.AutoAccept {
		steps = append(steps, step(OnHub, AwaitAgent, "waiting for the agent to register"))
	}
	return append(steps, step(OnHub, AwaitReady, "waiting for MemberCluster %s to be Ready", r.Name)), nil
}

// planRegistration returns the steps that give the agent what it registers with.
func (r Request) planRegistration(hub HubState, member *MemberState) ([]Step, error) {
	joined := condition(hub.Member, v1alpha1.ConditionJoined)
	switch joined.Reason {
	case "", v1alpha1.ReasonAwaitingAgent:
		return r.bringToken(hub, member), nil
	case v1alpha1.ReasonJoinTokenExpired:
		renew := step(OnHub, RequestToken, "the join token of %s has expired; the hub makes another one", r.Name)
		return append([]Step{renew}, r.bringToken(hub, member)...), nil
	case v1alpha1.ReasonAwaitingAcceptance, v1alpha1.ReasonAwaitingContact:
		if member == nil {
			return nil, fmt.Errorf("an agent has presented the join token of %s: %s", r.Name, v1alpha1.SanitizeText(joined.Message, 1024))
		}
		return []Step{r.installAgent(hub)}, nil // the join token stays: it is not used up
	case v1alpha1.ReasonJoined:
		switch {
		case len(hub.JoinToken) > 0:
			return r.bringToken(hub, member), nil
		case member != nil && hub.Member.Status.ClusterUID == member.UID:
			steps := []Step{r.installAgent(hub)}
			if member.HasJoinSecret {
				steps = append(steps, step(OnMember, DeleteUsedToken, "Secret %s/%s, a join token that has been used, is deleted", hub.agentNamespace(), registration.JoinSecret))
			}
			return steps, nil
		}
		return nil, fmt.Errorf("the agent of %s is registered already. To register another agent in its place, run this again after %s", r.Name, NewTokenCommand(r.Name))
	}
	return nil, fmt.Errorf("MemberCluster %s: %s", r.Name, v1alpha1.SanitizeText(joined.Message, 1024))
}

// NewTokenCommand returns the command that has the hub make another join token.
func NewTokenCommand(member string) string {
	return shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s=$(date +%%s)", member, v1alpha1.AnnotationJoinToken)
}

// bringToken returns the steps that bring the join token to the agent.
//
// The token does not go through Helm: a Secret that somebody made by hand would be refused, or
// deleted with the release that made the one before, and a release would keep the token.
func (r Request) bringToken(hub HubState, member *MemberState) []Step {
	steps := []Step{step(OnHub, AwaitToken, "waiting for the join token, in Secret %s/%s", hub.Namespace, registration.JoinSecretName(r.Name))}
	if member == nil {
		return append(steps, step(Here, WriteFile, "the join token is written to %s", r.Output))
	}
	return append(steps, r.installAgent(hub),
		step(OnMember, StoreToken, "the join token, in Secret %s/%s", hub.agentNamespace(), registration.JoinSecret))
}

// installAgent returns the step that installs the agent without a join token of Helm's.
func (r Request) installAgent(hub HubState) Step {
	install := step(OnMember, InstallAgent, "installing chart ot-agent in namespace %s", hub.agentNamespace())
	install.Values = []string{"--set", "hub.join.kubeconfig="}
	return install
}
