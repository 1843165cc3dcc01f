//go:build linux

package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func newSecret(namespace, name, key, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: map[string]string{key: value}}
}

// awaitImporter returns the importer Pod of an image.
func awaitImporter(t *testing.T, img *v1alpha1.VMDiskImage) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	require.True(t, testenv.AwaitCondition(t, func() bool {
		err := env.Client().List(t.Context(), &pods, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)})
		return err == nil && len(pods.Items) > 0
	}))
	return &pods.Items[0]
}

func envOf(c *corev1.Container) map[string]string {
	values := map[string]string{}
	for _, e := range c.Env {
		values[e.Name] = e.Value
	}
	return values
}

func secretsOf(pod *corev1.Pod) (names []string) {
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil {
			names = append(names, v.Secret.SecretName)
		}
	}
	return names
}

// TestSourcesReachTheImporter wants CDI's webhook to accept what the CRD accepts, and CDI's
// controller to make an importer of it. The imports outlast the test, which looks at one after another.
func TestSourcesReachTheImporter(t *testing.T) {
	env.SetPolicy(t, testenv.NewPolicy("concurrency", "3", "retryLimit", "0"))
	ns := env.CreateHomeNamespace(t)
	env.AllowSecrets(t, ns)
	env.Create(t, newSecret(ns, "token", "any", "Authorization: Bearer s3cr3t"), newSecret(ns, "google", "credentials.json", "{}"))

	headers := env.NewImage(ns, "headers", "/tenant/1h/a")
	headers.Spec.ExtraHeaders, headers.Spec.SecretExtraHeaders = []string{"X-Tenant: blue", "X-Site: bergen"}, []string{"token"}
	gcs := env.NewImage(ns, "gcs", "")
	gcs.Spec.SourceType, gcs.Spec.URL, gcs.Spec.SecretRef = v1alpha1.SourceGCS, "gs://bucket/ok/1h/a", "google"
	node := env.NewImage(ns, "node", "")
	node.Spec.SourceType, node.Spec.URL, node.Spec.PullMethod = v1alpha1.SourceRegistry, "docker://registry.example.com/disks/1h/ubuntu:22.04", v1alpha1.PullNode
	env.Create(t, headers, gcs, node)

	pod := awaitImporter(t, headers)
	sent := map[string]bool{}
	for name, value := range envOf(&pod.Spec.Containers[0]) {
		if strings.HasPrefix(name, "IMPORTER_EXTRA_HEADER_") {
			sent[value] = true
		}
	}
	assert.Equal(t, map[string]bool{"X-Tenant: blue": true, "X-Site: bergen": true}, sent)
	assert.Contains(t, secretsOf(pod), "token")
	assert.Equal(t, 1, env.HeadRequests("/tenant/1h/a"))

	pod = awaitImporter(t, gcs)
	values := envOf(&pod.Spec.Containers[0])
	assert.Equal(t, "gcs", values["IMPORTER_SOURCE"])
	assert.Equal(t, gcs.Spec.URL, values["IMPORTER_ENDPOINT"])
	assert.Contains(t, secretsOf(pod), "google")

	pod = awaitImporter(t, node)
	require.Len(t, pod.Spec.Containers, 2)
	assert.Equal(t, "server", pod.Spec.Containers[1].Name)
	assert.Equal(t, "registry.example.com/disks/1h/ubuntu:22.04", pod.Spec.Containers[1].Image)
	assert.Equal(t, "node", envOf(&pod.Spec.Containers[0])["IMPORTER_PULL_METHOD"])

	stored := env.AwaitImage(t, headers, testenv.InPhase(v1alpha1.PhaseSyncing))
	status, err := json.Marshal(stored.Status)
	require.NoError(t, err)
	assert.NotContains(t, string(status), "bergen")
}

// TestHeadersAreCheckedBeforeAttempts wants a refused header to cost no attempt, and its
// correction to be taken up.
func TestHeadersAreCheckedBeforeAttempts(t *testing.T) {
	history := observeUnderPolicy(t, "retryLimit", "0")
	ns := env.CreateHomeNamespace(t)
	env.AllowSecrets(t, ns)
	env.Create(t, newSecret(ns, "broken", "any", "Authorization: Bearer s3cr3t\n"), newSecret(ns, "token", "any", "Authorization: Bearer s3cr3t"))
	img := env.NewImage(ns, "image", "/tenant/200ms/b")
	img.Spec.ExtraHeaders, img.Spec.SecretExtraHeaders = []string{"X-Tenant: violet"}, []string{"broken"}
	env.Create(t, img)
	got := env.AwaitImage(t, img, testenv.HasReason(v1alpha1.ReasonSecretInvalid))
	assert.Contains(t, got.Status.Message, "key any of Secret "+ns+"/broken of spec.secretExtraHeaders is no HTTP header")
	assert.NotContains(t, got.Status.Message, "s3cr3t")

	env.Update(t, img, func() { img.Spec.SecretExtraHeaders = []string{"token"} })
	got = env.AwaitImage(t, img, testenv.InPhase(v1alpha1.PhaseFailed))
	assert.Equal(t, v1alpha1.ReasonForbidden, got.Status.Reason)
	assert.Contains(t, got.Status.Message, "Check the headers in spec.extraHeaders")
	assert.NotContains(t, got.Status.Message, "violet")
	revision := got.Status.Revision

	env.Update(t, img, func() { img.Spec.ExtraHeaders = []string{"X-Tenant: blue"} })
	got = env.AwaitSucceeded(t, img)
	assert.Equal(t, revision, got.Status.Revision, "headers make no revision")
	assert.Equal(t, 1, history().Attempts(img.UID))
}
