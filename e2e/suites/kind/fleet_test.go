//go:build linux

package kind_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// fleetDescription is the description that scripts/kind-up writes of its fleet.
type fleetDescription struct {
	Prefix, Engine, Kubeconfigs, Images, Source, Helm, Kubectl, Charts, Version, Hub, CDI, KubeVirt string

	Offline bool
	Members []struct{ Name, Shape, Mode string }
}

// kindFleet is a fleetjourneys.Fleet of kind clusters.
type kindFleet struct {
	fleetDescription
	hub     client.Client
	members []fleetjourneys.Member
	// countsURL serves the source's counts of requests.
	countsURL string
	// diskChecksum and diskSize are those of the disk that all files of the source contain.
	diskChecksum string
	diskSize     int64
}

func openFleet(path string) (*kindFleet, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading what scripts/kind-up has made: %w", err)
	}
	f := &kindFleet{}
	if err := json.Unmarshal(text, &f.fleetDescription); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if f.hub, err = f.newClient("hub", nil); err != nil {
		return nil, err
	}
	for _, m := range f.fleetDescription.Members {
		member := fleetjourneys.Member{Name: m.Name, PullMode: m.Mode == "pull"}
		if member.Client, err = f.newClient(m.Name, &member); err != nil {
			return nil, err
		}
		f.members = append(f.members, member)
	}
	address, err := f.runEngine(context.Background(), "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", f.Source)
	if err != nil {
		return nil, err
	}
	f.countsURL = "http://" + address + "/counts"
	return f, f.readSourceDisk()
}

// readSourceDisk reads the disk that volumes are compared with.
func (f *kindFleet) readSourceDisk() error {
	text, err := os.ReadFile(filepath.Join(f.Images, "SHA256SUMS"))
	if err != nil {
		return fmt.Errorf("reading what the source has: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if sum, name, _ := strings.Cut(strings.TrimSpace(line), "  "); name == "disk.raw" {
			f.diskChecksum = sum
		}
	}
	info, err := os.Stat(filepath.Join(f.Images, "disk.raw"))
	if err != nil {
		return fmt.Errorf("reading what the source has: %w", err)
	}
	f.diskSize = info.Size()
	return nil
}

func (f *kindFleet) clusterName(name string) string { return f.Prefix + "-" + name }

func (f *kindFleet) kubeconfigPath(name string) string {
	return filepath.Join(f.Kubeconfigs, f.clusterName(name))
}

func (f *kindFleet) newClient(name string, m *fleetjourneys.Member) (client.Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", f.kubeconfigPath(name))
	if err != nil {
		return nil, fmt.Errorf("connecting to cluster %s: %w", name, err)
	}
	// Requests to a disconnected cluster must time out.
	cfg.QPS, cfg.Burst = 50, 100
	if m != nil {
		m.Config = cfg
	}
	return client.New(cfg, client.Options{Scheme: scheme})
}

var scheme = func() *runtime.Scheme {
	s := testenv.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{cdiv1.AddToScheme, kubevirtv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// runProgram runs a program against the fleet's container engine and returns its output.
func (f *kindFleet) runProgram(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetjourneys.WaitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = os.Environ()
	if f.Engine != "" {
		cmd.Env = append(cmd.Env, "DOCKER_HOST="+f.Engine)
	}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running %s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, complaint.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func (f *kindFleet) runEngine(ctx context.Context, args ...string) (string, error) {
	return f.runProgram(ctx, "docker", args...)
}

func (f *kindFleet) requireProgram(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := f.runProgram(t.Context(), program, args...)
	require.NoError(t, err)
	return out
}

// Hub implements fleetjourneys.Fleet.
func (f *kindFleet) Hub() client.Client { return f.hub }

// Members implements fleetjourneys.Fleet.
func (f *kindFleet) Members() []fleetjourneys.Member { return f.members }

// requireMember returns a member by name, and skips the test where it does not exist.
func (f *kindFleet) requireMember(t *testing.T, name string) fleetjourneys.Member {
	t.Helper()
	i := slices.IndexFunc(f.members, func(m fleetjourneys.Member) bool { return m.Name == name })
	if i < 0 {
		t.Skipf("no member %s: scripts/kind-up without arguments creates it", name)
	}
	return f.members[i]
}

// ImageSpec implements fleetjourneys.Fleet.
func (f *kindFleet) ImageSpec(way fleetjourneys.SourceBehaviour, name string) v1alpha1.VMDiskImageSpec {
	path := map[fleetjourneys.SourceBehaviour]string{fleetjourneys.SlowDownload: "slow/6", fleetjourneys.FailingDownload: "status/500"}[way]
	return f.imageSpecAt(path, name, "disk.qcow2")
}

// imageSpecAt returns an image that the source serves at a path.
func (f *kindFleet) imageSpecAt(path, name, file string) v1alpha1.VMDiskImageSpec {
	return v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: strings.Join([]string{"http://" + f.Source, path, name, file}, "/"),
		DiskSize: resource.MustParse("512Mi"),
	}
}

// RequireBytes implements fleetjourneys.Fleet: the volume is the disk, followed by zeros.
func (f *kindFleet) RequireBytes(t *testing.T, m fleetjourneys.Member, img *v1alpha1.VMDiskImage) {
	t.Helper()
	f.requireVolumeBytes(t, m, img.Namespace, img.Status.Serving.PersistentVolumeClaim)
}

func (f *kindFleet) requireVolumeBytes(t *testing.T, m fleetjourneys.Member, namespace, name string) {
	t.Helper()
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	require.NoError(t, m.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, claim))
	require.NoError(t, m.Get(t.Context(), client.ObjectKey{Name: claim.Spec.VolumeName}, volume))
	var path string
	switch {
	case volume.Spec.HostPath != nil:
		path = volume.Spec.HostPath.Path
	case volume.Spec.Local != nil:
		path = volume.Spec.Local.Path
	}
	node := volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
	found := f.requireProgram(t, "docker", "exec", node, "sh", "-c",
		`head -c "$1" "$2/disk.img" | sha256sum | cut -d" " -f1; tail -c +"$(($1 + 1))" "$2/disk.img" | tr -d "\000" | wc -c`,
		"-", fmt.Sprint(f.diskSize), path)
	assert.Equal(t, f.diskChecksum+"\n0", found, "sha256 of what %s has of %s, and bytes after its end", m.Name, name)
	resultsPage.bytesCompared++
}

// SourceRequests implements fleetjourneys.Fleet.
func (f *kindFleet) SourceRequests(t *testing.T, img v1alpha1.VMDiskImageSpec) (fleetjourneys.RequestCounts, bool) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.countsURL, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	all := map[string]fleetjourneys.RequestCounts{}
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&all))
	return all[strings.TrimPrefix(img.URL, "http://"+f.Source)], true
}

// KillAgent implements fleetjourneys.Fleet.
func (f *kindFleet) KillAgent(t *testing.T, m fleetjourneys.Member) {
	t.Helper()
	f.killLeader(t, m, program.AgentNamespace, "ot-agent")
}

// KillHub implements fleetjourneys.Fleet.
func (f *kindFleet) KillHub(t *testing.T) {
	t.Helper()
	f.killLeader(t, f.hub, program.HubNamespace, "ot-hub")
}

// killLeader kills the leader's process without a graceful shutdown.
func (f *kindFleet) killLeader(t *testing.T, c client.Reader, namespace, program string) {
	t.Helper()
	pod := f.awaitLeaderPod(t, c, namespace, program)
	f.requireProgram(t, "docker", "exec", pod.Spec.NodeName, "pkill", "-KILL", "-x", program)
}

// awaitLeaderPod waits for a Pod that holds a program's Lease.
func (f *kindFleet) awaitLeaderPod(t *testing.T, c client.Reader, namespace, program string) *corev1.Pod {
	t.Helper()
	pod, err := f.findLeaderPod(t.Context(), c, namespace, program)
	require.NoError(t, err)
	return pod
}

func (f *kindFleet) findLeaderPod(ctx context.Context, c client.Reader, namespace, program string) (*corev1.Pod, error) {
	lease, pod := &coordinationv1.Lease{}, &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: program}, lease); err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return pod, c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
}

// nodeAddresses returns nodes and addresses in the order of the addresses: the first node that restarts
// gets the first free address.
func (f *kindFleet) nodeAddresses(ctx context.Context, cluster string) (names, addresses []string, err error) {
	all, err := f.runEngine(ctx, "ps", "-a", "--filter", "label=io.x-k8s.kind.cluster="+f.clusterName(cluster), "--format", "{{.Names}}")
	if err != nil {
		return nil, nil, err
	}
	at := map[string]string{}
	for _, name := range strings.Fields(all) {
		if at[name], err = f.nodeAddress(ctx, name); err != nil {
			return nil, nil, err
		}
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if byLength := len(at[a]) - len(at[b]); byLength != 0 {
			return byLength
		}
		return strings.Compare(at[a], at[b])
	})
	for _, name := range names {
		addresses = append(addresses, at[name])
	}
	return names, addresses, nil
}

func (f *kindFleet) nodeAddress(ctx context.Context, node string) (string, error) {
	return f.runEngine(ctx, "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", node)
}

// dockerNetwork is the network of kind's nodes.
const dockerNetwork = "kind"

// CutNetwork implements fleetjourneys.Fleet.
func (f *kindFleet) CutNetwork(t *testing.T, m fleetjourneys.Member) func() {
	t.Helper()
	nodes, addresses, err := f.nodeAddresses(t.Context(), m.Name)
	require.NoError(t, err)
	for _, node := range nodes {
		f.requireProgram(t, "docker", "network", "disconnect", dockerNetwork, node)
	}
	cut := true
	mend := func() {
		if !cut {
			return
		}
		cut = false
		ctx := context.Background()
		for i, node := range nodes {
			_, err := f.runEngine(ctx, "network", "connect", dockerNetwork, node)
			require.NoError(t, err)
			got, err := f.nodeAddress(ctx, node)
			require.NoError(t, err)
			require.Equal(t, addresses[i], got, "%s has come back with another address, which its cluster does not know: scripts/kind-down %s, then kind-up", node, f.clusterName(m.Name))
		}
	}
	t.Cleanup(mend)
	return mend
}
