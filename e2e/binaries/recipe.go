package binaries

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// recipe says how one program is made from the nested module that pins it.
type recipe struct {
	name      Name
	directory string
	pkg       string
	module    string
	why       string
	cold      string
	inAssets  bool
	// stamp returns linker flags that give the program its version.
	stamp func(version string) string
}

var recipes = []recipe{
	{
		name: APIServer, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", module: "k8s.io/kubernetes",
		why: "local control planes", cold: "3 to 6 minutes", inAssets: true, stamp: stampKubernetes,
	},
	{
		name: Etcd, directory: "etcd", pkg: "go.etcd.io/etcd/server/v3", module: "go.etcd.io/etcd/server/v3",
		why: "local control planes", cold: "half a minute", inAssets: true,
	},
	{
		name: ControllerManager, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", module: "k8s.io/kubernetes",
		why: "garbage collection, namespaces and volumes of local control planes", cold: "1 to 2 minutes", stamp: stampKubernetes,
	},
	{
		name: Scheduler, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", module: "k8s.io/kubernetes",
		why: "placing importer pods in members", cold: "half a minute", stamp: stampKubernetes,
	},
	{
		name: Kubectl, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kubectl", module: "k8s.io/kubernetes",
		why: "journeys that start at a terminal", cold: "half a minute", inAssets: true, stamp: stampKubernetes,
	},
	{
		name: CDI, directory: "cdi", pkg: ".", module: "kubevirt.io/containerized-data-importer",
		why: "real DataVolumes in members", cold: "1 to 2 minutes",
	},
	{
		name: KubeVirt, directory: "kubevirt", pkg: ".", module: "kubevirt.io/kubevirt",
		why: "real VirtualMachines in members", cold: "2 to 4 minutes",
	},
	{
		name: VirtAPI, directory: "kubevirt", pkg: "./virtapi", module: "kubevirt.io/kubevirt",
		why: "what KubeVirt's admission does to VirtualMachines in members", cold: "a minute",
	},
	{
		name: KWOK, directory: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok", module: "sigs.k8s.io/kwok",
		why: "playing the kubelet in members", cold: "1 minute",
	},
	{
		name: SnapshotController, directory: "snapshotcontroller", pkg: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
		module: "github.com/kubernetes-csi/external-snapshotter/v8",
		why:    "real VolumeSnapshots in members", cold: "1 minute",
	},
	{
		name: Helm, directory: "helm", pkg: "helm.sh/helm/v4/cmd/helm", module: "helm.sh/helm/v4",
		why: "installing the charts", cold: "1 minute",
		stamp: func(version string) string { return "-X helm.sh/helm/v4/internal/version.version=" + version },
	},
}

// stampKubernetes matters beyond cosmetics: charts compare the version that
// the API server reports with the one they require.
func stampKubernetes(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const pkg = "k8s.io/component-base/version."
	flags := []string{"-X " + pkg + "gitVersion=" + version}
	if len(parts) == 3 {
		flags = append(flags, "-X "+pkg+"gitMajor="+parts[0], "-X "+pkg+"gitMinor="+parts[1])
	}
	return strings.Join(flags, " ")
}

// version reads the pinned version out of the nested module's go.mod.
func (r recipe) version(source string) (string, error) {
	file := filepath.Join(source, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading which version of %s is pinned: %w", r.module, err)
	}
	match := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(r.module) + `\s+(v\S+)`).FindSubmatch(text)
	if match == nil {
		return "", fmt.Errorf("reading which version of %s is pinned: %s does not require it", r.module, file)
	}
	return string(match[1]), nil
}
