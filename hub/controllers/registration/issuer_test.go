package registration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

func TestAddressThatOnlyTheHubsClusterReaches(t *testing.T) {
	pod := &rest.Config{Host: "https://10.96.0.1:443", BearerTokenFile: podTokenFile}
	elsewhere := &rest.Config{Host: "https://127.0.0.1:6443"}
	for name, test := range map[string]struct {
		cfg  *rest.Config
		url  string
		want string
	}{
		"a Pod without --hub-api-url":    {pod, "", "https://10.96.0.1:443"},
		"a Pod with --hub-api-url":       {pod, "https://hub.example", ""},
		"a process outside of a cluster": {elsewhere, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			issuer, err := NewIssuer(test.cfg, test.url, "", time.Hour, time.Hour)
			require.NoError(t, err)
			assert.Equal(t, test.want != "", issuer.ClusterOnly)

			s := waitingSnapshot()
			if issuer.ClusterOnly {
				s.clusterOnlyURL = issuer.URL
			}
			message := decideNextStep(s).condition.Message
			if test.want == "" {
				assert.NotContains(t, message, "pull.apiURL")
				return
			}
			assert.Contains(t, message, "It names "+test.want+", which only Pods of the hub's own cluster reach: for an agent elsewhere, set pull.apiURL")
		})
	}
}
