package join

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Leaving is what the hub has of a member that is to leave.
type Leaving struct {
	// Name of the member, and Namespace of chart ot-hub.
	Name, Namespace string
	// Member is nil where there is none (any more).
	Member *v1alpha1.MemberCluster
	// Secrets are those in Namespace that the member is reached by: that of its spec, and those
	// whose label names it.
	Secrets []corev1.Secret
	// Others are the other members that name one of these Secrets.
	Others []v1alpha1.MemberCluster
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
		return d, fmt.Errorf("MemberCluster %s follows Cluster %s/%s of Cluster API, and would be made again: remove the label of clusterAPI.selector there, as by kubectl -n %s label cluster %s pelotech.ot/fleet-",
			l.Name, ref.Namespace, ref.Name, ref.Namespace, ref.Name)
	}
	discovered := false // by a Secret that has the hub make the MemberCluster again
	for _, secret := range l.Secrets {
		discovered = discovered || secret.Labels[v1alpha1.LabelMember] == l.Name
	}
	for _, secret := range l.Secrets {
		if secret.Labels[v1alpha1.LabelMember] == l.Name {
			d.Steps = append(d.Steps, step(OnHub, DeleteHubSecret, "Secret %s/%s is deleted: as long as it exists, the hub makes the MemberCluster", l.Namespace, secret.Name))
			d.Steps[len(d.Steps)-1].Values = []string{secret.Name}
		}
	}
	if member := l.Member; member != nil {
		// The hub deletes what it made of a Secret; it leaves what a person made.
		if !discovered || member.Labels[v1alpha1.LabelDiscovered] == "" {
			d.Steps = append(d.Steps, step(OnHub, DeleteMember, "MemberCluster %s is deleted", l.Name))
		}
		d.Steps = append(d.Steps, step(OnHub, AwaitGone, "waiting for the hub to remove its plan from the member, and MemberCluster %s", l.Name))
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
		d.Steps[len(d.Steps)-1].Values = []string{secret.Name}
	}
	if l.Member == nil && len(d.Steps) == 0 && l.InMember == nil {
		return d, fmt.Errorf("there is no MemberCluster %s, and no Secret in %s that makes one", l.Name, l.Namespace)
	}
	l.planInMember(&d)
	d.Stays = append(d.Stays, "in the member: its images, machines and its agent, which works on under the cluster's own ConfigMap or, without one, its last policy",
		"on the hub: the member's labels, for 30 days, in ConfigMap "+l.Namespace+"/ot-hub-labels")
	return d, nil
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
	namespace := AgentNamespace(l.Member)
	pull := l.Member != nil && l.Member.Spec.Connection.Pull != nil
	if l.InMember == nil {
		switch {
		case pull:
			d.ByHand = append(d.ByHand, fmt.Sprintf("kubectl --context %s -n %s delete secret %s %s --ignore-not-found", l.Name, namespace, registration.CredentialSecret, registration.JoinSecret))
		case l.Member != nil || len(d.Steps) > 0:
			d.ByHand = append(d.ByHand, RevokeCommand(l.Name, namespace)...)
		}
		return
	}
	if l.InMember.HasAccessSecret || l.InMember.HasLegacyToken {
		d.Steps = append(d.Steps, step(OnMember, RevokeTokens, "the hub's tokens end: Secrets %s/%s and %s are deleted", namespace, AccessSecret, LegacyTokenSecret))
	}
	if l.InMember.HasCredential || l.InMember.HasJoinSecret {
		d.Steps = append(d.Steps, step(OnMember, DeleteCredential, "the agent's credential: Secrets %s/%s and %s are deleted", namespace, registration.CredentialSecret, registration.JoinSecret))
	}
}

// RevokeCommand returns the documented commands that end every token of the hub in a member.
func RevokeCommand(context, agentNamespace string) []string {
	return []string{
		fmt.Sprintf("kubectl --context %s -n %s delete secret %s", context, agentNamespace, AccessSecret),
		fmt.Sprintf("kubectl --context %s -n %s delete secret %s --ignore-not-found", context, agentNamespace, LegacyTokenSecret),
	}
}
