package join

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// checkPushName refuses a name that something else uses.
func checkPushName(r Request, hub HubState, uid types.UID) error {
	switch member := hub.Member; {
	case member != nil:
		if ref := member.Spec.Connection.KubeconfigSecretRef; ref == nil || ref.Name != r.Name {
			return fmt.Errorf("MemberCluster %s is there, and is not reached by Secret %s: take another name, or change its spec.connection (docs/operate/members.md, \"Between the modes\")", r.Name, r.Name)
		}
		return checkCluster(r, member, uid)
	case hub.Secret != nil && hub.Secret.Labels[v1alpha1.LabelMember] != r.Name:
		return fmt.Errorf("there is a Secret %s/%s that is no member's: take another name", hub.Namespace, r.Name)
	}
	return nil
}

// checkCluster refuses another cluster than the one that the hub knows by that name, unless it
// was accepted.
func checkCluster(r Request, member *v1alpha1.MemberCluster, uid types.UID) error {
	known := member.Status.ClusterUID
	if known == "" || known == uid || member.Annotations[v1alpha1.AnnotationAcceptCluster] == string(uid) {
		return nil
	}
	return fmt.Errorf("MemberCluster %s is another cluster, %s: take another name, or, where this one is in its place, run it again after %s",
		r.Name, known, shellword.FormatCommand("kubectl annotate --overwrite membercluster %s %s=%s", r.Name, v1alpha1.AnnotationAcceptCluster, string(uid)))
}

// checkAccount refuses a member in which the hub has no account.
func checkAccount(r Request, member MemberState, namespace string) error {
	switch {
	case r.Install:
		return nil // the chart makes both
	case !member.HasAccount:
		return fmt.Errorf("the cluster has no ServiceAccount %s/%s: have this install chart ot-agent, by -- --set image.tag=<version>, or install it with --set hub.serviceAccount.create=true", namespace, HubAccount)
	case !member.HasAccessSecret:
		return fmt.Errorf("the cluster has no Secret %s/%s, which the hub's tokens are bound to: upgrade chart ot-agent there", namespace, AccessSecret)
	}
	return nil
}

// PlanPush returns the steps by which the hub connects to a cluster.
func PlanPush(r Request, hub HubState, member MemberState) ([]Step, error) {
	if err := checkPushName(r, hub, member.UID); err != nil {
		return nil, err
	}
	namespace := hub.agentNamespace()
	if err := checkAccount(r, member, namespace); err != nil {
		return nil, err
	}
	var steps []Step
	if r.Install {
		// The credential of an agent that was registered in pull mode no longer works.
		values := []string{"--set", "hub.serviceAccount.create=true", "--set", "hub.join.kubeconfig="}
		if len(member.Audiences) > 0 {
			audiences, err := json.Marshal(member.Audiences)
			if err != nil {
				return nil, err
			}
			values = append(values, "--set-json", "hub.serviceAccount.audiences="+string(audiences))
		}
		install := step(OnMember, InstallAgent, "installing chart ot-agent in namespace %s", namespace)
		install.Values = values
		steps = append(steps, install)
	}
	access := r.access(member)
	kept := hub.Secret != nil && Rotated(hub.Member) && access.Reaches(hub.Secret.Data["kubeconfig"])
	if kept {
		steps = append(steps, step(OnHub, Keep, "Secret %s/%s leads to %s, and the hub has a token of its own", hub.Namespace, r.Name, access.Server))
	} else {
		steps = append(steps, step(OnHub, GiveCredential, "Secret %s/%s leads to %s, with a token of ServiceAccount %s that is valid for a day", hub.Namespace, r.Name, access.Server, HubAccount))
	}
	var onSecret map[string]string
	if hub.Secret != nil {
		onSecret = hub.Secret.Labels
	}
	// A Secret that is written gets its labels with it.
	if missing := r.missingLabels(onSecret); kept && (len(missing) > 0 || onSecret[v1alpha1.LabelMember] != r.Name) {
		steps = append(steps, step(OnHub, LabelSecret, "labels of Secret %s/%s: %s", hub.Namespace, r.Name, strings.Join(append(missing, v1alpha1.LabelMember+"="+r.Name), ", ")))
	}
	steps = append(steps, step(OnHub, AwaitReady, "waiting for MemberCluster %s to be Ready", r.Name))
	steps = append(steps, r.labelMember(hub)...)
	if !kept {
		steps = append(steps, step(OnHub, AwaitRotated, "waiting for the hub to replace the token"))
	}
	if member.HasLegacyToken {
		steps = append(steps, step(OnMember, DeleteLegacyToken, "Secret %s/%s, a token without end of an earlier version, is deleted", namespace, LegacyTokenSecret))
	}
	return steps, nil
}

// access returns how the hub reaches the member.
func (r Request) access(member MemberState) Access {
	access := member.Access
	if r.Server != "" {
		access.Server = r.Server
	}
	return access
}

// Access returns how the hub reaches the member: as its context does, or by another URL.
func (r Request) Access(member MemberState) Access { return r.access(member) }

// labelMember returns the step that labels the MemberCluster, unless it has the labels.
func (r Request) labelMember(hub HubState) []Step {
	var has map[string]string
	if hub.Member != nil {
		has = hub.Member.Labels
	}
	if missing := r.missingLabels(has); len(missing) > 0 {
		return []Step{step(OnHub, SetLabels, "labels of MemberCluster %s: %s", r.Name, strings.Join(missing, ", "))}
	}
	return nil
}
