//go:build linux

package chart_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	notOfHub  = "is neither a member's, in its namespace ot-member-<name>, nor one that the hub keeps for itself"
	onlyBinds = "the hub binds only ClusterRole ot-hub-member-agent and ot-hub-member-join"
)

func requestToken(namespace, account string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
		return c.SubResource("token").Create(ctx, sa, &authenticationv1.TokenRequest{})
	}
}

func bindingOf(namespace, name, roleKind, role, subject string) string {
	return `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: ` + name + `, namespace: ` + namespace + `}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ` + roleKind + `, name: ` + role + `}, subjects: [` + subject + `]}`
}

func mailboxOf(kind, namespace, spec string) string {
	return `{apiVersion: pelotech.ot/v1alpha1, kind: ` + kind + `, metadata: {name: default, namespace: ` + namespace + `}` + spec + `}`
}

const (
	planSpec   = `, spec: {clusterUID: c, epoch: 1, sequence: 1}`
	accountFor = `{kind: ServiceAccount, name: ot-member-agent, namespace: ot-member-edge}`
	evil       = `{kind: ServiceAccount, name: default, namespace: images}`
)

// triedByHub has a row for each right of the hub's account.
var triedByHub = map[string]triedRight{
	"create namespaces": tried(
		attempt{what: "a namespace of others", want: notOfHub, object: `{apiVersion: v1, kind: Namespace, metadata: {name: new, labels: {pelotech.ot/member: new}}}`},
		attempt{what: "a namespace of a member without its label", want: notOfHub, object: `{apiVersion: v1, kind: Namespace, metadata: {name: ot-member-new}}`},
	),
	"delete namespaces": tried(
		attempt{what: "a namespace of users", want: notOfHub, object: `{apiVersion: v1, kind: Namespace, metadata: {name: users}}`},
		attempt{what: "the namespace of the agent", want: notOfHub, object: `{apiVersion: v1, kind: Namespace, metadata: {name: ot-system}}`},
		attempt{what: "a namespace that only has the name", want: notOfHub, object: `{apiVersion: v1, kind: Namespace, metadata: {name: ot-member-of-others}}`},
	),
	"create serviceaccounts": tried(
		attempt{what: "an account in kube-system", want: notOfHub, object: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: ot-member-agent, namespace: kube-system}}`},
		attempt{what: "another account in a member's namespace", want: notOfHub, object: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: default2, namespace: ot-member-edge}}`},
	),
	"create resourcequotas": tried(
		attempt{what: "a quota that stops users", want: notOfHub, object: `{apiVersion: v1, kind: ResourceQuota, metadata: {name: ot-member, namespace: images}, spec: {hard: {pods: "0"}}}`},
		attempt{what: "another quota in a member's namespace", want: notOfHub, object: `{apiVersion: v1, kind: ResourceQuota, metadata: {name: other, namespace: ot-member-edge}, spec: {hard: {pods: "0"}}}`},
	),
	"delete serviceaccounts": tried(attempt{what: "an account of users with that name", want: notOfHub, object: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: ot-member-agent, namespace: images}}`}),
	"create serviceaccounts/token": tried(
		attempt{what: "a token of the agent", want: "cannot create resource", send: requestToken(agentNamespace, "ot-agent")},
		attempt{what: "a token of an account of kube-system", want: "cannot create resource", send: requestToken("kube-system", "clusterrole-aggregation-controller")},
		attempt{what: "a token of an account of users with that name", want: notOfHub, object: `{apiVersion: v1, kind: ServiceAccount, metadata: {name: ot-member-agent, namespace: images}}`, send: requestToken(imageNamespace, "ot-member-agent")},
	),
	"bind clusterroles.rbac.authorization.k8s.io": tried(
		attempt{what: "cluster-admin", want: "", send: createText(bindingOf("ot-member-edge", "ot-member-agent", "ClusterRole", "cluster-admin", accountFor))},
		attempt{what: "edit in a namespace of users", want: "", send: createText(bindingOf("images", "ot-member-agent", "ClusterRole", "edit", evil))},
	),
	"create rolebindings.rbac.authorization.k8s.io": tried(
		attempt{what: "a role of members for others", want: onlyBinds, object: bindingOf("ot-member-edge", "ot-member-agent", "ClusterRole", "ot-hub-member-agent", evil)},
		attempt{what: "a role of members for everybody", want: onlyBinds, object: bindingOf("ot-member-edge", "ot-member-agent", "ClusterRole", "ot-hub-member-agent", `{kind: Group, name: "system:authenticated", apiGroup: rbac.authorization.k8s.io}`)},
		attempt{what: "the agent's role for a join token", want: onlyBinds, object: bindingOf("ot-member-edge", "ot-member-join", "ClusterRole", "ot-hub-member-agent", `{kind: ServiceAccount, name: ot-member-join, namespace: ot-member-edge}`)},
		attempt{what: "its own rights on its Secrets, for others", want: notOfHub, object: bindingOf("ot-hub", "shared", "Role", "ot-hub", evil)},
		attempt{what: "a role of members elsewhere", want: notOfHub, object: bindingOf("images", "ot-member-agent", "ClusterRole", "ot-hub-member-agent", `{kind: ServiceAccount, name: ot-member-agent, namespace: images}`)},
	),
	"delete rolebindings.rbac.authorization.k8s.io": tried(attempt{what: "a binding of users with that name", want: notOfHub, object: bindingOf("images", "ot-member-agent", "ClusterRole", "view", evil)}),
	"create leases.coordination.k8s.io": tried(
		attempt{what: "a Lease of others", want: notOfHub, object: `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: ot-agent, namespace: ot-system}}`},
		attempt{what: "a node's heartbeat", want: notOfHub, object: `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: node, namespace: kube-node-lease}}`},
	),
	"update leases.coordination.k8s.io": tried(attempt{what: "a Lease of others beside it", want: notOfHub, patch: `{spec: {holderIdentity: me}}`, object: `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: other, namespace: ot-hub}}`}),
	"delete leases.coordination.k8s.io": tried(attempt{what: "a Lease of others beside it", want: notOfHub, object: `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: other, namespace: ot-hub}}`}),

	"create secrets": tried(
		attempt{what: "a token of its neighbours' account", want: "of type Opaque without annotations", object: `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: ot-member-x, namespace: ot-hub, annotations: {kubernetes.io/service-account.name: default}}}`},
		attempt{what: "a Secret of another name", want: notOfHub, object: `{apiVersion: v1, kind: Secret, metadata: {name: registry, namespace: ot-hub}}`},
		attempt{what: "a bootstrap token", want: "cannot create resource", object: `{apiVersion: v1, kind: Secret, type: bootstrap.kubernetes.io/token, metadata: {name: bootstrap-token-abcdef, namespace: kube-system}}`},
	),
	"update secrets": tried(
		attempt{what: "a Secret of others beside it", want: notOfHub, patch: `{data: {a: Yg==}}`, object: `{apiVersion: v1, kind: Secret, metadata: {name: others, namespace: ot-hub}}`},
		attempt{what: "an own one for a token", want: "of type Opaque without annotations", patch: `{metadata: {annotations: {kubernetes.io/service-account.name: default}}}`, object: `{apiVersion: v1, kind: Secret, metadata: {name: ot-member-y-token, namespace: ot-hub}}`},
	),
	"delete secrets": tried(attempt{what: "a Secret of others beside it", want: notOfHub, object: `{apiVersion: v1, kind: Secret, metadata: {name: others, namespace: ot-hub}}`}),
	// The installed hub, without Cluster API. Exception: with clusterAPI.enabled, and an empty list of
	// clusterAPI.namespaces or "*", the hub may read every Secret by name: Clusters of members that
	// joined earlier are anywhere.
	"get secrets": tried(
		attempt{what: "a Secret of kube-system", want: "cannot get resource", send: getSecret("kube-system", "x")},
		attempt{what: "a Secret of a namespace that has no Clusters", want: "cannot get resource", send: getSecret(imageNamespace, "x")},
	),
	"list secrets":  tried(attempt{what: "the Secrets of all namespaces", want: "cannot list resource", send: func(ctx context.Context, c client.Client) error { return c.List(ctx, &corev1.SecretList{}) }}),
	"watch secrets": gainsNothing("its own namespace"),

	"create configmaps": tried(attempt{what: "a ConfigMap of others beside it", want: notOfHub, object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: new, namespace: ot-hub}}`}),
	"update configmaps": tried(attempt{what: "a ConfigMap of others beside it", want: notOfHub, patch: `{data: {ca.crt: x}}`, object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: others, namespace: ot-hub}}`}),
	"patch configmaps": tried(
		attempt{what: "the fleet's policy", want: notOfHub, patch: `{"data":{"concurrency":"256"}}`, object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: sync-operator-policy, namespace: sync-operator}}`},
		attempt{what: "a preview's content", want: notOfHub, patch: `{"data":{"concurrency":"256"}}`, object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: preview, namespace: sync-operator, labels: {pelotech.ot/policy-preview: "true"}}}`},
	),
	"create events.events.k8s.io": tried(attempt{what: "an Event of the kubelet", want: "in its own name only", object: eventOf("kubelet")}),
	"patch events.events.k8s.io":  tried(attempt{what: "an Event of the kubelet", want: "in its own name only", patch: `{"series":{"count":9,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`, object: eventOf("kubelet")}),
	"create events":               gainsNothing("records Events in its own namespace"),
	"patch events":                gainsNothing("records Events in its own namespace"),

	"create clusterplans.pelotech.ot":        tried(attempt{what: "a plan for the agent beside it", want: notOfHub, object: mailboxOf("ClusterPlan", "ot-system", planSpec)}),
	"update clusterplans.pelotech.ot":        tried(attempt{what: "a plan of the agent beside it", want: notOfHub, patch: `{metadata: {annotations: {a: b}}}`, object: mailboxOf("ClusterPlan", "ot-system", planSpec)}),
	"delete clusterplans.pelotech.ot":        tried(attempt{what: "a plan of the agent beside it", want: notOfHub, object: mailboxOf("ClusterPlan", "ot-system", planSpec)}),
	"create transfergrants.pelotech.ot":      gainsNothing("as clusterplans, by the same rule"),
	"update transfergrants.pelotech.ot":      gainsNothing("as clusterplans, by the same rule"),
	"delete transfergrants.pelotech.ot":      gainsNothing("as clusterplans, by the same rule"),
	"create clusterreports.pelotech.ot":      gainsNothing("as clusterplans, by the same rule"),
	"update clusterreports.pelotech.ot":      gainsNothing("as clusterplans, by the same rule"),
	"delete clusterreports.pelotech.ot":      gainsNothing("as clusterplans, by the same rule"),
	"create memberlinks.pelotech.ot":         gainsNothing("as clusterplans, by the same rule"),
	"update memberlinks.pelotech.ot":         gainsNothing("as clusterplans, by the same rule"),
	"update memberlinks/status.pelotech.ot":  gainsNothing("as clusterplans, by the same rule"),
	"delete clusterjoins.pelotech.ot":        gainsNothing("as clusterplans, by the same rule"),
	"update clusterjoins/status.pelotech.ot": gainsNothing("as clusterplans, by the same rule"),

	"patch fleetdiskimages.pelotech.ot": tried(attempt{what: "another image for the fleet", want: "does not change the spec of a FleetDiskImage", patch: `{"spec":{"version":"2"}}`,
		object: `{apiVersion: pelotech.ot/v1alpha1, kind: FleetDiskImage, metadata: {name: ubuntu}, spec: {version: "1", targetNamespace: images, placement: {clusterSelector: {}}, template: {name: ubuntu, url: "https://example.com/a", sourceType: http, diskSize: 1Gi}}}`}),
	"update fleetdiskimages/status.pelotech.ot":        gainsNothing("its own reports"),
	"update imageprunes/status.pelotech.ot":            gainsNothing("its own reports"),
	"update memberclusters/status.pelotech.ot":         gainsNothing("its own reports"),
	"update prunereports/status.pelotech.ot":           gainsNothing("its own reports"),
	"create memberclusters.pelotech.ot":                gainsNothing("its own members: the credentials that they name are in namespaces that it may read"),
	"update memberclusters.pelotech.ot":                gainsNothing("its own members: the credentials that they name are in namespaces that it may read"),
	"patch memberclusters.pelotech.ot":                 gainsNothing("its own members: the credentials that they name are in namespaces that it may read"),
	"delete memberclusters.pelotech.ot":                gainsNothing("its own members, which it can remove by design"),
	"create prunereports.pelotech.ot":                  gainsNothing("its own reports: prunes of them need an approver"),
	"delete prunereports.pelotech.ot":                  gainsNothing("its own reports: prunes of them need an approver"),
	"create prunereportpages.pelotech.ot":              gainsNothing("its own reports: prunes of them need an approver"),
	"delete prunereportpages.pelotech.ot":              gainsNothing("its own reports: prunes of them need an approver"),
	"create tokenreviews.authentication.k8s.io":        gainsNothing("judges tokens that one has"),
	"create subjectaccessreviews.authorization.k8s.io": gainsNothing("shows rights, gives none"),
}

// readableByHub says, of resources that the hub reads, what that shows.
var readableByHub = map[string]string{
	"resourcequotas": "one quota by name",
	"namespaces":     "whether a member's namespace exists", "serviceaccounts": "two accounts by name", "configmaps": "its policy and values",
	"leases.coordination.k8s.io": "who lives", "rolebindings.rbac.authorization.k8s.io": "two bindings by name",
	"clusters.cluster.x-k8s.io": "Clusters", "clusterjoins.pelotech.ot": "its members", "clusterplans.pelotech.ot": "its mailboxes",
	"clusterreports.pelotech.ot": "its mailboxes", "transfergrants.pelotech.ot": "its mailboxes", "fleetdiskimages.pelotech.ot": "its kinds",
	"imageprunes.pelotech.ot": "its kinds", "memberclusters.pelotech.ot": "its kinds", "memberlinks.pelotech.ot": "its kinds",
	"prunereportpages.pelotech.ot": "its kinds", "prunereports.pelotech.ot": "its kinds",
	"validatingadmissionpolicies.admissionregistration.k8s.io": "policies by name", "validatingadmissionpolicybindings.admissionregistration.k8s.io": "policies by name",
}

// TestHubWritesItsOwn creates what the hub makes for a member: the policy refuses nothing of it.
func TestHubWritesItsOwn(t *testing.T) {
	createNamespaces(t, "ot-member-edge")
	hub := clientFor(t, "ot-hub")
	tried := attempt{object: `{apiVersion: v1, kind: Namespace, metadata: {name: new}}`, want: notOfHub}
	tried.requireRefused(t, hub, "create", "")
	for name, object := range map[string]string{
		"namespace":             `{apiVersion: v1, kind: Namespace, metadata: {name: ot-member-frankfurt, labels: {pelotech.ot/member: frankfurt}}}`,
		"account":               `{apiVersion: v1, kind: ServiceAccount, metadata: {name: ot-member-agent, namespace: ot-member-edge}}`,
		"binding of agents":     bindingOf("ot-member-edge", "ot-member-agent", "ClusterRole", "ot-hub-member-agent", accountFor),
		"binding of joins":      bindingOf("ot-member-edge", "ot-member-join", "ClusterRole", "ot-hub-member-join", `{kind: ServiceAccount, name: ot-member-join, namespace: ot-member-edge}`),
		"Lease of an agent":     `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: ot-agent, namespace: ot-member-edge}}`,
		"Lease of a replica":    `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: ot-hub-replica-a, namespace: ot-hub}}`,
		"quota":                 `{apiVersion: v1, kind: ResourceQuota, metadata: {name: ot-member, namespace: ot-member-edge}}`,
		"join token":            `{apiVersion: v1, kind: Secret, metadata: {name: ot-member-edge-join, namespace: ot-hub, annotations: {pelotech.ot/account: u}}, data: {kubeconfig: eA==}}`,
		"policy in force":       `{apiVersion: v1, kind: ConfigMap, metadata: {name: ot-hub-policy-in-force, namespace: ot-hub}}`,
		"slots of the departed": `{apiVersion: v1, kind: ConfigMap, metadata: {name: ot-hub-departed, namespace: ot-hub}}`,
		"plan":                  mailboxOf("ClusterPlan", "ot-member-edge", planSpec),
		"Event":                 eventOf("ot-hub"),
	} {
		t.Run(name, func(t *testing.T) {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.NoError(c, hub.Create(t.Context(), parseObject(t, object), client.DryRunAll))
			}, policyPropagationTimeout, 50*time.Millisecond)
		})
	}
	t.Run("deletion of a member's namespace", func(t *testing.T) {
		of := parseObject(t, `{apiVersion: v1, kind: Namespace, metadata: {name: ot-member-departs, labels: {pelotech.ot/member: departs}}}`)
		createForAttempt(t, of.DeepCopy())
		require.NoError(t, hub.Delete(t.Context(), of, client.DryRunAll))
	})
	t.Run("annotation of a preview", func(t *testing.T) {
		preview := parseObject(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: previewed, namespace: sync-operator, labels: {pelotech.ot/policy-preview: "true"}}, data: {concurrency: "3"}}`)
		createForAttempt(t, preview.DeepCopy())
		require.NoError(t, hub.Patch(t.Context(), preview, newMergePatch(`{"metadata":{"annotations":{"pelotech.ot/preview":"x"}}}`), client.DryRunAll))
	})
}
