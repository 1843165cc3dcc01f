//go:build linux

package rollout_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Members whose clocks are a day ahead and a day behind: nothing times out and
// nothing is waited for by them. An agent's clock cannot be set apart from the
// machine's, so these are stand-ins, on the hub's API server.
func TestRolloutWithClockSkew(t *testing.T) {
	t.Parallel()
	lights, err := fakemember.Start(t.Context(), shared.Plane, "clock", 2)
	require.NoError(t, err)
	t.Cleanup(lights.Stop)
	day := 24 * time.Hour
	var names []string
	for i, m := range lights.List {
		skew := day
		if i > 0 {
			skew = -day
		}
		m.SetClockSkew(skew)
		names = append(names, m.Name)
		shared.joinFake(t, m)
		testenv.AwaitMember(t, shared, m.Name, "healthy", func(m *v1alpha1.MemberCluster) bool {
			return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady)
		})
	}
	img := shared.newFleetImage("clocks", names...)
	setOneAtATime(img, newWave("ahead", labelSite, names[0]))
	img.Spec.Rollout.ProgressDeadline = &metav1.Duration{Duration: time.Hour}
	img.Spec.Rollout.MinSuccessTime = &metav1.Duration{Duration: time.Second}
	name := img.ImageNameForVersion("1")
	before := time.Now().Truncate(time.Second)
	shared.createFleetImage(t, img)
	for i, m := range lights.List {
		var planned *v1alpha1.PlannedImage
		require.True(t, testenv.Await(t, func() bool {
			planned = plannedImage(shared.getPlan(t, shared, m.Name), name)
			return planned != nil
		}), "%s is not told of the image", m.Name)
		require.NotNil(t, shared.findPlannedImage(t, m.Name, name).PlannedAt)
		assert.WithinRange(t, shared.findPlannedImage(t, m.Name, name).PlannedAt.Time, before, time.Now(), "by the hub's clock")
		report := v1alpha1.ReportedImage{
			Namespace: namespace, Name: name, UID: "1", Origin: v1alpha1.OriginPlan, Revision: planned.Spec.Revision(),
			Phase: v1alpha1.PhaseSyncing, Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemApplied},
		}
		require.NoError(t, m.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{report}))
		shared.awaitFleetImage(t, img, m.Name+" on its way", hasCounts(v1alpha1.ClusterCounts{Total: 2, Progressing: 1, Succeeded: int32(i), ToApply: int32(1 - i)}))
		report.Phase, report.ServingRevision = v1alpha1.PhaseSucceeded, report.Revision
		require.NoError(t, m.SetImages(t.Context(), "page", []v1alpha1.ReportedImage{report}))
	}
	done := shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}))
	for _, wave := range done.Status.Waves {
		require.NotNil(t, wave.DoneAt, wave.Name)
		assert.WithinRange(t, wave.DoneAt.Time, before, time.Now(), wave.Name)
	}
	assert.Equal(t, names, shared.journal.imageCourse(t, name).begun)
}

// joinFake makes a light member known to the hub, for as long as the test runs.
func (f *testFleet) joinFake(t *testing.T, m *fakemember.Member) {
	t.Helper()
	cfg, err := m.Config(t.Context())
	require.NoError(t, err)
	kubeconfig, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: m.Name}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	require.NoError(t, f.Create(t.Context(), secret))
	member := &v1alpha1.MemberCluster{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: map[string]string{labelSite: m.Name}},
		Spec: v1alpha1.MemberClusterSpec{
			Connection:     v1alpha1.MemberConnection{KubeconfigSecretRef: &v1alpha1.SecretKeyRef{Name: secret.Name}},
			AgentNamespace: m.Name,
		},
	}
	require.NoError(t, f.Create(t.Context(), member))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), member))) })
}
