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
	config, err := clientcmd.Load(data)
	if err != nil {
		return fail(err)
	}
	if config.CurrentContext == "" {
		return fail(errors.New("it has no current-context"))
	}
	if err := clientcmdapi.MinifyConfig(config); err != nil {
		return fail(err)
	}
	for name, c := range config.Clusters {
		if c.Server == "" {
			return fail(fmt.Errorf("cluster %q has no server", name))
		}
		if c.CertificateAuthority != "" {
			return fail(fmt.Errorf("cluster %q names a file: give its content as certificate-authority-data", name))
		}
	}
	for name, u := range config.AuthInfos {
		switch {
		case u.Exec != nil, u.AuthProvider != nil:
			return fail(fmt.Errorf("user %q needs a program (exec or auth-provider), which is not run: use a token or a client certificate", name))
		case u.ClientCertificate != "", u.ClientKey != "", u.TokenFile != "":
			return fail(fmt.Errorf("user %q names a file: give its content as token, or client-certificate-data and client-key-data", name))
		}
	}
	cfg, err = clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fail(err)
	}
	if _, err := rest.TLSConfigFor(cfg); err != nil {
		return fail(err)
	}
	for _, u := range config.AuthInfos {
		u.Token = ""
	}
	others, err := clientcmd.Write(*config)
	if err != nil {
		return fail(err)
	}
	sum := sha256.Sum256(others)
	return cfg, hex.EncodeToString(sum[:]), nil
}
