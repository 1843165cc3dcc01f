package once

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		change     func(*Seen)
		wantReason string
		wantText   string
	}{
		"all is there":                     {func(*Seen) {}, "InForce", "CDI v1.65.0 does not start a failed download over"},
		"CDI's version without its letter": {func(s *Seen) { s.Observed, s.Target = "1.65.3", "" }, "InForce", "1.65.3"},
		"the kinds are not served":         {func(s *Seen) { *s = Seen{} }, "PoliciesNotServed", "from Kubernetes 1.36 on"},
		"a binding is gone":                {func(s *Seen) { s.Missing = []string{"MutatingAdmissionPolicyBinding a"} }, "PoliciesMissing", "MutatingAdmissionPolicyBinding a not found"},
		"no CDI":                           {func(s *Seen) { s.CDI = false }, "CDIVersionUnknown", "there is no CDI"},
		"CDI does not tell":                {func(s *Seen) { s.Observed = "" }, "CDIVersionUnknown", "CDI does not tell its version"},
		"a later CDI":                      {func(s *Seen) { s.Observed, s.Target = "v1.66.0", "v1.66.0" }, "CDIVersionUnknown", "for CDI 1.65 and do nothing with v1.66.0"},
		"one that only begins alike":       {func(s *Seen) { s.Observed = "v1.650.0" }, "CDIVersionUnknown", "v1.650.0"},
		"an upgrade goes on":               {func(s *Seen) { s.Target = "v1.66.0" }, "CDIVersionUnknown", "from v1.65.0 to v1.66.0"},
		"an importer that starts over":     {func(s *Seen) { s.Restartable = "ns/importer" }, "NotApplied", "by another account than system:serviceaccount:cdi:cdi-sa"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := Seen{Served: true, Known: []string{"1.65"}, Account: "system:serviceaccount:cdi:cdi-sa", CDI: true, Observed: "v1.65.0", Target: "v1.65.0"}
			test.change(&seen)
			c := Judge(seen)
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
