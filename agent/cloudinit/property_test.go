package cloudinit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var linuxUserName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

func TestNamesAreAlwaysValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringN(1, 128, 512).Draw(t, "name")
		vm := apitest.VirtualMachine("ns", "vm").WithHostname(name).WithUsers(v1alpha1.User{Name: name}).Obj()
		cfg := mustRender(t, vm)
		require.Empty(t, validation.IsDNS1123Label(cfg.Hostname))
		var user string
		require.NoError(t, json.Unmarshal(cloudConfig(t, cfg.UserData).Users[0]["name"], &user))
		require.Regexp(t, linuxUserName, user)
		require.Equal(t, cfg, mustRender(t, vm))

		again := mustRender(t, apitest.VirtualMachine("ns", "vm").WithHostname(cfg.Hostname).WithUsers(v1alpha1.User{Name: user}).Obj())
		require.Equal(t, cfg.Hostname, again.Hostname)
		require.Empty(t, again.Adjusted, "a valid name is not changed")
	})
}

func TestAuthorUserDataIsPreserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		password := rapid.StringMatching(`[^\r\n\x00]{1,64}`).Draw(t, "password")
		data := rapid.SliceOfN(rapid.Byte(), 1, 1000).Draw(t, "data")
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) || bytes.Contains(bytes.ToLower(data), []byte("mime-version:")) {
			return
		}
		vm := apitest.VirtualMachine("ns", "vm").WithUsers(v1alpha1.User{Name: "a", PlainTextPasswd: password}).Obj()
		vm.Spec.CloudInit = &v1alpha1.CloudInit{UserDataSecretRef: &v1alpha1.SecretKey{Name: "s", Key: "k"}}
		cfg, err := cloudinit.Render(vm, cloudinit.Inputs{UserData: data})
		require.NoError(t, err)
		for line := range strings.Lines(string(cfg.UserData)) {
			require.Less(t, len(line), 100)
		}
		all := readArchiveParts(t, cfg.UserData)
		require.Len(t, all, 2)
		require.Equal(t, string(data), all[0].body)
		var got string
		require.NoError(t, json.Unmarshal(cloudConfig(t, []byte(all[1].body)).Users[0]["plain_text_passwd"], &got))
		require.Equal(t, password, got)
	})
}

func TestMACAddressesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for i := range 200 {
		vm := apitest.VirtualMachine("ns", fmt.Sprintf("vm-%d", i)).WithInterfaces(make([]v1alpha1.Interface, 16)...).Obj()
		for j, mac := range mustRender(t, vm).MACs {
			require.Regexp(t, `^[0-3][26ae](:[0-9a-f]{2}){5}$`, mac, "locally administered, unicast")
			require.Empty(t, seen[mac])
			seen[mac] = fmt.Sprintf("%d/%d", i, j)
		}
	}
}
