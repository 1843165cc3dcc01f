//go:build linux

package cli_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const (
	largeClusters = 1000
	largeImages   = 200
	// largeSources is how many distinct images there are: each was replaced some times.
	largeSources = 1000
	// maxResident is the memory that a command may have.
	maxResident = 100 << 20
)

// TestLargeFleet runs the commands against a hub of 1,000 clusters with 200 images each. No
// command keeps the fleet in memory, and each costs little more than decoding what it asks
// for.
func TestLargeFleet(t *testing.T) {
	testenv.RunInTurn(t, 3)
	hub := newLargeHub(t)
	p, err := plugin.New(t.TempDir(), plugin.Context{Name: hubContext, Config: hub.config()})
	require.NoError(t, err)
	idle := measureCommand(t, p, 0, "--help")
	for _, args := range [][]string{
		{"status"},
		{"status", "-l", "region=nordics"},
		{"tree", "rollout", "image-0"},
		{"rollout", "status", "image-0"},
		{"get", "clusters", "--limit", "0"},
		{"get", "clusters", "-l", "region=nordics", "--sort-by", "failed", "--limit", "20"},
		{"get", "rollouts"},
		{"get", "images", "--sort-by", "bytes", "--limit", "20"},
		{"get", "images", "--failing"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			used := measureCommand(t, p, -1, append(args, "--read-api", hub.reader.URL)...)
			t.Logf("%v of CPU (%v for nothing), %d MiB", used.cpu, idle.cpu, used.resident>>20)
			assert.Positive(t, used.resident)
			assert.LessOrEqual(t, used.resident, int64(maxResident))
			assert.Less(t, used.cpu, idle.cpu+10*hub.decoding, "more than ten times what decoding all MemberClusters takes")
		})
	}
}

type usage struct {
	cpu      time.Duration
	resident int64
}

func measureCommand(t *testing.T, p *plugin.Plugin, wantCode int, args ...string) usage {
	t.Helper()
	cmd, err := p.Command(t.Context(), args...)
	require.NoError(t, err)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	resident := followResident(cmd.Process.Pid, ended)
	if wantCode >= 0 {
		require.Equal(t, wantCode, cmd.ProcessState.ExitCode(), out.String())
	}
	require.NotContains(t, out.String(), "error:", "%v", args)
	require.NotContains(t, out.String(), "without its read API", "%v", args)
	return usage{cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), resident}
}

var peakResident = regexp.MustCompile(`(?s)^Name:\s+` + plugin.Name + `\n.*VmHWM:\s+(\d+) kB`)

// followResident returns the peak of a command's memory. The kernel's count for a child that has
// ended (ru_maxrss) is at least the memory of this process, from which it was forked.
func followResident(pid int, ended <-chan error) (peak int64) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
			if found := peakResident.FindSubmatch(text); found != nil {
				kilobytes, _ := strconv.ParseInt(string(found[1]), 10, 64)
				peak = max(peak, kilobytes<<10)
			}
		}
		select {
		case <-ended:
			return peak
		case <-ticker.C:
		}
	}
}

// readCPUTime returns the CPU time of this process so far.
func readCPUTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

type largeHub struct {
	*httptest.Server
	// reader serves the same on a local port without TLS.
	reader *httptest.Server
	// decoding is the CPU time that decoding the list of all MemberClusters takes here.
	decoding time.Duration
}

// newLargeHub serves the kinds and the read API of a hub with a large fleet.
func newLargeHub(t *testing.T) *largeHub {
	members := make([]v1alpha1.MemberCluster, largeClusters)
	for i := range members {
		members[i] = newLargeMember(i)
	}
	images := make([]v1alpha1.FleetDiskImage, largeImages)
	for i := range images {
		images[i] = *newLargeImage(i)
	}
	text, err := json.Marshal(v1alpha1.MemberClusterList{Items: members})
	require.NoError(t, err)
	const samples = 5
	started := readCPUTime(t)
	for range samples {
		require.NoError(t, json.Unmarshal(text, &v1alpha1.MemberClusterList{}))
	}
	h := &largeHub{decoding: (readCPUTime(t) - started) / samples}

	mux := http.NewServeMux()
	serve := func(path string, answer func(*http.Request) any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			assert.NoError(t, json.NewEncoder(w).Encode(answer(r)))
		})
	}
	const group = "/apis/pelotech.ot/v1alpha1"
	version := metav1.GroupVersionForDiscovery{GroupVersion: "pelotech.ot/v1alpha1", Version: "v1alpha1"}
	apiGroup := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: "pelotech.ot", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
	serve("/api", func(*http.Request) any {
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	})
	serve("/apis", func(*http.Request) any {
		return metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{apiGroup}}
	})
	serve("/apis/pelotech.ot", func(*http.Request) any { return apiGroup })
	serve(group, func(*http.Request) any { return largeResources })
	serve(group+"/memberclusters", func(r *http.Request) any {
		from, to, next := largePage(r, len(members))
		return v1alpha1.MemberClusterList{TypeMeta: largeType("MemberClusterList"), ListMeta: metav1.ListMeta{Continue: next}, Items: members[from:to]}
	})
	serve(group+"/fleetdiskimages", func(r *http.Request) any {
		from, to, next := largePage(r, len(images))
		return v1alpha1.FleetDiskImageList{TypeMeta: largeType("FleetDiskImageList"), ListMeta: metav1.ListMeta{Continue: next}, Items: images[from:to]}
	})
	serve(group+"/fleetdiskimages/image-0", func(*http.Request) any { return images[0] })
	serve(group+"/prunereports", func(*http.Request) any { return v1alpha1.PruneReportList{TypeMeta: largeType("PruneReportList")} })
	serve(group+"/imageprunes", func(*http.Request) any { return v1alpha1.ImagePruneList{TypeMeta: largeType("ImagePruneList")} })
	serve(readapi.Root+"summary", func(*http.Request) any {
		return readapi.Summary{Policy: readapi.PolicyState{Accepted: true}, Members: readapi.MemberStates{Total: largeClusters, Ready: largeClusters}}
	})
	serve(readapi.Root+"rollouts/clusters", func(r *http.Request) any {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		list := readapi.RolloutClusters{}
		for i := range largeClusters {
			if name := members[i].Name; name > r.URL.Query().Get("after") && len(list.Clusters) < limit {
				list.Clusters = append(list.Clusters, readapi.RolloutCluster{Cluster: name, Wave: v1alpha1.WaveRest, State: v1alpha1.ClusterProgressing, Message: strings.Repeat("imports ", 10)})
			}
		}
		return list
	})
	serve(readapi.Root+"images", func(r *http.Request) any {
		list := readapi.ImageList{Images: []readapi.Image{}}
		from, _ := strconv.Atoi(r.URL.Query().Get("after"))
		for i := from; i < min(from+100, largeSources); i++ {
			list.Images = append(list.Images, readapi.Image{Source: fmt.Sprintf("http https://images.example.com/%04d/disk.qcow2", i), Members: largeClusters, Counts: readapi.Counts{Images: largeClusters, Bytes: int64(i) << 30}})
		}
		if from+100 < largeSources {
			list.Next = strconv.Itoa(from + 100)
		}
		return list
	})
	h.Server = httptest.NewTLSServer(mux)
	t.Cleanup(h.Close)
	h.reader = httptest.NewServer(mux)
	t.Cleanup(h.reader.Close)
	return h
}

func (h *largeHub) config() *rest.Config {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	return &rest.Config{Host: h.URL, BearerToken: "token", TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

func largeType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "pelotech.ot/v1alpha1", Kind: kind}
}

var largeResources = metav1.APIResourceList{
	TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "pelotech.ot/v1alpha1",
	APIResources: []metav1.APIResource{
		{Name: "memberclusters", SingularName: "membercluster", Kind: "MemberCluster", Verbs: []string{"get", "list"}},
		{Name: "fleetdiskimages", SingularName: "fleetdiskimage", Kind: "FleetDiskImage", Verbs: []string{"get", "list"}},
		{Name: "prunereports", SingularName: "prunereport", Kind: "PruneReport", Verbs: []string{"get", "list"}},
		{Name: "imageprunes", SingularName: "imageprune", Kind: "ImagePrune", Verbs: []string{"get", "list"}},
	},
}

// largePage returns which items a request asks for, and its continue token.
func largePage(r *http.Request, count int) (from, to int, next string) {
	from, _ = strconv.Atoi(r.URL.Query().Get("continue"))
	to = count
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && from+limit < count {
		to = from + limit
		next = strconv.Itoa(to)
	}
	return from, to, next
}

func newLargeMember(i int) v1alpha1.MemberCluster {
	m := v1alpha1.MemberCluster{TypeMeta: largeType("MemberCluster"), ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cluster-%04d", i), Labels: map[string]string{"region": "nordics"}}}
	m.Status.LastReport = ptr.To(metav1.Now())
	m.Status.Budget, m.Status.SlotsUsed = ptr.To[int32](3), ptr.To[int32](3)
	m.Status.Images = &v1alpha1.MemberImages{Total: largeImages, Queued: 4, Ready: largeImages - 7}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy, v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionMailboxSynced, v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionReportComplete, v1alpha1.ConditionServerVerified} {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: kind, Message: strings.Repeat("all is well ", 10), LastTransitionTime: metav1.Now()})
	}
	return m
}

func newLargeImage(i int) *v1alpha1.FleetDiskImage {
	img := fleet.NewFleetImage(fmt.Sprintf("image-%d", i))
	img.TypeMeta = largeType("FleetDiskImage")
	img.Spec.Version = "1.0.0"
	img.Status = v1alpha1.FleetDiskImageStatus{
		Phase: v1alpha1.RolloutProgressing, Reason: v1alpha1.ReasonMaxConcurrency, CurrentWave: v1alpha1.WaveRest,
		Clusters: v1alpha1.ClusterCounts{Total: largeClusters, Progressing: largeClusters},
		Waves:    []v1alpha1.WaveStatus{{Name: v1alpha1.WaveRest, Clusters: v1alpha1.ClusterCounts{Total: largeClusters, Progressing: largeClusters}}},
	}
	return img
}
