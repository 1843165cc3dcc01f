package quarantine

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/quarantine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

func request(name, reason string, end bool) Request {
	return Request{Name: name, Request: quarantine.Request{Reason: reason, End: end}}
}

func TestValidate(t *testing.T) {
	for want, r := range map[string]Request{
		"quarantine needs --reason":    request("oslo", "", false),
		"--end takes no --reason":      request("oslo", "a", true),
		"the cluster's name":           request("Oslo", "a", false),
		"at most 256":                  request("oslo", strings.Repeat("ä", 257), false),
		"without control characters":   request("oslo", "a\x1b[31m", false),
		"--reason, for whoever finds ": request("oslo", " \t", false),
	} {
		require.ErrorContains(t, r.Validate(), want)
	}
	require.NoError(t, request("oslo", strings.Repeat("ä", 256), false).Validate())
	require.NoError(t, request("oslo", "", true).Validate())
}

func TestScreen(t *testing.T) {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}}
	m.Spec.Connection.KubeconfigSecretRef = &v1alpha1.SecretKeyRef{Name: "oslo"}
	q, err := Decide(request("oslo", "forged", false), m)
	require.NoError(t, err)
	rendertest.Golden(t, "push", time.Time{}, q)
	m.Spec.Connection = v1alpha1.MemberConnection{Pull: &v1alpha1.MemberPull{}}
	m.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "forged"}
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionJoined, Reason: v1alpha1.ReasonRevoked}}
	q, err = Decide(request("oslo", "", true), m)
	require.NoError(t, err)
	rendertest.Golden(t, "end", time.Time{}, q)
}
