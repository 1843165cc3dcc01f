//go:build linux

package chart_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestAgentUpdatesOnlyWhatItCreated plays the agent with the rights of its ClusterRole.
func TestAgentUpdatesOnlyWhatItCreated(t *testing.T) {
	agent := clientFor(t, "ot-agent")
	for kind, apiVersion := range map[string]string{"Secret": "v1", "VirtualMachine": "kubevirt.io/v1"} {
		object := func(name, machineUID string) *unstructured.Unstructured {
			made := &unstructured.Unstructured{}
			made.SetAPIVersion(apiVersion)
			made.SetKind(kind)
			made.SetNamespace(imageNamespace)
			made.SetName(name)
			if machineUID != "" {
				made.SetLabels(map[string]string{v1alpha1.LabelMachineUID: machineUID})
			}
			return made
		}
		apply := func(c client.Client, object *unstructured.Unstructured) error {
			return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("ot-agent"), client.ForceOwnership)
		}
		denies := func(name string) func(require.TestingT, error) {
			return func(t require.TestingT, err error) {
				require.ErrorContains(t, err, "denied request: "+kind+" images/"+name+" was not made for a VirtualMachine of pelotech.ot (it has no label pelotech.ot/machine-uid), "+
					"and the agent writes to no other: rename or delete it, or give the machine another name")
				assert.True(t, apierrors.IsForbidden(err), "%v", err)
			}
		}

		t.Run(kind, func(t *testing.T) {
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				denies("new")(c, agent.Create(t.Context(), object("new", ""), client.DryRunAll))
			}, policyPropagationTimeout, 20*time.Millisecond)
			denies("new")(t, apply(agent, object("new", "")))

			awaitCreated(t, object("theirs", ""))
			denies("theirs")(t, apply(agent, object("theirs", "uid-1")))
			denies("theirs")(t, agent.Patch(t.Context(), object("theirs", ""), newMergePatch(`{"metadata":{"annotations":{"a":"b"}}}`)))

			require.NoError(t, apply(agent, object("ours", "uid-1")))
			require.NoError(t, apply(agent, object("ours", "uid-2")), "that of a former machine of the same name")
			denies("ours")(t, agent.Patch(t.Context(), object("ours", ""), newMergePatch(`{"metadata":{"labels":null}}`)))
			require.NoError(t, adminClient.Patch(t.Context(), object("ours", ""), newMergePatch(`{"metadata":{"labels":null}}`)), "others are not concerned")
			denies("ours")(t, apply(agent, object("ours", "uid-2")))
			require.NoError(t, adminClient.Delete(t.Context(), object("ours", "")))
		})
	}
}

// TestAgentDeletesOnlyWhatItCreated plays the agent with the rights of its ClusterRole.
func TestAgentDeletesOnlyWhatItCreated(t *testing.T) {
	agent := clientFor(t, "ot-agent")
	createLedger(t, 1, "of-an-image")
	claim := map[string]any{"accessModes": []any{"ReadWriteOnce"}, "resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}}}
	for kind, test := range map[string]struct {
		apiVersion    string
		spec          map[string]any
		wantOfMachine bool
		wantLacks     string
	}{
		"PersistentVolumeClaim": {"v1", claim, false, "pelotech.ot/image-uid"},
		"DataVolume":            {"cdi.kubevirt.io/v1beta1", map[string]any{}, true, "pelotech.ot/image-uid or pelotech.ot/machine-uid"},
		"VolumeSnapshot":        {"snapshot.storage.k8s.io/v1", map[string]any{}, false, "pelotech.ot/image-uid"},
	} {
		there := func(t *testing.T, name string, labels map[string]string) *unstructured.Unstructured {
			object := &unstructured.Unstructured{Object: map[string]any{"spec": test.spec}}
			object.SetAPIVersion(test.apiVersion)
			object.SetKind(kind)
			object.SetNamespace(imageNamespace)
			object.SetName(name)
			object.SetLabels(labels)
			awaitCreated(t, object)
			// No controller is here that lets go of claims.
			require.NoError(t, adminClient.Patch(t.Context(), object, newMergePatch(`{"metadata":{"finalizers":null}}`)))
			return object
		}
		denied := func(t require.TestingT, object *unstructured.Unstructured, err error) {
			require.ErrorContains(t, err, "denied request: "+kind+" images/"+object.GetName()+" was not made by the agent (it has no label "+test.wantLacks+"), "+
				"and the agent deletes no other: if it is to go, delete it with an account of your own")
			assert.True(t, apierrors.IsForbidden(err), "%v", err)
		}

		t.Run(kind, func(t *testing.T) {
			theirs := there(t, "theirs", map[string]string{"app": "database"})
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				denied(c, theirs, agent.Delete(t.Context(), theirs, client.DryRunAll))
			}, policyPropagationTimeout, 20*time.Millisecond)
			bare := there(t, "bare", nil)
			denied(t, bare, agent.Delete(t.Context(), bare, client.PropagationPolicy(metav1.DeletePropagationForeground)))
			require.NoError(t, adminClient.Delete(t.Context(), theirs), "others are not concerned")

			ofImage := there(t, "of-an-image", map[string]string{v1alpha1.LabelImageUID: "uid-1"})
			require.NoError(t, agent.Delete(t.Context(), ofImage, client.Preconditions{UID: ptr.To(ofImage.GetUID())}))
			ofMachine := there(t, "of-a-machine", map[string]string{v1alpha1.LabelMachineUID: "uid-1"})
			err := agent.Delete(t.Context(), ofMachine)
			if test.wantOfMachine {
				require.NoError(t, err)
			} else {
				denied(t, ofMachine, err)
			}
		})
	}
}
