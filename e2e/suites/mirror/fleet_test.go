//go:build linux

package mirror_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	clustersPerSite = 4
	retryLimit      = 10
	labelSite       = "site"
)

// agentOfSite is the member of each site that has an agent.
var agentOfSite = map[string]string{sites[0]: "bergen", sites[1]: "kiel", sites[2]: "oslo"}

// shared is the fleet of all tests, which run one after another.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	keys   keyFiles
	source *origin

	mu sync.Mutex
	// onStart runs before each download.
	onStart func(ctx context.Context, site string)
	// running and most count the imports of each site and of each group of mirrors, now and at
	// the most.
	running, most map[string]int
}

func TestMain(m *testing.M) {
	if err := findNginx(); err != nil {
		fmt.Fprintln(os.Stderr, "mirrors are skipped:", err)
		os.Exit(m.Run())
	}
	shared = &testFleet{running: map[string]int{}, most: map[string]int{}}
	directory, err := os.MkdirTemp("", "mirror")
	if err == nil {
		shared.keys, err = newKeyFiles(directory)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared.source = startOrigin(shared.keys.pair)
	var members []fleet.MemberOptions
	for site, name := range agentOfSite {
		members = append(members, fleet.MemberOptions{Name: name, Labels: map[string]string{labelSite: site}, Observe: true})
	}
	fleet.RunTests(m, fleet.Options{
		Policy: map[string]string{
			"concurrency": "4", "retryLimit": fmt.Sprint(retryLimit), "retryBackoffDuration": "1s",
		},
		Members: members, Fakes: len(sites) * (clustersPerSite - 1),
	}, func(ctx context.Context, f *fleet.Fleet) error {
		shared.Fleet = f
		f.OnStop(func() {
			shared.source.CloseClientConnections()
			shared.source.Close()
			_ = os.RemoveAll(directory)
		})
		return shared.setUp(ctx)
	})
}

// setUp gives the members the mirrors' authority, and has all imports download.
func (f *testFleet) setUp(ctx context.Context) error {
	for _, m := range f.Members {
		authority := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fleet.Namespace, Name: "mirror-ca"}, Data: map[string]string{"ca.pem": string(f.keys.authority)}}
		if err := m.Create(ctx, authority); err != nil {
			return err
		}
		m.InstantImporter().ImportWith(func(ctx context.Context, dv *cdiv1.DataVolume) error {
			trusted := &corev1.ConfigMap{}
			if err := m.Get(ctx, client.ObjectKey{Namespace: dv.Namespace, Name: dv.Spec.Source.HTTP.CertConfigMap}, trusted); err != nil {
				return err
			}
			return f.download(ctx, newImporter([]byte(trusted.Data["ca.pem"])), dv.Spec.Source.HTTP.URL, dv.Spec.Source.HTTP.SecretRef, dv.Spec.Source.HTTP.Checksum)
		})
	}
	trusting := newImporter(f.keys.authority)
	f.Fakes.PlayImportsWith(func(ctx context.Context, _ string, spec v1alpha1.VMDiskImageSpec) {
		// A fake agent tries again when the mirror listens.
		for f.download(ctx, trusting, spec.URL, spec.SecretRef, spec.Checksum) != nil && awaitListening(ctx, spec.URL) {
		}
	})
	for i, m := range f.Fakes.List {
		cfg, err := m.Config(ctx)
		if err == nil {
			err = f.CreateMember(ctx, m.Name, m.Name, map[string]string{labelSite: sites[i%len(sites)]}, cfg)
		}
		if err != nil {
			return err
		}
	}
	names := make([]string, len(f.Fakes.List))
	for i, m := range f.Fakes.List {
		names[i] = m.Name
	}
	return f.AwaitReady(ctx, names...)
}

// awaitListening waits until a server listens; false at the end of the tests.
func awaitListening(ctx context.Context, text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return false
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		if connection, err := net.DialTimeout("tcp", u.Host, time.Second); err == nil {
			_ = connection.Close()
			return true
		}
	}
}

// download is an import of any cluster.
func (f *testFleet) download(ctx context.Context, i importer, text, secret, checksum string) error {
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	if secret != "" {
		return fmt.Errorf("credentials of Secret %s would be sent to %s", secret, u.Host)
	}
	site := u.Hostname()
	f.mu.Lock()
	counted := []string{site, groupOf(site)}
	for _, key := range counted {
		f.running[key]++
		f.most[key] = max(f.most[key], f.running[key])
	}
	onStart := f.onStart
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, key := range counted {
			f.running[key]--
		}
	}()
	if onStart != nil {
		onStart(ctx, site)
	}
	got, err := i.download(ctx, text)
	if err == nil && got != checksum {
		err = fmt.Errorf("Unable to process data: checksum mismatch: expected %s, calculated %s", checksum, got)
	}
	return err
}

// resetCounts forgets how many imports there were, and sets what runs before each.
func (f *testFleet) resetCounts(onStart func(ctx context.Context, site string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onStart, f.most = onStart, map[string]int{}
}

// mostRunning returns how many imports a site, or a group, has had at a time.
func (f *testFleet) mostRunning(key string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most[key]
}

// groupOf is the group of a site's mirror in TestGroupLimitsMirrors: the first has its own.
func groupOf(site string) string {
	if site == sites[0] {
		return "first"
	}
	return "mirrors"
}

// startMirrors starts a mirror at each site, with one port.
func (f *testFleet) startMirrors(t *testing.T) (mirrors map[string]*mirror, port string) {
	t.Helper()
	requireNginx(t)
	mirrors, port = map[string]*mirror{}, newPort(t)
	for _, site := range sites {
		mirrors[site] = newMirror(t, net.JoinHostPort(site, port), f.source.host(), f.keys)
		mirrors[site].start(t)
	}
	return mirrors, port
}

// createImage stores content at the origin and creates the FleetDiskImage of the page for it.
func (f *testFleet) createImage(t *testing.T, name, port string, content []byte) (img *v1alpha1.FleetDiskImage, path string) {
	t.Helper()
	text := pages.Read(t, mirrorPage).Block(t, "yaml", "certConfigMap:")
	text = strings.ReplaceAll(text, ".mirror.example/ubuntu/", ":"+port+"/"+name+"/")
	text = strings.ReplaceAll(text, "name: ubuntu", "name: "+name)
	img = &v1alpha1.FleetDiskImage{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), img))
	img.Spec.Template.Checksum = digest(content)
	img.Spec.Template.StorageClass = fleet.NewImageSpec(name).StorageClass
	path = "/" + name + "/" + img.Spec.Version + "/disk.qcow2"
	require.Contains(t, *img.Spec.Overrides[0].URL, ":"+port+path)
	f.source.put(path, content)
	f.CreateForTest(t, img)
	return img, path
}

// awaitSucceeded waits until some number of clusters has an image.
func (f *testFleet) awaitSucceeded(t *testing.T, img *v1alpha1.FleetDiskImage, n int32) {
	t.Helper()
	if !testenv.AwaitCondition(t, func() bool {
		return f.Get(t.Context(), client.ObjectKeyFromObject(img), img) == nil && img.Status.Clusters.Succeeded >= n
	}) {
		require.Failf(t, "too few clusters have the image", "want %d: %+v", n, img.Status)
	}
}
