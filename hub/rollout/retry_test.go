package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// newRetryView is a fleet whose agents follow tokens, with spec.retry.
func newRetryView(fleet, token string, clusters ...string) rollout.View {
	v := newView(newUbuntu(), fleet)
	v.Image.Spec.Retry = &v1alpha1.RetryRequest{Token: token, Clusters: clusters}
	for i := range v.Clusters {
		v.Clusters[i].KnowsRetry = true
	}
	return v
}

func placedByName(d rollout.Decision) map[string]rollout.PlacedCluster {
	placed := map[string]rollout.PlacedCluster{}
	for _, p := range d.Placed {
		placed[p.Cluster] = p
	}
	return placed
}

func TestRetryReachesFailedClusters(t *testing.T) {
	for _, tt := range []struct {
		name, fleet string
		clusters    []string
		change      func(*rollout.Cluster)
		wantState   v1alpha1.ClusterState
		wantRetry   string
		wantText    string
	}{
		{"failed", "canary=F", nil, nil, v1alpha1.ClusterProgressing, "1", "its agent has not reported yet that it starts the image over"},
		{"timed out", "canary=T", nil, nil, v1alpha1.ClusterProgressing, "1", ""},
		{"named", "canary=F", []string{"canary-0"}, nil, v1alpha1.ClusterProgressing, "1", ""},
		{"another is named", "canary=F", []string{"eu-0"}, nil, v1alpha1.ClusterFailed, "", ""},
		{"succeeded", "canary=S", nil, nil, v1alpha1.ClusterSucceeded, "", ""},
		{"in progress", "canary=P", nil, nil, v1alpha1.ClusterProgressing, "", ""},
		{"not started", "canary=.", nil, nil, v1alpha1.ClusterProgressing, "", ""},
		{"in quarantine", "canary=q", nil, nil, v1alpha1.ClusterDeferred, "", ""},
		{"failed, then offline", "canary=F", nil, func(c *rollout.Cluster) { c.OfflineReason = v1alpha1.ReasonSilent }, v1alpha1.ClusterDeferred, "1", ""},
		{"timed out, then offline", "canary=T", nil, func(c *rollout.Cluster) {
			c.OfflineReason, c.OnlineSince = v1alpha1.ReasonSilent, time.Time{}
			c.Online = []v1alpha1.MemberStretch{{From: *toStoredTime(c.PlannedAt), Until: toStoredTime(now)}}
		}, v1alpha1.ClusterDeferred, "1", ""},
		{"offline before it timed out", "canary=T", nil, func(c *rollout.Cluster) {
			c.OfflineReason, c.OnlineSince = v1alpha1.ReasonSilent, time.Time{}
			c.Online = []v1alpha1.MemberStretch{{From: *toStoredTime(c.PlannedAt), Until: toStoredTime(c.PlannedAt.Add(time.Minute))}}
		}, v1alpha1.ClusterDeferred, "", ""},
		{"refused item", "canary=F", nil, func(c *rollout.Cluster) { c.Report.ItemState = v1alpha1.PlanItemRejected }, v1alpha1.ClusterFailed, "", ""},
		{"of an older agent", "canary=F", nil, func(c *rollout.Cluster) { c.KnowsRetry, c.AgentVersion = false, "0.2.0" }, v1alpha1.ClusterFailed, "", "its agent (0.2.0) does not follow spec.retry: upgrade chart ot-agent there, or change annotation pelotech.ot/retry"},
		{"followed before", "canary=F", nil, func(c *rollout.Cluster) { c.Report.Retry = "1" }, v1alpha1.ClusterFailed, "", ""},
		{"planned, not followed yet", "canary=F", nil, func(c *rollout.Cluster) { c.PlannedRetry = "1" }, v1alpha1.ClusterProgressing, "1", "has not reported yet"},
		{"planned, followed, failed again", "canary=F", nil, func(c *rollout.Cluster) { c.PlannedRetry, c.Report.Retry = "1", "1" }, v1alpha1.ClusterFailed, "1", "as canary-0 says"},
		{"planned, of a replaced agent", "canary=F", nil, func(c *rollout.Cluster) { c.PlannedRetry, c.KnowsRetry = "1", false }, v1alpha1.ClusterFailed, "1", "does not follow spec.retry"},
		{"a new token", "canary=F", nil, func(c *rollout.Cluster) { c.PlannedRetry, c.Report.Retry = "0", "0" }, v1alpha1.ClusterProgressing, "1", ""},
		{"planned, and past its deadline", "canary=F", nil, func(c *rollout.Cluster) { c.PlannedRetry, c.PlannedAt = "1", now.Add(-2*deadline) }, v1alpha1.ClusterTimedOut, "1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := newRetryView(tt.fleet, "1", tt.clusters...)
			if tt.change != nil {
				tt.change(&v.Clusters[0])
			}
			got := placedByName(decideAndCheck(t, v))["canary-0"]
			assert.Equal(t, tt.wantState, got.State)
			assert.Equal(t, tt.wantRetry, got.Retry)
			assert.Contains(t, got.Message, tt.wantText)
		})
	}
}

// The token is observed only once all plans of clusters that failed have it; later failures are
// not started over by it.
// A failed cluster that starts with another source of the same revision, as another Secret, is
// judged by what its agent reports after it has started over.
func TestFormerFailureDoesNotCountForAnotherSource(t *testing.T) {
	v := newView(newUbuntu(), "canary=FF")
	v.Clusters[0].KnowsRetry = true
	v.Image.Spec.Template.SecretRef = "rotated"
	d := decideAndCheck(t, v)
	require.Equal(t, "canary=PP", formatStates(d))
	token := placedByName(d)["canary-0"].Retry
	require.NotEmpty(t, token)
	assert.Empty(t, placedByName(d)["canary-1"].Retry, "its agent does not follow tokens")

	planned := advanceView(v, d, time.Minute)
	for i := range planned.Clusters {
		c := &planned.Clusters[i]
		c.PlannedDigest, c.PlannedAt, c.PlannedRetry = v.Image.Spec.Template.SourceDigest(), v.Now, placedByName(d)[c.Name].Retry
	}
	assert.Equal(t, "canary=PF", formatStates(decideAndCheck(t, planned)), "the report is of the former Secret")
	planned.Clusters[0].Report.Retry = token
	assert.Equal(t, "canary=FF", formatStates(decideAndCheck(t, planned)), "it failed again")
}

func TestRetryIsObservedWhenPlansHaveIt(t *testing.T) {
	v := newRetryView("canary=FF", "1")
	d := decideAndCheck(t, v)
	assert.Empty(t, d.Status.ObservedRetry)
	assert.EqualValues(t, 2, d.Status.Clusters.Progressing, "no client takes the failure from before for the answer")

	v = advanceView(v, d, time.Minute)
	v.Clusters[0].PlannedRetry = "1"
	d = decideAndCheck(t, v)
	assert.Empty(t, d.Status.ObservedRetry)

	v = advanceView(v, d, time.Minute)
	v.Clusters[1].PlannedRetry = "1"
	d = decideAndCheck(t, v)
	assert.Equal(t, "1", d.Status.ObservedRetry)

	v = advanceView(v, d, time.Minute)
	v.Clusters[0].Report.Retry = "1"
	v.Clusters = append(v.Clusters, newRetryView("eu=F", "1").Clusters...)
	d = decideAndCheck(t, v)
	placed := placedByName(d)
	assert.Equal(t, v1alpha1.ClusterFailed, placed["canary-0"].State, "it failed again")
	assert.Equal(t, v1alpha1.ClusterProgressing, placed["canary-1"].State)
	assert.Equal(t, v1alpha1.ClusterFailed, placed["eu-0"].State, "it failed after the request")
	assert.Empty(t, placed["eu-0"].Retry)
}

func TestRetryInPlans(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu").Obj()
	planned := metav1.NewTime(now.Add(-time.Hour))
	current := &v1alpha1.PlannedImage{Namespace: "images", Name: "ubuntu-1.0.0", Spec: img.Spec.Template, PlannedAt: &planned, Retry: "0"}
	for _, keeps := range []bool{false, true} {
		progress := rollout.ClusterProgress{Placed: true, Started: true, KeepsItem: keeps, Retry: "0"}
		got := rollout.ComputeDesiredImages(img, progress, current, now).Images[0]
		assert.Equal(t, *current, got, "nothing changes")
		progress.Retry = "1"
		got = rollout.ComputeDesiredImages(img, progress, current, now).Images[0]
		assert.Equal(t, "1", got.Retry)
		assert.Equal(t, now, got.PlannedAt.UTC(), "its deadline starts again")
	}
	img.Spec.Template.URL += ".2"
	got := rollout.ComputeDesiredImages(img, rollout.ClusterProgress{Placed: true, Started: true}, current, now).Images[0]
	assert.Empty(t, got.Retry, "another revision begins without")
}

// retryMember is one member of the model: its plan's token, what its agent has followed, and
// how often it started the image over.
type retryMember struct {
	planned, followed string
	// failed, or timed out if it hangs.
	failed, hangs bool
	restarts      []string
	// offline: the hub has its last report. unread: it has not read that in the member since it
	// started, so that it cannot write the plan.
	offline, unread bool
	// refused: the API server refuses the plan, which the hub knows since it has tried: isKnown.
	refused, isKnown bool
}

func (m *retryMember) isReached() bool { return !m.offline && !m.refused }

// retriesWorld is a fleet whose hub may lose its memory, with one FleetDiskImage.
type retriesWorld struct {
	t       *rapid.T
	members []retryMember
	token   string
	// names are the clusters of the request; empty for all.
	names []string
	// stored and memory are the status as it is stored, and as it was decided last; nil after a restart.
	stored, memory *v1alpha1.FleetDiskImageStatus
	// owed failed when the token was given, and have not started over since.
	owed map[int]bool
}

func (w *retriesWorld) decide() map[string]rollout.PlacedCluster {
	fleet := ""
	for i := range w.members {
		switch m := &w.members[i]; {
		case !m.failed:
			fleet += "P"
		case m.hangs:
			fleet += "T"
		default:
			fleet += "F"
		}
	}
	v := newRetryView("canary="+fleet, w.token, w.names...)
	if w.token == "" {
		v.Image.Spec.Retry = nil
	}
	st := w.stored
	if w.memory != nil {
		st = w.memory
	}
	v.Image.Status.ObservedRetry, v.Image.Status.PendingRetries = st.ObservedRetry, st.PendingRetries
	for i := range w.members {
		c, m := &v.Clusters[i], &w.members[i]
		c.PlannedRetry, c.Report.Retry, c.PlanRefused = m.planned, m.followed, m.isKnown
		if m.planned != m.followed {
			c.PlannedAt = now // its deadline started again
		}
		began, ended := now.Add(-3*deadline), now.Add(-time.Second)
		c.Online = []v1alpha1.MemberStretch{{From: *toStoredTime(began)}}
		if m.offline {
			c.OfflineReason, c.OnlineSince, c.Online[0].Until = v1alpha1.ReasonSilent, time.Time{}, toStoredTime(ended)
		}
	}
	d := decideAndCheck(w.t, v)
	w.memory = roundTripStatus(w.t, &d.Status)
	return placedByName(d)
}

func (w *retriesWorld) followPlan(i int) {
	m := &w.members[i]
	if m.offline || m.planned == "" || m.planned == m.followed {
		return
	}
	if m.followed = m.planned; m.failed {
		m.failed, m.restarts = false, append(m.restarts, m.planned)
	}
	delete(w.owed, i)
}

func (w *retriesWorld) plan(i int) {
	placed, m := w.decide()[memberName(i)], &w.members[i]
	if !placed.Started || m.unread {
		return
	}
	if m.isKnown = m.refused && placed.Retry != m.planned; !m.isKnown {
		m.planned = placed.Retry
	}
}

func (w *retriesWorld) runAll() {
	for range 2 {
		for i := range w.members {
			w.plan(i)
			w.followPlan(i)
		}
	}
}

// request asks for clusters, or for all, as clients do: they add the clusters of a request that is not
// observed yet. Those that an earlier one has not reached are owed still.
func (w *retriesWorld) request(token string, of ...int) {
	names := make([]string, 0, len(of))
	for _, i := range of {
		names = append(names, memberName(i))
	}
	if w.token != "" && w.token != w.stored.ObservedRetry && len(names) > 0 {
		if names = append(names, w.names...); len(w.names) == 0 {
			names = nil
		}
	}
	w.token, w.names = token, names
	for i := range w.members {
		if w.members[i].failed && (len(names) == 0 || slices.Contains(names, memberName(i))) {
			w.owed[i] = true
		}
	}
}

func memberName(i int) string { return fmt.Sprintf("canary-%d", i) }

func (w *retriesWorld) restartHub() {
	w.memory = nil
	for i := range w.members {
		w.members[i].unread, w.members[i].isKnown = w.members[i].offline, false
	}
}

func (w *retriesWorld) bringOnline(i int) { w.members[i].offline, w.members[i].unread = false, false }

func (w *retriesWorld) reach(i int) {
	w.bringOnline(i)
	w.members[i].refused = false
}

// In every order of requests, plan writes, agents' steps, failures, outages and restarts of the hub,
// each cluster that has failed at a request is started over once, and none twice by one request. A
// request is done without those that are offline, or whose plans the API server refuses, and reaches
// them when it can.
func TestRetriesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &retriesWorld{t: t, owed: map[int]bool{}, members: make([]retryMember, rapid.IntRange(1, 4).Draw(t, "members")), stored: &v1alpha1.FleetDiskImageStatus{}}
		any := func() int { return rapid.IntRange(0, len(w.members)-1).Draw(t, "member") }
		requests := 0
		t.Repeat(map[string]func(*rapid.T){
			"an import fails": func(t *rapid.T) {
				if m := &w.members[any()]; !m.offline && !m.failed {
					m.failed, m.hangs = true, rapid.Bool().Draw(t, "it hangs")
				}
			},
			"a person asks":         func(*rapid.T) { requests++; w.request(fmt.Sprint(requests)) },
			"a person asks for one": func(*rapid.T) { requests++; w.request(fmt.Sprint(requests), any()) },
			"the hub decides":       func(*rapid.T) { w.decide() },
			"a plan is written":     func(*rapid.T) { w.plan(any()) },
			"a status is written":   func(*rapid.T) { w.decide(); w.stored = w.memory },
			"the hub restarts":      func(*rapid.T) { w.restartHub() },
			"an agent follows":      func(*rapid.T) { w.followPlan(any()) },
			"a member goes offline": func(*rapid.T) { w.members[any()].offline = true },
			"a member is back":      func(*rapid.T) { w.bringOnline(any()) },
			"plans are refused":     func(*rapid.T) { w.members[any()].refused = true },
			"plans are taken":       func(*rapid.T) { w.members[any()].refused = false },
			"": func(*rapid.T) {
				for i := range w.members {
					restarts := w.members[i].restarts
					require.Len(t, slices.Compact(slices.Clone(restarts)), len(restarts), "started over twice by one request")
				}
			},
		})
		w.runAll()
		w.decide()
		require.Equal(t, w.token, w.memory.ObservedRetry, "the request is done")
		w.stored = w.memory
		w.restartHub()
		for i := range w.members {
			if m := &w.members[i]; m.isReached() {
				require.False(t, w.owed[i], "every cluster that had failed was started over")
				m.failed, m.hangs = true, false
			}
		}
		placed := w.decide()
		for i := range w.members {
			if w.members[i].isReached() {
				require.Equal(t, v1alpha1.ClusterFailed, placed[memberName(i)].State, "it fails after the request, and is not started over")
			}
			w.reach(i)
		}
		w.runAll()
		w.decide()
		require.Empty(t, w.owed, "every cluster that had failed was started over")
		require.Empty(t, w.memory.PendingRetries)
	})
}

// An offline cluster whose plan cannot be written holds up no request: others that fail later are
// not started over by it. More than the status can name do.
func TestRetryDoesNotWaitForOfflineClusters(t *testing.T) {
	offline := func(n int) rollout.View {
		v := newRetryView("canary="+strings.Repeat("F", n), "1")
		for i := range v.Clusters {
			v.Clusters[i].OfflineReason, v.Clusters[i].OnlineSince = v1alpha1.ReasonSilent, time.Time{}
		}
		return v
	}
	v := offline(1)
	d := decideAndCheck(t, v)
	assert.Equal(t, "1", d.Status.ObservedRetry)
	assert.Equal(t, []string{"canary-0"}, d.Status.PendingRetries)

	v = advanceView(v, d, time.Hour)
	v.Image.Status = *roundTripStatus(t, &d.Status)
	v.Clusters = append(v.Clusters, newRetryView("eu=F", "1").Clusters...)
	d = decideAndCheck(t, v)
	placed := placedByName(d)
	assert.Equal(t, v1alpha1.ClusterFailed, placed["eu-0"].State, "it failed after the request")
	assert.Equal(t, "1", placed["canary-0"].Retry, "as soon as its plan can be written")

	v = advanceView(v, d, time.Hour)
	v.Clusters[0].OfflineReason = v1alpha1.ReasonQuarantined
	d = decideAndCheck(t, v)
	assert.Equal(t, []string{"canary-0"}, d.Status.PendingRetries)

	v = advanceView(v, d, time.Hour)
	v.Clusters[0].OfflineReason, v.Clusters[0].OnlineSince = "", v.Now
	d = decideAndCheck(t, v)
	assert.Equal(t, v1alpha1.ClusterProgressing, placedByName(d)["canary-0"].State)
	assert.Equal(t, []string{"canary-0"}, d.Status.PendingRetries, "its plan does not have it yet")
	v = advanceView(v, d, time.Second)
	v.Clusters[0].PlannedRetry = "1"
	assert.Empty(t, decideAndCheck(t, v).Status.PendingRetries)

	v.Image.Spec.Retry = nil
	v.Clusters[0].PlannedRetry = ""
	assert.Empty(t, decideAndCheck(t, v).Status.PendingRetries, "the request was withdrawn")
	assert.Empty(t, decideAndCheck(t, offline(v1alpha1.MaxPendingRetries+1)).Status.ObservedRetry)
}

// A request for another cluster does not drop one that the former request has not reached yet.
func TestAnotherRetryKeepsPendingOnes(t *testing.T) {
	v := newRetryView("canary=FF", "1")
	v.Clusters[0].OfflineReason, v.Clusters[0].OnlineSince = v1alpha1.ReasonSilent, time.Time{}
	v.Clusters[1].PlannedRetry, v.Clusters[1].Report.Retry = "1", "1" // it has failed again
	d := decideAndCheck(t, v)
	require.Equal(t, []string{"canary-0"}, d.Status.PendingRetries)

	v = advanceView(v, d, time.Minute)
	v.Image.Spec.Retry = &v1alpha1.RetryRequest{Token: "2", Clusters: []string{"canary-1"}}
	d = decideAndCheck(t, v)
	assert.Equal(t, "1", d.Status.ObservedRetry, "canary-1 has no plan with it yet")
	v = advanceView(v, d, time.Minute)
	v.Clusters[1].PlannedRetry = "2"
	d = decideAndCheck(t, v)
	assert.Equal(t, "2", d.Status.ObservedRetry)
	assert.Equal(t, []string{"canary-0"}, d.Status.PendingRetries)

	v = advanceView(v, d, time.Minute)
	v.Clusters[0].OfflineReason, v.Clusters[0].OnlineSince = "", v.Now
	got := placedByName(decideAndCheck(t, v))["canary-0"]
	assert.Equal(t, []any{"2", v1alpha1.ClusterProgressing}, []any{got.Retry, got.State})
}

// A plan that the API server refuses holds up no request, and no wave: its cluster stays failed, and
// says why.
func TestRetryDoesNotWaitForRefusedPlans(t *testing.T) {
	v := newRetryView("canary=FF", "1")
	d := decideAndCheck(t, v)
	require.Empty(t, d.Status.ObservedRetry)
	v = advanceView(v, d, time.Second)
	v.Clusters[0].PlannedRetry, v.Clusters[1].PlanRefused = "1", true
	d = decideAndCheck(t, v)
	assert.Equal(t, "1", d.Status.ObservedRetry)
	assert.Equal(t, []string{"canary-1"}, d.Status.PendingRetries)
	got := placedByName(d)["canary-1"]
	assert.Equal(t, v1alpha1.ClusterFailed, got.State)
	assert.Contains(t, got.Message, "once its plan can be written: see PolicyAcknowledged")

	v = advanceView(v, d, time.Hour)
	v.Image.Status = *roundTripStatus(t, &d.Status)
	v.Clusters[0].Report.Retry, v.Clusters[1].PlanRefused = "1", false
	d = decideAndCheck(t, v)
	assert.Equal(t, "canary=FP", formatStates(d), "one failed after the request")
	assert.Equal(t, "1", placedByName(d)["canary-1"].Retry)
	v = advanceView(v, d, time.Second)
	v.Clusters[1].PlannedRetry = "1"
	assert.Empty(t, decideAndCheck(t, v).Status.PendingRetries)
}
