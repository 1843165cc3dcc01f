//go:build linux

// Package chart_test shows the charts as an API server takes them: schemas and admission
// policies by what they reject, the programs' rights by what those may do, and Helm's
// installation, upgrade and removal with the real helm. What rendering alone shows is in the
// charts' own unit tests.
package chart_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const (
	agentNamespace = "ot-system"
	hubNamespace   = "ot-hub"
	imageNamespace = "images"
)

// hubValuesBesideAgent leaves out what the agent's chart installs as well.
var hubValuesBesideAgent = map[string]any{
	"crds":   map[string]any{"mailbox": false},
	"policy": map[string]any{"create": false, "createNamespace": false},
}

// All tests share one API server. Both charts are installed there twice, as in a hub's cluster
// that is a member.
var (
	adminClient  client.Client
	serverConfig *rest.Config
)

func TestMain(m *testing.M) {
	controlplane.RunTests(m, controlplane.Options{Name: "chart"}, func(ctx context.Context, plane *controlplane.ControlPlane) error {
		return installCharts(ctx, plane.Config())
	})
}

func installCharts(ctx context.Context, cfg *rest.Config) error {
	known := runtime.NewScheme()
	if err := scheme.AddToScheme(known); err != nil {
		return err
	}
	if err := v1alpha1.AddToScheme(known); err != nil {
		return err
	}
	var err error
	serverConfig = cfg
	quiet := rest.CopyConfig(cfg)
	quiet.WarningHandler = rest.NoWarnings{}
	if adminClient, err = client.New(quiet, client.Options{Scheme: known}); err != nil {
		return err
	}
	for _, crd := range []*unstructured.Unstructured{
		newStandInCRD("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes"),
		newStandInCRD("cdi.kubevirt.io", "v1beta1", "DataSource", "datasources"),
		newStandInCRD("kubevirt.io", "v1", "VirtualMachine", "virtualmachines"),
		newStandInCRD("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots"),
	} {
		if err := adminClient.Create(ctx, crd); err != nil {
			return fmt.Errorf("creating stand-in %s: %w", crd.GetName(), err)
		}
	}
	for range 2 {
		if err := chart.Install(ctx, cfg, agentChart, "agent", agentNamespace, nil); err != nil {
			return err
		}
		if err := chart.Install(ctx, cfg, hubChart, "hub", hubNamespace, hubValuesBesideAgent); err != nil {
			return err
		}
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(imageNamespace)
	return adminClient.Create(ctx, namespace)
}

// newStandInCRD returns a CRD with the names of another project's kind that accepts any content:
// the admission policies read metadata only.
func newStandInCRD(group, version, kind, plural string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata": map[string]any{
			"name":        plural + "." + group,
			"annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a stand-in"}, // required for groups of k8s.io
		},
		"spec": map[string]any{
			"group": group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}
}

func newDataVolume(namespace, name, imageUID string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("cdi.kubevirt.io/v1beta1")
	object.SetKind("DataVolume")
	object.SetNamespace(namespace)
	object.SetName(name)
	if imageUID != "" {
		object.SetLabels(map[string]string{v1alpha1.LabelImageUID: imageUID})
	}
	return object
}

// createLedger creates the ledger and deletes it when the test ends.
func createLedger(t *testing.T, budget int32, dataVolumes ...string) *v1alpha1.SyncLedger {
	t.Helper()
	ledger := &v1alpha1.SyncLedger{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: v1alpha1.LedgerName}}
	require.NoError(t, adminClient.Create(t.Context(), ledger))
	t.Cleanup(func() {
		ctx := context.Background()
		if err := adminClient.Get(ctx, client.ObjectKeyFromObject(ledger), ledger); apierrors.IsNotFound(err) {
			return
		}
		ledger.Status.Slots = nil
		assert.NoError(t, adminClient.Status().Update(ctx, ledger))
		assert.NoError(t, adminClient.Delete(ctx, ledger))
	})
	ledger.Status = &v1alpha1.SyncLedgerStatus{Budget: budget, Slots: slotsFor(dataVolumes...)}
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	return ledger
}

func slotsFor(dataVolumes ...string) []v1alpha1.Slot {
	var all []v1alpha1.Slot
	for _, name := range dataVolumes {
		all = append(all, v1alpha1.Slot{
			Image:      v1alpha1.ImageKey{Namespace: imageNamespace, Name: "image-of-" + name, UID: "uid-1"},
			Revision:   "r1",
			Attempt:    1,
			DataVolume: name,
			StartedAt:  metav1.NewTime(time.Unix(1_700_000_000, 0)),
		})
	}
	return all
}

const (
	workspace = "workspace"
	farm      = "vmdi-farm"
)

// grantedRight is one binding: of a rule, or of a ClusterRole of a chart that includes the rule.
// Without a namespace it is a ClusterRoleBinding.
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

func (r grantedRight) onName(name string) grantedRight { return r.onNames(name) }

func (r grantedRight) onNames(names ...string) grantedRight {
	r.rule.ResourceNames = names
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

// rightsByUser has the bindings of users, whom the tests impersonate.
var rightsByUser = map[string][]grantedRight{
	"machinist":  {vmWriter},
	"author":     {workspaceVMAuthor},
	"reader":     {workspaceVMAuthor, farmImageReader},
	"maker":      {workspaceVMAuthor, farmImageAuthor},
	"only-maker": {workspaceVMAuthor, newRight(farm, "pelotech.ot", "vmdiskimages", "create")},
	"homemaker":  {workspaceVMAuthor, workspaceImageAuthor},
	"of-one":     {workspaceVMAuthor, newRight(farm, "pelotech.ot", "vmdiskimages", "get", "create").onName("demo-vmdi")},
	"overlayer":  {workspaceVMAuthor, kubeVirtVMCreator},

	"image-cloner": {workspaceVMAuthor, newRight(farm, "pelotech.ot", "vmdiskimages", "clone").viaRole("ot-image-cloner")},
	"only-cloner":  {vmWriter, newRight(farm, "pelotech.ot", "vmdiskimages", "clone")},
	"home-reader":  {vmWriter, newRight(workspace, "pelotech.ot", "vmdiskimages", "get").viaRole("ot-image-viewer")},

	"header-author":   {workspaceVMAuthor, workspaceImageAuthor, newRight(workspace, "", "secrets", "get").onNames("token", "a", "b")},
	"header-maker":    {workspaceVMAuthor, farmImageAuthor, newRight(farm, "", "secrets", "get").onName("token")},
	"pod-author":      {workspaceVMAuthor, workspaceImageAuthor, newRight(workspace, "", "pods", "create")},
	"image-secretary": {workspaceVMAuthor, workspaceImageAuthor, newRight(workspace, "", "secrets", "get")},

	"secretary": {workspaceVMAuthor, newRight(workspace, "", "secrets", "get")},
	"forger":    {workspaceVMAuthor, farmImageReader, vmStatusWriter},
	"cloner":    {workspaceVMAuthor, vmStatusWriter, newRight(farm, "cdi.kubevirt.io", "datavolumes/source", "create")},
	"robot":     {workspaceVMAuthor},

	"fleet-viewer":    {fleetViewer},
	"fleet-author":    {fleetAuthor},
	"fleet-approver":  {fleetApprover},
	"fleet-lead":      {fleetAuthor, fleetApprover},
	"approver-of-one": {fleetAuthor, newRight("", "pelotech.ot", "fleetdiskimages", "approve").onName("ubuntu-of-one")},

	"fleet-pruner":  {fleetPruner},
	"prune-maker":   {pruneWriter},
	"pruner-of-one": {pruneWriter, newRight("", "pelotech.ot", "imageprunes", "approve").onName("prune-of-one")},
	"prune-forger":  {fleetPruner, newRight("", "pelotech.ot", "prunereportpages", "create", "update", "patch", "delete")},

	"config-writer": {newRight(hubNamespace, "", "configmaps", "list", "create", "update", "delete", "deletecollection")},
}

// serviceAccountNamespaces has the namespaces of users that are ServiceAccounts.
var serviceAccountNamespaces = map[string]string{"robot": workspace, "ot-agent": agentNamespace, "ot-hub": hubNamespace}

// clientsByUser has the clients of clientFor.
var clientsByUser sync.Map

// clientFor returns the client with the rights of a user.
func clientFor(t *testing.T, name string) client.Client {
	t.Helper()
	if known, ok := clientsByUser.Load(name); ok {
		return known.(client.Client)
	}
	cfg := configFor(t, name)
	cfg.WarningHandler = rest.NoWarnings{}
	c := newClient(t, cfg)
	clientsByUser.Store(name, c)
	return c
}

func clientWithWarnings(t *testing.T, name string) (client.Client, *warningRecorder) {
	t.Helper()
	heard := &warningRecorder{}
	cfg := configFor(t, name)
	cfg.WarningHandler = heard
	return newClient(t, cfg), heard
}

// newClient returns a client of the shared API server, which does not discover its kinds anew.
func newClient(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: adminClient.Scheme(), Mapper: adminClient.RESTMapper()})
	require.NoError(t, err)
	return c
}

// configFor returns a configuration with the rights of a user or a chart's ServiceAccount.
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

// takeWarnings returns the warnings since the last call.
func (w *warningRecorder) takeWarnings() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.texts
	w.texts = nil
	return said
}

// grantRightsOnce creates namespaces and bindings once for all tests, and waits until the API
// server enforces them and the policies.
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

// rightsEnforced is true once the API server enforces the rights of all users. Invariant: no test
// revokes one of them.
var rightsEnforced struct {
	sync.Mutex
	done bool
}

// awaitRightsGranted waits until the API server enforces the rights of all users.
func awaitRightsGranted(t *testing.T) {
	t.Helper()
	rightsEnforced.Lock()
	defer rightsEnforced.Unlock()
	if rightsEnforced.done {
		return
	}
	require.NoError(t, grantRightsOnce())
	for name, all := range rightsByUser {
		c := clientFor(t, name)
		for _, r := range all {
			waitUntilAllowed(t, c, name, r)
		}
	}
	rightsEnforced.done = true
}

func waitUntilAllowed(t *testing.T, c client.Client, name string, r grantedRight) {
	t.Helper()
	resource, subresource, _ := strings.Cut(r.rule.Resources[0], "/")
	attributes := &authorizationv1.ResourceAttributes{
		Namespace: r.namespace, Verb: r.rule.Verbs[0], Group: r.rule.APIGroups[0], Resource: resource, Subresource: subresource,
	}
	if names := r.rule.ResourceNames; len(names) > 0 {
		attributes.Name = names[0]
	}
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
		require.NoError(check, c.Create(t.Context(), review))
		assert.True(check, review.Status.Allowed, "%s is not allowed yet: %+v", name, attributes)
	}, policyPropagationTimeout, 20*time.Millisecond)
}
