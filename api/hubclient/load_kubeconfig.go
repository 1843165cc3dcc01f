package hubclient

import (
	"errors"
	"regexp"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

var linePattern = regexp.MustCompile(`\bline [0-9]+`)

// LoadKubeconfig parses a kubeconfig. No error about a kubeconfig quotes its content, as the
// parser's own do: a typing error puts a token anywhere.
func LoadKubeconfig(data []byte) (*clientcmdapi.Config, error) {
	config, err := clientcmd.Load(data)
	if err == nil {
		return config, nil
	}
	if line := linePattern.FindString(err.Error()); line != "" {
		return nil, errors.New("it is not a kubeconfig: see " + line)
	}
	return nil, errors.New("it is not a kubeconfig")
}
