package join

import (
	"bytes"
	"fmt"
	"regexp"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelotech/ot-fleet/api/hubclient"
)

// Access is how an API server is reached.
type Access struct {
	Server, TLSServerName string
	Authority             []byte
}

// memberContext names the only context of the kubeconfig that the hub gets.
const memberContext = "member"

// localServer matches an address that only this machine reaches.
var localServer = regexp.MustCompile(`//(127\.|localhost|\[::1\])`)

// IsLocal reports whether only this machine reaches the server.
func (a Access) IsLocal() bool { return localServer.MatchString(a.Server) }

// Kubeconfig returns the kubeconfig for the hub: of this cluster, with a token and nothing else.
func (a Access) Kubeconfig(token string) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[memberContext] = &clientcmdapi.Cluster{Server: a.Server, TLSServerName: a.TLSServerName, CertificateAuthorityData: a.Authority}
	config.AuthInfos["hub"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[memberContext] = &clientcmdapi.Context{Cluster: memberContext, AuthInfo: "hub"}
	config.CurrentContext = memberContext
	return clientcmd.Write(*config)
}

// Reaches reports whether a kubeconfig leads to this API server with a token.
func (a Access) Reaches(kubeconfig []byte) bool {
	config, err := hubclient.LoadKubeconfig(kubeconfig)
	if err != nil || len(kubeconfig) == 0 {
		return false
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil || config.Clusters[context.Cluster] == nil || config.AuthInfos[context.AuthInfo] == nil {
		return false
	}
	cluster := config.Clusters[context.Cluster]
	return cluster.Server == a.Server && cluster.TLSServerName == a.TLSServerName && !cluster.InsecureSkipTLSVerify && cluster.ProxyURL == "" &&
		bytes.Equal(cluster.CertificateAuthorityData, a.Authority) && config.AuthInfos[context.AuthInfo].Token != ""
}

// AccessOf returns how a kubeconfig's current context reaches its cluster. It is flattened: what
// it names by files is in it.
func AccessOf(config clientcmdapi.Config) (Access, error) {
	context := config.Contexts[config.CurrentContext]
	if context == nil || config.Clusters[context.Cluster] == nil {
		return Access{}, fmt.Errorf("context %q is not in the kubeconfig, or names no cluster of it", config.CurrentContext)
	}
	cluster := config.Clusters[context.Cluster]
	return Access{Server: cluster.Server, TLSServerName: cluster.TLSServerName, Authority: cluster.CertificateAuthorityData}, nil
}
