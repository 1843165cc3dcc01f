package cloudinit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Inputs are the parts of a guest's configuration that are not in its VirtualMachine.
type Inputs struct {
	// ClusterUID is the UID of namespace kube-system.
	ClusterUID types.UID
	// Passwords are the values that passwordSecretRef of the users refers to, by user name
	// as in the spec.
	Passwords map[string]string
	// UserData is the value that cloudInit.userDataSecretRef refers to.
	UserData []byte
}

// Config is the rendered configuration of a guest.
type Config struct {
	UserData []byte
	// NetworkData is the network config; nil without spec.interfaces.
	NetworkData []byte
	// MACs has one address for each interface, or that of the Pod network.
	MACs     []string
	Hostname string
	// Adjusted has a sentence for each deviation from the spec.
	Adjusted []string
	// Digest of the author's fields. It leaves out passwords and the contents of Secrets,
	// since people without access to those can read it.
	Digest string
}

// MaxDataSize bounds user data and network data together, in bytes. A Secret holds 1 MiB.
const MaxDataSize = 900 << 10

// RenderWithoutSecrets returns the part of a Config that needs no Secret: all but UserData.
func RenderWithoutSecrets(vm *v1alpha1.VirtualMachine, clusterUID types.UID) (Config, error) {
	hostname, adjusted := guestHostname(vm)
	cfg := Config{Hostname: hostname, Adjusted: adjusted}
	var err error
	if cfg.MACs, cfg.NetworkData, err = renderNetworkConfig(vm, clusterUID); err != nil {
		return Config{}, err
	}
	cfg.Digest, err = specDigest(vm)
	return cfg, err
}

// Render returns the configuration of a machine's guest. An error is for the author of the
// VirtualMachine: the spec is invalid.
func Render(vm *v1alpha1.VirtualMachine, in Inputs) (Config, error) {
	users, adjusted, err := renderUsers(vm.Spec.Users, in.Passwords)
	if err != nil {
		return Config{}, err
	}
	cfg, err := RenderWithoutSecrets(vm, in.ClusterUID)
	if err != nil {
		return Config{}, err
	}
	cfg.Adjusted = append(cfg.Adjusted, adjusted...)
	agentPart, err := cloudConfig{Hostname: cfg.Hostname, Users: users, SSHPwauth: allowSSHPassword(users)}.encode()
	if err != nil {
		return Config{}, err
	}
	if cfg.UserData, err = combineUserData(agentPart, authorUserData(vm, in)); err != nil {
		return Config{}, err
	}
	if size := len(cfg.UserData) + len(cfg.NetworkData); size > MaxDataSize {
		return Config{}, fmt.Errorf("the cloud-init data has %d bytes, more than the %d that fit into its Secret: shorten the user data, or let the guest fetch parts of it with #include", size, MaxDataSize)
	}
	return cfg, nil
}

// SecretName returns the name of the Secret that holds a machine's cloud-init data.
func SecretName(vm *v1alpha1.VirtualMachine) string { return vm.Name + "-cloudinit" }

// cloudConfig is the agent's part of the user data.
type cloudConfig struct {
	Hostname  string `json:"hostname"`
	SSHPwauth *bool  `json:"ssh_pwauth,omitempty"`
	// Users replace the default user of the image, unless one of them is named "default".
	Users []user `json:"users,omitempty"`
}

func (c cloudConfig) encode() ([]byte, error) {
	body, err := marshalYAML(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the cloud-config: %w", err)
	}
	return append([]byte("#cloud-config\n"), body...), nil
}

// marshalYAML escapes the characters that a JSON string may contain and a YAML one may not.
func marshalYAML(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var escaped strings.Builder
	for _, r := range string(text) {
		if 0x7f <= r && r < 0xa0 || r == 0xfeff || r == 0xfffe || r == 0xffff {
			fmt.Fprintf(&escaped, `\u%04x`, r)
		} else {
			escaped.WriteRune(r)
		}
	}
	return yaml.JSONToYAML([]byte(escaped.String()))
}

// authorUserData returns the author's part of the user data.
func authorUserData(vm *v1alpha1.VirtualMachine, in Inputs) []byte {
	switch {
	case vm.Spec.CloudInit == nil:
		return nil
	case vm.Spec.CloudInit.UserDataSecretRef != nil:
		return in.UserData
	default:
		return []byte(vm.Spec.CloudInit.UserData)
	}
}

// specDigest hashes the author's fields instead of the rendered data, which may differ
// between versions of the agent. It leaves secrets out: their hash would let readers of
// the digest test guesses.
func specDigest(vm *v1alpha1.VirtualMachine) (string, error) {
	covered := v1alpha1.VirtualMachineSpec{Name: vm.Spec.Name, Interfaces: vm.Spec.Interfaces, CloudInit: vm.Spec.CloudInit}
	for _, u := range vm.Spec.Users {
		u.PlainTextPasswd = ""
		covered.Users = append(covered.Users, u)
	}
	text, err := json.Marshal(covered)
	if err != nil {
		return "", fmt.Errorf("encoding the spec for its digest: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

var errNotUTF8 = errors.New("is not UTF-8")
