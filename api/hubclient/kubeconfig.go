package hubclient

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ParseMemberKubeconfig is ParseKubeconfig with what a MemberCluster explicitly allows.
func ParseMemberKubeconfig(member *v1alpha1.MemberCluster, data []byte) (cfg *rest.Config, version string, err error) {
	return parseKubeconfig(data, member.Spec.InsecureSkipTLSVerify)
}

// ParseKubeconfig reads a kubeconfig from a Secret. version changes whenever anything
// but the bearer token changes.
//
// Whoever may write the Secret can choose the server, and nothing else of the hub's.
// Kubeconfigs that run a program or read a file are refused: programs would run in hub
// or agent, and files of theirs would be sent to that server. So is what gives the
// connection away, and impersonation: the credential would be one for other users too.
// proxy-url and tls-server-name choose another way to the same verified server.
func ParseKubeconfig(data []byte) (cfg *rest.Config, version string, err error) {
	return parseKubeconfig(data, false)
}

func parseKubeconfig(data []byte, allowInsecure bool) (cfg *rest.Config, version string, err error) {
	fail := func(err error) (*rest.Config, string, error) {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if len(data) == 0 {
		return fail(errors.New("it is empty"))
	}
	config, err := LoadKubeconfig(data)
	if err != nil {
		return fail(err)
	}
	if config.CurrentContext == "" {
		return fail(errors.New("it has no current-context"))
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return fail(errors.New("its current-context, or the cluster or user of that context, does not exist in it"))
	}
	for _, c := range config.Clusters {
		if c.Server == "" {
			return fail(errors.New("the cluster of its current-context has no server"))
		}
		if c.CertificateAuthority != "" {
			return fail(errors.New("the cluster of its current-context names a file: give its content as certificate-authority-data"))
		}
		if c.InsecureSkipTLSVerify && !allowInsecure {
			return fail(errors.New("the cluster of its current-context has insecure-skip-tls-verify: give the CA as certificate-authority-data instead, or set spec.insecureSkipTLSVerify of the MemberCluster"))
		}
		if err := checkProxyURL(c.ProxyURL); err != nil {
			return fail(err)
		}
	}
	for _, u := range config.AuthInfos {
		switch {
		case u.Exec != nil, u.AuthProvider != nil:
			return fail(errors.New("the user of its current-context needs a program (exec or auth-provider), which is not run: use a token or a client certificate"))
		case u.ClientCertificate != "", u.ClientKey != "", u.TokenFile != "":
			return fail(errors.New("the user of its current-context names a file: give its content as token, or client-certificate-data and client-key-data"))
		case u.Impersonate != "", u.ImpersonateUID != "", len(u.ImpersonateGroups) > 0, len(u.ImpersonateUserExtra) > 0:
			return fail(errors.New("the user of its current-context impersonates another (as, as-uid, as-groups or as-user-extra): use a token of that account instead"))
		}
	}
	cfg, err = clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fail(errors.New("server, proxy-url, tls-server-name or the user's fields are invalid or contradict each other"))
	}
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return fail(errors.New("server is not a URL"))
	}
	if server.Scheme != "https" {
		return fail(errors.New("server is not an https URL, and everybody on the way could read the credential"))
	}
	if address, err := netip.ParseAddr(server.Hostname()); err == nil && isForbidden(address) {
		return fail(errors.New("server is a link-local address or a cloud's metadata service, to which no request is sent"))
	}
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		return fail(errors.New("certificate-authority-data, client-certificate-data or client-key-data is not a certificate or its key in PEM"))
	}
	for _, u := range config.AuthInfos {
		u.Token = ""
	}
	others, err := clientcmd.Write(*config)
	if err != nil {
		return fail(errors.New("it cannot be written again"))
	}
	sum := sha256.Sum256(others)
	return cfg, hex.EncodeToString(sum[:]), nil
}

// checkProxyURL does not quote the URL, which may have a password.
func checkProxyURL(text string) error {
	if text == "" {
		return nil
	}
	proxy, err := url.Parse(text)
	if err != nil || proxy.Host == "" || proxy.Scheme != "http" && proxy.Scheme != "https" && proxy.Scheme != "socks5" {
		return errors.New("proxy-url is not a URL of http, https or socks5")
	}
	if address, err := netip.ParseAddr(proxy.Hostname()); err == nil && isForbidden(address) {
		return errors.New("proxy-url is a link-local address or a cloud's metadata service, to which no request is sent")
	}
	return nil
}
