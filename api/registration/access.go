package registration

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// HubAccess is all that an agent needs to reach its namespace on the hub.
type HubAccess struct {
	// Server is the URL of the hub's API server.
	Server string
	// CA that its certificate is checked by; none: those that the agent's system
	// trusts.
	CA []byte
	// Namespace of the member on the hub.
	Namespace string
	Token     string
}

// contextName of the one context in a kubeconfig of ours.
const contextName = "ot-hub"

// MarshalKubeconfig writes it down.
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

// ParseHubAccess reads what Kubeconfig wrote. Of a kubeconfig that has more, the rest
// is of no account: nothing is run, and no file is read.
func ParseHubAccess(kubeconfig []byte) (HubAccess, error) {
	var config clientcmdv1.Config
	if err := yaml.Unmarshal(kubeconfig, &config); err != nil {
		// What the reader says may hold what it could not read: a token, perhaps.
		return HubAccess{}, errors.New("it is no kubeconfig: it cannot be read as YAML of that kind")
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
		return HubAccess{}, errors.New("the kubeconfig names no https server in its current-context")
	case a.Namespace == "":
		return HubAccess{}, errors.New("the kubeconfig names no namespace in its current-context")
	case a.Token == "":
		return HubAccess{}, errors.New("the kubeconfig has no token in its current-context")
	}
	return a, nil
}

// TokenClaims is what a token of a ServiceAccount tells of itself. Nobody has checked it:
// the API server does that.
type TokenClaims struct {
	// AccountUID is the UID of its ServiceAccount: the token dies with that.
	AccountUID types.UID
	// Issued and Expires are by the API server's clock. A renewal is due when two
	// thirds of the time between have passed.
	Issued, Expires time.Time
}

// ParseTokenClaims reads what a token tells.
func ParseTokenClaims(token string) (TokenClaims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return TokenClaims{}, errors.New("it is no token of a ServiceAccount: it has no three parts")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return TokenClaims{}, fmt.Errorf("reading a token: %w", err)
	}
	var claims struct {
		Issued     int64 `json:"iat"`
		Expires    int64 `json:"exp"`
		Kubernetes struct {
			Account struct {
				UID types.UID `json:"uid"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return TokenClaims{}, fmt.Errorf("reading a token: %w", err)
	}
	if claims.Kubernetes.Account.UID == "" || claims.Issued <= 0 || claims.Expires <= claims.Issued {
		return TokenClaims{}, errors.New("it is no token of a ServiceAccount that expires after it was issued")
	}
	return TokenClaims{AccountUID: claims.Kubernetes.Account.UID, Issued: time.Unix(claims.Issued, 0), Expires: time.Unix(claims.Expires, 0)}, nil
}

// LeaseHolder is the holderIdentity that an agent renews its Lease with, by its boot ID
// and the token that it does it with.
func LeaseHolder(bootID string, t TokenClaims) string { return bootID + "/" + string(t.AccountUID) }

// AccountOfHolder is the UID of the ServiceAccount by whose token a Lease was
// renewed; empty for none.
func AccountOfHolder(holder string) types.UID {
	at := strings.LastIndexByte(holder, '/')
	if at < 0 {
		return ""
	}
	return types.UID(holder[at+1:])
}
