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

// Inputs are what a guest is told beside what its VirtualMachine says.
type Inputs struct {
	// ClusterUID is the UID of the cluster's namespace kube-system.
	ClusterUID types.UID
	// Passwords are what the users' passwordSecretRefs lead to, by user name as it
	// stands in the spec.
	Passwords map[string]string
	// UserData is what cloudInit.userDataSecretRef leads to.
	UserData []byte
}

// Config is what cloud-init reads.
type Config struct {
	UserData []byte
	// NetworkData is nil where the spec has no interfaces.
	NetworkData []byte
	// MACs has one address for each interface.
	MACs     []string
	Hostname string
	// Adjusted has a sentence for each thing that is not to the letter of the spec.
	Adjusted []string
	// Digest of what the author has the guest told, but for passwords and for what
	// is read from Secrets: it is shown to people who may not read those.
	Digest string
}

// MaxDataSize of what cloud-init reads, in bytes: a Secret holds 1 MiB.
const MaxDataSize = 900 << 10

// RenderWithoutSecrets is what of a guest's Config rests on no Secret: all of it but the user
// data.
func RenderWithoutSecrets(vm *v1alpha1.VirtualMachine, cluster types.UID) (Config, error) {
	hostname, adjusted := guestHostname(vm)
	cfg := Config{Hostname: hostname, Adjusted: adjusted}
	var err error
	if cfg.MACs, cfg.NetworkData, err = renderNetworkConfig(vm, cluster); err != nil {
		return Config{}, err
	}
	cfg.Digest, err = specDigest(vm)
	return cfg, err
}

// Render words a machine's guest for cloud-init. An error is for the author of
// the VirtualMachine: it cannot be carried out.
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
	base := cloudConfig{Hostname: cfg.Hostname, Users: users, SSHPwauth: allowSSHPassword(users)}
	agents, err := base.encode()
	if err != nil {
		return Config{}, err
	}
	if cfg.UserData, err = combineUserData(agents, authorUserData(vm, in)); err != nil {
		return Config{}, err
	}
	if size := len(cfg.UserData) + len(cfg.NetworkData); size > MaxDataSize {
		return Config{}, fmt.Errorf("what cloud-init is told has %d bytes, and a Secret holds %d of them: make the user data smaller, or have the guest fetch the rest itself with #include", size, MaxDataSize)
	}
	return cfg, nil
}

// SecretName is the name of the Secret that a machine's cloud-init data is in.
func SecretName(vm *v1alpha1.VirtualMachine) string { return vm.Name + "-cloudinit" }

// cloudConfig is the agent's own part of the user data.
type cloudConfig struct {
	Hostname  string `json:"hostname"`
	SSHPwauth *bool  `json:"ssh_pwauth,omitempty"`
	// Users that are listed are all there are: the image's default user is made
	// where there is no list, or where it stands in the list as "default".
	Users []user `json:"users,omitempty"`
}

func (c cloudConfig) encode() ([]byte, error) {
	body, err := marshalYAML(c)
	if err != nil {
		return nil, fmt.Errorf("encoding the cloud-config: %w", err)
	}
	return append([]byte("#cloud-config\n"), body...), nil
}

// marshalYAML escapes what JSON takes in a string and YAML does not.
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

// authorUserData is the author's own part of the user data.
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

// specDigest leaves out what is secret, and not only its text: a hash of it would
// let everybody who reads the digest try guesses. It is of the spec and not of
// what is made of it, which another version of the agent may word otherwise.
func specDigest(vm *v1alpha1.VirtualMachine) (string, error) {
	told := v1alpha1.VirtualMachineSpec{Name: vm.Spec.Name, Interfaces: vm.Spec.Interfaces, CloudInit: vm.Spec.CloudInit}
	for _, u := range vm.Spec.Users {
		u.PlainTextPasswd = ""
		told.Users = append(told.Users, u)
	}
	text, err := json.Marshal(told)
	if err != nil {
		return "", fmt.Errorf("encoding the spec for its digest: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

const maxLabelLength = 63

// guestHostname of the guest is a DNS label: KubeVirt takes no other.
func guestHostname(vm *v1alpha1.VirtualMachine) (string, []string) {
	field, wanted := "spec.name", vm.Spec.Name
	if wanted == "" {
		field, wanted = "metadata.name", vm.Name
	}
	name := strings.Trim(sanitizeName(wanted, isLabelRune), "-")
	if name == "" {
		name = "vm-" + shortHash(wanted)
	}
	if len(name) > maxLabelLength {
		name = strings.TrimRight(name[:maxLabelLength-1-hashLength], "-") + "-" + shortHash(wanted)
	}
	if name == wanted {
		return name, nil
	}
	return name, []string{fmt.Sprintf("%s %q is no host name of one label: the guest is called %q", field, wanted, name)}
}

// sanitizeName lowers ASCII letters and puts a dash for each run of what may not stay.
func sanitizeName(s string, stays func(rune) bool) string {
	var b strings.Builder
	dash := false
	for _, r := range s {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		switch {
		case stays(r):
			b.WriteRune(r)
			dash = false
		case !dash:
			b.WriteByte('-')
			dash = true
		}
	}
	return b.String()
}

func isLabelRune(r rune) bool {
	return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-'
}

const hashLength = 8

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:hashLength]
}

var errNotUTF8 = errors.New("is no UTF-8")
