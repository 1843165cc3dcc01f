//go:build linux

package agent

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	eventsv1 "k8s.io/api/events/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// serveNotFound answers every request with 404 and a reason phrase, as net/http's server
// cannot, and returns its URL.
func serveNotFound(t *testing.T, phrase string) string {
	t.Helper()
	answer := []byte("HTTP/1.1 404 " + phrase + "\r\nConnection: close\r\n\r\n")
	return "http://127.0.0.1:" + startRawSource(t, func(c net.Conn) { _, _ = c.Write(answer) })
}

// resetPeakMemory makes the kernel forget the agent's peak of resident memory.
func resetPeakMemory(t *testing.T) {
	t.Helper()
	require.NoError(t, env.Agent.ResetPeakMemory())
}

// peakMemory returns the agent's peak of resident memory since then, in MiB.
func peakMemory(t *testing.T) float64 {
	t.Helper()
	bytes, err := env.Agent.PeakMemory()
	require.NoError(t, err)
	return float64(bytes) / (1 << 20)
}

// syncMissingImages creates 20 images of a source and waits until the agent has its answers.
func syncMissingImages(t *testing.T, source string, answered func(*v1alpha1.VMDiskImage) bool) {
	t.Helper()
	ns := env.CreateHomeNamespace(t)
	var images []*v1alpha1.VMDiskImage
	for i := range 20 {
		img := env.NewImage(ns, fmt.Sprintf("missing-%d", i), "")
		img.Spec.URL = fmt.Sprintf("%s/%d", source, i)
		images = append(images, img)
		env.Create(t, img)
	}
	for _, img := range images {
		env.AwaitImage(t, img, answered)
	}
}

// TestSourceCannotFillTheAgent compares with a source that answers alike in few words.
func TestSourceCannotFillTheAgent(t *testing.T) {
	testenv.RunInTurn(t, 33)
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "0"))
	resetPeakMemory(t)
	syncMissingImages(t, serveNotFound(t, "Not Found"), testenv.HasReason(v1alpha1.ReasonNotFound))
	undisturbed := peakMemory(t)
	resetPeakMemory(t)
	// An answer over the limit counts as none: the importer has to find out.
	syncMissingImages(t, serveNotFound(t, strings.Repeat("x", 9<<20)), func(img *v1alpha1.VMDiskImage) bool {
		return img.Status.Reason == v1alpha1.ReasonPaused || img.Status.Phase == v1alpha1.PhaseFailed
	})
	disturbed := peakMemory(t)
	t.Logf("peak of resident memory: %.0f MiB, with phrases of 9 MiB %.0f MiB", undisturbed, disturbed)
	assert.Less(t, disturbed, undisturbed+32, "20 answers of at most 16 KiB")
}

// TestLongURLGetsStatus is about an honest user.
func TestLongURLGetsStatus(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy())
	img := env.NewImage(env.CreateHomeNamespace(t), "long", "/gone/"+strings.Repeat("a", 1100)+"#part")
	env.Create(t, img)
	got := env.AwaitFailed(t, img, v1alpha1.ReasonNotFound)
	assert.Contains(t, got.Status.Message, "404 Not Found")
	assert.Contains(t, got.Status.Message, "Correct spec.url")
	assert.NotContains(t, fmt.Sprintf("%+v", got.Status), "#part")
	assert.Contains(t, got.Status.Revisions[0].Source, "/gone/aaa")
}

// TestSignedURLShowsInSpecOnly has an admission policy quote the URL of each refused import. It
// accepts the dry run, which has no labels.
func TestSignedURLShowsInSpecOnly(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("retryLimit", "0"))
	ns := env.CreateHomeNamespace(t)
	refuseImports(t, ns, admissionv1.Validation{
		Expression:        "!has(object.spec.source.http) || !has(object.metadata.labels)",
		MessageExpression: "'Get \"' + object.spec.source.http.url + '\": refused'",
	})
	const secret = "S3CR3T"
	probe := newBlankDataVolume(ns)
	probe.Labels = map[string]string{"probe": ""}
	probe.Spec.Source = &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://h/?probe"}}
	require.True(t, testenv.AwaitCondition(t, func() bool { return isRejectedWith(t, probe, "https://h/?probe") }))
	img := env.NewImage(ns, "signed", "/ok/0s/a?X-Amz-Signature="+secret)
	env.Create(t, img)
	got := env.AwaitFailed(t, img, v1alpha1.ReasonDataVolumeRefused)
	assert.Contains(t, got.Status.Message, `/ok/0s/a?…": refused`)
	require.Contains(t, got.Spec.URL, secret)

	shown := fmt.Sprintf("%+v %+v", got.Status, env.Ledger(t).Status)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		reported := env.ReadReportedImage(t, img)
		shown += fmt.Sprintf("%+v", reported)
		return reported.Phase == v1alpha1.PhaseFailed
	}))
	var events eventsv1.EventList
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, env.Client().List(t.Context(), &events, client.InNamespace(ns)))
		return strings.Contains(fmt.Sprintf("%+v", events.Items), "refused")
	}))
	metrics, err := env.Agent.ReadMetrics(t.Context())
	require.NoError(t, err)
	log, err := os.ReadFile(env.Agent.LogFile())
	require.NoError(t, err)
	for name, text := range map[string]string{"objects": shown, "events": fmt.Sprintf("%+v", events.Items), "metrics": metrics, "log": string(log)} {
		assert.NotContains(t, text, secret, name)
	}
}
