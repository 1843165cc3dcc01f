package binaries

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// recipe describes how a program is built from the nested module that pins it.
type recipe struct {
	name          Name
	directory     string
	pkg           string
	module        string
	purpose       string
	coldBuildTime string
	inAssets      bool
	// versionFlags returns the linker flags that set the program's version.
	versionFlags func(version string) string
}

var recipes = []recipe{
	{
		name: APIServer, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", module: "k8s.io/kubernetes",
		purpose: "local control planes", coldBuildTime: "3 to 6 minutes", inAssets: true, versionFlags: kubernetesVersionFlags,
	},
	{
		name: Etcd, directory: "etcd", pkg: "go.etcd.io/etcd/server/v3", module: "go.etcd.io/etcd/server/v3",
		purpose: "local control planes", coldBuildTime: "half a minute", inAssets: true,
	},
	{
		name: ControllerManager, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", module: "k8s.io/kubernetes",
		purpose: "garbage collection, namespaces and volumes of local control planes", coldBuildTime: "1 to 2 minutes", versionFlags: kubernetesVersionFlags,
	},
	{
		name: Scheduler, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", module: "k8s.io/kubernetes",
		purpose: "placing importer pods in members", coldBuildTime: "half a minute", versionFlags: kubernetesVersionFlags,
	},
	{
		name: Kubectl, directory: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kubectl", module: "k8s.io/kubernetes",
		purpose: "journeys that start at a terminal", coldBuildTime: "half a minute", inAssets: true, versionFlags: kubernetesVersionFlags,
	},
	{
		name: CDI, directory: "cdi", pkg: ".", module: "kubevirt.io/containerized-data-importer",
		purpose: "real DataVolumes in members", coldBuildTime: "1 to 2 minutes",
	},
	{
		name: KubeVirt, directory: "kubevirt", pkg: ".", module: "kubevirt.io/kubevirt",
		purpose: "real VirtualMachines in members", coldBuildTime: "2 to 4 minutes",
	},
	{
		name: VirtAPI, directory: "kubevirt", pkg: "./virtapi", module: "kubevirt.io/kubevirt",
		purpose: "what KubeVirt's admission does to VirtualMachines in members", coldBuildTime: "a minute",
	},
	{
		name: KWOK, directory: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok", module: "sigs.k8s.io/kwok",
		purpose: "playing the kubelet in members", coldBuildTime: "1 minute",
	},
	{
		name: SnapshotController, directory: "snapshotcontroller", pkg: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
		module:  "github.com/kubernetes-csi/external-snapshotter/v8",
		purpose: "real VolumeSnapshots in members", coldBuildTime: "1 minute",
	},
	{
		name: Helm, directory: "helm", pkg: "helm.sh/helm/v4/cmd/helm", module: "helm.sh/helm/v4",
		purpose: "installing the charts", coldBuildTime: "1 minute",
		versionFlags: func(version string) string { return "-X helm.sh/helm/v4/internal/version.version=" + version },
	},
}

// kubernetesVersionFlags sets the version that the API server reports, which charts check.
func kubernetesVersionFlags(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const pkg = "k8s.io/component-base/version."
	flags := []string{"-X " + pkg + "gitVersion=" + version}
	if len(parts) == 3 {
		flags = append(flags, "-X "+pkg+"gitMajor="+parts[0], "-X "+pkg+"gitMinor="+parts[1])
	}
	return strings.Join(flags, " ")
}

// pinnedVersion reads the version from the nested module's go.mod.
func (r recipe) pinnedVersion(source string) (string, error) {
	file := filepath.Join(source, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading the pinned version of %s: %w", r.module, err)
	}
	match := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(r.module) + `\s+(v\S+)`).FindSubmatch(text)
	if match == nil {
		return "", fmt.Errorf("reading the pinned version of %s: %s does not require it", r.module, file)
	}
	return string(match[1]), nil
}
