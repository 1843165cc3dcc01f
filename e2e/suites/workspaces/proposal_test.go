//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func TestProposalExample(t *testing.T) {
	env.CreateStorageClasses(t, "gp3", "ebs-snapshot")
	env.Create(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "vmdi-farm"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "vmdi-farm", Name: "foo-bar"}, StringData: map[string]string{"accessKeyId": "a", "secretKey": "s"}},
	)
	ns := env.CreateNamespace(t)
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(apitest.ProposedMachine), &object.Object))
	object.SetNamespace(ns)
	require.NoError(t, env.Client().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner("author")))
	vm := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "demo-workspace-1"}}

	ignored := env.AwaitMachine(t, vm, testenv.IsMachineReady)
	assert.Equal(t, v1alpha1.ReasonIgnoredOnDeploy, ignored.Status.Reason)
	assert.Equal(t, v1alpha1.PhaseSucceeded, ignored.Status.Image.Phase, "the image is made ready")

	env.Update(t, ignored, func() { ignored.Spec.IgnoreOnDeploy = false })
	lacking := env.AwaitMachine(t, vm, testenv.MachineHasReason(v1alpha1.ReasonNetworkMissing))
	assert.Contains(t, lacking.Status.Message, "NetworkAttachmentDefinition "+ns+"/control-net does not exist")
	env.CreateNetworks(t, ns, "control-net", "bridge-inet", "bridge-edge")
	ready := env.AwaitMachine(t, vm, testenv.IsMachineReady)
	assert.Equal(t, v1alpha1.ReasonRunning, ready.Status.Reason)
	adjusted, message := testenv.IsConditionTrue(ready, v1alpha1.ConditionSpecAdjusted)
	assert.True(t, adjusted)
	assert.Contains(t, message, "24Gi")
	assert.Contains(t, message, "demo-user")
	assert.Equal(t, "24Gi", ready.Status.RootDisk.Size.String())
	told, message := testenv.IsConditionTrue(ready, v1alpha1.ConditionPlainTextPassword)
	assert.True(t, told, message)
}
