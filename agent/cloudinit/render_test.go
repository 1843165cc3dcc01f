package cloudinit_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const clusterUID = "5f0e7c5e-0000-4000-8000-000000000001"

func mustRender(t require.TestingT, vm *v1alpha1.VirtualMachine) cloudinit.Config {
	cfg, err := cloudinit.Render(vm, cloudinit.Inputs{ClusterUID: clusterUID})
	require.NoError(t, err)
	return cfg
}

func TestRenderProposal(t *testing.T) {
	vm := apitest.VirtualMachine("workspaces", "demo-workspace-1").WithHostname("demo-vm").
		WithUsers(v1alpha1.User{
			Name: "demo user", PlainTextPasswd: "demo-pwd", LockPasswd: new(bool), Sudo: "ALL=(ALL) NOPASSWD:ALL", Groups: "sudo",
		}).
		WithInterfaces(
			v1alpha1.Interface{Network: "control-net", IPAddress: "10.10.0.161/24"},
			v1alpha1.Interface{Network: "bridge-inet", IPAddress: "4.29.163.6/28"},
			v1alpha1.Interface{Network: "bridge-edge", IPAddress: "172.27.11.11/28"},
		).Obj()

	cfg := mustRender(t, vm)

	assert.Equal(t, "demo-workspace-1-cloudinit", cloudinit.SecretName(vm))
	assert.Equal(t, "demo-vm", cfg.Hostname)
	assert.Equal(t, []string{`user name "demo user" is not valid on Linux: the user's name is "demo-user"`}, cfg.Adjusted)
	assert.Equal(t, `#cloud-config
hostname: demo-vm
ssh_pwauth: true
users:
- gecos: demo user
  groups: sudo
  lock_passwd: false
  name: demo-user
  plain_text_passwd: demo-pwd
  sudo: ALL=(ALL) NOPASSWD:ALL
`, string(cfg.UserData))
	assert.Equal(t, []string{"36:3b:4f:36:c0:04", "0a:6d:4d:66:be:16", "2a:da:41:31:e0:5f"}, cfg.MACs,
		"guests identify their interfaces by them, so they must not change with the agent's version")
	assert.Equal(t, `ethernets:
  eth0:
    addresses:
    - 10.10.0.161/24
    match:
      macaddress: 36:3b:4f:36:c0:04
  eth1:
    addresses:
    - 4.29.163.6/28
    match:
      macaddress: 0a:6d:4d:66:be:16
  eth2:
    addresses:
    - 172.27.11.11/28
    match:
      macaddress: 2a:da:41:31:e0:5f
version: 2
`, string(cfg.NetworkData))
}

func TestRenderMinimalMachine(t *testing.T) {
	cfg := mustRender(t, apitest.VirtualMachine("ns", "vm").Obj())
	assert.Equal(t, "#cloud-config\nhostname: vm\n", string(cfg.UserData), "users and sshd settings of the image stay")
	assert.Nil(t, cfg.NetworkData)
	assert.Equal(t, []string{"36:09:e5:dc:a7:02"}, cfg.MACs, "each start would have another without it")
	assert.Empty(t, cfg.Adjusted)
}

func TestGuestHostname(t *testing.T) {
	const longest = "a23456789-123456789-123456789-123456789-123456789-123456789-123"
	for _, tt := range []struct{ specName, name, want string }{
		{"", "vm-1", "vm-1"},
		{"web", "vm-1", "web"},
		{"1", "vm-1", "1"},
		{longest, "vm-1", longest},
		{longest + "4", "vm-1", "a23456789-123456789-123456789-123456789-123456789-1234-51a51e38"},
		{"", "vm.example.com", "vm-example-com"},
		{"Web Server", "vm-1", "web-server"},
		{"-web.", "vm-1", "web"},
		{"日本", "vm-1", "vm-cf2abf0c"},
	} {
		t.Run(tt.specName+"/"+tt.name, func(t *testing.T) {
			cfg := mustRender(t, apitest.VirtualMachine("ns", tt.name).WithHostname(tt.specName).Obj())
			assert.Equal(t, tt.want, cfg.Hostname)
			assert.Contains(t, string(cfg.UserData), fmt.Sprintf("hostname: %s\n", quoteYAML(t, tt.want)))
			switch tt.want {
			case tt.specName, tt.name:
				assert.Empty(t, cfg.Adjusted)
			default:
				require.Len(t, cfg.Adjusted, 1)
				assert.Contains(t, cfg.Adjusted[0], tt.want)
			}
		})
	}
}

func quoteYAML(t *testing.T, s string) string {
	text, err := yaml.Marshal(s)
	require.NoError(t, err)
	return strings.TrimSuffix(string(text), "\n")
}

func TestTooLargeDataIsRefused(t *testing.T) {
	vm := apitest.VirtualMachine("ns", "vm").Obj()
	vm.Spec.CloudInit = &v1alpha1.CloudInit{UserDataSecretRef: &v1alpha1.SecretKey{Name: "s", Key: "k"}}
	renderSize := func(kib int) error {
		_, err := cloudinit.Render(vm, cloudinit.Inputs{UserData: []byte("#!/bin/sh\n#" + strings.Repeat("x", kib<<10))})
		return err
	}
	require.NoError(t, renderSize(100))
	require.NoError(t, renderSize(512))
	require.ErrorContains(t, renderSize(1000), "shorten the user data, or let the guest fetch parts of it with #include")
}

func TestDigestOmitsSecrets(t *testing.T) {
	base := func() *apitest.MachineBuilder {
		return apitest.VirtualMachine("ns", "vm").WithInterfaces(v1alpha1.Interface{Network: "a"})
	}
	secret := v1alpha1.User{Name: "a", PasswordSecretRef: &v1alpha1.SecretKey{Name: "s", Key: "k"}}
	digest := func(b *apitest.MachineBuilder, in cloudinit.Inputs) string {
		cfg, err := cloudinit.Render(b.Obj(), in)
		require.NoError(t, err)
		return cfg.Digest
	}
	none := cloudinit.Inputs{}
	seen := map[string]string{}
	for name, b := range map[string]*apitest.MachineBuilder{
		"base":         base(),
		"hostname":     base().WithHostname("other"),
		"user":         base().WithUsers(v1alpha1.User{Name: "a"}),
		"group":        base().WithUsers(v1alpha1.User{Name: "a", Groups: "wheel"}),
		"another user": base().WithUsers(v1alpha1.User{Name: "b"}),
		"address":      base().WithInterfaces(v1alpha1.Interface{Network: "a", IPAddress: "10.0.0.1/8"}),
		"mac":          base().WithInterfaces(v1alpha1.Interface{Network: "a", MACAddress: "02:00:00:00:00:01"}),
		"user data":    base().WithUserData("#!/bin/sh\n"),
	} {
		d := digest(b, none)
		assert.Empty(t, seen[d], "%s and %s", name, seen[d])
		seen[d] = name
		assert.Equal(t, d, digest(b, none))
	}

	digestWithPassword := func(password string) string {
		return digest(base().WithUsers(secret), cloudinit.Inputs{Passwords: map[string]string{"a": password}})
	}
	assert.Equal(t, digestWithPassword("one"), digestWithPassword("two"))
	assert.Equal(t, digestWithPassword("one"), digestWithPassword("$6$salt$"+strings.Repeat("x", 86)))
	assert.Equal(t, digest(base().WithUsers(v1alpha1.User{Name: "a", PlainTextPasswd: "one"}), none),
		digest(base().WithUsers(v1alpha1.User{Name: "a", PlainTextPasswd: "two"}), none))

	fromSecret := func(key, data string) string {
		vm := base().Obj()
		vm.Spec.CloudInit = &v1alpha1.CloudInit{UserDataSecretRef: &v1alpha1.SecretKey{Name: "s", Key: key}}
		cfg, err := cloudinit.Render(vm, cloudinit.Inputs{UserData: []byte(data)})
		require.NoError(t, err)
		return cfg.Digest
	}
	assert.Equal(t, fromSecret("k", "#!/bin/sh"), fromSecret("k", "#!/bin/bash"), "a hash of a secret would let its readers test guesses")
	assert.NotEqual(t, fromSecret("k", "#!/bin/sh"), fromSecret("l", "#!/bin/sh"))
}

// cloudConfig parses the agent's part as cloud-init does.
func cloudConfig(t require.TestingT, text []byte) (config struct {
	Hostname  string                       `json:"hostname"`
	SSHPwauth *bool                        `json:"ssh_pwauth"`
	Users     []map[string]json.RawMessage `json:"users"`
}) {
	require.True(t, strings.HasPrefix(string(text), "#cloud-config\n"))
	require.NoError(t, yaml.UnmarshalStrict(text, &config))
	return config
}
