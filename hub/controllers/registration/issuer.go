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
	// CAFile has the certificate authorities that agents use to verify that server; if
	// empty, CAData has them; if that is empty too, agents use those of their system.
	CAFile string
	CAData []byte
	// JoinTokenLife and AgentTokenLife of tokens.
	JoinTokenLife, AgentTokenLife time.Duration
}

// NewIssuer returns the Issuer for the hub's flags. Without flags, agents connect where
// the hub itself does.
func NewIssuer(cfg *rest.Config, url, caFile string, joinTokenLife, agentTokenLife time.Duration) (Issuer, error) {
	d := Issuer{URL: url, CAFile: caFile, JoinTokenLife: joinTokenLife, AgentTokenLife: agentTokenLife}
	if url == "" {
		d.URL = cfg.Host
		if !strings.Contains(d.URL, "://") {
			d.URL = "https://" + d.URL
		}
	} else if !strings.HasPrefix(url, "https://") {
		return Issuer{}, fmt.Errorf("--hub-api-url is %q: it must begin with https://", url)
	}
	if url == "" && caFile == "" {
		d.CAFile, d.CAData = cfg.CAFile, cfg.CAData
		if len(d.CAData) > 0 {
			d.CAFile = ""
		}
	}
	for flag, life := range map[string]time.Duration{"--join-token-life": joinTokenLife, "--agent-token-life": agentTokenLife} {
		if life < registration.MinTokenLife {
			return Issuer{}, fmt.Errorf("%s is %v: an API server makes no token that lives shorter than %v", flag, life, registration.MinTokenLife)
		}
	}
	if _, err := d.readCA(); err != nil {
		return Issuer{}, err
	}
	return d, nil
}

// readCA reads the file each time, because it may have been renewed.
func (d Issuer) readCA() ([]byte, error) {
	data := d.CAData
	if d.CAFile != "" {
		var err error
		if data, err = os.ReadFile(d.CAFile); err != nil {
			return nil, fmt.Errorf("reading the certificates by which agents are to know the hub's API server: %w", err)
		}
	}
	switch {
	case len(data) == 0:
		return nil, nil
	case len(data) > maxCABytes:
		return nil, fmt.Errorf("the certificates by which agents are to know the hub's API server have %d bytes: give --hub-api-ca-file one with no more than %d", len(data), maxCABytes)
	case !x509.NewCertPool().AppendCertsFromPEM(data):
		return nil, errors.New("the certificates by which agents are to know the hub's API server are not in PEM: correct --hub-api-ca-file")
	}
	return data, nil
}

// issuedToken describes a token that was issued.
type issuedToken struct {
	account types.UID
	expires string
}

// requestToken requests a token of an account and returns it in a kubeconfig.
func (r *Reconciler) requestToken(ctx context.Context, member *v1alpha1.MemberCluster, name string, of types.UID, life time.Duration) (issuedToken, []byte, error) {
	ca, err := r.Issuer.readCA()
	if err != nil {
		return issuedToken{}, nil, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: memberNamespace(member), Name: name}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second))}}
	if err := r.SubResource("token").Create(ctx, account, request); err != nil {
		return issuedToken{}, nil, fmt.Errorf("asking for a token: %w", err)
	}
	token, err := registration.ParseTokenClaims(request.Status.Token)
	if err != nil {
		return issuedToken{}, nil, err
	}
	if token.AccountUID != of {
		return issuedToken{}, nil, fmt.Errorf("ServiceAccount %s was made anew meanwhile", name)
	}
	kubeconfig, err := registration.HubAccess{Server: r.Issuer.URL, CA: ca, Namespace: memberNamespace(member), Token: request.Status.Token}.MarshalKubeconfig()
	return issuedToken{account: token.AccountUID, expires: request.Status.ExpirationTimestamp.UTC().Format(time.RFC3339)}, kubeconfig, err
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
func (r *Reconciler) issueCredential(ctx context.Context, s snapshot, answer v1alpha1.ClusterJoinStatus) error {
	_, kubeconfig, err := r.requestToken(ctx, s.member, registration.AgentAccount, s.agentAccount.uid, r.Issuer.AgentTokenLife)
	if err != nil {
		return err
	}
	if answer.Credential, err = registration.Seal(s.clusterJoin.Spec.PublicKey, kubeconfig, rand.Reader); err != nil {
		return err
	}
	return r.updateJoinStatus(ctx, s.clusterJoin, answer)
}
