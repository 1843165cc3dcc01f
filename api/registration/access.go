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

// TokenClaims are the claims of a ServiceAccount token. They are not verified here; the
// API server does that.
type TokenClaims struct {
	// AccountUID is the UID of the ServiceAccount; the token is invalid once that is
	// deleted.
	AccountUID types.UID
	// Issued and Expires are by the API server's clock. The agent renews after two
	// thirds of the time between.
	Issued, Expires time.Time
}

// ParseTokenClaims reads the claims of a token.
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

// LeaseHolder returns the holderIdentity of an agent's Lease: its boot ID and the
// ServiceAccount of the token it uses.
func LeaseHolder(bootID string, t TokenClaims) string { return bootID + "/" + string(t.AccountUID) }

// AccountOfHolder returns the UID of the ServiceAccount in a holderIdentity; empty if
// there is none.
func AccountOfHolder(holder string) types.UID {
	at := strings.LastIndexByte(holder, '/')
	if at < 0 {
		return ""
	}
	return types.UID(holder[at+1:])
}
