//go:build linux

package rollout_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// planJournal records all stored states of the hub's plans, reports and MemberClusters in the
// order of their etcd: a plan that rests on a report comes after it, whichever watch is faster.
type planJournal struct {
	client client.WithWatch
	stops  []func()

	mu     sync.Mutex
	states []journalState
	// newest is the last resourceVersion seen of each object.
	newest map[string]uint64
}

// journalState is a stored state of a plan, a report page or a MemberCluster.
type journalState struct {
	version uint64
	cluster string
	plan    *v1alpha1.ClusterPlanSpec
	page    *v1alpha1.ReportPage
	// offline is the reason why a member is offline; empty for one that is not.
	offline string
}

// keepJournal watches the hub until close.
func keepJournal(c client.WithWatch) (*planJournal, error) {
	j := &planJournal{client: c, newest: map[string]uint64{}}
	for _, list := range []client.ObjectList{&v1alpha1.ClusterPlanList{}, &v1alpha1.ClusterReportList{}, &v1alpha1.MemberClusterList{}} {
		stop, err := controlplane.WatchObjects(context.Background(), c, list, func(change controlplane.Change[client.Object]) {
			if !change.Preexisting {
				j.record(change.Object, change.Type == watch.Deleted)
			}
		})
		if err != nil {
			j.close()
			return nil, fmt.Errorf("starting the journal: %w", err)
		}
		j.stops = append(j.stops, stop)
	}
	return j, nil
}

func (j *planJournal) close() {
	for _, stop := range j.stops {
		stop()
	}
}

func (j *planJournal) record(o client.Object, deleted bool) {
	s := journalState{version: versionOf(o)}
	var hubs bool
	s.cluster, hubs = strings.CutPrefix(o.GetNamespace(), v1alpha1.MemberNamespacePrefix)
	switch o := o.(type) {
	case *v1alpha1.ClusterPlan:
		if s.plan = &o.Spec; deleted {
			s.plan = &v1alpha1.ClusterPlanSpec{}
		}
	case *v1alpha1.ClusterReport:
		s.page = o.Page
	case *v1alpha1.MemberCluster:
		s.cluster, s.offline, hubs = o.Name, offlineReason(o), true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.newest[keyOf(o)] = s.version
	// A fake member is on the hub's API server: its own namespace holds copies.
	if hubs && (s.plan != nil || s.page != nil || s.offline != "") {
		j.states = append(j.states, s)
	}
}

// offlineReason returns why a rollout counts a member as offline; empty for one that is not.
func offlineReason(m *v1alpha1.MemberCluster) string {
	for _, kind := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		switch c := meta.FindStatusCondition(m.Status.Conditions, kind); {
		case c == nil:
			return "there is no condition " + kind
		case c.Status != metav1.ConditionTrue:
			return fmt.Sprintf("%s is %s, %s: %s", kind, c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// offlineSince lists the offline states that were stored after a resourceVersion.
func (j *planJournal) offlineSince(t *testing.T, version uint64) (why []string) {
	t.Helper()
	for _, s := range j.readStates(t) {
		if s.version > version && s.offline != "" {
			why = append(why, fmt.Sprintf("%d %s: %s", s.version, s.cluster, s.offline))
		}
	}
	return why
}

func keyOf(o client.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

func versionOf(o client.Object) uint64 {
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err) // resourceVersions are comparable numbers from Kubernetes 1.35
	}
	return version
}

// readStates returns all states in order, once the watches have seen what is stored now.
func (j *planJournal) readStates(t *testing.T) []journalState {
	t.Helper()
	stored := map[string]uint64{}
	var plans v1alpha1.ClusterPlanList
	var reports v1alpha1.ClusterReportList
	require.NoError(t, j.client.List(t.Context(), &plans))
	require.NoError(t, j.client.List(t.Context(), &reports))
	for i := range plans.Items {
		stored[keyOf(&plans.Items[i])] = versionOf(&plans.Items[i])
	}
	for i := range reports.Items {
		stored[keyOf(&reports.Items[i])] = versionOf(&reports.Items[i])
	}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		for key, version := range stored {
			if j.newest[key] < version {
				return false
			}
		}
		return true
	}), "the journal has not seen all plans and reports")
	j.mu.Lock()
	defer j.mu.Unlock()
	states := slices.Clone(j.states)
	slices.SortStableFunc(states, func(a, b journalState) int { return cmp.Compare(a.version, b.version) })
	return states
}

// rolloutCourse is the course of one image through the fleet.
type rolloutCourse struct {
	// begun lists the clusters in the order in which their plans named the image; a cluster
	// whose plan named another revision, or named it again, is listed again.
	begun []string
	// ended lists the clusters in the order in which they reported the planned revision as
	// succeeded or failed.
	ended []string
	// most is the highest number of clusters that had begun and not ended at a time.
	most int
	// moved lists the clusters whose plan changed plannedAt of the same revision.
	moved []string
}

// imageCourse returns the course of an image by its name in the members.
func (j *planJournal) imageCourse(t *testing.T, image string) rolloutCourse {
	t.Helper()
	var c rolloutCourse
	planned, ended := map[string]v1alpha1.PlannedImage{}, map[string]string{}
	for _, s := range j.readStates(t) {
		switch {
		case s.plan != nil:
			c.applyPlan(s, image, planned)
		case s.page != nil:
			for i := range s.page.Images {
				img := &s.page.Images[i]
				if img.Name != image {
					continue
				}
				if img.Phase != v1alpha1.PhaseSucceeded && img.Phase != v1alpha1.PhaseFailed {
					delete(ended, s.cluster)
				} else {
					ended[s.cluster] = img.Revision
				}
			}
		}
		on := 0
		for cluster, want := range planned {
			switch {
			case ended[cluster] != want.Spec.Revision():
				on++
			case !slices.Contains(c.ended, cluster):
				c.ended = append(c.ended, cluster)
			}
		}
		c.most = max(c.most, on)
	}
	return c
}

func (c *rolloutCourse) applyPlan(s journalState, image string, planned map[string]v1alpha1.PlannedImage) {
	at := slices.IndexFunc(s.plan.Images, func(p v1alpha1.PlannedImage) bool { return p.Name == image })
	if at < 0 {
		delete(planned, s.cluster)
		return
	}
	now := s.plan.Images[at]
	before, ok := planned[s.cluster]
	switch {
	case !ok || before.Spec.Revision() != now.Spec.Revision():
		c.begun = append(c.begun, s.cluster)
	case !before.PlannedAt.Equal(now.PlannedAt):
		c.moved = append(c.moved, s.cluster)
	}
	planned[s.cluster] = now
}

// watchConcurrency watches an image in members from before it is in any. most returns the
// highest number of members that synced it at a time: all are read whenever one creates it, so
// that it does not matter which watch is slower.
func (f *testFleet) watchConcurrency(t *testing.T, image string, clusters ...string) (most func(*testing.T) int) {
	t.Helper()
	var mu sync.Mutex
	came, highest := map[string]bool{}, 0
	for _, name := range clusters {
		stop, err := controlplane.WatchObjects(t.Context(), f.Members[name], &v1alpha1.VMDiskImageList{}, func(c controlplane.Change[*v1alpha1.VMDiskImage]) {
			if c.Type != watch.Added {
				return
			}
			on := 0
			// Whoever begins later is read first: if it has begun, those before have ended for good.
			for _, other := range slices.Backward(clusters) {
				img := &v1alpha1.VMDiskImage{}
				err := f.Members[other].Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: image}, img)
				if err == nil && img.Status.Phase != v1alpha1.PhaseSucceeded && img.Status.Phase != v1alpha1.PhaseFailed {
					on++
				}
			}
			mu.Lock()
			came[name], highest = true, max(highest, on)
			mu.Unlock()
		}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": image})
		require.NoError(t, err)
		t.Cleanup(stop)
	}
	return func(t *testing.T) int {
		t.Helper()
		require.True(t, testenv.AwaitCondition(t, func() bool {
			for _, name := range clusters {
				there := f.Members[name].GetImage(t, image) != nil
				mu.Lock()
				seen := came[name]
				mu.Unlock()
				if there && !seen {
					return false
				}
			}
			return true
		}), "the watches of %s miss a member", image)
		mu.Lock()
		defer mu.Unlock()
		return highest
	}
}
