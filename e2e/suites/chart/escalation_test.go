//go:build linux

package chart_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// attempt is a request by which a thief of an account's token tries to get more than the account
// has. All are dry runs: admission judges them as others.
type attempt struct {
	// what it would gain.
	what string
	// object, in YAML, is created; for other verbs an administrator has created it.
	object string
	// patch is what an update or patch of object changes.
	patch string
	// send replaces the request of the verb.
	send func(context.Context, client.Client) error
	// want is a part of the refusal.
	want string
	// hides is content of object that the refusal must not quote.
	hides string
}

// triedRight is what was tried with one right.
type triedRight struct {
	attempts []attempt
	// gainsNothing says why nothing can be gained, where there is nothing to try.
	gainsNothing string
}

func tried(attempts ...attempt) triedRight { return triedRight{attempts: attempts} }

func gainsNothing(why string) triedRight { return triedRight{gainsNothing: why} }

// rightsOf lists the rights of a chart's account, as "verb resource.group".
func rightsOf(t *testing.T, rendered renderedChart, account string) (rights []string) {
	t.Helper()
	decode := func(object *unstructured.Unstructured, into any) {
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into))
	}
	roles := map[string][]rbacv1.PolicyRule{}
	for key, object := range rendered {
		if object.GetKind() == "Role" || object.GetKind() == "ClusterRole" {
			role := &rbacv1.Role{}
			decode(object, role)
			roles[key] = role.Rules
		}
	}
	unique := map[string]bool{}
	for _, object := range rendered {
		if object.GetKind() != "RoleBinding" && object.GetKind() != "ClusterRoleBinding" {
			continue
		}
		binding := &rbacv1.RoleBinding{}
		decode(object, binding)
		if !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Kind == "ServiceAccount" && s.Name == account }) {
			continue
		}
		key := binding.RoleRef.Kind + " " + binding.RoleRef.Name
		if binding.RoleRef.Kind == "Role" {
			key = "Role " + binding.Namespace + "/" + binding.RoleRef.Name
		}
		require.Contains(t, roles, key)
		for _, rule := range roles[key] {
			for _, verb := range rule.Verbs {
				for _, resource := range rule.Resources {
					unique[strings.TrimSuffix(verb+" "+resource+"."+rule.APIGroups[0], ".")] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(unique))
}

// requireEveryRightTried fails for a right in whose row nothing is tried: a new right of an
// account needs a row.
func requireEveryRightTried(t *testing.T, rights []string, rows map[string]triedRight, readable map[string]string) {
	t.Helper()
	require.Greater(t, len(rights), 40)
	for _, right := range rights {
		row, ok := rows[right]
		if verb, resource, _ := strings.Cut(right, " "); !ok && slices.Contains([]string{"get", "list", "watch"}, verb) && readable[resource] != "" {
			continue
		}
		assert.True(t, ok, "nothing is tried with the right to %s: add a row with what a stolen token could gain by it, and a policy that refuses it", right)
		assert.True(t, !ok || len(row.attempts) > 0 != (row.gainsNothing != ""), "the row of %s has either attempts or why nothing is gained", right)
	}
	for right := range rows {
		assert.Contains(t, rights, right, "the account has no such right")
	}
}

// TestAccountsCannotGetMore tries, from each account, to get more than it has.
func TestAccountsCannotGetMore(t *testing.T) {
	createNamespaces(t, imageNamespace, "ot-member-edge", "cdi", "kubevirt")
	// The agent's token can write the ledger as well, with any namespace.
	ledger := createLedger(t, 3, "image-0123456789ab-1", "database", "image-0123456789ab-2")
	ledger.Status.Slots[2].Image.Namespace = "cdi"
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	for _, test := range []struct {
		account  string
		rendered renderedChart
		rows     map[string]triedRight
		readable map[string]string
	}{
		{"ot-agent", renderChart(t, agentNamespace, map[string]any{"secrets": map[string]any{"namespaces": []any{"bound"}}}), triedByAgent, readableByAgent},
		{"ot-hub", renderHub(t, hubNamespace, map[string]any{
			"clusterAPI": map[string]any{"enabled": true}, "installAgents": map[string]any{"enabled": true},
		}), triedByHub, readableByHub},
	} {
		t.Run(test.account, func(t *testing.T) {
			requireEveryRightTried(t, rightsOf(t, test.rendered, test.account), test.rows, test.readable)
			c := clientFor(t, test.account)
			count := 0
			for _, right := range slices.Sorted(maps.Keys(test.rows)) {
				verb, resource, _ := strings.Cut(right, " ")
				_, sub, _ := strings.Cut(strings.SplitN(resource, ".", 2)[0], "/")
				for _, a := range test.rows[right].attempts {
					count++
					t.Run(right+": "+a.what, func(t *testing.T) { a.requireRefused(t, c, verb, sub) })
				}
			}
			t.Logf("%d attempts with %d rights were refused", count, len(test.rows))
		})
	}
}

func (a attempt) requireRefused(t *testing.T, c client.Client, verb, sub string) {
	t.Helper()
	send := a.send
	if a.object != "" && (verb != "create" || sub != "") {
		createForAttempt(t, parseObject(t, a.object))
	}
	if send == nil {
		object := parseObject(t, a.object)
		send = func(ctx context.Context, c client.Client) error {
			return a.request(ctx, c, object.DeepCopy(), verb, sub)
		}
	}
	// The API server may not enforce a new policy at once, nor know what was just created.
	var err error
	assert.EventuallyWithT(t, func(check *assert.CollectT) {
		err = send(t.Context(), c)
		require.Error(check, err, "it was accepted")
		assert.True(check, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "%v", err)
		assert.ErrorContains(check, err, a.want)
	}, testenv.Patience, 50*time.Millisecond)
	if a.hides != "" && err != nil {
		assert.NotContains(t, err.Error(), a.hides)
	}
	t.Log(err)
}

func (a attempt) request(ctx context.Context, c client.Client, object *unstructured.Unstructured, verb, sub string) error {
	switch verb {
	case "create":
		return c.Create(ctx, object, client.DryRunAll)
	case "delete":
		return c.Delete(ctx, object, client.DryRunAll)
	case "patch":
		return c.Patch(ctx, object, newMergePatch(a.patch), client.DryRunAll)
	case "update":
		current := object.DeepCopy()
		if err := adminClient.Get(ctx, client.ObjectKeyFromObject(object), current); err != nil {
			return err
		}
		change := map[string]any{}
		if err := yaml.Unmarshal([]byte(a.patch), &change); err != nil {
			return err
		}
		mergeInto(current.Object, change)
		if sub != "" {
			return c.SubResource(sub).Update(ctx, current, client.DryRunAll)
		}
		return c.Update(ctx, current, client.DryRunAll)
	default:
		return fmt.Errorf("verb %s has no request: set send", verb)
	}
}

func mergeInto(into, change map[string]any) {
	for key, value := range change {
		inner, isMap := value.(map[string]any)
		current, hasMap := into[key].(map[string]any)
		if isMap && hasMap {
			mergeInto(current, inner)
			continue
		}
		into[key] = value
	}
}

func parseObject(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &object.Object), text)
	return object
}

// createForAttempt creates, as an administrator, what is to be changed, for the length of a test.
func createForAttempt(t *testing.T, object client.Object) {
	t.Helper()
	if err := adminClient.Create(t.Context(), object); !apierrors.IsAlreadyExists(err) { // as namespace and policy of a chart
		require.NoError(t, err)
		t.Cleanup(func() { _ = adminClient.Delete(context.Background(), object, client.GracePeriodSeconds(0)) })
	}
}

func createNamespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		namespace := &unstructured.Unstructured{}
		namespace.SetAPIVersion("v1")
		namespace.SetKind("Namespace")
		namespace.SetName(name)
		if err := adminClient.Create(t.Context(), namespace); !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
}

// createText sends a request to create an object.
func createText(text string) func(context.Context, client.Client) error {
	return func(ctx context.Context, c client.Client) error {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
			return err
		}
		return c.Create(ctx, object, client.DryRunAll)
	}
}
