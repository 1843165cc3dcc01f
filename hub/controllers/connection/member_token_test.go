package connection

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A token of the hub's outlives an edit of the kubeconfig, but goes to no other server.
func TestGivenPurpose(t *testing.T) {
	member := &v1alpha1.MemberCluster{Spec: v1alpha1.MemberClusterSpec{AgentNamespace: "ot-agent"}}
	purposeOf := func(t *testing.T, change func(*clientcmdapi.Config)) string {
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://member:6443", CertificateAuthorityData: []byte("ca")}
		config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "given"}
		config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
		config.CurrentContext = "x"
		change(config)
		text, err := clientcmd.Write(*config)
		require.NoError(t, err)
		purpose, err := givenPurpose(member, text)
		require.NoError(t, err)
		formatted, err := givenPurpose(member, append([]byte("# a comment\n\n"), text...))
		require.NoError(t, err)
		require.Equal(t, purpose, formatted)
		return purpose
	}
	insecure := func(c *clientcmdapi.Config) {
		c.Clusters["c"].InsecureSkipTLSVerify, c.Clusters["c"].CertificateAuthorityData = true, nil
	}
	for name, tt := range map[string]struct {
		before, after func(*clientcmdapi.Config)
		wantKept      bool
	}{
		"another proxy":                   {nil, func(c *clientcmdapi.Config) { c.Clusters["c"].ProxyURL = "http://proxy:3128" }, true},
		"another name":                    {nil, func(c *clientcmdapi.Config) { c.Contexts["y"] = c.Contexts["x"]; c.CurrentContext = "y" }, true},
		"a namespace":                     {nil, func(c *clientcmdapi.Config) { c.Contexts["x"].Namespace = "n" }, true},
		"another cluster beside it":       {nil, func(c *clientcmdapi.Config) { c.Clusters["d"] = &clientcmdapi.Cluster{Server: "https://d"} }, true},
		"another server":                  {nil, func(c *clientcmdapi.Config) { c.Clusters["c"].Server = "https://attacker:6443" }, false},
		"another port":                    {nil, func(c *clientcmdapi.Config) { c.Clusters["c"].Server = "https://member:443" }, false},
		"another CA":                      {nil, func(c *clientcmdapi.Config) { c.Clusters["c"].CertificateAuthorityData = []byte("other") }, false},
		"another name in the certificate": {nil, func(c *clientcmdapi.Config) { c.Clusters["c"].TLSServerName = "other" }, false},
		"verified no longer":              {nil, insecure, false},
		"another token":                   {nil, func(c *clientcmdapi.Config) { c.AuthInfos["u"].Token = "other" }, false},
		"no user":                         {nil, func(c *clientcmdapi.Config) { c.Contexts["x"].AuthInfo = "" }, false},
		"a proxy of an unverified server": {insecure, func(c *clientcmdapi.Config) { insecure(c); c.Clusters["c"].ProxyURL = "http://attacker:3128" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.before == nil {
				tt.before = func(*clientcmdapi.Config) {}
			}
			require.Equal(t, tt.wantKept, purposeOf(t, tt.before) == purposeOf(t, tt.after))
		})
	}
}
