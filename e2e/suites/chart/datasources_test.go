//go:build linux

package chart_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	goldenNamespace = "kubevirt-os-images"
	cannotClone     = "sourceType dataSource has machines cloned from what DataSource kubevirt-os-images/fedora points at, and user %USER may not clone from that namespace. " +
		"Ask for verb create on datavolumes/source of cdi.kubevirt.io there"
)

func ofDataSource(namespace string) fieldChanges {
	reference := map[string]any{"name": "fedora"}
	if namespace != "" {
		reference["namespace"] = namespace
	}
	return fieldChanges{"sourceType": "dataSource", "url": nil, "secretRef": nil, "storageClass": nil, "snapshotClass": nil, "checksum": nil, "dataSource": reference}
}

// TestDataSourcesRequireTheirAuthorsRights wants nobody to have the agent clone from a namespace
// that CDI would not let him clone from.
func TestDataSourcesRequireTheirAuthorsRights(t *testing.T) {
	awaitHeadersPolicyEnforced(t)
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: goldenNamespace, Name: "cloners"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"cdi.kubevirt.io"}, Resources: []string{"datavolumes/source"}, Verbs: []string{"create"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: goldenNamespace, Name: "cloners"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "cloners"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "header-author"}},
	}
	require.NoError(t, client.IgnoreAlreadyExists(adminClient.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: goldenNamespace}})))
	for _, object := range []client.Object{role, binding} {
		require.NoError(t, adminClient.Create(t.Context(), object))
		t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), object)) })
	}
	image := newWorkspaceImage(t, ofDataSource(goldenNamespace))
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		assert.NoError(check, clientFor(t, "header-author").Create(t.Context(), image.DeepCopy(), client.DryRunAll))
	}, policyPropagationTimeout, 20*time.Millisecond)

	elsewhere := "DataSource workspace/fedora points at, and user %USER may not clone from that namespace"
	for name, tt := range map[string]struct {
		spec fieldChanges
		says map[string]string
	}{
		"of another namespace":           {ofDataSource(goldenNamespace), map[string]string{"homemaker": cannotClone, "header-author": "", "admin": ""}},
		"of a namespace without a right": {ofDataSource("payroll"), map[string]string{"header-author": "DataSource payroll/fedora points at, and user %USER may not clone", "admin": ""}},
		"of the image's own":             {ofDataSource(""), map[string]string{"homemaker": elsewhere, "header-author": elsewhere, "admin": ""}},
	} {
		for user, says := range tt.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				requireAnswer(t, clientFor(t, user).Create(t.Context(), newWorkspaceImage(t, tt.spec), client.DryRunAll), user, says)
			})
		}
	}
	for user, says := range map[string]string{"homemaker": cannotClone, "header-author": "", "admin": ""} {
		t.Run("a machine's template/"+user, func(t *testing.T) {
			template := mergeFields(imageTemplate, ofDataSource(goldenNamespace))
			for field, value := range template {
				if value == nil {
					delete(template, field)
				}
			}
			vm := newMinimalVM(t, mergeFields(refSameNamespace, fieldChanges{"vmDiskImageTemplate": map[string]any(template)}))
			requireAnswer(t, clientFor(t, user).Create(t.Context(), vm, client.DryRunAll), user, says)
		})
	}
	require.NoError(t, adminClient.Create(t.Context(), image))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), image)) })
	for user, says := range map[string]string{"homemaker": "DataSource kubevirt-os-images/other points at, and user %USER may not clone", "header-author": ""} {
		t.Run("a change of the spec/"+user, func(t *testing.T) {
			requireAnswer(t, clientFor(t, user).Patch(t.Context(), image.DeepCopy(), newMergePatch(`{"spec":{"dataSource":{"name":"other"}}}`), client.DryRunAll),
				user, says)
		})
	}
	t.Run("the agent, for a plan", func(t *testing.T) {
		planned := newWorkspaceImage(t, ofDataSource(goldenNamespace))
		planned.SetName("planned-fedora")
		assert.NoError(t, clientFor(t, "ot-agent").Create(t.Context(), planned, client.DryRunAll))
	})
}
