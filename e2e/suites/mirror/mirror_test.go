//go:build linux

package mirror_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// maxOverhead is what a site may cost the origin beyond the bytes of the image.
const maxOverhead = 1.05

// requireOneDownloadPerSite wants each byte sent once to each site.
func (f *testFleet) requireOneDownloadPerSite(t *testing.T, path string, content []byte) {
	t.Helper()
	sent, wanted := float64(f.source.sentBytes(path)), float64(len(sites)*len(content))
	t.Logf("the origin sent %.0f bytes, %.4f for each byte of the image and site", sent, sent/wanted)
	require.GreaterOrEqual(t, sent, wanted)
	require.LessOrEqual(t, sent, maxOverhead*wanted)
}

// meetAtSites has the imports of a site begin together.
func meetAtSites() (onStart func(context.Context, string)) {
	var mu sync.Mutex
	arrived, all := map[string]int{}, map[string]chan struct{}{}
	for _, site := range sites {
		all[site] = make(chan struct{})
	}
	return func(ctx context.Context, site string) {
		mu.Lock()
		if arrived[site]++; arrived[site] == clustersPerSite {
			close(all[site])
		}
		mu.Unlock()
		select {
		case <-all[site]:
		case <-ctx.Done():
		}
	}
}

// TestSiteDownloadsOnce: twelve clusters get an image, with the first requests of each site at the
// same time, and the origin sends it three times.
func TestSiteDownloadsOnce(t *testing.T) {
	requireNginx(t)
	_, port := shared.startMirrors(t)
	shared.resetCounts(meetAtSites())
	content := newContent(4)
	img, path := shared.createImage(t, "ubuntu", port, content)
	shared.awaitSucceeded(t, img, int32(len(sites)*clustersPerSite))
	shared.requireOneDownloadPerSite(t, path, content)
	for _, site := range sites {
		assert.Equal(t, clustersPerSite, shared.mostRunning(site), "imports at a time at %s", site)
	}
}

// TestMirrorThatDies: a mirror is killed in the middle of all downloads. The other sites finish
// without it; its site goes on from what it has cached when it is back.
func TestMirrorThatDies(t *testing.T) {
	testenv.RunInTurn(t, 2)
	requireNginx(t)
	mirrors, port := shared.startMirrors(t)
	shared.resetCounts(meetAtSites())
	lost := sites[0]
	content := newContent(4)
	path := "/debian/2.1.0/disk.qcow2"
	release := shared.source.holdRequests(path, 2*slice)
	defer release()
	img, created := shared.createImage(t, "debian", port, content)
	require.Equal(t, path, created)
	require.True(t, testenv.AwaitCondition(t, func() bool { return shared.source.countHeld(path) == len(sites) }), "not every mirror has got to the third slice")
	mirrors[lost].kill()
	release()

	shared.awaitSucceeded(t, img, int32((len(sites)-1)*clustersPerSite))
	m := shared.Members[agentOfSite[lost]]
	waiting := m.AwaitImage(t, img.ImageNameForVersion(img.Spec.Version), "waiting for another attempt", testenv.HasReason(v1alpha1.ReasonBackingOff))
	assert.Contains(t, waiting.Status.Message, lost)
	shared.awaitSucceeded(t, img, int32((len(sites)-1)*clustersPerSite))
	assert.Zero(t, img.Status.Clusters.Failed)

	mirrors[lost].start(t)
	shared.awaitSucceeded(t, img, int32(len(sites)*clustersPerSite))
	shared.requireOneDownloadPerSite(t, path, content)
	for site, name := range agentOfSite {
		m := shared.Members[name]
		attempts := testenv.History(t, m.Observer).Attempts(m.GetImage(t, img.ImageNameForVersion(img.Spec.Version)).UID)
		if site != lost {
			assert.Equal(t, 1, attempts, "attempts in %s, whose mirror lived", name)
			continue
		}
		assert.Greater(t, attempts, 1)
		assert.LessOrEqual(t, attempts, retryLimit+1)
	}
}

// TestGroupLimitsMirrors: a group of fleetSources limits one mirror, another all of them.
func TestGroupLimitsMirrors(t *testing.T) {
	testenv.RunInTurn(t, 1)
	requireNginx(t)
	_, port := shared.startMirrors(t)
	shared.resetCounts(nil)
	shared.SetPolicyForTest(t, map[string]string{
		"fleetConcurrency": "60", "fleetGrantDuration": "15s",
		"fleetSources": `[{name: first, hosts: ["` + sites[0] + `"], concurrency: 1}, {name: mirrors, hosts: ["` + sites[1] + `", "` + sites[2] + `"], concurrency: 3}]`,
	})
	for _, name := range agentOfSite {
		m := shared.Members[name]
		require.True(t, testenv.AwaitCondition(t, func() bool { return m.Ledger(t).Policy["fleetSources"] != "" }), "%s does not apply the policy", name)
	}
	for _, m := range shared.Fakes.List {
		require.NoError(t, m.AwaitPlan(t.Context(), func(root *v1alpha1.ReportRoot) bool { return root.Policy["fleetSources"] != "" }))
	}
	content := newContent(1)
	img, path := shared.createImage(t, "alpine", port, content)
	shared.awaitSucceeded(t, img, int32(len(sites)*clustersPerSite))
	shared.requireOneDownloadPerSite(t, path, content)
	assert.Equal(t, 1, shared.mostRunning(groupOf(sites[0])))
	assert.LessOrEqual(t, shared.mostRunning(groupOf(sites[1])), 3)
}

// TestGroupsOfThePage: hosts before patterns, as the page says.
func TestGroupsOfThePage(t *testing.T) {
	var cm corev1.ConfigMap
	require.NoError(t, yaml.Unmarshal([]byte(pages.Read(t, mirrorPage).Block(t, "yaml", "fleetSources:")), &cm))
	_, _, errs := policy.ParsePolicy(cm.Data)
	require.Empty(t, errs)
	var groups apipolicy.Sources
	require.NoError(t, yaml.Unmarshal([]byte(cm.Data[apipolicy.KeyFleetSources]), &groups))
	for host, want := range map[string]string{
		"oslo.mirror.example": "oslo", "kiel.mirror.example": "mirrors", "registry.oslo.mirror.example": "mirrors", "images.example.com": "origin",
		"mirror.example": v1alpha1.SourceOther,
	} {
		assert.Equal(t, want, groups.GroupOrOther(host), host)
	}
}
