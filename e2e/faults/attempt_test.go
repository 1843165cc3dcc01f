//go:build linux

package faults

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// TestFailures wants every way to fail told apart, ended after as many
// DataVolumes as can help, and nothing left of any.
func TestFailures(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "10", "stallTimeout", "2m"))
	history := observed(t)
	ns := home(t)
	type failure struct {
		path         string
		wantReason   v1alpha1.Reason
		wantAttempts int
		wantText     string
	}
	failures := []failure{
		{"notfound", v1alpha1.ReasonNotFound, 1, "Correct spec.url"},
		{"checksum", v1alpha1.ReasonChecksumMismatch, 1, "Correct spec.checksum"},
		{"toosmall", v1alpha1.ReasonDiskTooSmall, 1, "Enlarge spec.diskSize"},
		{"forbidden", v1alpha1.ReasonForbidden, 2, "credentials"},
		{"servererror", v1alpha1.ReasonImportFailed, 2, "500"},
		{"cut", v1alpha1.ReasonImportFailed, 2, "unexpected EOF"},
		{"crashloop", v1alpha1.ReasonImportFailed, 2, "exit code 2"},
		{"oom", v1alpha1.ReasonImportFailed, 2, "OOMKilled"},
		{"hang", v1alpha1.ReasonStalled, 2, "nothing moved for stallTimeout"},
	}
	images := map[string]*v1alpha1.VMDiskImage{}
	for _, f := range failures {
		images[f.path] = place.Image(ns, f.path, "/"+f.path+"/100ms/a")
		place.Create(t, images[f.path])
	}
	for _, f := range failures {
		t.Run(f.path, func(t *testing.T) {
			if f.wantReason == v1alpha1.ReasonStalled { // the last: on a busy machine the others take longer than that
				place.SetPolicy(t, policy("concurrency", "10", "stallTimeout", "3s"))
			}
			got := failed(t, images[f.path], f.wantReason)
			assert.Contains(t, got.Status.Message, f.wantText)
			assert.EqualValues(t, f.wantAttempts, got.Status.Attempts)
			place.WantEvent(t, images[f.path], string(f.wantReason), "attempt")
		})
	}
	wantNothingStored(t, ns)
	require.True(t, scene.Await(t, func() bool { return len(place.Ledger(t).Status.Slots) == 0 }))
	h := history()
	for _, f := range failures {
		assert.Equal(t, f.wantAttempts, h.Attempts(images[f.path].UID), f.path)
	}
}

// TestAttemptTimeout: without a backoff, the image waits for its next slot already
// while that of its last attempt is being freed, and nothing happens after that.
func TestAttemptTimeout(t *testing.T) {
	place.SetPolicy(t, policy("attemptTimeout", "10s", "retryBackoffDuration", "0s", "maxRetryBackoff", "0s"))
	history := observed(t)
	img := place.Image(home(t), "image", "/hang/a")
	place.Create(t, img)
	got := failed(t, img, v1alpha1.ReasonTimeout)
	assert.Contains(t, got.Status.Message, "not done within attemptTimeout, 10s")
	assert.Equal(t, 2, history().Attempts(img.UID))
}

// TestStartedOver wants a person's word to count anew.
func TestStartedOver(t *testing.T) {
	t.Run("by annotation", func(t *testing.T) {
		place.SetPolicy(t, policy("retryLimit", "0"))
		history := observed(t)
		img := place.Image(home(t), "image", "/flaky/2/100ms/a")
		place.Create(t, img)
		failed(t, img, v1alpha1.ReasonImportFailed)
		place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "once"} })
		place.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Phase == v1alpha1.PhaseFailed && img.Status.LastAttempt == 2
		})
		place.Change(t, img, func() { img.Annotations[v1alpha1.AnnotationRetry] = "twice" })
		succeeded(t, img)
		assert.Equal(t, 3, history().Attempts(img.UID))
	})
	t.Run("by annotation while it backs off", func(t *testing.T) {
		place.SetPolicy(t, policy("retryBackoffDuration", "1h"))
		history := observed(t)
		img := place.Image(home(t), "image", "/flaky/1/100ms/a")
		place.Create(t, img)
		place.Eventually(t, img, scene.Because(v1alpha1.ReasonBackingOff))
		place.Change(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "now"} })
		succeeded(t, img)
		assert.Equal(t, 2, history().Attempts(img.UID))
	})
	t.Run("by an edit", func(t *testing.T) {
		place.SetPolicy(t, policy("retryLimit", "0"))
		history := observed(t)
		img := place.Image(home(t), "image", "/notfound/100ms/a")
		place.Create(t, img)
		failed(t, img, v1alpha1.ReasonNotFound)
		place.Change(t, img, func() { img.Spec.URL = place.Source.URL + "/ok/100ms/a" })
		succeeded(t, img)
		assert.Equal(t, 2, history().Attempts(img.UID))
	})
	t.Run("by an edit that makes no revision", func(t *testing.T) {
		place.SetPolicy(t, policy("retryLimit", "0"))
		history := observed(t)
		img := place.Image(home(t), "image", "/flaky/1/100ms/a")
		place.Create(t, img)
		failed(t, img, v1alpha1.ReasonImportFailed)
		place.Change(t, img, func() { img.Spec.Priority = 1 })
		succeeded(t, img)
		assert.Equal(t, 2, history().Attempts(img.UID))
	})
}

// TestBackingOff wants a retry to be passed while it waits.
func TestBackingOff(t *testing.T) {
	place.SetPolicy(t, policy("concurrency", "1", "retryBackoffDuration", "45s"))
	history := observed(t)
	ns := home(t)
	fails, passes := place.Image(ns, "fails", "/flaky/1/100ms/a"), place.Image(ns, "passes", "/ok/100ms/a")
	place.Create(t, fails, passes)
	place.Eventually(t, fails, scene.Because(v1alpha1.ReasonBackingOff))
	succeeded(t, passes)
	succeeded(t, fails)
	var names []string
	for _, s := range history().Starts() {
		names = append(names, s.Name)
	}
	assert.Equal(t, []string{"fails", "passes", "fails"}, names)
}
