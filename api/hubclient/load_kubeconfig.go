package hubclient

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

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
		if err := checkDocument(&document); err != nil {
			return nil, err
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

// checkDocument names the mistakes by which something else than a kubeconfig gets into a Secret.
func checkDocument(document *yaml.Node) error {
	if hasAlias(document) {
		return errors.New("it has a YAML alias (*): write the value out instead")
	}
	if len(document.Content) != 1 {
		return errors.New("it is empty or has comments only")
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		if isEncodedKubeconfig(root.Value) {
			return errors.New("it is encoded in base64 twice: encode it once under data, or not at all under stringData")
		}
		return errors.New("it is not a kubeconfig: it is no YAML mapping with clusters, users and contexts")
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "kind" && root.Content[i+1].Value != "Config" {
			return errors.New("it is not a kubeconfig: its kind is not Config")
		}
	}
	return nil
}

// isEncodedKubeconfig also accepts the line breaks that programs put into base64.
func isEncodedKubeconfig(text string) bool {
	decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	return err == nil && bytes.Contains(decoded, []byte("clusters"))
}

func hasAlias(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAlias)
}
