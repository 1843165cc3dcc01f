package join

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/quarantine"
	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Leaving is what the hub has of a member that is to leave.
type Leaving struct {
	// HubKubectl begins commands about the hub's Secrets: kubectl, and flags where it needs any.
	HubKubectl string
	// Name of the member, and Namespace of chart ot-hub.
	Name, Namespace string
	// Member is nil where there is none (any more).
	Member *v1alpha1.MemberCluster
	// Secrets are those in Namespace that the member is reached by: that of its spec, and those
	// whose label names it.
	Secrets []corev1.Secret
	// Others are the other members that name one of these Secrets.
	Others []v1alpha1.MemberCluster
	// Context of the member, and AgentNamespace in it where that is not what Member says.
	Context, AgentNamespace string
	// InMember is what the member's own API server has; nil where it is not reached from here.
	InMember *MemberState
}

// Departure is what leaving takes, and what stays.
type Departure struct {
	Steps []Step `json:"steps"`
	// Stays says what nobody removes.
	Stays []string `json:"stays"`
	// ByHand are commands for what is not done from here.
	ByHand []string `json:"byHand,omitempty"`
}

// PlanLeave returns the steps in the order in which nothing is made again, and in which the hub can
// still remove its plan from the member: the credential goes last.
func PlanLeave(l Leaving) (Departure, error) {
	var d Departure
	if member := l.Member; member != nil && member.Spec.Connection.ClusterAPI != nil && member.Labels[v1alpha1.LabelDiscovered] != "" {
		ref := member.Spec.Connection.ClusterAPI
		return d, fmt.Errorf("MemberCluster %s follows Cluster %s/%s of Cluster API, and would be made again: remove the label of clusterAPI.selector there, as by %s",
			l.Name, ref.Namespace, ref.Name, shellword.FormatCommand("kubectl -n %s label clusters.cluster.x-k8s.io %s pelotech.ot/fleet-", ref.Namespace, ref.Name))
	}
	if err := l.checkCluster(); err != nil {
		return d, err
	}
	discovered := false // by a Secret that has the hub make the MemberCluster again
	for _, secret := range l.Secrets {
		discovered = discovered || secret.Labels[v1alpha1.LabelMember] == l.Name
	}
	for _, secret := range l.Secrets {
		if secret.Labels[v1alpha1.LabelMember] == l.Name {
			d.Steps = append(d.Steps, step(OnHub, DeleteHubSecret, "Secret %s/%s is deleted: as long as it exists, the hub makes the MemberCluster", l.Namespace, secret.Name))
			l.nameSecret(&d, secret.Name)
		}
	}
	if member := l.Member; member != nil {
		// The hub deletes what it made of a Secret; it leaves what a person made.
		if !discovered || member.Labels[v1alpha1.LabelDiscovered] == "" {
			d.Steps = append(d.Steps, step(OnHub, DeleteMember, "MemberCluster %s is deleted", l.Name))
			d.Steps[len(d.Steps)-1].Commands = []string{shellword.FormatCommand("kubectl delete membercluster %s", l.Name)}
		}
		d.Steps = append(d.Steps, step(OnHub, AwaitGone, "waiting for the hub to remove its plan from the member, and MemberCluster %s", l.Name))
		d.Steps[len(d.Steps)-1].Commands = []string{shellword.FormatCommand("kubectl wait membercluster %s --for=delete --timeout=3m", l.Name)}
	}
	for _, secret := range l.Secrets {
		if secret.Labels[v1alpha1.LabelMember] == l.Name {
			continue
		}
		if other := l.userOf(secret.Name); other != "" {
			d.Stays = append(d.Stays, fmt.Sprintf("Secret %s/%s: MemberCluster %s names it, too", l.Namespace, secret.Name, other))
			continue
		}
		d.Steps = append(d.Steps, step(OnHub, DeleteHubSecret, "Secret %s/%s, by which the hub reached the member, is deleted", l.Namespace, secret.Name))
		l.nameSecret(&d, secret.Name)
	}
	if l.Member == nil && len(d.Steps) == 0 && l.InMember == nil {
		return d, fmt.Errorf("there is no MemberCluster %s, and no Secret in %s that makes one", l.Name, l.Namespace)
	}
	l.planInMember(&d)
	d.Stays = append(d.Stays, "in the member: its images, machines and its agent, which works on under the cluster's own ConfigMap or, without one, its last policy",
		"on the hub: the member's labels, for 30 days, in ConfigMap "+l.Namespace+"/ot-hub-labels")
	return d, nil
}

// checkCluster refuses a context that leads to another cluster than the one that is to leave: what
// hub and agent log in with would be deleted there.
func (l Leaving) checkCluster() error {
	if l.InMember == nil {
		return nil
	}
	if l.Member != nil && l.Member.Status.ClusterUID != "" && l.Member.Status.ClusterUID != l.InMember.UID {
		return fmt.Errorf("--member leads to cluster %s, and MemberCluster %s is cluster %s: name the context of that one, or leave --member out", l.InMember.UID, l.Name, l.Member.Status.ClusterUID)
	}
	for _, other := range l.Others {
		if other.Name != l.Name && l.InMember.UID != "" && other.Status.ClusterUID == l.InMember.UID {
			return fmt.Errorf("--member leads to the cluster of MemberCluster %s, which is in the fleet: name the context of %s, or leave --member out", other.Name, l.Name)
		}
	}
	return nil
}

// nameSecret completes the last step, which deletes a Secret of the hub.
func (l Leaving) nameSecret(d *Departure, name string) {
	last := &d.Steps[len(d.Steps)-1]
	last.Values, last.Commands = []string{name}, []string{cmp.Or(l.HubKubectl, "kubectl") + shellword.FormatCommand(" -n %s delete secret %s", l.Namespace, name)}
}

// CommandsOf returns the commands that do steps by hand.
func CommandsOf(steps []Step) (commands []string) {
	for _, s := range steps {
		commands = append(commands, s.Commands...)
	}
	return commands
}

// userOf returns another member that names a Secret; empty where none does.
func (l Leaving) userOf(secret string) string {
	for _, other := range l.Others {
		if ref := other.Spec.Connection.KubeconfigSecretRef; ref != nil && ref.Name == secret && other.Name != l.Name {
			return other.Name
		}
	}
	return ""
}

// planInMember ends what hub and agent could still log in with.
func (l Leaving) planInMember(d *Departure) {
	namespace := l.AgentNamespace
	if namespace == "" {
		namespace = AgentNamespace(l.Member)
	}
	pull := l.Member != nil && l.Member.Spec.Connection.Pull != nil
	if l.InMember == nil {
		switch {
		case pull:
			d.ByHand = append(d.ByHand, l.forgetCommand(l.Name, namespace))
		case l.Member != nil || len(d.Steps) > 0:
			d.ByHand = append(d.ByHand, quarantine.RevokeCommands(l.Name, namespace)...)
		}
		return
	}
	if l.InMember.HasAccessSecret || l.InMember.HasLegacyToken {
		d.Steps = append(d.Steps, step(OnMember, RevokeTokens, "the hub's tokens end: Secrets %s/%s and %s are deleted", namespace, AccessSecret, LegacyTokenSecret))
		d.Steps[len(d.Steps)-1].Commands = quarantine.RevokeCommands(l.Context, namespace)
	}
	if l.InMember.HasCredential || l.InMember.HasJoinSecret {
		d.Steps = append(d.Steps, step(OnMember, DeleteCredential, "the agent's credential: Secrets %s/%s and %s are deleted", namespace, registration.JoinSecret, registration.CredentialSecret))
		d.Steps[len(d.Steps)-1].Commands = []string{l.forgetCommand(l.Context, namespace)}
	}
}

// forgetCommand returns the documented command that deletes the agent's credential, after the join
// token: kubectl deletes in the order of the names.
func (l Leaving) forgetCommand(context, namespace string) string {
	return shellword.FormatCommand("kubectl --context %s -n %s delete secret %s %s --ignore-not-found", context, namespace, registration.JoinSecret, registration.CredentialSecret)
}
