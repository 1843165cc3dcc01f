//go:build linux

package dashboard_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

func startSite(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// createWaiting creates a FleetDiskImage whose wave production waits for approval, and removes it
// with its images when the test ends.
func (f *realFleet) createWaiting(t *testing.T, name string) *v1alpha1.FleetDiskImage {
	t.Helper()
	img := fleet.NewFleetImage(name, bergen, oslo)
	img.Spec.Version = "1.0.0"
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	img.Spec.Rollout.Waves = []v1alpha1.Wave{
		{Name: "canary", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": "canary"}}},
		{Name: "production", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"env": "production"}}, RequireApproval: true},
	}
	require.NoError(t, f.Create(t.Context(), img))
	t.Cleanup(func() {
		require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), img)))
		require.True(t, testenv.AwaitCondition(t, func() bool {
			return apierrors.IsNotFound(f.Get(context.Background(), keyOf(img), &v1alpha1.FleetDiskImage{}))
		}), "%s is still there", name)
	})
	f.awaitImage(t, img, "waits for approval", func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Reason == v1alpha1.ReasonAwaitingApproval })
	return img
}

// awaitImage reads a FleetDiskImage until it is as wanted.
func (f *realFleet) awaitImage(t *testing.T, img *v1alpha1.FleetDiskImage, wanted string, holds func(*v1alpha1.FleetDiskImage) bool) *v1alpha1.FleetDiskImage {
	t.Helper()
	got := &v1alpha1.FleetDiskImage{}
	if !testenv.AwaitCondition(t, func() bool {
		got = &v1alpha1.FleetDiskImage{}
		return f.Get(t.Context(), keyOf(img), got) == nil && holds(got)
	}) {
		require.Failf(t, img.Name+" is not as wanted: "+wanted, "%+v", got)
	}
	return got
}
