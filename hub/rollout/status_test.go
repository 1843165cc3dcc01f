package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestStatusCountsClusters(t *testing.T) {
	d := decideAndCheck(t, newView(newUbuntu().WithMaxFailures("100%"), "canary=SFTDds. eu=P. a=S"))
	assert.Equal(t, v1alpha1.ClusterCounts{Total: 10, ToApply: 1, Progressing: 2, Succeeded: 3, Failed: 1, TimedOut: 1, Deferred: 2}, d.Status.Clusters)
	assert.Equal(t, []v1alpha1.WaveStatus{
		{Name: "canary", Clusters: v1alpha1.ClusterCounts{Total: 7, Progressing: 1, Succeeded: 2, Failed: 1, TimedOut: 1, Deferred: 2}},
		{Name: "eu", Clusters: v1alpha1.ClusterCounts{Total: 2, ToApply: 1, Progressing: 1}},
		{Name: "rest", Clusters: v1alpha1.ClusterCounts{Total: 1, Succeeded: 1}, DoneAt: toStoredTime(now)},
	}, d.Status.Waves)
	assert.Equal(t, "canary", d.Status.CurrentWave)
	assert.Equal(t, []string{"canary-6"}, d.Start, "it counts as progressing")
}

func TestConditionsFollowPhase(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	const ready, reconciling, stalled = v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled
	for name, tt := range map[string]struct {
		img                              *builder
		fleet                            string
		finished, succeeded, progressing metav1.ConditionStatus
		summary                          string // the True one of Ready, Reconciling and Stalled
	}{
		"on their way":          {newUbuntu(), "canary=P", no, no, yes, reconciling},
		"all have it":           {newUbuntu(), "canary=S", yes, yes, no, ready},
		"too many have failed":  {newUbuntu(), "canary=F", yes, no, no, stalled},
		"not yet over":          {newUbuntu(), "canary=FP", no, no, yes, stalled},
		"paused":                {newUbuntu().Paused(), "canary=.", no, no, no, reconciling},
		"no clusters":           {newUbuntu(), "", no, no, no, stalled},
		"minSuccessTime":        {newUbuntu().WithMinSuccessTime(time.Hour), "canary=S eu=.", no, no, yes, reconciling},
		"waits for one offline": {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=D", no, no, yes, reconciling},
		"full plans":            {newUbuntu(), "canary=f", no, no, no, stalled},
		"to be approved":        {apitest.FleetDiskImage("ubuntu").WithWaves(v1alpha1.Wave{Name: "all", RequireApproval: true}), "canary=.", no, no, no, reconciling},
	} {
		t.Run(name, func(t *testing.T) {
			d := decideAndCheck(t, newView(tt.img.WithGeneration(7), tt.fleet))
			assert.Equal(t, int64(7), d.Status.ObservedGeneration)
			want := map[string]metav1.ConditionStatus{
				v1alpha1.ConditionFinished: tt.finished, v1alpha1.ConditionSucceeded: tt.succeeded,
				v1alpha1.ConditionProgressing: tt.progressing, ready: no, reconciling: no, stalled: no,
			}
			want[tt.summary] = yes
			got := map[string]metav1.ConditionStatus{}
			for _, c := range d.Status.Conditions {
				got[c.Type] = c.Status
				assert.Equal(t, int64(7), c.ObservedGeneration)
				assert.Equal(t, d.Status.Reason, c.Reason)
				assert.Equal(t, d.Status.Message, c.Message)
				assert.NotEmpty(t, c.Message)
			}
			assert.Equal(t, want, got)
		})
	}
}

// The condition exists only where a wave needs approval.
func TestApprovalGuardedCondition(t *testing.T) {
	is := metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonGuarded, Message: "checked"}
	isNot := metav1.Condition{Type: v1alpha1.ConditionApprovalGuarded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPolicyNotInForce, Message: "gone"}
	for name, tt := range map[string]struct {
		approval    bool
		before, now metav1.Condition
		want        metav1.Condition
	}{
		"guarded":                 {true, metav1.Condition{}, is, is},
		"not guarded":             {true, metav1.Condition{}, isNot, isNot},
		"no longer guarded":       {true, is, isNot, isNot},
		"guarded again":           {true, isNot, is, is},
		"unknown":                 {true, metav1.Condition{}, metav1.Condition{}, metav1.Condition{}},
		"unknown to the next hub": {true, isNot, metav1.Condition{}, isNot},
		"no wave needs approval":  {false, metav1.Condition{}, isNot, metav1.Condition{}},
		"no wave needs approval, with a former condition": {false, isNot, isNot, metav1.Condition{}},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.FleetDiskImage("ubuntu").WithGeneration(7).WithWaves(v1alpha1.Wave{Name: "all", RequireApproval: tt.approval})
			v := newView(img, "canary=.")
			v.ApprovalGuarded = tt.now
			if tt.before.Type != "" {
				v.Image.Status.Conditions = []metav1.Condition{tt.before}
			}
			got := meta.FindStatusCondition(decideAndCheck(t, v).Status.Conditions, v1alpha1.ConditionApprovalGuarded)
			if tt.want.Type == "" {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			tt.want.ObservedGeneration, tt.want.LastTransitionTime = 7, got.LastTransitionTime
			assert.Equal(t, tt.want, *got)
		})
	}
}

// kubectl wait for Finished must not see the condition of the former version.
func TestTransitionTimeMovesWithStatus(t *testing.T) {
	v := newView(newUbuntu(), "canary=S")
	d := decideAndCheck(t, v)
	v = advanceView(v, d, time.Hour)
	v.Image.Spec.Version, v.Image.Generation = "2.0.0", 2
	v.Clusters = parseClusters("canary=.")
	d = decideAndCheck(t, v)
	finished := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionFinished)
	assert.Equal(t, metav1.ConditionFalse, finished.Status)
	assert.Equal(t, now.Add(time.Hour), finished.LastTransitionTime.UTC())
	progressing := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionProgressing)
	assert.Equal(t, metav1.ConditionTrue, progressing.Status)
}

func TestVersionHistory(t *testing.T) {
	type version = v1alpha1.VersionStatus
	v := newView(newUbuntu(), "canary=S eu=P")
	d := decideAndCheck(t, v)
	first := version{Version: "1.0.0", Namespace: "images", Image: "ubuntu-1.0.0", Revision: revision, Since: *toStoredTime(now), Succeeded: true}
	assert.Equal(t, []version{first}, withoutTemplates(d.Status.Versions))
	require.NotNil(t, d.Status.LastSuccessAt)
	require.NotNil(t, d.Status.Waves[0].DoneAt)

	v = advanceView(v, d, time.Hour)
	v.Image.Spec.Version = "2.0.0"
	v.Clusters = parseClusters("canary=.D eu=.")
	d = decideAndCheck(t, v)
	second := version{Version: "2.0.0", Namespace: "images", Image: "ubuntu-2.0.0", Revision: revision, Since: *toStoredTime(v.Now)}
	assert.Equal(t, []version{second, first}, withoutTemplates(d.Status.Versions))
	assert.Nil(t, d.Status.LastSuccessAt, "a new version starts over")
	assert.Nil(t, d.Status.Waves[0].DoneAt)

	v = advanceView(v, d, time.Hour)
	v.Image.Spec.Template.URL = "https://images.example.com/mended.qcow2"
	mended := v.Image.Spec.Template.Revision()
	v.Clusters = parseClusters("canary=SD eu=.")
	d = decideAndCheck(t, v)
	second.Revision, second.Since = mended, *toStoredTime(v.Now)
	assert.Equal(t, []version{second, first}, withoutTemplates(d.Status.Versions), "another revision of the same version")
	assert.Equal(t, []string{"canary-0"}, d.Start, "it has the former revision")

	v = advanceView(v, d, time.Hour)
	v.Image.Spec.Version = "1.0.0"
	d = decideAndCheck(t, v)
	first.Revision, first.Since = mended, *toStoredTime(v.Now)
	assert.Equal(t, []version{first, second}, withoutTemplates(d.Status.Versions), "a former version moves to the front")

	v = advanceView(v, d, time.Hour)
	v.Image.Spec.ImageName = "jammy"
	d = decideAndCheck(t, v)
	assert.Equal(t, "jammy-1.0.0", d.Status.Versions[0].Image)
	assert.False(t, d.Status.Versions[0].Succeeded, "no cluster has that image")
	assert.Len(t, d.Status.Versions, 2)

	for i := range 30 {
		v = advanceView(v, d, time.Hour)
		v.Image.Spec.Version = fmt.Sprintf("3.0.%d", i)
		d = decideAndCheck(t, v)
	}
	assert.Len(t, d.Status.Versions, v1alpha1.MaxVersions)
	assert.Equal(t, "3.0.29", d.Status.Versions[0].Version)
	assert.Equal(t, "3.0.10", d.Status.Versions[19].Version)
}

func TestNewVersionResetsDoneWaves(t *testing.T) {
	v := newView(newUbuntu().WithMinSuccessTime(time.Hour), "eu=.")
	d := decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(now), d.Status.Waves[0].DoneAt, "canary has no clusters")
	v = advanceView(v, d, 2*time.Hour)
	v.Image.Spec.Version = "2.0.0"
	d = decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(now.Add(2*time.Hour)), d.Status.Waves[0].DoneAt)
	assert.Equal(t, v1alpha1.ReasonMinSuccessTime, d.Status.Reason)
}

func TestLastSuccessTime(t *testing.T) {
	v := newView(newUbuntu(), "canary=SPP")
	d := decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(now), d.Status.LastSuccessAt)
	v = advanceView(v, d, time.Minute)
	d = decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(now), d.Status.LastSuccessAt)
	v.Clusters = parseClusters("canary=PPP")
	d = decideAndCheck(t, v)
	assert.Equal(t, toStoredTime(now), d.Status.LastSuccessAt)
	v = advanceView(v, d, time.Minute)
	v.Clusters = parseClusters("canary=PSP")
	assert.Equal(t, toStoredTime(now.Add(2*time.Minute)), decideAndCheck(t, v).Status.LastSuccessAt)
}

func TestFailingClustersAreListed(t *testing.T) {
	v := newView(newUbuntu().WithMaxFailures("1"), "canary=SFT a="+strings.Repeat("F", 30))
	v.Clusters[0].Report.Message = strings.Repeat("ä", 500)
	d := decideAndCheck(t, v)
	require.Len(t, d.Status.Failing, v1alpha1.MaxFailingClusters)
	assert.Equal(t, "a-0", d.Status.Failing[0].Cluster)
	assert.LessOrEqual(t, len(d.Status.Failing[0].Message), 256)
	assert.True(t, strings.HasSuffix(d.Status.Failing[0].Message, "ä…"), d.Status.Failing[0].Message)
	assert.Contains(t, d.Status.Message, "32 clusters have failed (a-0, a-1, a-10, a-11, a-12 and 27 more), and maxFailures allows 1")

	d = decideAndCheck(t, newView(newUbuntu(), "canary=SFT a=F"))
	assert.Equal(t, []v1alpha1.ClusterSummary{
		{Cluster: "a-0", State: v1alpha1.ClusterFailed, Reason: "NotFound", Message: "as a-0 says"},
		{Cluster: "canary-1", State: v1alpha1.ClusterFailed, Reason: "NotFound", Message: "as canary-1 says"},
		{Cluster: "canary-2", State: v1alpha1.ClusterTimedOut, Reason: "Importing", Message: "as canary-2 says"},
	}, d.Status.Failing)
}

func TestInvalidSelectorFreezesPlans(t *testing.T) {
	faulty := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "wave", Operator: "Near", Values: []string{"eu"}}}}
	before := decideAndCheck(t, newView(newUbuntu(), "canary=SF eu=.")).Status
	for name, tt := range map[string]struct {
		spoil func(*v1alpha1.FleetDiskImageSpec)
		want  string
	}{
		"placement": {func(s *v1alpha1.FleetDiskImageSpec) { s.Placement.ClusterSelector = &faulty }, "spec.placement.clusterSelector: key wave: "},
		"wave":      {func(s *v1alpha1.FleetDiskImageSpec) { s.Rollout.Waves[1].ClusterSelector = faulty }, "spec.rollout.waves[eu].clusterSelector: key wave: "},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(newUbuntu().WithStatus(before), "canary=SS eu=.")
			tt.spoil(&v.Image.Spec)
			d := decideAndCheck(t, v)
			assert.True(t, d.Freeze, "plans stay as they are")
			assert.Empty(t, d.Start)
			assert.Empty(t, d.Placed)
			assert.Equal(t, v1alpha1.RolloutWaiting, d.Status.Phase)
			assert.Equal(t, v1alpha1.ReasonSelectorInvalid, d.Status.Reason)
			assert.Contains(t, d.Status.Message, tt.want)
			assert.True(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled))
			assert.Equal(t, before.Waves, d.Status.Waves, "the counts stay")
			assert.Equal(t, before.Failing, d.Status.Failing)
			assert.Equal(t, before.LastSuccessAt, d.Status.LastSuccessAt)

			v.Image.Spec.Version = "2.0.0"
			d = decideAndCheck(t, v)
			assert.Empty(t, d.Status.Waves, "counts of another version do not")
			assert.Len(t, d.Status.Versions, 2)
		})
	}
}

func TestPlacementOfNoClusterChangesNoPlan(t *testing.T) {
	v := newView(newUbuntu(), "canary=SS eu=.S")
	assert.False(t, decideAndCheck(t, v).NoneSelected)
	v.Image.Spec.Placement.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"wave": "euu"}}
	d := decideAndCheck(t, v)
	assert.Equal(t, v1alpha1.ReasonNoClusters, d.Status.Reason)
	assert.Contains(t, d.Status.Message, "until then plans keep what they have")
	assert.True(t, d.NoneSelected)
}

// While none is selected, clusters import by their plans: no wave is done by that, no retry is over, and
// those that are selected again have not succeeded just then.
func TestPlacementOfNoClusterEndsNothing(t *testing.T) {
	v := newView(newUbuntu(), "canary=PF eu=.S")
	before := decideAndCheck(t, v)
	require.Nil(t, before.Status.Waves[0].DoneAt)
	placement := v.Image.Spec.Placement
	v = advanceView(v, before, time.Minute)
	v.Image.Spec.Retry = &v1alpha1.RetryRequest{Token: "again"}
	v.Image.Spec.Placement = v1alpha1.Placement{ClusterNames: []string{"nobody"}}
	held := decideAndCheck(t, v)
	for _, wave := range held.Status.Waves {
		assert.Nil(t, wave.DoneAt, wave.Name)
	}
	assert.Empty(t, held.Status.ObservedRetry)
	assert.Equal(t, before.Status.LastSuccessAt, held.Status.LastSuccessAt)
	v = advanceView(v, held, time.Minute)
	v.Image.Spec.Placement = placement
	after := decideAndCheck(t, v)
	assert.Nil(t, after.Status.Waves[0].DoneAt)
	assert.Equal(t, before.Status.LastSuccessAt, after.Status.LastSuccessAt)
	assert.True(t, after.Status.Versions[0].Succeeded)
}

func TestNameConflictStartsNothing(t *testing.T) {
	v := newView(newUbuntu(), "canary=SS eu=.")
	v.Conflict = "jammy"
	d := decideAndCheck(t, v)
	assert.False(t, d.Freeze)
	assert.Empty(t, d.Start)
	assert.Empty(t, d.Placed)
	assert.Equal(t, v1alpha1.ReasonNameConflict, d.Status.Reason)
	assert.Contains(t, d.Status.Message, "FleetDiskImage jammy is older")
	assert.Zero(t, d.Status.Clusters)
}

func TestDeletionListsHolders(t *testing.T) {
	v := newView(newUbuntu().Deleted(now, v1alpha1.DeletionDelete), "canary=SsS eu=SSSSS")
	v.Image.Spec.Placement.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "wave", Operator: "Near"}}
	v.Holders = []string{"canary-0", "canary-1"}
	d := decideAndCheck(t, v)
	assert.False(t, d.Freeze, "an invalid selector no longer matters")
	assert.Empty(t, d.Start)
	assert.Empty(t, d.Placed)
	assert.Equal(t, v1alpha1.RolloutWaiting, d.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonDeletingImages, d.Status.Reason)
	assert.Contains(t, d.Status.Message, "2 clusters may still have some: canary-0, canary-1 (offline: Silent); 1 offline")
	assert.Contains(t, d.Status.Message, "spec.deletionPolicy: Retain")

	v.Holders = startedNames(decideAndCheck(t, newView(newUbuntu(), "canary=SsS eu=SSSSS")))
	assert.Contains(t, decideAndCheck(t, v).Status.Message, "eu-0, eu-1 and 3 more; 1 offline")
	v.Holders, v.Conflict = nil, "jammy"
	assert.Equal(t, v1alpha1.ReasonDeletingImages, decideAndCheck(t, v).Status.Reason)
}

func TestStatusMessages(t *testing.T) {
	for name, tt := range map[string]struct {
		img   *builder
		fleet string
		want  string
	}{
		"all have it":              {apitest.FleetDiskImage("ubuntu"), "a=SSS", "3 of 3 clusters have images/ubuntu-1.0.0"},
		"all but some":             {apitest.FleetDiskImage("ubuntu").WithMaxFailures("2"), "a=SSFD", "2 of 4 clusters have images/ubuntu-1.0.0; 1 failed, and maxFailures allows 2: see status.failing; 1 offline: it catches up when it is back"},
		"waves without clusters":   {newUbuntu(), "a=S", "1 of 1 cluster has images/ubuntu-1.0.0. No placed cluster is in wave canary, eu: check its clusterSelector"},
		"no clusters":              {newUbuntu().WithPlacement(v1alpha1.Placement{ClusterNames: []string{"b"}}), "a=SS", "spec.placement selects none of the fleet's 2 clusters: correct it, or label the MemberClusters; until then plans keep what they have"},
		"paused":                   {newUbuntu().Paused(), "canary=S. eu=.", "spec.rollout.paused is set: 2 of 3 clusters have not started"},
		"as many as may":           {apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("25%"), "a=S........", "2 of 9 clusters in wave rest are in progress, and maxConcurrency allows 2; 6 wait to start"},
		"one on its way":           {apitest.FleetDiskImage("ubuntu"), "a=P", "1 of 1 cluster in wave rest is in progress; none waits to start"},
		"one paused":               {apitest.FleetDiskImage("ubuntu").Paused(), "a=.", "spec.rollout.paused is set: 1 of 1 cluster has not started"},
		"one waits":                {apitest.FleetDiskImage("ubuntu").WithMaxConcurrency("1"), "a=P.", "1 of 2 clusters in wave rest is in progress, and maxConcurrency allows 1; 1 waits to start"},
		"all on their way":         {apitest.FleetDiskImage("ubuntu"), "a=SPP", "2 of 3 clusters in wave rest are in progress; none waits to start"},
		"full":                     {apitest.FleetDiskImage("ubuntu"), "a=Sf", "1 cluster in wave rest cannot start: a plan holds at most 500 images, and theirs are full. Remove these clusters from the placement of other FleetDiskImages, or add them to spec.placement.excludedClusters"},
		"all offline":              {apitest.FleetDiskImage("ubuntu"), "a=DD", "all placed clusters are offline (a-0, a-1); they catch up when they are back"},
		"one offline is waited":    {apitest.FleetDiskImage("ubuntu").WithOfflineClusters(v1alpha1.OfflineWait), "a=SD", "wave rest waits for 1 offline (a-1), because spec.rollout.offlineClusters is Wait"},
		"all offline are waited":   {apitest.FleetDiskImage("ubuntu").WithOfflineClusters(v1alpha1.OfflineWait), "a=D", "wave rest waits for 1 offline (a-0), because spec.rollout.offlineClusters is Wait"},
		"only one wave is waited":  {newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=SDq eu=DD", "wave canary waits for 1 offline (canary-1), because spec.rollout.offlineClusters is Wait"},
		"offline ones need no one": {apitest.FleetDiskImage("ubuntu"), "a=SD", "1 of 2 clusters has images/ubuntu-1.0.0; 1 offline: it catches up when it is back"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, decideAndCheck(t, newView(tt.img, tt.fleet)).Status.Message)
		})
	}
}

// The API server refuses longer messages.
func TestMessagesAreBounded(t *testing.T) {
	img := apitest.FleetDiskImage("ubuntu")
	for i := range 20 {
		img.WithWave(strings.Repeat("w", 60) + fmt.Sprint("-", i))
	}
	v := newView(img, "a=S")
	v.Conflict = strings.Repeat("x", 5000)
	assert.LessOrEqual(t, len(decideAndCheck(t, v).Status.Message), 2048)
	v.Conflict = ""
	assert.LessOrEqual(t, len(decideAndCheck(t, v).Status.Message), 2048)
}
