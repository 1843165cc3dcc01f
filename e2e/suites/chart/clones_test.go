//go:build linux

package chart_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const clonePolicy = "ot-agent-virtualmachine-clones"

// setRolesToDeny applies an admission policy as the agent's chart renders it with Deny as the value
// of roles.<name>, until the test ends. Policy and binding reach the API server separately: both
// changes are awaited, by what user hears of the object.
func setRolesToDeny(t *testing.T, policy, name, user string, object *unstructured.Unstructured) {
	t.Helper()
	const warnsOnly = "stands in for"
	c, heard := clientWithWarnings(t, user)
	apply := func(ctx context.Context, values map[string]any) {
		rendered := renderChart(t, agentNamespace, values)
		for _, key := range []string{"ValidatingAdmissionPolicy " + policy, "ValidatingAdmissionPolicyBinding " + policy} {
			object := rendered[key]
			require.NotNil(t, object, key)
			now := object.DeepCopy()
			require.NoError(t, adminClient.Get(ctx, client.ObjectKeyFromObject(object), now))
			object.SetResourceVersion(now.GetResourceVersion())
			require.NoError(t, adminClient.Update(ctx, object))
		}
	}
	apply(t.Context(), map[string]any{"roles": map[string]any{name: "Deny"}})
	t.Cleanup(func() {
		apply(context.Background(), nil)
		assert.EventuallyWithT(t, func(check *assert.CollectT) {
			assert.NoError(check, c.Create(context.Background(), object.DeepCopy(), client.DryRunAll))
			assert.Contains(check, strings.Join(heard.takeWarnings(), "\n"), warnsOnly)
		}, policyPropagationTimeout, 20*time.Millisecond)
	})
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		err := c.Create(t.Context(), object.DeepCopy(), client.DryRunAll)
		require.Error(check, err)
		assert.NotContains(check, err.Error(), warnsOnly)
	}, policyPropagationTimeout, 20*time.Millisecond)
	heard.takeWarnings()
}

// Users whose rights include clone, and users who may only read the image.
var (
	cloners = map[string][]fieldChanges{
		"author": {refSameNamespace, refSameNamespaceExplicit}, "image-cloner": {refFarm, refOtherImage, refSameNamespace}, "only-cloner": {refFarm},
		"maker": {refFarm, mergeFields(refFarm, withTemplate)}, "robot": {refSameNamespace}, "admin": {refFarm},
	}
	readers = map[string][]fieldChanges{
		"reader": {refFarm, refOtherImage}, "of-one": {refFarm, mergeFields(refFarm, withTemplate)}, "home-reader": {refSameNamespace, refSameNamespaceExplicit},
	}
)

func farmOf(spec fieldChanges) string {
	if namespace, ok := spec["vmDiskImageRef"].(map[string]any)["namespace"].(string); ok {
		return namespace
	}
	return workspace
}

func lacksClone(user, namespace, image string) []string {
	return []string{
		"user " + user + " lacks verb clone on VMDiskImage " + namespace + "/" + image + ", whose content VirtualMachine workspace/",
		`kubectl --namespace ` + namespace + ` create rolebinding "clone-` + user + `" --clusterrole=ot-image-cloner --user="` + user + `"`,
	}
}

func imageOf(spec fieldChanges) string {
	return spec["vmDiskImageRef"].(map[string]any)["name"].(string)
}

func TestReadersOfImagesAreWarned(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	for user, specs := range readers {
		for _, spec := range specs {
			c, heard := clientWithWarnings(t, user)
			require.EventuallyWithT(t, func(check *assert.CollectT) {
				require.NoError(check, c.Create(t.Context(), newMinimalVM(t, spec), client.DryRunAll))
				assert.NotEmpty(check, heard.takeWarnings())
			}, policyPropagationTimeout, 20*time.Millisecond)
			require.NoError(t, c.Create(t.Context(), newMinimalVM(t, spec), client.DryRunAll))
			warnings := heard.takeWarnings()
			require.Len(t, warnings, 1, "%s: %v", user, spec)
			for _, says := range append(lacksClone(user, farmOf(spec), imageOf(spec)), "verb get stands in for it until the next minor version") {
				assert.Contains(t, warnings[0], says)
			}
		}
	}
	for user, specs := range cloners {
		c, heard := clientWithWarnings(t, user)
		for _, spec := range specs {
			require.NoError(t, c.Create(t.Context(), newMinimalVM(t, spec), client.DryRunAll), user)
			assert.Empty(t, heard.takeWarnings(), user)
		}
	}
}

func TestReadersOfImagesAreRefused(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	setRolesToDeny(t, clonePolicy, "cloneVerb", "reader", newMinimalVM(t, refFarm))
	for user, specs := range readers {
		for _, spec := range specs {
			c := clientFor(t, user)
			err := c.Create(t.Context(), newMinimalVM(t, spec), client.DryRunAll)
			for _, says := range lacksClone(user, farmOf(spec), imageOf(spec)) {
				requireAnswer(t, err, user, says)
			}
			assert.NotContains(t, err.Error(), "stands in for it")

			// An existing machine: metadata is free, the spec is not.
			before := createVM(t, spec)
			after := before.DeepCopy()
			after.SetLabels(map[string]string{"a": "b"})
			require.NoError(t, c.Update(t.Context(), after.DeepCopy(), client.DryRunAll))
			setFields(t, after, fieldChanges{"runStrategy": "Halted"})
			requireAnswer(t, c.Update(t.Context(), after, client.DryRunAll), user, "lacks verb clone")
			require.NoError(t, c.Delete(t.Context(), before))
		}
	}
	for user, specs := range cloners {
		for _, spec := range specs {
			require.NoError(t, clientFor(t, user).Create(t.Context(), newMinimalVM(t, spec), client.DryRunAll), user)
		}
	}
	// Whoever can read nothing is refused as before.
	requireAnswer(t, clientFor(t, "machinist").Create(t.Context(), newMinimalVM(t, refSameNamespace), client.DryRunAll), "machinist", "verb clone")
}

// TestDisksNeedClone checks the images of data disks, whatever roles.cloneVerb says: each of
// them is refused, wherever it stands in the list.
func TestDisksNeedClone(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	withDisk := func(spec fieldChanges, position int) fieldChanges {
		disks := newDisks(position)
		disks = append(disks, map[string]any{"name": "data", "image": spec["vmDiskImageRef"]})
		return fieldChanges{"vmDiskImageRef": map[string]any{"name": "root-of-all"}, "disks": disks}
	}
	for user, specs := range readers {
		for _, spec := range specs {
			if spec["vmDiskImageTemplate"] != nil {
				continue
			}
			both := mergeFields(withDisk(spec, 7), fieldChanges{"vmDiskImageRef": spec["vmDiskImageRef"]})
			err := clientFor(t, user).Create(t.Context(), newMinimalVM(t, both), client.DryRunAll)
			requireAnswer(t, err, user, "user "+user+" lacks verb clone on VMDiskImage "+farmOf(spec)+"/"+imageOf(spec)+", whose content disk data of VirtualMachine workspace/")
		}
	}
	for position := range 8 {
		disks := withDisk(refFarm, position)
		blank := mergeFields(disks, fieldChanges{"disks": newDisks(position + 1)})
		require.NoError(t, clientFor(t, "admin").Create(t.Context(), newMinimalVM(t, disks), client.DryRunAll))
		require.NoError(t, clientFor(t, "admin").Create(t.Context(), newMinimalVM(t, blank), client.DryRunAll))
	}
}

// pinDisks stores what the disks of a VM were cloned from, as the agent does.
func pinDisks(t *testing.T, object *unstructured.Unstructured, root map[string]any, disks ...any) *unstructured.Unstructured {
	t.Helper()
	require.NoError(t, unstructured.SetNestedField(object.Object, root, "status", "pinned"))
	require.NoError(t, unstructured.SetNestedSlice(object.Object, disks, "status", "disks"))
	require.NoError(t, adminClient.Status().Update(t.Context(), object))
	return object
}

func newPin(namespace, name string) map[string]any {
	return map[string]any{"namespace": namespace, "name": name, "uid": "1", "revision": "r", "attempt": int64(1), "persistentVolumeClaim": "claim"}
}

// TestClonesThatExistNeedClone checks what disks were cloned from, whatever the spec says of
// them now: a disk of status.disks stays the clone that it is.
func TestClonesThatExistNeedClone(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	setRolesToDeny(t, clonePolicy, "cloneVerb", "reader", newMinimalVM(t, refFarm))
	secret := map[string]any{"name": "tools", "pinned": newPin(farm, "secret"), "removed": true}
	tools := func(more fieldChanges) fieldChanges {
		return fieldChanges{"disks": listOf(map[string]any{"name": "first", "size": "1Gi"}, mergeFields(fieldChanges{"name": "tools"}, more))}
	}
	blank, another := tools(fieldChanges{"size": "1Gi"}), tools(fieldChanges{"image": map[string]any{"name": "demo-vmdi"}})
	halted := fieldChanges{"runStrategy": "Halted"}
	const (
		deniedDisk = "user %USER lacks verb clone on VMDiskImage vmdi-farm/secret, which disk tools of VirtualMachine workspace/"
		deniedRoot = "user %USER lacks verb clone on VMDiskImage vmdi-farm/secret, which the root disk of VirtualMachine workspace/"
	)
	for name, test := range map[string]struct {
		before, after fieldChanges
		root          string
		says          map[string]string
	}{
		"a removed disk, as a blank one":  {nil, blank, "home", map[string]string{"author": deniedDisk, "robot": deniedDisk, "image-cloner": "", "admin": ""}},
		"a removed disk, of an image":     {nil, another, "home", map[string]string{"author": deniedDisk, "image-cloner": ""}},
		"a disk without its image":        {tools(fieldChanges{"image": map[string]any{"name": "secret", "namespace": farm}}), blank, "home", map[string]string{"author": deniedDisk, "image-cloner": ""}},
		"a machine with a kept disk":      {blank, halted, "home", map[string]string{"author": deniedDisk, "image-cloner": ""}},
		"a disk that is removed":          {blank, fieldChanges{"disks": nil}, "home", map[string]string{"author": ""}},
		"a disk under another name":       {nil, fieldChanges{"disks": newDisks(8)}, "home", map[string]string{"author": ""}},
		"a removed disk that stays so":    {nil, halted, "home", map[string]string{"author": ""}},
		"metadata":                        {blank, nil, "secret", map[string]string{"author": "", "machinist": ""}},
		"a root disk of another image":    {nil, halted, "secret", map[string]string{"author": deniedRoot, "image-cloner": "", "admin": ""}},
		"a root disk, with other changes": {nil, fieldChanges{"vmDiskImageRef": map[string]any{"name": "other"}}, "secret", map[string]string{"author": deniedRoot}},
	} {
		root := newPin(farm, test.root)
		if test.root == "home" {
			root = newPin(workspace, "demo-vmdi")
		}
		object := pinDisks(t, createVM(t, mergeFields(refSameNamespace, test.before)), root, secret)
		setFields(t, object, test.after)
		object.SetLabels(map[string]string{"a": "b"})
		for user, says := range test.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				requireAnswer(t, clientFor(t, user).Update(t.Context(), object.DeepCopy(), client.DryRunAll), user, says)
			})
		}
		require.NoError(t, adminClient.Delete(t.Context(), object))
	}
}

// TestEachCloneThatExistsNeedsClone checks that of 8 disks, each cloned from another image than
// the spec names, each is checked, within the budget of CEL.
func TestEachCloneThatExistsNeedsClone(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	long := strings.Repeat("i", 63)
	images := func(namespace string) (disks []any) {
		for _, disk := range newDisks(8) {
			disks = append(disks, map[string]any{"name": disk.(map[string]any)["name"], "image": map[string]any{"name": long, "namespace": namespace}})
		}
		return disks
	}
	for position := range 8 {
		var kept []any
		for i := range 16 { // removed disks first: they are not judged
			pin := newPin(workspace, long)
			if i < 8 || i == 8+position {
				pin = newPin(farm, long)
			}
			name := strings.Repeat("r", 63-i)
			if i >= 8 {
				name = strings.Repeat("d", 63-(i-8))
			}
			kept = append(kept, map[string]any{"name": name, "pinned": pin})
		}
		object := pinDisks(t, createVM(t, mergeFields(refSameNamespace, fieldChanges{"disks": images(workspace)})), newPin(workspace, "demo-vmdi"), kept...)
		setFields(t, object, fieldChanges{"runStrategy": "Halted"})
		requireAnswer(t, clientFor(t, "author").Update(t.Context(), object.DeepCopy(), client.DryRunAll), "author",
			"user author lacks verb clone on VMDiskImage vmdi-farm/"+long+", which disk "+strings.Repeat("d", 63-position)+" of VirtualMachine workspace/")
		require.NoError(t, clientFor(t, "image-cloner").Update(t.Context(), object.DeepCopy(), client.DryRunAll))
		require.NoError(t, adminClient.Delete(t.Context(), object))
	}
}

func TestViewersCannotClone(t *testing.T) {
	for key, role := range renderChart(t, "ot-system", map[string]any{"roles": map[string]any{"imagesToEdit": true}}) {
		rules, _ := role.Object["rules"].([]any)
		for _, rule := range rules {
			verbs, _ := rule.(map[string]any)["verbs"].([]any)
			if !strings.HasPrefix(key, "ClusterRole ot-") {
				continue
			}
			switch strings.TrimPrefix(key, "ClusterRole ") {
			case "ot-image-cloner", "ot-image-author":
				assert.Contains(t, verbs, "clone", key)
			case "ot-viewer", "ot-image-viewer":
				assert.NotContains(t, verbs, "clone", key)
			}
		}
	}
}
