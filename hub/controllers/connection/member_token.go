package connection

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// Labels and annotations of a Secret with a token.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedByHub   = "ot-hub"
	// nameLabel and partOfLabel identify objects of the charts.
	nameLabel   = "app.kubernetes.io/name"
	partOfLabel = "app.kubernetes.io/part-of"

	// annotationTokenFor is the token's purpose.
	annotationTokenFor     = "pelotech.ot/token-for"
	annotationTokenIssued  = "pelotech.ot/token-issued"
	annotationTokenExpires = "pelotech.ot/token-expires"
)

// memberToken is the hub's token in a member. Its times are by the hub's clock: the
// granted lifetime, counted from when the request was sent.
type memberToken struct {
	// purpose says which credential, of which account, the token replaces.
	purpose    string
	kubeconfig []byte
	value      string
	issued     time.Time
	expires    time.Time
}

func (t *memberToken) lifetime() credential.Issued {
	return credential.Issued{At: t.issued, Expires: t.expires}
}

// clusterAPIPurpose names the Cluster and the agent's namespace that a token is for.
func clusterAPIPurpose(member *v1alpha1.MemberCluster) string {
	ref := member.Spec.Connection.ClusterAPI
	return strings.Join([]string{ref.Namespace, ref.Name, member.Spec.AgentNamespace}, "/")
}

// givenPurpose names the kubeconfig that a token replaces by its user and by the server
// that gets the token: another one is used as it is until the hub has a token for that.
//
// Invariant: the hub's token goes to no server but the one that issued it. Whoever may write
// the Secret knows the given token at most, and would otherwise have the hub send its own
// to a server of theirs. What leads to the same verified server may change: proxy-url, names,
// formatting.
func givenPurpose(member *v1alpha1.MemberCluster, kubeconfig []byte) (string, error) {
	config, err := hubclient.LoadKubeconfig(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("reading a kubeconfig: %w", err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return "", errors.New("reading a kubeconfig: its current-context has no cluster")
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if user == nil {
		user = clientcmdapi.NewAuthInfo()
	}
	of := append(serverOf(cluster), user.Token, user.ClientCertificateData, user.ClientKeyData, user.Username, user.Password)
	if cluster.InsecureSkipTLSVerify {
		of = append(of, cluster.ProxyURL) // an unverified proxy can answer for the server
	}
	text, err := json.Marshal(of)
	if err != nil {
		return "", fmt.Errorf("encoding what a token replaces: %w", err)
	}
	sum := sha256.Sum256(text)
	return strings.Join([]string{"kubeconfig", member.Spec.AgentNamespace, hex.EncodeToString(sum[:])}, "/"), nil
}

// serverOf is what tells one verified server from another.
func serverOf(cluster *clientcmdapi.Cluster) []any {
	return []any{cluster.Server, cluster.TLSServerName, cluster.CertificateAuthorityData, cluster.InsecureSkipTLSVerify}
}

// isSameServer reports whether two kubeconfigs lead to the same verified server, whatever their users.
func isSameServer(a, b []byte) bool {
	var servers [2][]any
	for i, kubeconfig := range [][]byte{a, b} {
		config, err := hubclient.LoadKubeconfig(kubeconfig)
		if err != nil || config.Contexts[config.CurrentContext] == nil {
			return false
		}
		cluster := config.Clusters[config.Contexts[config.CurrentContext].Cluster]
		if cluster == nil || cluster.InsecureSkipTLSVerify {
			return false
		}
		servers[i] = serverOf(cluster)
	}
	return reflect.DeepEqual(servers[0], servers[1])
}

func matchesPurpose(secret *corev1.Secret, purpose string) bool {
	return secret.Labels[managedByLabel] == managedByHub && secret.Annotations[annotationTokenFor] == purpose
}

// tokenFromSecret parses a Secret; known is false also if somebody made it unreadable.
func tokenFromSecret(secret *corev1.Secret, purpose string) (_ *memberToken, known bool) {
	if secret == nil || !matchesPurpose(secret, purpose) {
		return nil, false
	}
	t := &memberToken{purpose: purpose, kubeconfig: secret.Data[kubeconfigKey]}
	var errs [3]error
	t.issued, errs[0] = time.Parse(time.RFC3339Nano, secret.Annotations[annotationTokenIssued])
	t.expires, errs[1] = time.Parse(time.RFC3339Nano, secret.Annotations[annotationTokenExpires])
	t.value, errs[2] = tokenFromKubeconfig(t.kubeconfig)
	return t, errors.Join(errs[:]...) == nil
}

func (t *memberToken) fillSecret(secret *corev1.Secret, member *v1alpha1.MemberCluster) {
	metav1.SetMetaDataLabel(&secret.ObjectMeta, managedByLabel, managedByHub)
	for key, value := range map[string]string{
		annotationTokenFor:     t.purpose,
		annotationTokenIssued:  t.issued.UTC().Format(time.RFC3339Nano),
		annotationTokenExpires: t.expires.UTC().Format(time.RFC3339Nano),
	} {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, key, value)
	}
	// The MemberCluster owns it, so that it is deleted even if no hub runs.
	secret.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "MemberCluster", Name: member.Name, UID: member.UID,
	}}
	secret.Data = map[string][]byte{kubeconfigKey: t.kubeconfig}
}

// kubeconfigWithToken returns a kubeconfig for the same API server with a token instead
// of its user.
func kubeconfigWithToken(kubeconfig []byte, value string) ([]byte, error) {
	config, err := hubclient.LoadKubeconfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return nil, errors.New("reading a kubeconfig: its current-context has no cluster")
	}
	const name = "member"
	next := clientcmdapi.NewConfig()
	next.Clusters[name] = config.Clusters[current.Cluster]
	next.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: value}
	next.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	next.CurrentContext = name
	return clientcmd.Write(*next)
}

func tokenFromKubeconfig(kubeconfig []byte) (string, error) {
	config, err := hubclient.LoadKubeconfig(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("reading a kubeconfig: %w", err)
	}
	for _, user := range config.AuthInfos {
		if user.Token != "" {
			return user.Token, nil
		}
	}
	return "", errors.New("reading a kubeconfig: it has no token")
}
