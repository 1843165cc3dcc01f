package rollout_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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
	failed            bool
	restarts          []string
}

// In every order of requests, plan writes, agents' steps, failures and restarts of the hub, each
// cluster that has failed at a request is started over once, and none twice by one request.
func TestRetriesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := make([]retryMember, rapid.IntRange(1, 4).Draw(t, "members"))
		token, stored, memory := "", "", ptr.To("")
		owed := map[int]bool{} // failed when the token was given, and not started over since
		decide := func() map[string]rollout.PlacedCluster {
			fleet := ""
			for i := range members {
				fleet += map[bool]string{true: "F", false: "P"}[members[i].failed]
			}
			v := newRetryView("canary="+fleet, token)
			if token == "" {
				v.Image.Spec.Retry = nil
			}
			v.Image.Status.ObservedRetry = stored
			if memory != nil {
				v.Image.Status.ObservedRetry = *memory
			}
			for i := range members {
				v.Clusters[i].PlannedRetry, v.Clusters[i].Report.Retry = members[i].planned, members[i].followed
			}
			d := decideAndCheck(t, v)
			memory = &d.Status.ObservedRetry
			return placedByName(d)
		}
		follow := func(i int) {
			m := &members[i]
			if m.planned == "" || m.planned == m.followed {
				return
			}
			if m.followed = m.planned; m.failed {
				m.failed, m.restarts = false, append(m.restarts, m.planned)
			}
			delete(owed, i)
		}
		plan := func(i int) {
			if placed := decide()[fmt.Sprintf("canary-%d", i)]; placed.Started {
				members[i].planned = placed.Retry
			}
		}
		any := func() int { return rapid.IntRange(0, len(members)-1).Draw(t, "member") }
		requests := 0
		t.Repeat(map[string]func(*rapid.T){
			"an import fails":     func(*rapid.T) { members[any()].failed = true },
			"a person asks":       func(*rapid.T) { requests++; token = fmt.Sprint(requests); clear(owed); markFailed(members, owed) },
			"the hub decides":     func(*rapid.T) { decide() },
			"a plan is written":   func(*rapid.T) { plan(any()) },
			"a status is written": func(*rapid.T) { decide(); stored = *memory },
			"the hub restarts":    func(*rapid.T) { memory = nil },
			"an agent follows":    func(*rapid.T) { follow(any()) },
			"": func(*rapid.T) {
				for i := range members {
					require.Len(t, slices.Compact(slices.Clone(members[i].restarts)), len(members[i].restarts), "started over twice by one request")
				}
			},
		})
		for range 2 {
			for i := range members {
				plan(i)
				follow(i)
			}
		}
		decide()
		require.Equal(t, token, *memory, "the request is done")
		require.Empty(t, owed, "every cluster that had failed was started over")
		for i := range members {
			members[i].failed = true
		}
		for name, placed := range decide() {
			require.Equal(t, v1alpha1.ClusterFailed, placed.State, "%s fails after the request, and is not started over", name)
		}
	})
}

func markFailed(members []retryMember, owed map[int]bool) {
	for i := range members {
		owed[i] = members[i].failed
		if !members[i].failed {
			delete(owed, i)
		}
	}
}
