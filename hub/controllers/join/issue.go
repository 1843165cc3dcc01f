package join

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

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// mostCA bytes of certificates fit into a ClusterJoin, sealed, with a token.
const mostCA = 8192

// Door is where agents dial in, and for how long what they dial in with is good.
type Door struct {
	// URL of the hub's API server as agents reach it.
	URL string
	// CA file by which they check its certificate. Without one: CAData, and without
	// that, what their system trusts.
	CAFile string
	CAData []byte
	// JoinTokenLife and AgentTokenLife of tokens.
	JoinTokenLife, AgentTokenLife time.Duration
}

// NewDoor is the door by the hub's flags. Where they say nothing it is where the hub
// itself goes in.
func NewDoor(cfg *rest.Config, url, caFile string, joinTokenLife, agentTokenLife time.Duration) (Door, error) {
	d := Door{URL: url, CAFile: caFile, JoinTokenLife: joinTokenLife, AgentTokenLife: agentTokenLife}
	if url == "" {
		d.URL = cfg.Host
		if !strings.Contains(d.URL, "://") {
			d.URL = "https://" + d.URL
		}
	} else if !strings.HasPrefix(url, "https://") {
		return Door{}, fmt.Errorf("--hub-api-url is %q: it must begin with https://", url)
	}
	if url == "" && caFile == "" {
		d.CAFile, d.CAData = cfg.CAFile, cfg.CAData
		if len(d.CAData) > 0 {
			d.CAFile = ""
		}
	}
	for flag, life := range map[string]time.Duration{"--join-token-life": joinTokenLife, "--agent-token-life": agentTokenLife} {
		if life < join.MinTokenLife {
			return Door{}, fmt.Errorf("%s is %v: an API server makes no token that lives shorter than %v", flag, life, join.MinTokenLife)
		}
	}
	if _, err := d.ca(); err != nil {
		return Door{}, err
	}
	return d, nil
}

// ca reads the file each time: it may have been renewed.
func (d Door) ca() ([]byte, error) {
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
	case len(data) > mostCA:
		return nil, fmt.Errorf("the certificates by which agents are to know the hub's API server have %d bytes: give --hub-api-ca-file one with no more than %d", len(data), mostCA)
	case !x509.NewCertPool().AppendCertsFromPEM(data):
		return nil, errors.New("the certificates by which agents are to know the hub's API server are not in PEM: correct --hub-api-ca-file")
	}
	return data, nil
}

// issued is a token that was made.
type issued struct {
	account types.UID
	expires string
}

// issue makes a token of an account, and a kubeconfig with it.
func (r *Reconciler) issue(ctx context.Context, member *v1alpha1.MemberCluster, name string, of types.UID, life time.Duration) (issued, []byte, error) {
	ca, err := r.Door.ca()
	if err != nil {
		return issued{}, nil, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(member), Name: name}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(life / time.Second))}}
	if err := r.SubResource("token").Create(ctx, account, request); err != nil {
		return issued{}, nil, fmt.Errorf("asking for a token: %w", err)
	}
	token, err := join.ParseToken(request.Status.Token)
	if err != nil {
		return issued{}, nil, err
	}
	if token.Account != of {
		return issued{}, nil, fmt.Errorf("ServiceAccount %s was made anew meanwhile", name)
	}
	kubeconfig, err := join.Access{Server: r.Door.URL, CA: ca, Namespace: namespaceOf(member), Token: request.Status.Token}.Kubeconfig()
	return issued{account: token.Account, expires: request.Status.ExpirationTimestamp.UTC().Format(time.RFC3339)}, kubeconfig, err
}

func (r *Reconciler) issueToken(ctx context.Context, s snapshot) error {
	token, kubeconfig, err := r.issue(ctx, s.member, join.JoinAccount, s.joiner.uid, r.Door.JoinTokenLife)
	if err != nil {
		return err
	}
	return r.Create(ctx, secretOf(s.member, r.Namespace, token, kubeconfig))
}

// issueCredential seals a token for the key in the ClusterJoin that was accepted.
// The write is refused if it is not the same any more.
func (r *Reconciler) issueCredential(ctx context.Context, s snapshot, answer v1alpha1.ClusterJoinStatus) error {
	_, kubeconfig, err := r.issue(ctx, s.member, join.AgentAccount, s.agent.uid, r.Door.AgentTokenLife)
	if err != nil {
		return err
	}
	if answer.Credential, err = join.Seal(s.join.Spec.PublicKey, kubeconfig, rand.Reader); err != nil {
		return err
	}
	return r.answer(ctx, s.join, answer)
}
