//go:build linux

package chart_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const secretsPolicy = "ot-agent-image-secrets"

// newWorkspaceImage returns an image of sourceType http in the workspace.
func newWorkspaceImage(t *testing.T, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	object := newImage(t, map[string]any{"sourceType": "http", "secretRef": nil})
	object.SetNamespace(workspace)
	setFields(t, object, changes)
	return object
}

func withHeaderSecrets(names ...any) fieldChanges { return fieldChanges{"secretExtraHeaders": names} }

const cannotCreatePods = "pullMethod node pulls a container image with the credentials of nodes and of CDI, and user %USER may not create Pods, which could as well. " +
	"Ask for verb create on pods in namespace workspace"

func registryImage(method string) fieldChanges {
	return fieldChanges{"sourceType": "registry", "url": "docker://registry.example.com/a", "pullMethod": method}
}

func sendsSecret(field, namespace, name string) string {
	verb := "send"
	if field == "secretRef" {
		verb = "sends"
	}
	return fmt.Sprintf("%s %s Secret %s/%s to the host in url, and user %%USER may not read it", field, verb, namespace, name)
}

func awaitHeadersPolicyEnforced(t *testing.T) {
	t.Helper()
	awaitDeputyPolicyEnforced(t)
	c := clientFor(t, "homemaker")
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		err := c.Create(t.Context(), newWorkspaceImage(t, withHeaderSecrets("token")), client.DryRunAll)
		assert.ErrorContains(check, err, "may not read it")
	}, policyPropagationTimeout, 20*time.Millisecond)
}

// TestSecretsOfHeadersRequireTheirAuthorsRights wants nobody to send a Secret to a host that may
// not read it, by an image or by a machine's template.
func TestSecretsOfHeadersRequireTheirAuthorsRights(t *testing.T) {
	awaitHeadersPolicyEnforced(t)
	token, other := sendsSecret("secretExtraHeaders", workspace, "token"), sendsSecret("secretExtraHeaders", workspace, "other")
	for name, tt := range map[string]struct {
		spec fieldChanges
		says map[string]string
	}{
		"one Secret":             {withHeaderSecrets("token"), map[string]string{"homemaker": token, "header-author": "", "image-secretary": "", "admin": ""}},
		"another one":            {withHeaderSecrets("other"), map[string]string{"homemaker": other, "header-author": other, "image-secretary": ""}},
		"two, the second worse":  {withHeaderSecrets("token", "other"), map[string]string{"header-author": other, "image-secretary": ""}},
		"four, the last worse":   {withHeaderSecrets("token", "a", "b", "other"), map[string]string{"header-author": other, "image-secretary": ""}},
		"plain headers":          {fieldChanges{"extraHeaders": []any{"X-Tenant: blue"}}, map[string]string{"homemaker": "", "header-author": ""}},
		"pulled by the importer": {registryImage("pod"), map[string]string{"homemaker": ""}},
		"pulled by the node":     {registryImage("node"), map[string]string{"homemaker": cannotCreatePods, "image-secretary": cannotCreatePods, "pod-author": "", "admin": ""}},
		"plain headers, and one": {mergeFields(fieldChanges{"extraHeaders": []any{"X-Tenant: blue"}}, withHeaderSecrets("token")), map[string]string{"homemaker": token, "header-author": ""}},
	} {
		for user, says := range tt.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				requireAnswer(t, clientFor(t, user).Create(t.Context(), newWorkspaceImage(t, tt.spec), client.DryRunAll), user, says)
			})
		}
	}
	for name, tt := range map[string]struct {
		ref, template fieldChanges
		says          map[string]string
	}{
		"a template at home": {refSameNamespace, fieldChanges{}, map[string]string{"homemaker": token, "header-author": "", "image-secretary": "", "admin": ""}},
		"a template that the node pulls": {refSameNamespace, mergeFields(registryImage("node"), fieldChanges{"secretExtraHeaders": []any{}}),
			map[string]string{"homemaker": cannotCreatePods, "pod-author": ""}},
		"a template to the farm": {refFarm, fieldChanges{}, map[string]string{"maker": sendsSecret("secretExtraHeaders", farm, "token"), "header-maker": "", "admin": ""}},
	} {
		for user, says := range tt.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				template := mergeFields(imageTemplate, fieldChanges{"sourceType": "http"}, withHeaderSecrets("token"), tt.template)
				vm := newMinimalVM(t, mergeFields(tt.ref, fieldChanges{"vmDiskImageTemplate": map[string]any(template)}))
				requireAnswer(t, clientFor(t, user).Create(t.Context(), vm, client.DryRunAll), user, says)
			})
		}
	}
}

func TestSecretsOfHeadersRequireTheirEditorsRights(t *testing.T) {
	awaitHeadersPolicyEnforced(t)
	token := sendsSecret("secretExtraHeaders", workspace, "token")
	image := newWorkspaceImage(t, withHeaderSecrets("token"))
	require.NoError(t, adminClient.Create(t.Context(), image))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), image)) })
	for name, tt := range map[string]struct {
		patch string
		says  map[string]string
	}{
		"another host":           {`{"spec":{"url":"https://evil.example.com/a"}}`, map[string]string{"homemaker": token, "header-author": "", "admin": ""}},
		"another authority":      {`{"spec":{"certConfigMap":"mine"}}`, map[string]string{"homemaker": token, "header-author": ""}},
		"a Secret more":          {`{"spec":{"secretExtraHeaders":["token","other"]}}`, map[string]string{"homemaker": token, "header-author": sendsSecret("secretExtraHeaders", workspace, "other")}},
		"no Secret":              {`{"spec":{"secretExtraHeaders":null}}`, map[string]string{"homemaker": "", "header-author": ""}},
		"labels and annotations": {`{"metadata":{"labels":{"a":"b"},"annotations":{"pelotech.ot/retry":"1"}}}`, map[string]string{"homemaker": ""}},
	} {
		for user, says := range tt.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				requireAnswer(t, clientFor(t, user).Patch(t.Context(), image.DeepCopy(), newMergePatch(tt.patch), client.DryRunAll), user, says)
			})
		}
	}
	t.Run("the agent, for a plan", func(t *testing.T) {
		planned := newWorkspaceImage(t, withHeaderSecrets("token"))
		planned.SetName("planned")
		assert.NoError(t, clientFor(t, "ot-agent").Create(t.Context(), planned, client.DryRunAll))
	})
}

// TestSecretRefsAreWarnedAbout wants images of authors that may not read their Secret to be
// accepted as before, with a warning, and to be refused with roles.imageSecrets=Deny.
func TestSecretRefsAreWarnedAbout(t *testing.T) {
	awaitHeadersPolicyEnforced(t)
	says := sendsSecret("secretRef", workspace, "token")
	image := newWorkspaceImage(t, fieldChanges{"secretRef": "token"})
	vm := newMinimalVM(t, mergeFields(refSameNamespace, fieldChanges{"vmDiskImageTemplate": map[string]any(mergeFields(imageTemplate, fieldChanges{"secretRef": "token"}))}))
	for _, object := range []*unstructured.Unstructured{image, vm} {
		c, heard := clientWithWarnings(t, "homemaker")
		require.EventuallyWithT(t, func(check *assert.CollectT) {
			require.NoError(check, c.Create(t.Context(), object.DeepCopy(), client.DryRunAll))
			warnings := heard.takeWarnings()
			require.Len(check, warnings, 1)
			assert.Contains(check, warnings[0], "secretRef sends Secret workspace/token to the host in url, and user homemaker may not read it; the right to write images stands in for that here")
		}, policyPropagationTimeout, 20*time.Millisecond)
		for _, user := range []string{"header-author", "image-secretary", "admin"} {
			c, heard := clientWithWarnings(t, user)
			require.NoError(t, c.Create(t.Context(), object.DeepCopy(), client.DryRunAll))
			assert.Empty(t, heard.takeWarnings(), user)
		}
	}

	setRolesToDeny(t, secretsPolicy, "imageSecrets", "homemaker", image)
	for _, object := range []*unstructured.Unstructured{image, vm} {
		err := clientFor(t, "homemaker").Create(t.Context(), object.DeepCopy(), client.DryRunAll)
		requireAnswer(t, err, "homemaker", says)
		assert.NotContains(t, err.Error(), "stands in for that")
		for _, user := range []string{"header-author", "image-secretary", "admin"} {
			assert.NoError(t, clientFor(t, user).Create(t.Context(), object.DeepCopy(), client.DryRunAll))
		}
	}
}

// TestAgentSendsOnlySecretsThatItMayRead: each of the Secrets of an import is checked.
func TestAgentSendsOnlySecretsThatItMayRead(t *testing.T) {
	createNamespaces(t, imageNamespace)
	createLedger(t, 1, "image-0123456789ab-1") // of two policies that refuse, either is named
	meta := metav1.ObjectMeta{Namespace: imageNamespace, Name: "token-reader"}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}, ResourceNames: []string{"token"}}}},
		&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: agentNamespace, Name: "ot-agent"}}},
	} {
		require.NoError(t, adminClient.Create(t.Context(), object))
		t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), object)) })
	}
	agent := clientFor(t, "ot-agent")
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		secret := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
		assert.NoError(check, client.IgnoreNotFound(agent.Get(t.Context(), client.ObjectKey{Namespace: imageNamespace, Name: "token"}, secret)))
	}, policyPropagationTimeout, 20*time.Millisecond)
	for i := range 5 {
		names := []any{"token", "token", "token", "token", "token"}
		names[i] = "passwords"
		dv := parseObject(t, importOf+`{source: {http: {url: https://example.com}}, storage: {}}}`)
		require.NoError(t, unstructured.SetNestedField(dv.Object, names[0], "spec", "source", "http", "secretRef"))
		require.NoError(t, unstructured.SetNestedSlice(dv.Object, names[1:], "spec", "source", "http", "secretExtraHeaders"))
		require.EventuallyWithT(t, func(check *assert.CollectT) { // the API server caches the ledger
			assert.ErrorContains(check, agent.Create(t.Context(), dv.DeepCopy(), client.DryRunAll), "the import sends Secret images/passwords to its source", "%v", names)
		}, policyPropagationTimeout, 20*time.Millisecond)
	}
}
