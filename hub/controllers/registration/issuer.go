package registration

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxCABytes of certificates fit into a ClusterJoin, sealed together with a token.
const maxCABytes = 8192

// Issuer says where agents connect, and how long their tokens are valid.
type Issuer struct {
	// URL of the hub's API server as agents reach it.
	URL string
	// ClusterOnly: URL is the Service of the hub's own API server, which agents in other clusters
	// do not reach.
	ClusterOnly bool
	// CAFile has the certificate authorities that agents use to verify that server; if
	// empty, CAData has them; if that is empty too, agents use those of their system.
	CAFile string
	CAData []byte
	// JoinTokenLife and AgentTokenLife of tokens.
	JoinTokenLife, AgentTokenLife time.Duration
}

// podTokenFile is where rest.InClusterConfig reads a Pod's token.
const podTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// NewIssuer returns the Issuer for the hub's flags. Without flags, agents connect where
// the hub itself does.
func NewIssuer(cfg *rest.Config, url, caFile string, joinTokenLife, agentTokenLife time.Duration) (Issuer, error) {
	i := Issuer{URL: url, CAFile: caFile, JoinTokenLife: joinTokenLife, AgentTokenLife: agentTokenLife}
	if url == "" {
		i.URL = cfg.Host
		if !strings.Contains(i.URL, "://") {
			i.URL = "https://" + i.URL
		}
		i.ClusterOnly = cfg.BearerTokenFile == podTokenFile
	} else if !strings.HasPrefix(url, "https://") {
		return Issuer{}, fmt.Errorf("--hub-api-url is %q: it must start with https://", url)
	}
	if url == "" && caFile == "" {
		i.CAFile, i.CAData = cfg.CAFile, cfg.CAData
		if len(i.CAData) > 0 {
			i.CAFile = ""
		}
	}
	if _, err := i.readCA(); err != nil {
		return Issuer{}, err
	}
	return i, nil
}

// readCA reads the file each time, because it may have been renewed.
func (i Issuer) readCA() ([]byte, error) {
	data := i.CAData
	if i.CAFile != "" {
		var err error
		if data, err = os.ReadFile(i.CAFile); err != nil {
			return nil, fmt.Errorf("reading the CA certificates of the hub's API server for agents: %w", err)
		}
	}
	switch {
	case len(data) == 0:
		return nil, nil
	case len(data) > maxCABytes:
		return nil, fmt.Errorf("the CA certificates of the hub's API server for agents have %d bytes: set --hub-api-ca-file to a file with at most %d", len(data), maxCABytes)
	case !x509.NewCertPool().AppendCertsFromPEM(data):
		return nil, errors.New("the CA certificates of the hub's API server for agents are not PEM: correct --hub-api-ca-file")
	}
	return data, nil
}

// issuedToken describes a token that was issued.
type issuedToken struct {
	account types.UID
	expires string
}

// requestToken requests a token of an account and returns it in a kubeconfig.
func (r *Reconciler) requestToken(ctx context.Context, member *v1alpha1.MemberCluster, name string, accountUID types.UID, life time.Duration) (issuedToken, []byte, error) {
	ca, err := r.Issuer.readCA()
	if err != nil {
		return issuedToken{}, nil, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: memberNamespace(member), Name: name}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second))}}
	if err := r.SubResource("token").Create(ctx, account, request); err != nil {
		return issuedToken{}, nil, fmt.Errorf("requesting a token: %w", err)
	}
	claims, err := registration.ParseTokenClaims(request.Status.Token)
	if err != nil {
		return issuedToken{}, nil, err
	}
	if claims.AccountUID != accountUID {
		return issuedToken{}, nil, fmt.Errorf("ServiceAccount %s was replaced in the meantime", name)
	}
	kubeconfig, err := registration.HubAccess{Server: r.Issuer.URL, CA: ca, Namespace: memberNamespace(member), Token: request.Status.Token}.MarshalKubeconfig()
	return issuedToken{account: claims.AccountUID, expires: request.Status.ExpirationTimestamp.UTC().Format(time.RFC3339)}, kubeconfig, err
}

func (r *Reconciler) issueJoinToken(ctx context.Context, s snapshot) error {
	token, kubeconfig, err := r.requestToken(ctx, s.member, registration.JoinAccount, s.joinAccount.uid, r.Issuer.JoinTokenLife)
	if err != nil {
		return err
	}
	return r.Create(ctx, newJoinSecret(s.member, r.Namespace, token, kubeconfig))
}

// issueCredential seals a token for the key in the accepted ClusterJoin. The write
// fails if the ClusterJoin has changed.
func (r *Reconciler) issueCredential(ctx context.Context, s snapshot, status v1alpha1.ClusterJoinStatus) error {
	_, kubeconfig, err := r.requestToken(ctx, s.member, registration.AgentAccount, s.agentAccount.uid, r.Issuer.AgentTokenLife)
	if err != nil {
		return err
	}
	if status.Credential, err = registration.Seal(s.clusterJoin.Spec.PublicKey, kubeconfig, rand.Reader); err != nil {
		return err
	}
	return r.updateJoinStatus(ctx, s.clusterJoin, status)
}
