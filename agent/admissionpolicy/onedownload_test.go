package admissionpolicy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestOneDownloadCondition(t *testing.T) {
	for name, test := range map[string]struct {
		change     func(*OneDownloadState)
		wantReason string
		wantText   string
	}{
		"policies in force":          {func(*OneDownloadState) {}, "InForce", "CDI v1.65.0 does not restart a failed download"},
		"version without v":          {func(s *OneDownloadState) { s.ObservedVersion, s.TargetVersion = "1.65.3", "" }, "InForce", "1.65.3"},
		"policies not served":        {func(s *OneDownloadState) { *s = OneDownloadState{} }, "PoliciesNotServed", "from Kubernetes 1.36"},
		"binding missing":            {func(s *OneDownloadState) { s.MissingObjects = []string{"MutatingAdmissionPolicyBinding a"} }, "PoliciesMissing", "MutatingAdmissionPolicyBinding a not found"},
		"no CDI":                     {func(s *OneDownloadState) { s.CDIInstalled = false }, "CDIVersionUnknown", "CDI is not installed"},
		"CDI reports no version":     {func(s *OneDownloadState) { s.ObservedVersion = "" }, "CDIVersionUnknown", "CDI does not report its version"},
		"newer CDI":                  {func(s *OneDownloadState) { s.ObservedVersion, s.TargetVersion = "v1.66.0", "v1.66.0" }, "CDIVersionUnknown", "support CDI 1.65 and are inactive with v1.66.0"},
		"version with a like prefix": {func(s *OneDownloadState) { s.ObservedVersion = "v1.650.0" }, "CDIVersionUnknown", "v1.650.0"},
		"CDI upgrade in progress":    {func(s *OneDownloadState) { s.TargetVersion = "v1.66.0" }, "CDIVersionUnknown", "from v1.65.0 to v1.66.0"},
		"restartable importer":       {func(s *OneDownloadState) { s.RestartableImporter = "ns/importer" }, "NotApplied", "by an account other than system:serviceaccount:cdi:cdi-sa"},
	} {
		t.Run(name, func(t *testing.T) {
			state := OneDownloadState{
				PoliciesServed: true, CDIVersions: []string{"1.65"}, CDIAccount: "system:serviceaccount:cdi:cdi-sa",
				CDIInstalled: true, ObservedVersion: "v1.65.0", TargetVersion: "v1.65.0",
			}
			test.change(&state)
			c := OneDownloadCondition(state)
			want := metav1.ConditionFalse
			if test.wantReason == "InForce" {
				want = metav1.ConditionTrue
			}
			assert.Equal(t, v1alpha1.ConditionOneDownload, c.Type)
			assert.Equal(t, want, c.Status)
			assert.Equal(t, test.wantReason, c.Reason)
			assert.Contains(t, c.Message, test.wantText)
		})
	}
}
