package registration

import (
	"errors"
	"fmt"
	"strings"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/yamlalias"
)

// HubAccess is what an agent needs to access its namespace on the hub.
type HubAccess struct {
	// Server is the URL of the hub's API server.
	Server string
	// CA bundle for the server's certificate; if empty, the system's is used.
	CA []byte
	// Namespace of the member on the hub.
	Namespace string
	Token     string
}

// contextName is the only context in the kubeconfigs written here.
const contextName = "ot-hub"

// MarshalKubeconfig returns the access as a kubeconfig.
func (a HubAccess) MarshalKubeconfig() ([]byte, error) {
	data, err := yaml.Marshal(clientcmdv1.Config{
		Kind: "Config", APIVersion: "v1", CurrentContext: contextName,
		Clusters:  []clientcmdv1.NamedCluster{{Name: contextName, Cluster: clientcmdv1.Cluster{Server: a.Server, CertificateAuthorityData: a.CA}}},
		AuthInfos: []clientcmdv1.NamedAuthInfo{{Name: contextName, AuthInfo: clientcmdv1.AuthInfo{Token: a.Token}}},
		Contexts: []clientcmdv1.NamedContext{{Name: contextName, Context: clientcmdv1.Context{
			Cluster: contextName, AuthInfo: contextName, Namespace: a.Namespace,
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return data, nil
}

// ParseHubAccess reads the current context of a kubeconfig, and ignores everything
// else: nothing is run, and no file is read.
func ParseHubAccess(kubeconfig []byte) (HubAccess, error) {
	var config clientcmdv1.Config
	if yamlalias.Check(kubeconfig) != nil || yaml.Unmarshal(kubeconfig, &config) != nil {
		// The parser's error may contain a token.
		return HubAccess{}, errors.New("it is not a kubeconfig")
	}
	var a HubAccess
	var cluster, user string
	for _, c := range config.Contexts {
		if c.Name == config.CurrentContext {
			cluster, user, a.Namespace = c.Context.Cluster, c.Context.AuthInfo, c.Context.Namespace
		}
	}
	for _, c := range config.Clusters {
		if c.Name == cluster {
			a.Server, a.CA = c.Cluster.Server, c.Cluster.CertificateAuthorityData
		}
	}
	for _, u := range config.AuthInfos {
		if u.Name == user {
			a.Token = u.AuthInfo.Token
		}
	}
	switch {
	case !strings.HasPrefix(a.Server, "https://"):
		return HubAccess{}, errors.New("the current context of the kubeconfig has no https server")
	case a.Namespace == "":
		return HubAccess{}, errors.New("the current context of the kubeconfig has no namespace")
	case a.Token == "":
		return HubAccess{}, errors.New("the current context of the kubeconfig has no token")
	}
	return a, nil
}
