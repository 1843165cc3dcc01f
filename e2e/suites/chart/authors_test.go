//go:build linux

package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Messages of the admission policies, with %USER for the user and a trailing namespace.
const (
	denialPrefix      = "ValidatingAdmissionPolicy 'ot-agent-virtualmachines' with binding 'ot-agent-virtualmachines' denied request: "
	cannotReadImage   = "which user %USER may not clone, and whose content the machine would show. Ask for verb clone on vmdiskimages.pelotech.ot in namespace "
	cannotCreateImage = "which user %USER may not create. Ask for verb create on vmdiskimages.pelotech.ot in namespace "
	cannotUseOverlay  = "overlay is merged over a KubeVirt VirtualMachine, which user %USER may not create. Ask for verb create on virtualmachines.kubevirt.io in namespace workspace, or remove the overlay"
	cannotUseNetwork  = "interfaces name network farm-net/control of another namespace, and user %USER may not create KubeVirt VirtualMachines"
	cannotReadSecrets = "passwordSecretRef and userDataSecretRef hand a Secret of namespace workspace to the guest, and user %USER may not read Secrets there"

	deniedFarmImage         = denialPrefix + "vmDiskImageRef names VMDiskImage vmdi-farm/demo-vmdi, " + cannotReadImage + farm
	deniedWorkspaceImage    = denialPrefix + "vmDiskImageRef names VMDiskImage workspace/demo-vmdi, " + cannotReadImage + workspace
	deniedFarmTemplate      = "vmDiskImageTemplate would make VMDiskImage vmdi-farm/demo-vmdi, " + cannotCreateImage + farm
	deniedWorkspaceTemplate = "vmDiskImageTemplate would make VMDiskImage workspace/demo-vmdi, " + cannotCreateImage + workspace
)

const personFieldOwner = client.FieldOwner("person")

var (
	imageTemplate = map[string]any{"name": "u", "sourceType": "s3", "url": "https://example.com/a.qcow2", "diskSize": "24Gi"}

	refSameNamespace         = fieldChanges{"vmDiskImageRef": map[string]any{"name": "demo-vmdi"}}
	refSameNamespaceExplicit = fieldChanges{"vmDiskImageRef": map[string]any{"name": "demo-vmdi", "namespace": workspace}}
	refFarm                  = fieldChanges{"vmDiskImageRef": map[string]any{"name": "demo-vmdi", "namespace": farm}}
	refOtherImage            = fieldChanges{"vmDiskImageRef": map[string]any{"name": "another", "namespace": farm}}
	withTemplate             = fieldChanges{"vmDiskImageTemplate": imageTemplate}
	withOverlay              = fieldChanges{"overlay": map[string]any{"template": map[string]any{"spec": map[string]any{"hostname": "a"}}}}
	withPassword             = fieldChanges{"users": listOf(map[string]any{"name": "a"}, map[string]any{"name": "b", "passwordSecretRef": map[string]any{"name": "s", "key": "k"}})}
	withUserData             = fieldChanges{"cloudInit": map[string]any{"userDataSecretRef": map[string]any{"name": "s", "key": "k"}}}
	withFarmNetwork          = fieldChanges{"interfaces": listOf(map[string]any{"network": "control"}, map[string]any{"network": "farm-net/control"})}
	withWorkspaceNetwork     = fieldChanges{"interfaces": listOf(map[string]any{"network": "control"}, map[string]any{"network": workspace + "/control"})}
)

func mergeFields(all ...fieldChanges) fieldChanges {
	sum := fieldChanges{}
	for _, f := range all {
		maps.Copy(sum, f)
	}
	return sum
}

// newMinimalVM returns a VM in the workspace with the given fields only.
func newMinimalVM(t *testing.T, changes fieldChanges) *unstructured.Unstructured {
	t.Helper()
	object := newVM(t, fieldChanges{"users": nil, "interfaces": nil, "vmDiskImageTemplate": nil})
	object.SetNamespace(workspace)
	setFields(t, object, changes)
	return object
}

// requireAnswer checks that an error has the message; no message: no error.
func requireAnswer(t *testing.T, err error, user, says string) {
	t.Helper()
	if user == "robot" {
		user = "system:serviceaccount:workspace:robot"
	}
	if says == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, strings.ReplaceAll(says, "%USER", user))
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.NotContains(t, err.Error(), "failed to evaluate")
}

const cannotAddVolume = "overlay adds a volume of type serviceAccount or hostDisk"

func overlayWith(text string) fieldChanges {
	overlay := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &overlay); err != nil {
		panic(err)
	}
	return fieldChanges{"overlay": overlay}
}

func awaitDeputyPolicyEnforced(t *testing.T) {
	t.Helper()
	awaitRightsGranted(t)
	c := clientFor(t, "machinist")
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		err := c.Create(t.Context(), newMinimalVM(t, refFarm), client.DryRunAll)
		assert.ErrorContains(check, err, "may not clone")
	}, policyPropagationTimeout, 20*time.Millisecond)
}

func TestVMsRequireTheirAuthorsRights(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	for name, test := range map[string]struct {
		spec fieldChanges
		says map[string]string
	}{
		"an image at home":          {refSameNamespace, map[string]string{"machinist": deniedWorkspaceImage, "author": "", "reader": "", "maker": "", "robot": ""}},
		"an image at home, in full": {refSameNamespaceExplicit, map[string]string{"machinist": deniedWorkspaceImage, "author": "", "reader": "", "maker": "", "robot": ""}},
		"an empty namespace": {
			fieldChanges{"vmDiskImageRef": map[string]any{"name": "demo-vmdi", "namespace": ""}},
			map[string]string{"machinist": deniedWorkspaceImage, "author": ""},
		},
		"an image of the farm": {refFarm, map[string]string{
			"machinist": deniedFarmImage, "author": deniedFarmImage, "reader": "", "maker": "", "robot": deniedFarmImage, "homemaker": deniedFarmImage, "of-one": "", "only-maker": deniedFarmImage, "admin": "",
		}},
		"another one of the farm": {refOtherImage, map[string]string{"reader": "", "of-one": "VMDiskImage vmdi-farm/another, " + cannotReadImage + farm}},
		"a template at home": {mergeFields(refSameNamespace, withTemplate), map[string]string{
			"machinist": deniedWorkspaceImage, "author": deniedWorkspaceTemplate, "reader": deniedWorkspaceTemplate, "maker": deniedWorkspaceTemplate, "homemaker": "", "robot": deniedWorkspaceTemplate,
		}},
		"a template to the farm": {mergeFields(refFarm, withTemplate), map[string]string{
			"machinist": deniedFarmImage, "author": deniedFarmImage, "reader": deniedFarmTemplate, "maker": "", "homemaker": deniedFarmImage, "of-one": "", "only-maker": deniedFarmImage, "robot": deniedFarmImage, "admin": "",
		}},
		"a template that is not used": {mergeFields(refFarm, withTemplate, fieldChanges{"imageMode": "FailIfNotExist"}), map[string]string{"reader": deniedFarmTemplate, "maker": ""}},
		"an overlay":                  {mergeFields(refSameNamespace, withOverlay), map[string]string{"author": cannotUseOverlay, "maker": cannotUseOverlay, "overlayer": "", "admin": ""}},
		"an empty overlay":            {mergeFields(refSameNamespace, fieldChanges{"overlay": map[string]any{}}), map[string]string{"author": cannotUseOverlay, "overlayer": ""}},
		"an overlay with a token":     {mergeFields(refSameNamespace, overlayWith(`{template: {spec: {volumes: [{name: sa, serviceAccount: {serviceAccountName: default}}]}}}`)), map[string]string{"overlayer": cannotAddVolume, "admin": cannotAddVolume}},
		"an overlay with host files":  {mergeFields(refSameNamespace, overlayWith(`{template: {spec: {volumes: [{name: d, emptyDisk: {}}, {name: h, hostDisk: {path: /x}}]}}}`)), map[string]string{"overlayer": cannotAddVolume}},
		"an overlay with a sidecar": {
			mergeFields(refSameNamespace, overlayWith(`{template: {metadata: {annotations: {hooks.kubevirt.io/hookSidecars: '[{"image": "any"}]'}}}}`)),
			map[string]string{"author": cannotUseOverlay, "overlayer": ""},
		},
		"an overlay without template": {mergeFields(refSameNamespace, overlayWith(`{template: null}`)), map[string]string{"overlayer": ""}},
		"an overlay of other types":   {mergeFields(refSameNamespace, overlayWith(`{template: text}`)), map[string]string{"overlayer": ""}},
		"volumes of other types":      {mergeFields(refSameNamespace, overlayWith(`{template: {spec: {volumes: text}}}`)), map[string]string{"overlayer": ""}},
		"a volume of another type":    {mergeFields(refSameNamespace, overlayWith(`{template: {spec: {volumes: [text, null, {name: a}]}}}`)), map[string]string{"overlayer": ""}},
		"an overlay and the farm":     {mergeFields(refFarm, withOverlay), map[string]string{"reader": cannotUseOverlay, "overlayer": deniedFarmImage}},
		"a password in a Secret":      {mergeFields(refSameNamespace, withPassword), map[string]string{"author": cannotReadSecrets, "secretary": "", "overlayer": "", "admin": ""}},
		"user data in a Secret":       {mergeFields(refSameNamespace, withUserData), map[string]string{"author": cannotReadSecrets, "secretary": "", "overlayer": ""}},
		"a network of the farm":       {mergeFields(refSameNamespace, withFarmNetwork), map[string]string{"author": cannotUseNetwork, "secretary": cannotUseNetwork, "overlayer": ""}},
		"networks at home":            {mergeFields(refSameNamespace, withWorkspaceNetwork), map[string]string{"author": ""}},
	} {
		for user, says := range test.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				c := clientFor(t, user)
				requireAnswer(t, c.Create(t.Context(), newMinimalVM(t, test.spec), client.DryRunAll), user, says)

				generated := newMinimalVM(t, test.spec)
				generated.SetName("")
				generated.SetGenerateName("vm-")
				requireAnswer(t, c.Create(t.Context(), generated, client.DryRunAll), user, says)

				applied := newMinimalVM(t, test.spec)
				for _, options := range [][]client.ApplyOption{{personFieldOwner, client.DryRunAll}, {personFieldOwner}} {
					requireAnswer(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied.DeepCopy()), options...), user, says)
				}
				if says == "" {
					require.NoError(t, c.Delete(t.Context(), applied))
				}
			})
		}
	}
}

// createVM creates a VM with all rights, under the field owner that the test's users apply
// with: an apply removes fields that it leaves out.
func createVM(t *testing.T, changes fieldChanges) *unstructured.Unstructured {
	t.Helper()
	object := newMinimalVM(t, changes)
	require.NoError(t, adminClient.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()), personFieldOwner))
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(adminClient.Delete(context.Background(), object)))
	})
	return object
}

func TestVMsRequireTheirEditorsRights(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	everything := mergeFields(refFarm, withTemplate, withOverlay, withPassword, withFarmNetwork)
	for name, test := range map[string]struct {
		before, after fieldChanges
		says          map[string]string
	}{
		"to the farm":                    {refSameNamespace, refFarm, map[string]string{"author": deniedFarmImage, "robot": deniedFarmImage, "reader": "", "maker": ""}},
		"away from the farm":             {refFarm, refSameNamespace, map[string]string{"author": "", "reader": "", "machinist": deniedWorkspaceImage}},
		"to another image":               {refFarm, refOtherImage, map[string]string{"author": "vmdi-farm/another, " + cannotReadImage + farm, "reader": ""}},
		"a template is added":            {refFarm, withTemplate, map[string]string{"author": deniedFarmImage, "reader": deniedFarmTemplate, "maker": "", "homemaker": deniedFarmImage}},
		"a template is changed":          {mergeFields(refFarm, withTemplate), fieldChanges{"vmDiskImageTemplate.url": "https://evil.example.com/a"}, map[string]string{"reader": deniedFarmTemplate, "maker": ""}},
		"a template is removed":          {mergeFields(refFarm, withTemplate), fieldChanges{"vmDiskImageTemplate": nil}, map[string]string{"reader": ""}},
		"a template moves":               {mergeFields(refSameNamespace, withTemplate), refFarm, map[string]string{"reader": deniedFarmTemplate, "homemaker": deniedFarmImage, "maker": ""}},
		"the mode":                       {mergeFields(refFarm, withTemplate, fieldChanges{"imageMode": "FailIfNotExist"}), fieldChanges{"imageMode": "CreateIfNotExist"}, map[string]string{"reader": deniedFarmTemplate, "maker": ""}},
		"a user on a machine of a farm":  {refFarm, fieldChanges{"users": listOf(map[string]any{"name": "me"})}, map[string]string{"author": deniedFarmImage, "reader": ""}},
		"deployed at last":               {refFarm, fieldChanges{"ignoreOnDeploy": false}, map[string]string{"author": deniedFarmImage, "reader": ""}},
		"an overlay is added":            {refSameNamespace, withOverlay, map[string]string{"author": cannotUseOverlay, "overlayer": ""}},
		"an overlay is changed":          {mergeFields(refSameNamespace, withOverlay), fieldChanges{"overlay.template": map[string]any{}}, map[string]string{"author": cannotUseOverlay, "overlayer": ""}},
		"an overlay is removed":          {mergeFields(refSameNamespace, withOverlay), fieldChanges{"overlay": nil}, map[string]string{"author": ""}},
		"beside an overlay":              {mergeFields(refSameNamespace, withOverlay), fieldChanges{"runStrategy": "Halted"}, map[string]string{"author": cannotUseOverlay, "overlayer": ""}},
		"a Secret is added":              {refSameNamespace, withPassword, map[string]string{"author": cannotReadSecrets, "secretary": ""}},
		"a network is added":             {refSameNamespace, withFarmNetwork, map[string]string{"author": cannotUseNetwork, "overlayer": ""}},
		"the letter of the namespace":    {refSameNamespace, refSameNamespaceExplicit, map[string]string{"author": "", "machinist": deniedWorkspaceImage}},
		"nothing":                        {everything, nil, map[string]string{"machinist": "", "author": ""}},
		"large user data, and nothing":   {mergeFields(everything, fieldChanges{"cloudInit": map[string]any{"userData": strings.Repeat("#", 500<<10)}}), nil, map[string]string{"author": ""}},
		"large user data, and the image": {mergeFields(refSameNamespace, fieldChanges{"cloudInit": map[string]any{"userData": strings.Repeat("#", 500<<10)}}), refFarm, map[string]string{"author": deniedFarmImage, "reader": ""}},
	} {
		for user, says := range test.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				before := createVM(t, test.before)
				after := before.DeepCopy()
				setFields(t, after, test.after)
				// Writes of metadata only change nothing in the spec.
				after.SetLabels(map[string]string{"a": "b"})
				after.SetAnnotations(map[string]string{"pelotech.ot/retry": "1"})
				after.SetFinalizers([]string{"example.com/keep"})
				c := clientFor(t, user)

				requireAnswer(t, c.Update(t.Context(), after.DeepCopy(), client.DryRunAll), user, says)
				for _, kind := range []types.PatchType{types.MergePatchType, types.JSONPatchType} {
					requireAnswer(t, c.Patch(t.Context(), after.DeepCopy(), newPatch(t, kind, before, after), client.DryRunAll), user, says)
				}
				applied := after.DeepCopy()
				applied.SetManagedFields(nil)
				applied.SetResourceVersion("")
				requireAnswer(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), personFieldOwner, client.ForceOwnership, client.DryRunAll), user, says)

				after.SetFinalizers(nil)
				requireAnswer(t, c.Update(t.Context(), after), user, says)
			})
		}
	}
}

func newPatch(t *testing.T, kind types.PatchType, before, after *unstructured.Unstructured) client.Patch {
	t.Helper()
	if kind == types.MergePatchType {
		return client.MergeFrom(before)
	}
	body, err := json.Marshal([]any{
		map[string]any{"op": "replace", "path": "/spec", "value": after.Object["spec"]},
		map[string]any{"op": "add", "path": "/metadata/labels", "value": map[string]any{"a": "b"}},
	})
	require.NoError(t, err)
	return client.RawPatch(kind, body)
}

func TestVMDeleteNeedsNoFurtherRights(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	object := createVM(t, mergeFields(refFarm, withTemplate, withOverlay))
	object.SetFinalizers([]string{"example.com/keep"})
	require.NoError(t, adminClient.Update(t.Context(), object))
	c := clientFor(t, "author")
	require.NoError(t, c.Delete(t.Context(), object))
	require.NoError(t, c.Patch(t.Context(), object, newMergePatch(`{"metadata":{"finalizers":null}}`)))
	require.True(t, apierrors.IsNotFound(adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), object)))
}

func TestVMStatusWritesTriggerNoClone(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	pin := func(namespace, claim string) client.Patch {
		return newMergePatch(`{"status":{"pinned":{"namespace":"` + namespace + `","name":"demo-vmdi","uid":"1","revision":"r","attempt":1,"persistentVolumeClaim":"` + claim + `"}}}`)
	}
	const says = "status.pinned has the agent clone from namespace vmdi-farm, which user %USER may not: that needs verb create on datavolumes.cdi.kubevirt.io/source there"
	write := func(user string, object *unstructured.Unstructured, change client.Patch) error {
		return clientFor(t, user).Status().Patch(t.Context(), object.DeepCopy(), change)
	}
	object := createVM(t, refFarm)
	// Reading images and writing status must not amount to cloning a claim.
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		assert.ErrorContains(check, write("forger", object, pin(farm, "secret")), "may not")
	}, policyPropagationTimeout, 20*time.Millisecond)
	requireAnswer(t, write("forger", object, pin(farm, "secret")), "forger", says)
	requireAnswer(t, write("forger", object, newMergePatch(`{"status":{"phase":"Provisioning"}}`)), "forger", "")
	requireAnswer(t, write("author", object, pin(workspace, "mine")), "author", `User "author" cannot patch resource "virtualmachines/status"`)

	requireAnswer(t, write("cloner", object, pin(farm, "claim")), "cloner", "")
	requireAnswer(t, write("forger", object, newMergePatch(`{"status":{"phase":"Ready"}}`)), "forger", "")
	requireAnswer(t, write("forger", object, pin(farm, "secret")), "forger", says)
	requireAnswer(t, write("cloner", object, pin("kube-system", "claim")), "cloner", "status.pinned has the agent clone from namespace kube-system")

	diskPins := func(namespaces ...string) client.Patch {
		var disks []string
		for i, namespace := range namespaces {
			disks = append(disks, fmt.Sprintf(`{"name":"d%d","pinned":{"namespace":"%s","name":"demo-vmdi","uid":"1","revision":"r","attempt":1,"persistentVolumeClaim":"claim"}}`, i, namespace))
		}
		return newMergePatch(`{"status":{"disks":[` + strings.Join(disks, ",") + `]}}`)
	}
	last := slices.Repeat([]string{farm}, 16)
	requireAnswer(t, write("cloner", object, diskPins(last...)), "cloner", "")
	last[15] = "kube-system"
	requireAnswer(t, write("cloner", object, diskPins(last...)), "cloner", "pinned of status.disks has the agent clone from namespace kube-system")
	requireAnswer(t, write("forger", object, newMergePatch(`{"status":{"phase":"Ready"}}`)), "forger", "")

	requireAnswer(t, write("forger", object, newMergePatch(`{"spec":{"vmDiskImageRef":{"name":"stolen"}},"status":{"phase":"Ready"}}`)), "forger", "")
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	name, _, err := unstructured.NestedString(object.Object, "spec", "vmDiskImageRef", "name")
	require.NoError(t, err)
	assert.Equal(t, "demo-vmdi", name, "a write of the status changed the spec")
}

func TestPlainTextPasswordsAreWarnedAbout(t *testing.T) {
	awaitDeputyPolicyEnforced(t)
	const says = "Validation failed for ValidatingAdmissionPolicy 'ot-agent-virtualmachine-passwords' with binding 'ot-agent-virtualmachine-passwords': " +
		"plain_text_passwd of demo user, second can be read by everybody who can read this VirtualMachine: put the password into a Secret and name it in passwordSecretRef"
	inClear := fieldChanges{"users": listOf(
		map[string]any{"name": "demo user", "plain_text_passwd": "demo-pwd"}, map[string]any{"name": "third"}, map[string]any{"name": "second", "plain_text_passwd": "x"})}
	for _, user := range []string{"author", "admin"} {
		t.Run(user, func(t *testing.T) {
			c, heard := clientWithWarnings(t, user)
			require.EventuallyWithT(t, func(check *assert.CollectT) {
				require.NoError(check, c.Create(t.Context(), newMinimalVM(t, mergeFields(refSameNamespace, inClear)), client.DryRunAll))
				assert.Contains(check, heard.takeWarnings(), says)
			}, policyPropagationTimeout, 20*time.Millisecond)

			require.NoError(t, c.Create(t.Context(), newMinimalVM(t, refSameNamespace), client.DryRunAll))
			empty := fieldChanges{"users": listOf(map[string]any{"name": "demo", "plain_text_passwd": ""})}
			require.NoError(t, c.Create(t.Context(), newMinimalVM(t, mergeFields(refSameNamespace, empty)), client.DryRunAll))
			assert.Empty(t, heard.takeWarnings(), "without a password")

			object := createVM(t, mergeFields(refSameNamespace, inClear))
			require.NoError(t, c.Patch(t.Context(), object.DeepCopy(), newMergePatch(`{"metadata":{"labels":{"a":"b"}}}`)))
			assert.Empty(t, heard.takeWarnings(), "controllers write metadata")
			require.NoError(t, c.Patch(t.Context(), object.DeepCopy(), newMergePatch(`{"spec":{"runStrategy":"Halted"}}`)))
			assert.Equal(t, []string{says}, heard.takeWarnings())
		})
	}
}
