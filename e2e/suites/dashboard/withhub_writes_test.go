//go:build linux

package dashboard_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/browser"
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

// deleteObject deletes an object of the hub.
func (f *realFleet) deleteObject(t *testing.T, o client.Object) {
	require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), o)))
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

// Two people open the same approval. The one who is first approves under their own name; the other
// is told so, and nothing is approved twice.
func TestApprovalOfTwoPeople(t *testing.T) {
	f := openHub(t)
	img := f.createWaiting(t, "approved")
	first, second := f.openSignedIn(t, anna, "/rollouts/approved"), f.openSignedIn(t, boris, "/rollouts/approved")
	for _, p := range []*browser.Page{first, second} {
		p.Click(t, "button", "Approve for production…")
		p.AwaitElement(t, "dialog", "Approve approved 1.0.0 for wave production")
	}
	first.Click(t, "button", "Approve")
	got := f.awaitImage(t, img, "approved", func(img *v1alpha1.FleetDiskImage) bool { return len(img.Spec.Approvals) == 1 })
	assert.Equal(t, anna, got.Spec.Approvals[0].By)
	assert.Equal(t, "production", got.Spec.Approvals[0].Wave)
	assert.Equal(t, "1.0.0", got.Spec.Approvals[0].Version)
	first.AwaitText(t, "approved approved 1.0.0 for wave production as "+anna)
	first.Click(t, "button", "Close")

	// What the other page shows has changed meanwhile, or the API server refuses the second approval.
	second.Announce("422 /k8s/", "409 /k8s/")
	if buttons := second.FindAll(t, "button", "Approve"); len(buttons) > 0 {
		second.ClickIfEnabled(t, buttons[0])
	}
	second.AwaitText(t, "is approved already, by "+anna)
	f.awaitImage(t, img, "rolled out", func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Phase == v1alpha1.RolloutSucceeded })
	got = f.awaitImage(t, img, "approved once", func(*v1alpha1.FleetDiskImage) bool { return true })
	assert.Len(t, got.Spec.Approvals, 1)
	// Both pages hear of the end by themselves.
	for _, p := range []*browser.Page{first, second} {
		p.AwaitTrue(t, "/Succeeded|Rolled out|Done/i.test(document.querySelector('main').innerText)")
	}
}

// A rollout is paused by clicks and resumed by the keyboard alone.
func TestPauseAndResume(t *testing.T) {
	f := openHub(t)
	img := f.createWaiting(t, "paused")
	p := f.openSignedIn(t, anna, "/rollouts/paused")
	p.Click(t, "button", "Pause…")
	p.Click(t, "button", "Pause")
	f.awaitImage(t, img, "paused", func(img *v1alpha1.FleetDiskImage) bool { return img.Spec.Rollout.Paused })
	p.AwaitText(t, "1 does not begin") // the dialog before has a button to close it, too
	p.Click(t, "button", "Close")

	p.FocusElement(t, "button", "Resume…")
	p.Press(t, kb.Enter)
	p.AwaitElement(t, "dialog", "Resume paused 1.0.0")
	p.AwaitTrue(t, enabled)
	for range 20 {
		if browser.Evaluate[string](t, p, "document.activeElement.innerText") == "Resume" {
			break
		}
		p.Press(t, kb.Tab)
	}
	p.Press(t, kb.Enter)
	f.awaitImage(t, img, "resumed", func(img *v1alpha1.FleetDiskImage) bool { return !img.Spec.Rollout.Paused })
}
