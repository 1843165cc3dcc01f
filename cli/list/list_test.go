package list_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/list"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-d))) }

func newMember(name string, change func(*v1alpha1.MemberCluster)) *v1alpha1.MemberCluster {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status.LastReport, m.Status.Budget, m.Status.SlotsUsed = ago(3*time.Second), ptr.To[int32](3), ptr.To[int32](2)
	m.Status.Images, m.Status.Policy = &v1alpha1.MemberImages{Queued: 4, Ready: 6}, &v1alpha1.MemberPolicy{Source: "fleet default"}
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	if change != nil {
		change(m)
	}
	return m
}

func members() []*v1alpha1.MemberCluster {
	return []*v1alpha1.MemberCluster{
		newMember("bergen", nil),
		newMember("lab", func(m *v1alpha1.MemberCluster) { m.Status.Images.Failed = 5 }),
		newMember("edge-3", func(m *v1alpha1.MemberCluster) {
			m.Status.SilentSince, m.Status.LastReport = ago(2*time.Hour), ago(2*time.Hour)
		}),
		newMember("new-1", func(m *v1alpha1.MemberCluster) { m.Status = v1alpha1.MemberClusterStatus{} }),
		newMember("frankfurt", func(m *v1alpha1.MemberCluster) {
			m.Status.Conditions[0] = metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Unreachable", Message: "the API server does not answer"}
		}),
		newMember("oslo", func(m *v1alpha1.MemberCluster) {
			m.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "storage is replaced"}
		}),
	}
}

func listClusters(t *testing.T, q list.Query) *list.List[list.Cluster] {
	t.Helper()
	rows, err := list.NewClusters(now, q)
	require.NoError(t, err)
	for _, m := range members() {
		rows.Add(list.NewCluster(m))
	}
	rows.Finish()
	return rows
}

func TestClusters(t *testing.T) {
	rendertest.Golden(t, "clusters", now, listClusters(t, list.Query{}))
	rendertest.Golden(t, "clusters-limited", now, listClusters(t, list.Query{SortBy: "failed", Limit: 1}))
	for name, test := range map[string]struct {
		query       list.Query
		want        []string
		wantMissing []string
	}{
		"all":                {want: []string{"bergen", "edge-3", "frankfurt", "lab", "new-1", "oslo"}},
		"failing":            {query: list.Query{Failing: true}, want: []string{"frankfurt", "lab", "oslo"}},
		"unknown":            {query: list.Query{Unknown: true}, want: []string{"edge-3", "new-1"}},
		"failing or unknown": {query: list.Query{Failing: true, Unknown: true}, want: []string{"edge-3", "frankfurt", "lab", "new-1", "oslo"}},
		"named":              {query: list.Query{Names: []string{"lab", "rome"}}, want: []string{"lab"}, wantMissing: []string{"rome"}},
		"named, and well":    {query: list.Query{Names: []string{"bergen", "rome"}, Failing: true}, wantMissing: []string{"rome"}},
		"named, and cut off": {query: list.Query{Names: []string{"bergen", "lab"}, Limit: 1}, want: []string{"bergen"}},
		"oldest report":      {query: list.Query{SortBy: "report", Limit: 2}, want: []string{"edge-3", "bergen"}},
		"most failed":        {query: list.Query{SortBy: "failed", Limit: 1}, want: []string{"lab"}},
	} {
		t.Run(name, func(t *testing.T) {
			rows := listClusters(t, test.query)
			var names []string
			for _, c := range rows.Items {
				names = append(names, c.Name)
			}
			assert.Equal(t, test.want, names)
			assert.ElementsMatch(t, test.wantMissing, rows.Missing())
			assert.Equal(t, 6, rows.Total)
		})
	}
}

// A cluster whose conditions are all well and whose images failed is not Ready.
func TestFailingCluster(t *testing.T) {
	c := list.NewCluster(newMember("lab", func(m *v1alpha1.MemberCluster) { m.Status.Images.Failed = 5 }))
	assert.Equal(t, "Failing", c.State)
	assert.Equal(t, "5 failed images", c.Message)
	listed := list.NewCluster(newMember("lab", func(m *v1alpha1.MemberCluster) { m.Status.Failing = make([]v1alpha1.ImageSummary, 1) }))
	assert.Equal(t, "1 failed image", listed.Message, "the list is newer than the counts")
}

// Somebody has to act for a cluster that never reported and is Stalled: it is not merely unknown.
func TestStalledClusterWithoutReport(t *testing.T) {
	rows, err := list.NewClusters(now, list.Query{Failing: true})
	require.NoError(t, err)
	rows.Add(list.NewCluster(newMember("new-1", func(m *v1alpha1.MemberCluster) {
		m.Status = v1alpha1.MemberClusterStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonJoinTokenExpired, Message: "its join token has expired"},
			{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue},
		}}
	})))
	rows.Finish()
	assert.Equal(t, []list.Cluster{{Name: "new-1", State: v1alpha1.ReasonJoinTokenExpired, Message: "its join token has expired"}}, rows.Items)
}

func TestWrongQueries(t *testing.T) {
	_, err := list.NewClusters(now, list.Query{SortBy: "colour"})
	require.ErrorContains(t, err, "--sort-by colour: must be one of failed, name, queued, report")
	_, err = list.NewRollouts(now, list.Query{Limit: -1})
	require.ErrorContains(t, err, "--limit -1")
}

func TestRollouts(t *testing.T) {
	rows, err := list.NewRollouts(now, list.Query{})
	require.NoError(t, err)
	for _, st := range []v1alpha1.FleetDiskImageStatus{
		{},
		{Phase: v1alpha1.RolloutProgressing, Reason: v1alpha1.ReasonMaxConcurrency, CurrentWave: "production", Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 12, TimedOut: 3, Deferred: 2}},
		{Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval, CurrentWave: "production", Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 3}},
		{Phase: v1alpha1.RolloutSucceeded, Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 40}},
		{Phase: v1alpha1.RolloutFailed, Reason: v1alpha1.ReasonMaxFailures, Message: "5 of 40 clusters failed", Clusters: v1alpha1.ClusterCounts{Total: 40, Failed: 5}},
	} {
		i := &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: "image-" + string(rune('a'+rows.Total)), CreationTimestamp: *ago(48 * time.Hour)}, Status: st}
		i.Spec.Version = "2.1.0"
		if rows.Total == 3 {
			i.Generation = 2 // the status is about the version before
		}
		rows.Add(list.NewRollout(i))
	}
	rows.Finish()
	rendertest.Golden(t, "rollouts", now, rows)
	failing, err := list.NewRollouts(now, list.Query{Failing: true})
	require.NoError(t, err)
	for _, r := range rows.Items {
		failing.Add(r)
	}
	assert.Equal(t, []string{"fleetdiskimage.pelotech.ot/image-b", "fleetdiskimage.pelotech.ot/image-e"}, failing.Names())
}

func TestImages(t *testing.T) {
	rows, err := list.NewImages(now, list.Query{})
	require.NoError(t, err)
	rows.Add(list.NewReportedImage("bergen", &v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "ubuntu-24", Phase: v1alpha1.PhaseSucceeded, References: 2, Bytes: 24 << 30, Attempts: 1, Source: "http https://images.example.com/a"}, ""))
	rows.Add(list.NewReportedImage("bergen", &v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "win-11", Phase: v1alpha1.PhaseSyncing, Reason: "Importing", Bytes: 60 << 30, Attempts: 2}, ""))
	rows.Add(list.NewReportedImage("edge-3", &v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "old", Phase: v1alpha1.PhaseQueued, Reason: "WaitingForSlot"}, "Silent"))
	rows.Add(list.NewReportedImage("edge-3", &v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "planned", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Message: "not created yet"}}, ""))
	rows.Add(list.NewReportedImage("lab", &v1alpha1.ReportedImage{Namespace: "images", Name: "held", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing, Message: "namespace images does not exist: create it"}}, ""))
	rejected := list.NewReportedImage("lab", &v1alpha1.ReportedImage{Namespace: "images", Name: "rejected", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemRejected, Message: "namespace images is not allowed"}}, "")
	rows.Add(rejected)
	rows.Add(list.NewFailedImage("lab", &v1alpha1.ImageSummary{Namespace: "vmdi-farm", Name: "centos-5", Reason: "NotFound", Message: `the source answered "404 Not Found"`}))
	live := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: "vmdi-farm", Name: "live"}}
	live.Spec.DiskSize, live.Spec.URL = resource.MustParse("24Gi"), "https://images.example.com/a?token=secret"
	row := list.NewLiveImage("bergen", live)
	assert.NotContains(t, row.Source, "secret")
	rows.Add(row)
	rows.NotListed, rows.Unread = 3, "The hub lists the first failed images of each cluster"
	rows.Finish()
	rendertest.Golden(t, "images", now, rows)
	empty, err := list.NewImages(now, list.Query{Failing: true})
	require.NoError(t, err)
	empty.Add(row)
	empty.Finish()
	rendertest.Golden(t, "none", now, empty)
	failing, err := list.NewImages(now, list.Query{Failing: true})
	require.NoError(t, err)
	failing.Add(rejected)
	assert.Equal(t, []string{"vmdiskimage.pelotech.ot/rejected"}, failing.Names(), "the cluster never gets it")
}

func TestMachines(t *testing.T) {
	rows, err := list.NewMachines(now, list.Query{})
	require.NoError(t, err)
	for name, st := range map[string]v1alpha1.VirtualMachineStatus{
		"desk-1": {Phase: v1alpha1.MachineReady, Reason: "Running"}, "desk-2": {Phase: v1alpha1.MachineProvisioning, Reason: "WaitingForImage", Message: "waiting for VMDiskImage vmdi-farm/ubuntu-24"},
		"desk-3": {Phase: v1alpha1.MachineFailed, Reason: "SpecInvalid"}, "desk-4": {},
	} {
		m := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "workspace-7", Name: name, CreationTimestamp: *ago(time.Hour)}, Status: st}
		m.Spec.VMDiskImageRef = v1alpha1.ImageReference{Namespace: "vmdi-farm", Name: "ubuntu-24"}
		rows.Add(list.NewMachine("bergen", m))
	}
	rows.Finish()
	rendertest.Golden(t, "machines", now, rows)
}

func newSource(n int) *readapi.Image {
	i := &readapi.Image{Source: fmt.Sprintf("http https://images.example.com/disk-%06d.qcow2", n), Members: n % 40}
	i.Images, i.References, i.Bytes = n%40, int64(n%7), int64(n%13)<<30
	i.Phases = map[v1alpha1.Phase]int{v1alpha1.PhaseSucceeded: n % 40, v1alpha1.PhaseFailed: n % 3}
	return i
}

func TestSources(t *testing.T) {
	rows, err := list.NewSources(now, list.Query{SortBy: "bytes"})
	require.NoError(t, err)
	for n := range 4 {
		i := newSource(n)
		if n == 1 {
			i.UnreferencedSince, i.Unknown = ago(94*24*time.Hour), 2
		}
		rows.Add(list.NewSource(i))
	}
	rows.Finish()
	rendertest.Golden(t, "sources", now, rows)
}

// With a limit, a list of a whole fleet holds no more than one of a few clusters, and says the
// same as one that keeps all.
func TestLimitBoundsMemory(t *testing.T) {
	held := func(images int) (int64, *list.List[list.Source]) {
		rows, err := list.NewSources(now, list.Query{SortBy: "machines", Limit: 50})
		require.NoError(t, err)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for n := range images {
			rows.Add(list.NewSource(newSource(n)))
		}
		rows.Finish()
		runtime.GC()
		runtime.ReadMemStats(&after)
		return int64(after.HeapAlloc) - int64(before.HeapAlloc), rows
	}
	few, _ := held(1000)
	many, rows := held(200_000)
	assert.Less(t, many, few+100<<10, "bytes held of 200,000 images, against 1,000")
	assert.Equal(t, 200_000, rows.Matched)

	all, err := list.NewSources(now, list.Query{SortBy: "machines"})
	require.NoError(t, err)
	for n := range 200_000 {
		all.Add(list.NewSource(newSource(n)))
	}
	all.Finish()
	assert.Equal(t, all.Items[:50], rows.Items)
	runtime.KeepAlive(rows)
}

// A watch prints a line for what changes: an age that grows is no change.
func TestWatchItems(t *testing.T) {
	itemsAt := func(now time.Time, failed int32) (texts []string) {
		rows, err := list.NewClusters(now, list.Query{})
		require.NoError(t, err)
		rows.Add(list.NewCluster(newMember("lab", func(m *v1alpha1.MemberCluster) { m.Status.Images.Failed = failed })))
		for _, item := range rows.WatchItems() {
			texts = append(texts, item.Print(render.Options{}))
		}
		return texts
	}
	assert.Equal(t, itemsAt(now, 5), itemsAt(now.Add(time.Hour), 5))
	assert.NotEqual(t, itemsAt(now, 5), itemsAt(now, 6))
	assert.Regexp(t, "^lab  ✗ Failing  slots .*  failed 5  .*5 failed images$", itemsAt(now, 5)[0])
	images, err := list.NewImages(now, list.Query{})
	require.NoError(t, err)
	for _, cluster := range []string{"bergen", "oslo"} {
		images.Add(list.NewReportedImage(cluster, &v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "ubuntu-24", Phase: v1alpha1.PhaseSucceeded}, ""))
	}
	assert.Equal(t, "bergen vmdi-farm/ubuntu-24", images.WatchItems()[0].Key)
	assert.Equal(t, "oslo vmdi-farm/ubuntu-24", images.WatchItems()[1].Key)
}
