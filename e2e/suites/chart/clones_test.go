//go:build linux

package chart_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const clonePolicy = "ot-agent-virtualmachine-clones"

// setRolesValue applies an admission policy as the agent's chart renders it with a value of
// roles, until the test ends.
func setRolesValue(t *testing.T, policy, name, value string) {
	t.Helper()
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
	apply(t.Context(), map[string]any{"roles": map[string]any{name: value}})
	t.Cleanup(func() { apply(context.Background(), nil) })
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
	setRolesValue(t, clonePolicy, "cloneVerb", "Deny")
	for user, specs := range readers {
		for _, spec := range specs {
			c := clientFor(t, user)
			require.EventuallyWithT(t, func(check *assert.CollectT) {
				assert.Error(check, c.Create(t.Context(), newMinimalVM(t, spec), client.DryRunAll))
			}, policyPropagationTimeout, 20*time.Millisecond)
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
