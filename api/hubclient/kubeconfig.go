package hubclient

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ParseKubeconfig reads a kubeconfig from a Secret. version changes whenever anything
// but the bearer token changes.
//
// Kubeconfigs that run a program or read a file are refused: otherwise whoever may
// write the Secret could run programs in hub or agent, or have their tokens sent to
// another server.
func ParseKubeconfig(data []byte) (cfg *rest.Config, version string, err error) {
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
	}
	for _, u := range config.AuthInfos {
		switch {
		case u.Exec != nil, u.AuthProvider != nil:
			return fail(errors.New("the user of its current-context needs a program (exec or auth-provider), which is not run: use a token or a client certificate"))
		case u.ClientCertificate != "", u.ClientKey != "", u.TokenFile != "":
			return fail(errors.New("the user of its current-context names a file: give its content as token, or client-certificate-data and client-key-data"))
		}
	}
	cfg, err = clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fail(errors.New("server, proxy-url, tls-server-name or the user's fields are invalid or contradict each other"))
	}
	if _, _, err := rest.DefaultServerUrlFor(cfg); err != nil {
		return fail(errors.New("server is not a URL"))
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
