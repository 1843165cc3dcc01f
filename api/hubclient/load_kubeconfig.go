package hubclient

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxKubeconfigBytes is enough for a hundred contexts.
const maxKubeconfigBytes = 512 << 10

var linePattern = regexp.MustCompile(`\bline [0-9]+`)

// LoadKubeconfig parses a kubeconfig. No error about a kubeconfig quotes its content, as the
// parser's own do: a typing error puts a token anywhere.
//
// Aliases are refused: a kubeconfig of 100 KiB becomes gigabytes if it repeats a long value
// by many of them.
func LoadKubeconfig(data []byte) (*clientcmdapi.Config, error) {
	if len(data) > maxKubeconfigBytes {
		return nil, fmt.Errorf("it is larger than %d KiB", maxKubeconfigBytes>>10)
	}
	// Another parser than clientcmd's: what it cannot read, it cannot search for aliases.
	var document yaml.Node
	err := yaml.Unmarshal(data, &document)
	if err == nil {
		if hasAlias(&document) {
			return nil, errors.New("it has a YAML alias (*): write the value out instead")
		}
		var config *clientcmdapi.Config
		if config, err = clientcmd.Load(data); err == nil {
			return config, nil
		}
	}
	if line := linePattern.FindString(err.Error()); line != "" {
		return nil, errors.New("it is not a kubeconfig: see " + line)
	}
	return nil, errors.New("it is not a kubeconfig")
}

func hasAlias(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAlias)
}
