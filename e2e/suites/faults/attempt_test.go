//go:build linux

package faults

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestFailureReasons wants every way to fail told apart, ended after as many
// DataVolumes as can help, and nothing left of any.
func TestFailureReasons(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "10", "stallTimeout", "2m"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
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
		images[f.path] = testScene.NewImage(ns, f.path, "/"+f.path+"/100ms/a")
		testScene.Create(t, images[f.path])
	}
	for _, f := range failures {
		t.Run(f.path, func(t *testing.T) {
			if f.wantReason == v1alpha1.ReasonStalled { // the last: on a busy machine the others take longer than that
				testScene.SetPolicy(t, newPolicy("concurrency", "10", "stallTimeout", "3s"))
			}
			got := awaitFailed(t, images[f.path], f.wantReason)
			assert.Contains(t, got.Status.Message, f.wantText)
			assert.EqualValues(t, f.wantAttempts, got.Status.Attempts)
			testScene.AwaitEvent(t, images[f.path], string(f.wantReason), "attempt")
		})
	}
	awaitNothingStored(t, ns)
	require.True(t, testenv.Await(t, func() bool { return len(testScene.Ledger(t).Status.Slots) == 0 }))
	h := history()
	for _, f := range failures {
		assert.Equal(t, f.wantAttempts, h.Attempts(images[f.path].UID), f.path)
	}
}

// TestAttemptTimeout: without a backoff, the image waits for its next slot already
// while that of its last attempt is being freed, and nothing happens after that.
func TestAttemptTimeout(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("attemptTimeout", "10s", "retryBackoffDuration", "0s", "maxRetryBackoff", "0s"))
	history := observeTest(t)
	img := testScene.NewImage(createHomeNamespace(t), "image", "/hang/a")
	testScene.Create(t, img)
	got := awaitFailed(t, img, v1alpha1.ReasonTimeout)
	assert.Contains(t, got.Status.Message, "not done within attemptTimeout, 10s")
	assert.Equal(t, 2, history().Attempts(img.UID))
}

// TestRetryByAnnotationStartsOver wants a person's word to count anew.
func TestRetryByAnnotationStartsOver(t *testing.T) {
	t.Run("by annotation", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("retryLimit", "0"))
		history := observeTest(t)
		img := testScene.NewImage(createHomeNamespace(t), "image", "/flaky/2/100ms/a")
		testScene.Create(t, img)
		awaitFailed(t, img, v1alpha1.ReasonImportFailed)
		testScene.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "once"} })
		testScene.AwaitImage(t, img, func(img *v1alpha1.VMDiskImage) bool {
			return img.Status.Phase == v1alpha1.PhaseFailed && img.Status.LastAttempt == 2
		})
		testScene.Update(t, img, func() { img.Annotations[v1alpha1.AnnotationRetry] = "twice" })
		awaitSucceeded(t, img)
		assert.Equal(t, 3, history().Attempts(img.UID))
	})
	t.Run("by annotation while it backs off", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("retryBackoffDuration", "1h"))
		history := observeTest(t)
		img := testScene.NewImage(createHomeNamespace(t), "image", "/flaky/1/100ms/a")
		testScene.Create(t, img)
		testScene.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonBackingOff))
		testScene.Update(t, img, func() { img.Annotations = map[string]string{v1alpha1.AnnotationRetry: "now"} })
		awaitSucceeded(t, img)
		assert.Equal(t, 2, history().Attempts(img.UID))
	})
	t.Run("by an edit", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("retryLimit", "0"))
		history := observeTest(t)
		img := testScene.NewImage(createHomeNamespace(t), "image", "/notfound/100ms/a")
		testScene.Create(t, img)
		awaitFailed(t, img, v1alpha1.ReasonNotFound)
		testScene.Update(t, img, func() { img.Spec.URL = testScene.Source.URL + "/ok/100ms/a" })
		awaitSucceeded(t, img)
		assert.Equal(t, 2, history().Attempts(img.UID))
	})
	t.Run("by an edit that makes no revision", func(t *testing.T) {
		testScene.SetPolicy(t, newPolicy("retryLimit", "0"))
		history := observeTest(t)
		img := testScene.NewImage(createHomeNamespace(t), "image", "/flaky/1/100ms/a")
		testScene.Create(t, img)
		awaitFailed(t, img, v1alpha1.ReasonImportFailed)
		testScene.Update(t, img, func() { img.Spec.Priority = 1 })
		awaitSucceeded(t, img)
		assert.Equal(t, 2, history().Attempts(img.UID))
	})
}

// TestBackingOffImageIsPassed wants a retry to be passed while it waits.
func TestBackingOffImageIsPassed(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "1", "retryBackoffDuration", "45s"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
	fails, passes := testScene.NewImage(ns, "fails", "/flaky/1/100ms/a"), testScene.NewImage(ns, "passes", "/ok/100ms/a")
	testScene.Create(t, fails, passes)
	testScene.AwaitImage(t, fails, testenv.HasReason(v1alpha1.ReasonBackingOff))
	awaitSucceeded(t, passes)
	awaitSucceeded(t, fails)
	var names []string
	for _, s := range history().Creations() {
		names = append(names, s.Name)
	}
	assert.Equal(t, []string{"fails", "passes", "fails"}, names)
}
