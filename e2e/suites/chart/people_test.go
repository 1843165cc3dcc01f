//go:build linux

package chart_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	workspace = "workspace"
	farm      = "vmdi-farm"
)

// grantedRight is what one binding gives: a rule or, where a ClusterRole of a chart is
// named, that one, which has the rule among others. Without a namespace it holds in
// the whole cluster.
type grantedRight struct {
	namespace string
	role      string
	rule      rbacv1.PolicyRule
}

func newRight(namespace, group, resource string, verbs ...string) grantedRight {
	return grantedRight{namespace: namespace, rule: rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}}
}

func (r grantedRight) viaRole(role string) grantedRight {
	r.role = role
	return r
}

func (r grantedRight) onName(name string) grantedRight {
	r.rule.ResourceNames = []string{name}
	return r
}

var (
	writeVerbs           = []string{"create", "get", "update", "patch", "delete"}
	vmWriter             = newRight(workspace, "pelotech.ot", "virtualmachines", writeVerbs...)
	workspaceVMAuthor    = vmWriter.viaRole("ot-vm-author")
	farmImageReader      = newRight(farm, "pelotech.ot", "vmdiskimages", "get").viaRole("ot-viewer")
	farmImageAuthor      = newRight(farm, "pelotech.ot", "vmdiskimages", "create").viaRole("ot-image-author")
	workspaceImageAuthor = newRight(workspace, "pelotech.ot", "vmdiskimages", "create").viaRole("ot-image-author")
	vmStatusWriter       = newRight(workspace, "pelotech.ot", "virtualmachines/status", writeVerbs...)
	kubeVirtVMCreator    = newRight(workspace, "kubevirt.io", "virtualmachines", "create")

	fleetViewer   = newRight("", "pelotech.ot", "fleetdiskimages", "list").viaRole("ot-fleet-viewer")
	fleetAuthor   = newRight("", "pelotech.ot", "fleetdiskimages", "create").viaRole("ot-fleet-author")
	fleetApprover = newRight("", "pelotech.ot", "fleetdiskimages", "approve").viaRole("ot-fleet-approver")
	fleetPruner   = newRight("", "pelotech.ot", "imageprunes", "approve").viaRole("ot-fleet-pruner")
	pruneWriter   = newRight("", "pelotech.ot", "imageprunes", "create", "get", "update", "patch")
)

// rightsByUser a user, by name. A user is one that the admin plays; what he may do is his own.
var rightsByUser = map[string][]grantedRight{
	"machinist":  {vmWriter},
	"author":     {workspaceVMAuthor},
	"reader":     {workspaceVMAuthor, farmImageReader},
	"maker":      {workspaceVMAuthor, farmImageAuthor},
	"only-maker": {workspaceVMAuthor, newRight(farm, "pelotech.ot", "vmdiskimages", "create")},
	"homemaker":  {workspaceVMAuthor, workspaceImageAuthor},
	"of-one":     {workspaceVMAuthor, newRight(farm, "pelotech.ot", "vmdiskimages", "get", "create").onName("demo-vmdi")},
	"overlayer":  {workspaceVMAuthor, kubeVirtVMCreator},
	"secretary":  {workspaceVMAuthor, newRight(workspace, "", "secrets", "get")},
	"forger":     {workspaceVMAuthor, farmImageReader, vmStatusWriter},
	"cloner":     {workspaceVMAuthor, vmStatusWriter, newRight(farm, "cdi.kubevirt.io", "datavolumes/source", "create")},
	"robot":      {workspaceVMAuthor},

	"fleet-viewer":    {fleetViewer},
	"fleet-author":    {fleetAuthor},
	"fleet-approver":  {fleetApprover},
	"fleet-lead":      {fleetAuthor, fleetApprover},
	"approver-of-one": {fleetAuthor, newRight("", "pelotech.ot", "fleetdiskimages", "approve").onName("ubuntu-of-one")},

	"fleet-pruner":  {fleetPruner},
	"prune-maker":   {pruneWriter},
	"pruner-of-one": {pruneWriter, newRight("", "pelotech.ot", "imageprunes", "approve").onName("prune-of-one")},
	"prune-forger":  {fleetPruner, newRight("", "pelotech.ot", "prunereportpages", "create", "update", "patch", "delete")},
}

// serviceAccountNamespaces by name: the namespace of those who are no people.
var serviceAccountNamespaces = map[string]string{"robot": workspace, "ot-agent": agentNamespace, "ot-hub": hubNamespace}

// clientFor is a client with the rights of one user.
func clientFor(t *testing.T, name string) client.Client {
	t.Helper()
	c, _ := clientWithWarnings(t, name)
	return c
}

func clientWithWarnings(t *testing.T, name string) (client.Client, *warningRecorder) {
	t.Helper()
	heard := &warningRecorder{}
	cfg := configFor(t, name)
	cfg.WarningHandler = heard
	c, err := client.New(cfg, client.Options{Scheme: adminClient.Scheme()})
	require.NoError(t, err)
	return c, heard
}

// configFor has the rights of one user, or of a chart's account.
func configFor(t *testing.T, name string) *rest.Config {
	t.Helper()
	cfg := rest.CopyConfig(serverConfig)
	cfg.QPS = -1
	switch {
	case name == "admin":
	case serviceAccountNamespaces[name] != "":
		cfg.Impersonate.UserName = "system:serviceaccount:" + serviceAccountNamespaces[name] + ":" + name
		cfg.Impersonate.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + serviceAccountNamespaces[name]}
	default:
		require.Contains(t, rightsByUser, name)
		cfg.Impersonate.UserName = name
	}
	return cfg
}

type warningRecorder struct {
	mu    sync.Mutex
	texts []string
}

func (w *warningRecorder) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// takeWarnings returns what was said since the last time.
func (w *warningRecorder) takeWarnings() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.texts
	w.texts = nil
	return said
}

// grantRightsOnce makes namespaces and rights once for all tests, and waits until the
// API server enforces rights and policies.
var grantRightsOnce = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), policyPropagationTimeout)
	defer cancel()
	for _, name := range []string{workspace, farm} {
		if err := adminClient.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	for name, all := range rightsByUser {
		for i, r := range all {
			if err := grantRight(ctx, name, i, r); err != nil {
				return err
			}
		}
	}
	return nil
})

func grantRight(ctx context.Context, user string, i int, r grantedRight) error {
	meta := metav1.ObjectMeta{Namespace: r.namespace, GenerateName: "of-person-"}
	subject := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}
	if user == "robot" {
		subject = rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: workspace, Name: user}
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r.role}
	if r.namespace == "" {
		if r.role == "" {
			role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{r.rule}}
			if err := adminClient.Create(ctx, role); err != nil {
				return err
			}
			ref.Name = role.Name
		}
		return adminClient.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}})
	}
	if r.role == "" {
		role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{r.rule}}
		if err := adminClient.Create(ctx, role); err != nil {
			return err
		}
		ref.Kind, ref.Name = "Role", role.Name
	}
	return adminClient.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}})
}

// awaitRightsGranted waits until the API server knows of everybody's rights.
func awaitRightsGranted(t *testing.T) {
	t.Helper()
	require.NoError(t, grantRightsOnce())
	for name, all := range rightsByUser {
		c := clientFor(t, name)
		for _, r := range all {
			waitUntilAllowed(t, c, name, r)
		}
	}
}

func waitUntilAllowed(t *testing.T, c client.Client, name string, r grantedRight) {
	t.Helper()
	resource, subresource, _ := strings.Cut(r.rule.Resources[0], "/")
	attributes := &authorizationv1.ResourceAttributes{
		Namespace: r.namespace, Verb: r.rule.Verbs[0], Group: r.rule.APIGroups[0], Resource: resource, Subresource: subresource,
		Name: strings.Join(r.rule.ResourceNames, ""),
	}
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
		require.NoError(check, c.Create(t.Context(), review))
		assert.True(check, review.Status.Allowed, "%s is not yet allowed %+v", name, attributes)
	}, policyPropagationTimeout, 20*time.Millisecond)
}
