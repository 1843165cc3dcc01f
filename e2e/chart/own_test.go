//go:build linux

package chart_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestAgentWritesWhatItMadeOnly plays the agent with the rights of its ClusterRole.
func TestAgentWritesWhatItMadeOnly(t *testing.T) {
	agent := person(t, "ot-agent")
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
			}, policyDelay, 20*time.Millisecond)
			denies("new")(t, apply(agent, object("new", "")))

			eventuallyCreated(t, object("theirs", ""))
			denies("theirs")(t, apply(agent, object("theirs", "uid-1")))
			denies("theirs")(t, agent.Patch(t.Context(), object("theirs", ""), mergePatch(`{"metadata":{"annotations":{"a":"b"}}}`)))

			require.NoError(t, apply(agent, object("ours", "uid-1")))
			require.NoError(t, apply(agent, object("ours", "uid-2")), "that of a former machine of the same name")
			denies("ours")(t, agent.Patch(t.Context(), object("ours", ""), mergePatch(`{"metadata":{"labels":null}}`)))
			require.NoError(t, server.Patch(t.Context(), object("ours", ""), mergePatch(`{"metadata":{"labels":null}}`)), "others are not concerned")
			denies("ours")(t, apply(agent, object("ours", "uid-2")))
			require.NoError(t, server.Delete(t.Context(), object("ours", "")))
		})
	}
}
