package join

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAddressesThatOnlyTheHubsClusterReaches(t *testing.T) {
	clusterIPs := []string{"10.96.0.1", "fd00::1"}
	for server, want := range map[string]bool{
		"https://10.96.0.1:443":                        true,
		"https://[fd00::1]:443":                        true,
		"https://kubernetes.default.svc":               true,
		"https://kubernetes.default.svc.cluster.local": true,
		"https://hub.example:6443":                     false,
		"https://10.96.0.10:6443":                      false,
		"https://127.0.0.1:6443":                       false,
		"https://kubernetes.default.example:6443":      false,
		"://": false,
	} {
		assert.Equal(t, want, IsServiceAddress(server, clusterIPs), server)
	}
	require.EqualError(t, ClusterOnlyError("oslo", "https://10.96.0.1:443"), "the join token of oslo names https://10.96.0.1:443, which only Pods of the hub's own cluster reach: "+
		"set pull.apiURL and pull.apiCA of chart ot-hub, run "+NewTokenCommand("oslo")+", and then this command again")
}
