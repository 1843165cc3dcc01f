//go:build linux

package chart_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What a policy says, to which users and namespaces are added.
const (
	denied        = "ValidatingAdmissionPolicy 'ot-agent-virtualmachines' with binding 'ot-agent-virtualmachines' denied request: "
	mayNotRead    = "which user %USER may not read, and whose content the machine would show. Ask for verb get on vmdiskimages.pelotech.ot in namespace "
	mayNotMake    = "which user %USER may not create. Ask for verb create on vmdiskimages.pelotech.ot in namespace "
	mayNotOverlay = "overlay is merged over a KubeVirt VirtualMachine, which user %USER may not create. Ask for verb create on virtualmachines.kubevirt.io in namespace workspace, or remove the overlay"
	mayNotJoin    = "interfaces name network farm-net/control of another namespace, and user %USER may not create KubeVirt VirtualMachines"
	mayNotTell    = "passwordSecretRef and userDataSecretRef hand a Secret of namespace workspace to the guest, and user %USER may not read Secrets there"

	readsFarm = denied + "vmDiskImageRef names VMDiskImage vmdi-farm/demo-vmdi, " + mayNotRead + farm
	readsHome = denied + "vmDiskImageRef names VMDiskImage workspace/demo-vmdi, " + mayNotRead + workspace
	makesFarm = "vmDiskImageTemplate would make VMDiskImage vmdi-farm/demo-vmdi, " + mayNotMake + farm
	makesHome = "vmDiskImageTemplate would make VMDiskImage workspace/demo-vmdi, " + mayNotMake + workspace
)

const appliedBy = client.FieldOwner("person")

var (
	template = map[string]any{"name": "u", "sourceType": "s3", "secretRef": "foo-bar", "url": "https://example.com/a.qcow2", "diskSize": "24Gi"}

	atHome     = fields{"vmDiskImageRef": map[string]any{"name": "demo-vmdi"}}
	atHomeSaid = fields{"vmDiskImageRef": map[string]any{"name": "demo-vmdi", "namespace": workspace}}
	inFarm     = fields{"vmDiskImageRef": map[string]any{"name": "demo-vmdi", "namespace": farm}}
	otherOne   = fields{"vmDiskImageRef": map[string]any{"name": "another", "namespace": farm}}
	templated  = fields{"vmDiskImageTemplate": template}
	overlaid   = fields{"overlay": map[string]any{"template": map[string]any{"spec": map[string]any{"hostname": "a"}}}}
	password   = fields{"users": list(map[string]any{"name": "a"}, map[string]any{"name": "b", "passwordSecretRef": map[string]any{"name": "s", "key": "k"}})}
	userData   = fields{"cloudInit": map[string]any{"userDataSecretRef": map[string]any{"name": "s", "key": "k"}}}
	netOfFarm  = fields{"interfaces": list(map[string]any{"network": "control"}, map[string]any{"network": "farm-net/control"})}
	netAtHome  = fields{"interfaces": list(map[string]any{"network": "control"}, map[string]any{"network": workspace + "/control"})}
)

func together(all ...fields) fields {
	sum := fields{}
	for _, f := range all {
		maps.Copy(sum, f)
	}
	return sum
}

// simple is a machine in the workspace that says only what it is given.
func simple(t *testing.T, changes fields) *unstructured.Unstructured {
	t.Helper()
	object := machine(t, fields{"users": nil, "interfaces": nil, "vmDiskImageTemplate": nil})
	object.SetNamespace(workspace)
	set(t, object, changes)
	return object
}

// judge checks an answer against what it is to say of the user; "" is yes.
func judge(t *testing.T, err error, user, says string) {
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

func enforced(t *testing.T) {
	t.Helper()
	settled(t)
	c := person(t, "machinist")
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		err := c.Create(t.Context(), simple(t, inFarm), client.DryRunAll)
		assert.ErrorContains(check, err, "may not read")
	}, policyDelay, 20*time.Millisecond)
}

func TestMachinesNeedTheirAuthorsRights(t *testing.T) {
	enforced(t)
	for name, test := range map[string]struct {
		spec fields
		says map[string]string
	}{
		"an image at home":          {atHome, map[string]string{"machinist": readsHome, "author": "", "reader": "", "maker": "", "robot": ""}},
		"an image at home, in full": {atHomeSaid, map[string]string{"machinist": readsHome, "author": "", "reader": "", "maker": "", "robot": ""}},
		"an empty namespace": {
			fields{"vmDiskImageRef": map[string]any{"name": "demo-vmdi", "namespace": ""}},
			map[string]string{"machinist": readsHome, "author": ""},
		},
		"an image of the farm": {inFarm, map[string]string{
			"machinist": readsFarm, "author": readsFarm, "reader": "", "maker": "", "robot": readsFarm, "homemaker": readsFarm, "of-one": "", "only-maker": readsFarm, "admin": "",
		}},
		"another one of the farm": {otherOne, map[string]string{"reader": "", "of-one": "VMDiskImage vmdi-farm/another, " + mayNotRead + farm}},
		"a template at home": {together(atHome, templated), map[string]string{
			"machinist": readsHome, "author": makesHome, "reader": makesHome, "maker": makesHome, "homemaker": "", "robot": makesHome,
		}},
		"a template to the farm": {together(inFarm, templated), map[string]string{
			"machinist": readsFarm, "author": readsFarm, "reader": makesFarm, "maker": "", "homemaker": readsFarm, "of-one": "", "only-maker": readsFarm, "robot": readsFarm, "admin": "",
		}},
		"a template that is not used": {together(inFarm, templated, fields{"imageMode": "FailIfNotExist"}), map[string]string{"reader": makesFarm, "maker": ""}},
		"an overlay":                  {together(atHome, overlaid), map[string]string{"author": mayNotOverlay, "maker": mayNotOverlay, "overlayer": "", "admin": ""}},
		"an empty overlay":            {together(atHome, fields{"overlay": map[string]any{}}), map[string]string{"author": mayNotOverlay, "overlayer": ""}},
		"an overlay and the farm":     {together(inFarm, overlaid), map[string]string{"reader": mayNotOverlay, "overlayer": readsFarm}},
		"a password in a Secret":      {together(atHome, password), map[string]string{"author": mayNotTell, "secretary": "", "overlayer": "", "admin": ""}},
		"user data in a Secret":       {together(atHome, userData), map[string]string{"author": mayNotTell, "secretary": "", "overlayer": ""}},
		"a network of the farm":       {together(atHome, netOfFarm), map[string]string{"author": mayNotJoin, "secretary": mayNotJoin, "overlayer": ""}},
		"networks at home":            {together(atHome, netAtHome), map[string]string{"author": ""}},
	} {
		for user, says := range test.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				c := person(t, user)
				judge(t, c.Create(t.Context(), simple(t, test.spec), client.DryRunAll), user, says)

				generated := simple(t, test.spec)
				generated.SetName("")
				generated.SetGenerateName("vm-")
				judge(t, c.Create(t.Context(), generated, client.DryRunAll), user, says)

				applied := simple(t, test.spec)
				for _, options := range [][]client.ApplyOption{{appliedBy, client.DryRunAll}, {appliedBy}} {
					judge(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied.DeepCopy()), options...), user, says)
				}
				if says == "" {
					require.NoError(t, c.Delete(t.Context(), applied))
				}
			})
		}
	}
}

// existing is a machine that somebody with every right has made, by the field
// owner that others apply by: what they leave out is then removed.
func existing(t *testing.T, changes fields) *unstructured.Unstructured {
	t.Helper()
	object := simple(t, changes)
	require.NoError(t, server.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()), appliedBy))
	require.NoError(t, server.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(server.Delete(context.Background(), object)))
	})
	return object
}

func TestMachinesNeedTheRightsOfWhoChangesThem(t *testing.T) {
	enforced(t)
	everything := together(inFarm, templated, overlaid, password, netOfFarm)
	for name, test := range map[string]struct {
		before, after fields
		says          map[string]string
	}{
		"to the farm":                    {atHome, inFarm, map[string]string{"author": readsFarm, "robot": readsFarm, "reader": "", "maker": ""}},
		"away from the farm":             {inFarm, atHome, map[string]string{"author": "", "reader": "", "machinist": readsHome}},
		"to another image":               {inFarm, otherOne, map[string]string{"author": "vmdi-farm/another, " + mayNotRead + farm, "reader": ""}},
		"a template is added":            {inFarm, templated, map[string]string{"author": readsFarm, "reader": makesFarm, "maker": "", "homemaker": readsFarm}},
		"a template is changed":          {together(inFarm, templated), fields{"vmDiskImageTemplate.url": "https://evil.example.com/a"}, map[string]string{"reader": makesFarm, "maker": ""}},
		"a template is removed":          {together(inFarm, templated), fields{"vmDiskImageTemplate": nil}, map[string]string{"reader": ""}},
		"a template moves":               {together(atHome, templated), inFarm, map[string]string{"reader": makesFarm, "homemaker": readsFarm, "maker": ""}},
		"the mode":                       {together(inFarm, templated, fields{"imageMode": "FailIfNotExist"}), fields{"imageMode": "CreateIfNotExist"}, map[string]string{"reader": makesFarm, "maker": ""}},
		"a user on a machine of a farm":  {inFarm, fields{"users": list(map[string]any{"name": "me"})}, map[string]string{"author": readsFarm, "reader": ""}},
		"deployed at last":               {inFarm, fields{"ignoreOnDeploy": false}, map[string]string{"author": readsFarm, "reader": ""}},
		"an overlay is added":            {atHome, overlaid, map[string]string{"author": mayNotOverlay, "overlayer": ""}},
		"an overlay is changed":          {together(atHome, overlaid), fields{"overlay.template": map[string]any{}}, map[string]string{"author": mayNotOverlay, "overlayer": ""}},
		"an overlay is removed":          {together(atHome, overlaid), fields{"overlay": nil}, map[string]string{"author": ""}},
		"beside an overlay":              {together(atHome, overlaid), fields{"runStrategy": "Halted"}, map[string]string{"author": mayNotOverlay, "overlayer": ""}},
		"a Secret is added":              {atHome, password, map[string]string{"author": mayNotTell, "secretary": ""}},
		"a network is added":             {atHome, netOfFarm, map[string]string{"author": mayNotJoin, "overlayer": ""}},
		"the letter of the namespace":    {atHome, atHomeSaid, map[string]string{"author": "", "machinist": readsHome}},
		"nothing":                        {everything, nil, map[string]string{"machinist": "", "author": ""}},
		"large user data, and nothing":   {together(everything, fields{"cloudInit": map[string]any{"userData": strings.Repeat("#", 500<<10)}}), nil, map[string]string{"author": ""}},
		"large user data, and the image": {together(atHome, fields{"cloudInit": map[string]any{"userData": strings.Repeat("#", 500<<10)}}), inFarm, map[string]string{"author": readsFarm, "reader": ""}},
	} {
		for user, says := range test.says {
			t.Run(name+"/"+user, func(t *testing.T) {
				before := existing(t, test.before)
				after := before.DeepCopy()
				set(t, after, test.after)
				// Nothing stands for a write of metadata only.
				after.SetLabels(map[string]string{"a": "b"})
				after.SetAnnotations(map[string]string{"pelotech.ot/retry": "1"})
				after.SetFinalizers([]string{"example.com/keep"})
				c := person(t, user)

				judge(t, c.Update(t.Context(), after.DeepCopy(), client.DryRunAll), user, says)
				for _, kind := range []types.PatchType{types.MergePatchType, types.JSONPatchType} {
					judge(t, c.Patch(t.Context(), after.DeepCopy(), patch(t, kind, before, after), client.DryRunAll), user, says)
				}
				applied := after.DeepCopy()
				applied.SetManagedFields(nil)
				applied.SetResourceVersion("")
				judge(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), appliedBy, client.ForceOwnership, client.DryRunAll), user, says)

				after.SetFinalizers(nil)
				judge(t, c.Update(t.Context(), after), user, says)
			})
		}
	}
}

func patch(t *testing.T, kind types.PatchType, before, after *unstructured.Unstructured) client.Patch {
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

func TestMachinesAreDeletedByWhoeverMay(t *testing.T) {
	enforced(t)
	object := existing(t, together(inFarm, templated, overlaid))
	object.SetFinalizers([]string{"example.com/keep"})
	require.NoError(t, server.Update(t.Context(), object))
	c := person(t, "author")
	require.NoError(t, c.Delete(t.Context(), object))
	require.NoError(t, c.Patch(t.Context(), object, mergePatch(`{"metadata":{"finalizers":null}}`)))
	require.True(t, apierrors.IsNotFound(server.Get(t.Context(), client.ObjectKeyFromObject(object), object)))
}

func TestStatusOfAMachineClonesNothing(t *testing.T) {
	enforced(t)
	pin := func(namespace, claim string) client.Patch {
		return mergePatch(`{"status":{"pinned":{"namespace":"` + namespace + `","name":"demo-vmdi","uid":"1","revision":"r","attempt":1,"persistentVolumeClaim":"` + claim + `"}}}`)
	}
	const says = "status.pinned has the agent clone from namespace vmdi-farm, which user %USER may not: that needs verb create on datavolumes.cdi.kubevirt.io/source there"
	write := func(user string, object *unstructured.Unstructured, change client.Patch) error {
		return person(t, user).Status().Patch(t.Context(), object.DeepCopy(), change)
	}
	object := existing(t, inFarm)
	// Image and status may be read and written: that is not to clone a claim.
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		assert.ErrorContains(check, write("forger", object, pin(farm, "secret")), "may not")
	}, policyDelay, 20*time.Millisecond)
	judge(t, write("forger", object, pin(farm, "secret")), "forger", says)
	judge(t, write("forger", object, mergePatch(`{"status":{"phase":"Provisioning"}}`)), "forger", "")
	judge(t, write("author", object, pin(workspace, "mine")), "author", `User "author" cannot patch resource "virtualmachines/status"`)

	judge(t, write("cloner", object, pin(farm, "claim")), "cloner", "")
	judge(t, write("forger", object, mergePatch(`{"status":{"phase":"Ready"}}`)), "forger", "")
	judge(t, write("forger", object, pin(farm, "secret")), "forger", says)
	judge(t, write("cloner", object, pin("kube-system", "claim")), "cloner", "status.pinned has the agent clone from namespace kube-system")

	judge(t, write("forger", object, mergePatch(`{"spec":{"vmDiskImageRef":{"name":"stolen"}},"status":{"phase":"Ready"}}`)), "forger", "")
	require.NoError(t, server.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	name, _, err := unstructured.NestedString(object.Object, "spec", "vmDiskImageRef", "name")
	require.NoError(t, err)
	assert.Equal(t, "demo-vmdi", name, "a write of the status moves no spec")
}

func TestPasswordsInClearDrawAWarning(t *testing.T) {
	enforced(t)
	const says = "Validation failed for ValidatingAdmissionPolicy 'ot-agent-virtualmachine-passwords' with binding 'ot-agent-virtualmachine-passwords': " +
		"plain_text_passwd of demo user, second can be read by everybody who can read this VirtualMachine: put the password into a Secret and name it in passwordSecretRef"
	inClear := fields{"users": list(
		map[string]any{"name": "demo user", "plain_text_passwd": "demo-pwd"}, map[string]any{"name": "third"}, map[string]any{"name": "second", "plain_text_passwd": "x"})}
	for _, user := range []string{"author", "admin"} {
		t.Run(user, func(t *testing.T) {
			c, heard := personWithWarnings(t, user)
			require.EventuallyWithT(t, func(check *assert.CollectT) {
				require.NoError(check, c.Create(t.Context(), simple(t, together(atHome, inClear)), client.DryRunAll))
				assert.Contains(check, heard.take(), says)
			}, policyDelay, 20*time.Millisecond)

			require.NoError(t, c.Create(t.Context(), simple(t, atHome), client.DryRunAll))
			empty := fields{"users": list(map[string]any{"name": "demo", "plain_text_passwd": ""})}
			require.NoError(t, c.Create(t.Context(), simple(t, together(atHome, empty)), client.DryRunAll))
			assert.Empty(t, heard.take(), "without a password")

			object := existing(t, together(atHome, inClear))
			require.NoError(t, c.Patch(t.Context(), object.DeepCopy(), mergePatch(`{"metadata":{"labels":{"a":"b"}}}`)))
			assert.Empty(t, heard.take(), "controllers write metadata")
			require.NoError(t, c.Patch(t.Context(), object.DeepCopy(), mergePatch(`{"spec":{"runStrategy":"Halted"}}`)))
			assert.Equal(t, []string{says}, heard.take())
		})
	}
}
