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

// right is what one binding gives: a rule or, where a ClusterRole of a chart is
// named, that one, which has the rule among others. Without a namespace it holds in
// the whole cluster.
type right struct {
	namespace string
	role      string
	rule      rbacv1.PolicyRule
}

func may(namespace, group, resource string, verbs ...string) right {
	return right{namespace: namespace, rule: rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}}
}

func (r right) of(role string) right {
	r.role = role
	return r
}

func (r right) named(name string) right {
	r.rule.ResourceNames = []string{name}
	return r
}

var (
	writing    = []string{"create", "get", "update", "patch", "delete"}
	machines   = may(workspace, "pelotech.ot", "virtualmachines", writing...)
	author     = machines.of("ot-vm-author")
	farmReader = may(farm, "pelotech.ot", "vmdiskimages", "get").of("ot-viewer")
	farmMaker  = may(farm, "pelotech.ot", "vmdiskimages", "create").of("ot-image-author")
	homeMaker  = may(workspace, "pelotech.ot", "vmdiskimages", "create").of("ot-image-author")
	status     = may(workspace, "pelotech.ot", "virtualmachines/status", writing...)
	kubevirt   = may(workspace, "kubevirt.io", "virtualmachines", "create")

	fleetViewer   = may("", "pelotech.ot", "fleetdiskimages", "list").of("ot-fleet-viewer")
	fleetAuthor   = may("", "pelotech.ot", "fleetdiskimages", "create").of("ot-fleet-author")
	fleetApprover = may("", "pelotech.ot", "fleetdiskimages", "approve").of("ot-fleet-approver")
	fleetPruner   = may("", "pelotech.ot", "imageprunes", "approve").of("ot-fleet-pruner")
	prunes        = may("", "pelotech.ot", "imageprunes", "create", "get", "update", "patch")
)

// rightsOf a user, by name. A user is one that the admin plays; what he may do is his own.
var rightsOf = map[string][]right{
	"machinist":  {machines},
	"author":     {author},
	"reader":     {author, farmReader},
	"maker":      {author, farmMaker},
	"only-maker": {author, may(farm, "pelotech.ot", "vmdiskimages", "create")},
	"homemaker":  {author, homeMaker},
	"of-one":     {author, may(farm, "pelotech.ot", "vmdiskimages", "get", "create").named("demo-vmdi")},
	"overlayer":  {author, kubevirt},
	"secretary":  {author, may(workspace, "", "secrets", "get")},
	"forger":     {author, farmReader, status},
	"cloner":     {author, status, may(farm, "cdi.kubevirt.io", "datavolumes/source", "create")},
	"robot":      {author},

	"fleet-viewer":    {fleetViewer},
	"fleet-author":    {fleetAuthor},
	"fleet-approver":  {fleetApprover},
	"fleet-lead":      {fleetAuthor, fleetApprover},
	"approver-of-one": {fleetAuthor, may("", "pelotech.ot", "fleetdiskimages", "approve").named("ubuntu-of-one")},

	"fleet-pruner":  {fleetPruner},
	"prune-maker":   {prunes},
	"pruner-of-one": {prunes, may("", "pelotech.ot", "imageprunes", "approve").named("prune-of-one")},
	"prune-forger":  {fleetPruner, may("", "pelotech.ot", "prunereportpages", "create", "update", "patch", "delete")},
}

// serviceAccounts by name: the namespace of those who are no people.
var serviceAccounts = map[string]string{"robot": workspace, "ot-agent": agentNamespace, "ot-hub": hubNamespace}

// person is a client with the rights of one user.
func person(t *testing.T, name string) client.Client {
	t.Helper()
	c, _ := personWithWarnings(t, name)
	return c
}

func personWithWarnings(t *testing.T, name string) (client.Client, *warnings) {
	t.Helper()
	heard := &warnings{}
	cfg := configOf(t, name)
	cfg.WarningHandler = heard
	c, err := client.New(cfg, client.Options{Scheme: server.Scheme()})
	require.NoError(t, err)
	return c, heard
}

// configOf has the rights of one user, or of a chart's account.
func configOf(t *testing.T, name string) *rest.Config {
	t.Helper()
	cfg := rest.CopyConfig(serverConfig)
	cfg.QPS = -1
	switch {
	case name == "admin":
	case serviceAccounts[name] != "":
		cfg.Impersonate.UserName = "system:serviceaccount:" + serviceAccounts[name] + ":" + name
		cfg.Impersonate.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + serviceAccounts[name]}
	default:
		require.Contains(t, rightsOf, name)
		cfg.Impersonate.UserName = name
	}
	return cfg
}

type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

// take returns what was said since the last time.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.said
	w.said = nil
	return said
}

// settle makes namespaces and rights once for all tests, and waits until the
// API server enforces rights and policies.
var settle = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*policyDelay)
	defer cancel()
	for _, name := range []string{workspace, farm} {
		if err := server.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	for name, all := range rightsOf {
		for i, r := range all {
			if err := grant(ctx, name, i, r); err != nil {
				return err
			}
		}
	}
	return nil
})

func grant(ctx context.Context, user string, i int, r right) error {
	meta := metav1.ObjectMeta{Namespace: r.namespace, GenerateName: "of-person-"}
	subject := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}
	if user == "robot" {
		subject = rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: workspace, Name: user}
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: r.role}
	if r.namespace == "" {
		if r.role == "" {
			role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{r.rule}}
			if err := server.Create(ctx, role); err != nil {
				return err
			}
			ref.Name = role.Name
		}
		return server.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}})
	}
	if r.role == "" {
		role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{r.rule}}
		if err := server.Create(ctx, role); err != nil {
			return err
		}
		ref.Kind, ref.Name = "Role", role.Name
	}
	return server.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: []rbacv1.Subject{subject}})
}

// settled waits until the API server knows of everybody's rights.
func settled(t *testing.T) {
	t.Helper()
	require.NoError(t, settle())
	for name, all := range rightsOf {
		c := person(t, name)
		for _, r := range all {
			waitUntilAllowed(t, c, name, r)
		}
	}
}

func waitUntilAllowed(t *testing.T, c client.Client, name string, r right) {
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
	}, policyDelay, 20*time.Millisecond)
}
