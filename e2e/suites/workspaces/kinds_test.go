//go:build linux

package workspaces

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestClusterWithoutKubeVirt has CDI, and then KubeVirt, installed under an agent
// that runs already: each step is made as soon as it can be.
func TestClusterWithoutKubeVirt(t *testing.T) {
	s, err := testenv.Start(context.Background(), member.Options{Name: "bare", WithoutCDI: true, APIServerMemory: member.APIServerMemoryWithKubeVirt})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Stop()) })
	require.NoError(t, s.StartAgent())
	t.Cleanup(s.Agent.Kill)
	s.SetPolicy(t, newPolicy())

	ns := s.CreateNamespace(t)
	img := s.NewSnapshottedImage(ns, "image", "/ok/100ms/a")
	vm, ignored := withImageTemplate(ns, "vm", img), withImageTemplate(ns, "ignored", img)
	ignored.Spec.IgnoreOnDeploy = true
	s.Create(t, vm, ignored)
	waits := s.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Reason == v1alpha1.ReasonCDIMissing
	})
	assert.Equal(t, v1alpha1.ReasonCDIMissing, waits.Status.Reason)
	assert.Contains(t, waits.Status.Message, "install CDI")

	require.NoError(t, s.InstallCDI(t.Context()))
	lacking := s.AwaitMachine(t, vm, func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Reason == v1alpha1.ReasonKubeVirtMissing && vm.Status.RootDisk != nil && vm.Status.RootDisk.Ready
	})
	assert.Equal(t, v1alpha1.MachineFailed, lacking.Status.Phase)
	assert.Contains(t, lacking.Status.Message, "install KubeVirt")
	acquired, message := testenv.IsConditionTrue(lacking, v1alpha1.ConditionImageAcquired)
	assert.True(t, acquired, message)
	s.AwaitMachine(t, ignored, testenv.MachineHasReason(v1alpha1.ReasonIgnoredOnDeploy))

	require.NoError(t, s.InstallKubeVirt(t.Context()))
	s.AwaitMachine(t, vm, testenv.MachineHasReason(v1alpha1.ReasonRunning))
}
