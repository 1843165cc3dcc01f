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
		"all is there":                     {func(*OneDownloadState) {}, "InForce", "CDI v1.65.0 does not start a failed download over"},
		"CDI's version without its letter": {func(s *OneDownloadState) { s.ObservedVersion, s.TargetVersion = "1.65.3", "" }, "InForce", "1.65.3"},
		"the kinds are not served":         {func(s *OneDownloadState) { *s = OneDownloadState{} }, "PoliciesNotServed", "from Kubernetes 1.36 on"},
		"a binding is gone":                {func(s *OneDownloadState) { s.MissingObjects = []string{"MutatingAdmissionPolicyBinding a"} }, "PoliciesMissing", "MutatingAdmissionPolicyBinding a not found"},
		"no CDI":                           {func(s *OneDownloadState) { s.CDIInstalled = false }, "CDIVersionUnknown", "there is no CDI"},
		"CDI does not tell":                {func(s *OneDownloadState) { s.ObservedVersion = "" }, "CDIVersionUnknown", "CDI does not tell its version"},
		"a later CDI":                      {func(s *OneDownloadState) { s.ObservedVersion, s.TargetVersion = "v1.66.0", "v1.66.0" }, "CDIVersionUnknown", "for CDI 1.65 and do nothing with v1.66.0"},
		"one that only begins alike":       {func(s *OneDownloadState) { s.ObservedVersion = "v1.650.0" }, "CDIVersionUnknown", "v1.650.0"},
		"an upgrade goes on":               {func(s *OneDownloadState) { s.TargetVersion = "v1.66.0" }, "CDIVersionUnknown", "from v1.65.0 to v1.66.0"},
		"an importer that starts over":     {func(s *OneDownloadState) { s.RestartableImporter = "ns/importer" }, "NotApplied", "by another account than system:serviceaccount:cdi:cdi-sa"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := OneDownloadState{PoliciesServed: true, CDIVersions: []string{"1.65"}, CDIAccount: "system:serviceaccount:cdi:cdi-sa", CDIInstalled: true, ObservedVersion: "v1.65.0", TargetVersion: "v1.65.0"}
			test.change(&seen)
			c := OneDownloadCondition(seen)
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
