package kubevirt_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// password is part of every drawn password, and of nothing else.
const password = "pa55-w0rd"

// drawMachine draws a machine that the API server accepts, without users or addresses that
// become equal in the guest.
func drawMachine(t *rapid.T) (*v1alpha1.VirtualMachine, cloudinit.Inputs) {
	label := rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`)
	name := rapid.OneOf(label, rapid.StringMatching(`[a-z0-9]{1,30}\.[a-z0-9]{1,30}`)).Draw(t, "name")
	b := apitest.VirtualMachine(label.Draw(t, "namespace"), name).
		WithHostname(rapid.StringN(0, 40, 253).Draw(t, "hostname")).
		WithResources(fmt.Sprint(rapid.IntRange(1, 512).Draw(t, "cpu")), rapid.SampledFrom([]string{"1Mi", "2Gi", "64Ti"}).Draw(t, "memory"), "")
	in := cloudinit.Inputs{ClusterUID: "c", Passwords: map[string]string{}}
	var users []v1alpha1.User
	for i := range rapid.IntRange(0, 4).Draw(t, "users") {
		u := v1alpha1.User{
			Name:   rapid.StringN(0, 40, 120).Draw(t, "user") + fmt.Sprintf("x%d", i),
			Groups: rapid.String().Draw(t, "groups"), Sudo: rapid.String().Draw(t, "sudo"),
			SSHAuthorizedKeys: rapid.SliceOfN(rapid.String(), 0, 2).Draw(t, "keys"),
		}
		text := password + rapid.StringMatching(`[^\r\n\x00]{0,10}`).Draw(t, "password")
		switch rapid.IntRange(0, 2).Draw(t, "kind of password") {
		case 1:
			u.PlainTextPasswd = text
		case 2:
			u.PasswordSecretRef, in.Passwords[u.Name] = &v1alpha1.SecretKey{Name: "s", Key: "k"}, text
		}
		if rapid.Bool().Draw(t, "lock is set") {
			u.LockPasswd = ptr.To(rapid.Bool().Draw(t, "locked"))
		}
		users = append(users, u)
	}
	var interfaces []v1alpha1.Interface
	for i := range rapid.IntRange(0, 16).Draw(t, "interfaces") {
		nic := v1alpha1.Interface{Network: rapid.SampledFrom([]string{"a", "b.c", "ns/d"}).Draw(t, "network")}
		switch rapid.IntRange(0, 2).Draw(t, "address") {
		case 1:
			nic.IPAddress, nic.Gateway = fmt.Sprintf("10.0.%d.2/24", i), rapid.SampledFrom([]string{"", "10.0.0.1"}).Draw(t, "gateway")
		case 2:
			nic.IPAddress, nic.Nameservers = fmt.Sprintf("FD00::%x/64", i+1), []string{"10.0.0.53", "FD00::53"}
			nic.Gateway = rapid.SampledFrom([]string{"", "fd00::", "fe80::1"}).Draw(t, "IPv6 gateway")
		}
		if rapid.Bool().Draw(t, "MAC") {
			nic.MACAddress = fmt.Sprintf("0A:00:00:00:00:%02X", i)
		}
		interfaces = append(interfaces, nic)
	}
	vm := b.WithUsers(users...).WithInterfaces(interfaces...).Obj()
	if rapid.Bool().Draw(t, "instancetype") {
		vm.Spec.Resources, vm.Spec.Instancetype = nil, &v1alpha1.Matcher{Name: "u1"}
	}
	if rapid.Bool().Draw(t, "preference") {
		vm.Spec.Preference = &v1alpha1.Matcher{Name: "ubuntu"}
	}
	if rapid.Bool().Draw(t, "user data") {
		vm.Spec.CloudInit = &v1alpha1.CloudInit{UserData: "#!/bin/sh\n"}
	}
	vm.Spec.RunStrategy = rapid.SampledFrom([]v1alpha1.RunStrategy{"", "Always", "Halted"}).Draw(t, "run strategy")
	return vm, in
}

func TestAnyValidMachineBuilds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vm, in := drawMachine(t)
		before := vm.DeepCopy()
		cfg, err := cloudinit.Render(vm, in)
		require.NoError(t, err)
		u, err := kubevirt.BuildVirtualMachine(vm, cfg)
		require.NoError(t, err)
		require.Equal(t, before, vm, "the spec is not modified")

		again, err := cloudinit.Render(vm, in)
		require.NoError(t, err)
		require.Equal(t, cfg, again)
		u2, err := kubevirt.BuildVirtualMachine(vm, again)
		require.NoError(t, err)
		require.Equal(t, u, u2)
		require.Equal(t, u, u.DeepCopy(), "it has only types that an Unstructured can hold")

		require.Len(t, cfg.MACs, max(1, len(vm.Spec.Interfaces)), "the Pod network has one")
		unique := map[string]bool{}
		for _, mac := range cfg.MACs {
			unique[mac] = true
		}
		require.Len(t, unique, len(cfg.MACs))

		text, err := json.Marshal(u)
		require.NoError(t, err)
		for _, public := range append(cfg.Adjusted, string(text), cfg.Digest, string(cfg.NetworkData)) {
			require.NotContains(t, public, password)
		}
		require.Empty(t, validation.IsDNS1123Label(kubevirt.RootDiskName(vm)))
		require.Empty(t, validation.IsDNS1123Subdomain(cloudinit.SecretName(vm)))
		require.Equal(t, strings.Contains(string(text), "runStrategy"), vm.Spec.RunStrategy != "")

		others := in
		others.Passwords = map[string]string{}
		for i := range vm.Spec.Users {
			if u := &vm.Spec.Users[i]; u.PlainTextPasswd != "" {
				u.PlainTextPasswd = "another"
			}
			others.Passwords[vm.Spec.Users[i].Name] = "$1$salt$" + strings.Repeat("x", 22)
		}
		changed, err := cloudinit.Render(vm, others)
		require.NoError(t, err)
		require.Equal(t, cfg.Digest, changed.Digest, "the digest leaves out passwords")

		vm.Spec.Overlay = apitest.VirtualMachine("ns", "vm").WithOverlay("{}").Obj().Spec.Overlay
		u3, err := kubevirt.BuildVirtualMachine(vm, cfg)
		require.NoError(t, err)
		require.Equal(t, u, u3, "an empty overlay changes nothing")
	})
}

func TestRootDiskIsNeverTooSmall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := func(name string) resource.Quantity {
			return *resource.NewQuantity(rapid.Int64Range(1<<20, 64<<40).Draw(t, name), resource.BinarySI)
		}
		img := apitest.Image("farm/a").Obj()
		img.Spec.DiskSize = size("image")
		restore, requested := size("restore"), size("requested")
		vm := apitest.VirtualMachine("ns", "vm").Obj()
		vm.Spec.Resources.DiskSize = &requested
		got, adjusted := kubevirt.RootDiskSize(vm, img)
		require.GreaterOrEqual(t, got.Cmp(img.Spec.DiskSize), 0)
		require.GreaterOrEqual(t, got.Cmp(requested), 0)
		require.Equal(t, got.Cmp(requested) != 0, adjusted != "")

		p := newPin(img, "claim", "snapshot")
		p.RestoreSize = &restore
		if request, asks := kubevirt.BuildRootDisk(vm, img, p, got).Spec.Storage.Resources.Requests[corev1.ResourceStorage]; asks {
			require.GreaterOrEqual(t, request.Cmp(restore), 0, "CDI refuses to clone into less")
			require.GreaterOrEqual(t, request.Cmp(got), 0)
		}
	})
}
