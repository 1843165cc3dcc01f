package image_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestForbiddenSourceWithHeaders(t *testing.T) {
	for name, tt := range map[string]struct {
		img  *apitest.ImageBuilder
		want string
	}{
		"extraHeaders":       {apitest.Image("ns/a").WithExtraHeaders("X-Tenant: blue"), "Check the headers in spec.extraHeaders"},
		"secretExtraHeaders": {apitest.Image("ns/a").WithSecretExtraHeaders("token"), "the Secrets of spec.secretExtraHeaders"},
		"pullMethod":         {apitest.Image("ns/a").WithSource(v1alpha1.SourceRegistry, "docker://h/a").WithPullMethod(v1alpha1.PullNode), "spec.config.imagePullSecrets of CDI"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, tt.img, policyWithoutPreflight().RetryLimit(0))
			w.runFailingAttempt("expected status code 200, got 403. Status: 403 Forbidden")
			require.Equal(t, v1alpha1.PhaseFailed, w.status().Phase)
			assert.Contains(t, w.status().Message, tt.want)
		})
	}
}

// The log of CDI's importer, which becomes its message, has the command line of nbdkit. An
// attempt goes on with the headers that it started with.
func TestHeadersAreRedacted(t *testing.T) {
	const token = "s3cr3t.token-of-ours"
	for name, change := range map[string]func(*v1alpha1.VMDiskImageSpec){
		"as in the spec":    func(*v1alpha1.VMDiskImageSpec) {},
		"moved to a Secret": func(s *v1alpha1.VMDiskImageSpec) { s.ExtraHeaders, s.SecretExtraHeaders = nil, []string{"token"} },
		"removed":           func(s *v1alpha1.VMDiskImageSpec) { s.ExtraHeaders = nil },
		"renewed":           func(s *v1alpha1.VMDiskImageSpec) { s.ExtraHeaders = []string{"Authorization: Bearer another"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newQueuedSimulation(t, apitest.Image("ns/a").WithExtraHeaders("Authorization: Bearer "+token), policyWithoutPreflight())
			w.startExpectedImport(t)
			w.editSpec(change)
			w.failImport("nbdkit: curl: header=Authorization: Bearer " + token + " url=https://images.example.com/a.qcow2 " + strings.Repeat("x", 1000) + token)

			w.reconcile()

			require.Equal(t, v1alpha1.ReasonImportFailed, w.currentRevision().Failure.Reason)
			assert.Contains(t, w.currentRevision().Failure.Message, "header=Authorization: …")
			ended := w.lastDecision.EndedAttempts
			require.Len(t, ended, 1)
			for _, text := range []any{w.img.Status, ended[0].Failure} {
				stored, err := json.Marshal(text)
				require.NoError(t, err)
				assert.NotContains(t, string(stored), token[:8])
			}
		})
	}
}
