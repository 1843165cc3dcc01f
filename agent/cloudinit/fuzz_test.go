package cloudinit_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// FuzzNetworkConfig gives the renderer what the schema of the spec would refuse. Whatever it
// accepts is YAML with the keys of the agent and no others, and has no text that breaks the
// files that cloud-init writes of it.
func FuzzNetworkConfig(f *testing.F) {
	f.Add("02:00:00:12:34:56", "10.10.0.161/24", "10.10.0.1", "10.10.0.53")
	f.Add("", "fd00::1/64", "fe80::1%eth0", "fd00::53")
	f.Add("02:00:00:12:34:56\n  set-name: x", "::ffff:10.0.0.1/120", "fe80::1%a\nb: c", "fe80::1%\"")
	f.Add("x: y", "10.0.0.1/24, 10.0.0.2/24", "{}", "*a")
	// One of them is wrong: nothing else refuses it.
	f.Add("02:00:00:12:34:56\n  set-name: x", "", "", "")
	f.Add("", "fd00::1%a, b/64", "", "")
	f.Add("", "", "fe80::1%a\nb: c", "")
	f.Add("", "", "", "fe80::53%a;b")
	f.Fuzz(func(t *testing.T, mac, address, gateway, server string) {
		spec := v1alpha1.Interface{Network: "net", MACAddress: mac, IPAddress: address, Gateway: gateway}
		if server != "" {
			spec.Nameservers = []string{server}
		}
		cfg, err := cloudinit.RenderWithoutSecrets(apitest.VirtualMachine("ns", "vm").WithInterfaces(spec).Obj(), "uid")
		if err != nil {
			if len(err.Error()) > 1000 && len(mac+address+gateway+server) < 200 {
				t.Fatalf("a long error: %v", err)
			}
			return
		}
		var got struct {
			Version   int `json:"version"`
			Ethernets map[string]struct {
				Match struct {
					MACAddress string `json:"macaddress"`
				} `json:"match"`
				DHCP4     bool     `json:"dhcp4"`
				Addresses []string `json:"addresses"`
				Routes    []struct {
					To     string `json:"to"`
					Via    string `json:"via"`
					Metric int    `json:"metric"`
					OnLink bool   `json:"on-link"`
				} `json:"routes"`
				Nameservers struct {
					Addresses []string `json:"addresses"`
				} `json:"nameservers"`
			} `json:"ethernets"`
		}
		if err := yaml.UnmarshalStrict(cfg.NetworkData, &got); err != nil {
			t.Fatalf("%v:\n%s", err, cfg.NetworkData)
		}
		if len(got.Ethernets) != 1 || got.Version != 2 {
			t.Fatalf("other interfaces:\n%s", cfg.NetworkData)
		}
		e := got.Ethernets["eth0"]
		texts := append(append([]string{e.Match.MACAddress}, e.Addresses...), e.Nameservers.Addresses...)
		for _, r := range e.Routes {
			texts = append(texts, r.To, r.Via)
		}
		for _, text := range texts {
			if strings.ContainsFunc(text, func(r rune) bool {
				return unicode.IsControl(r) || unicode.IsSpace(r) || strings.ContainsRune(`"'#;,{}`, r)
			}) {
				t.Fatalf("%q is no address", text)
			}
		}
	})
}

// FuzzRender: the agent's part of the user data has the agent's keys and no others, whatever
// names, keys and user data say.
func FuzzRender(f *testing.F) {
	f.Add("vm", "user", "password", "ssh-ed25519 AAAA", "wheel", "ALL=(ALL) NOPASSWD:ALL", []byte("#cloud-config\nruncmd: [id]\n"))
	f.Add("a.b", "default", "$6$x$y", "x\n- y", "a, b", "x\nruncmd: [id]", []byte("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n\n--x--\n"))
	f.Add("\u0085", "ü\x00", "\ufeff: \u2028", "", "{}", "#", []byte{0x1f, 0x8b, 8})
	f.Fuzz(func(t *testing.T, name, user, password, key, groups, sudo string, data []byte) {
		vm := apitest.VirtualMachine("ns", "vm").WithHostname(name).WithUsers(v1alpha1.User{
			Name: user, PlainTextPasswd: password, SSHAuthorizedKeys: []string{key}, Groups: groups, Sudo: sudo,
		}).Obj()
		render := func(in cloudinit.Inputs) (cloudinit.Config, bool) {
			cfg, err := cloudinit.Render(vm, in)
			if err != nil && password != "" && len(password) > 8 && strings.Contains(err.Error(), password) && !strings.Contains(user, password) {
				t.Fatalf("the error quotes the password: %v", err)
			}
			return cfg, err == nil
		}
		cfg, ok := render(cloudinit.Inputs{})
		if !ok {
			return
		}
		text, found := strings.CutPrefix(string(cfg.UserData), "#cloud-config\n")
		var top map[string]json.RawMessage
		if err := yaml.UnmarshalStrict([]byte(text), &top); err != nil || !found {
			t.Fatalf("%v:\n%s", err, text)
		}
		for k := range top {
			if k != "hostname" && k != "ssh_pwauth" && k != "users" {
				t.Fatalf("key %q:\n%s", k, text)
			}
		}
		var users []map[string]any
		if err := json.Unmarshal(top["users"], &users); err != nil || len(users) != 1 {
			t.Fatalf("%v: users %s", err, top["users"])
		}
		vm.Spec.CloudInit = &v1alpha1.CloudInit{UserDataSecretRef: &v1alpha1.SecretKey{Name: "s", Key: "k"}}
		if with, ok := render(cloudinit.Inputs{UserData: data}); ok && len(data) > 0 && !strings.HasSuffix(string(with.UserData), "--\n") && !bytes.Equal(with.UserData, cfg.UserData) {
			t.Fatalf("the archive does not end with its boundary:\n%s", with.UserData)
		}
	})
}
