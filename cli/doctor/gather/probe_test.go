package gather

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestProbeRunsWhereTheAgentDoes: a private registry, tainted nodes or another UID would otherwise make
// each probe one that did not run.
func TestProbeRunsWhereTheAgentDoes(t *testing.T) {
	alone := (&reader{}).newProbe("agent").Spec.Template.Spec
	assert.Empty(t, alone.ImagePullSecrets)
	assert.Equal(t, ptr.To[int64](65532), alone.SecurityContext.RunAsUser)
	agent := &corev1.PodSpec{
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}, NodeSelector: map[string]string{"infra": "true"},
		Tolerations: []corev1.Toleration{{Key: "infra"}}, SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)},
		ServiceAccountName: "ot-agent", Volumes: []corev1.Volume{{Name: "serving"}},
	}
	probe := (&reader{agentPod: agent}).newProbe("agent").Spec.Template.Spec
	assert.Equal(t, agent.ImagePullSecrets, probe.ImagePullSecrets)
	assert.Equal(t, agent.NodeSelector, probe.NodeSelector)
	assert.Equal(t, agent.Tolerations, probe.Tolerations)
	assert.Equal(t, agent.SecurityContext, probe.SecurityContext)
	assert.Empty(t, probe.ServiceAccountName, "it has no rights")
	assert.Empty(t, probe.Volumes)
}
