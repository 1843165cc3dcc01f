package rollout_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

var anna = rollout.Caller{Name: "anna"}

func TestScreens(t *testing.T) {
	rendertest.Golden(t, "progress-approval", now, rollout.NewProgress(newImage(nil), now))
	rendertest.Golden(t, "progress-failed", now, rollout.NewProgress(newImage(func(img *v1alpha1.FleetDiskImage) {
		failing(img)
		img.Status.Blocked = []v1alpha1.ClusterSummary{{Cluster: "edge-1", State: v1alpha1.ClusterProgressing, Reason: "SecretMissing", Message: "Secret images/s3 does not exist\x1b[2J"}}
		img.Status.ExpectedAt = ptr.To(metav1.NewTime(now.Add(90 * time.Minute)))
	}), now))
	rendertest.Golden(t, "progress-paused", now, rollout.NewProgress(newImage(func(img *v1alpha1.FleetDiskImage) {
		phase(v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutPaused)(img)
		rollout.SetPaused(img, true, "anna@example.com", "it does not boot")
	}), now))
	rendertest.Golden(t, "progress-new", now, rollout.NewProgress(newImage(func(img *v1alpha1.FleetDiskImage) { img.Status = v1alpha1.FleetDiskImageStatus{} }), now))
	changed := rollout.NewProgress(newImage(func(img *v1alpha1.FleetDiskImage) {
		failing(img)
		img.Status.ExpectedAt = ptr.To(metav1.NewTime(now.Add(time.Hour)))
		img.Generation++
	}), now)
	rendertest.Golden(t, "progress-new", now, changed)
	data, err := json.Marshal(changed)
	require.NoError(t, err)
	for _, of := range []string{"phase", "failing", "expectedAt", "command", "production", "clusters", "waves"} {
		assert.NotContains(t, string(data), of, "that is about the spec before")
	}

	approval, err := rollout.NewApproval(newImage(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Rollout.MaxConcurrency = ptr.To(intstr.FromString("25%"))
	}), nil, nil, false, "", "anna@example.com", now)
	require.NoError(t, err)
	rendertest.Golden(t, "approval", now, approval)
	approval.Given, approval.Command = true, "kubectl ot rollout watch win-11"
	rendertest.Golden(t, "approval-given", now, approval)
	rendertest.Golden(t, "history", now, rollout.NewHistory(newImage(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "anna@example.com"}}
	}), now))
	back, err := rollout.Abort(newImage(nil), "24.1", anna, "", now)
	require.NoError(t, err)
	rendertest.Golden(t, "abort-back", now, back)

	img := newImage(nil)
	where, err := rollout.NewWhere(img)
	require.NoError(t, err)
	member := func(name string, silent bool) *v1alpha1.MemberCluster {
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Status.LastReport = ago(time.Second)
		if silent {
			m.Status.SilentSince = ago(time.Hour)
		}
		return m
	}
	for _, name := range []string{"bergen", "lab", "edge-3", "kiel", "oslo", "elsewhere"} {
		where.Add(member(name, name == "edge-3"), name != "elsewhere")
	}
	where.Clusters[0].Read(img, rollout.ListReported(newReports(
		v1alpha1.ReportedImage{Namespace: "images", Name: "win-11-24.2", UID: "1", Phase: v1alpha1.PhaseSucceeded, References: 41},
		v1alpha1.ReportedImage{Namespace: "images", Name: "win-11-24.1", UID: "2", Phase: v1alpha1.PhaseSucceeded})))
	where.Put("lab", "24.2", rollout.InIt{Phase: v1alpha1.PhaseFailed, Reason: "NotFound"})
	where.Clusters[3].Read(img, []v1alpha1.ReportedImage{{Namespace: "images", Name: "win-11-24.2", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing}}})
	where.Clusters[4].Read(img, []v1alpha1.ReportedImage{{Namespace: "images", Name: "win-11-24.2", Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemRejected, Message: "namespace images is not allowed"}}})
	where.NoteVersionsWithoutTemplate(img)
	where.DropOthers()
	rendertest.Golden(t, "where", now, where)
}

func newReports(images ...v1alpha1.ReportedImage) []v1alpha1.ClusterReport {
	return []v1alpha1.ClusterReport{
		{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}, Root: &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "p1", Sequence: 2}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "p1"}, Sequence: 2, Page: &v1alpha1.ReportPage{Images: images}},
		{ObjectMeta: metav1.ObjectMeta{Name: "p0"}, Sequence: 9, Page: &v1alpha1.ReportPage{Images: []v1alpha1.ReportedImage{{Namespace: "images", Name: "win-11-23.9", UID: "gone"}}}},
	}
}

func TestReportedImages(t *testing.T) {
	reports := newReports(v1alpha1.ReportedImage{Namespace: "images", Name: "moved", UID: "old"},
		v1alpha1.ReportedImage{Namespace: "images", Name: "pruned", Prune: &v1alpha1.ReportedPrune{ImageUID: "1"}})
	reports[0].Root.Pages = append(reports[0].Root.Pages, v1alpha1.PageRef{Name: "p2"})
	reports = append(reports, v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Name: "p2"}, Sequence: 5, Page: &v1alpha1.ReportPage{Images: []v1alpha1.ReportedImage{{Namespace: "images", Name: "moved", UID: "new"}}}})
	images := rollout.ListReported(reports)
	assert.EqualValues(t, "new", rollout.FindReported(images, "images", "moved").UID)
	assert.Nil(t, rollout.FindReported(images, "images", "win-11-23.9"), "the root does not list its page")
	assert.Nil(t, rollout.FindReported(images, "elsewhere", "moved"))
	assert.Nil(t, rollout.FindReported(images, "images", "pruned"), "it is gone")
}

func TestApprovals(t *testing.T) {
	given := func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.2", By: "bea"}}
	}
	approve := func(change func(*v1alpha1.FleetDiskImage), waves []string, all bool, version string) (*rollout.Approval, error) {
		return rollout.NewApproval(newImage(change), nil, waves, all, version, "anna", now)
	}
	for name, tt := range map[string]struct {
		change      func(*v1alpha1.FleetDiskImage)
		waves       []string
		all         bool
		version     string
		wantWaves   int
		wantAlready string
		wantError   string
	}{
		"the wave that waits":         {wantWaves: 1},
		"a named wave":                {waves: []string{"production"}, wantWaves: 1},
		"all":                         {all: true, wantWaves: 1},
		"approved by another":         {change: given, waves: []string{"production"}, wantAlready: "bea"},
		"approval of another version": {change: func(i *v1alpha1.FleetDiskImage) { given(i); i.Spec.Approvals[0].Version = "24.1" }, wantWaves: 1},
		"no such wave":                {waves: []string{"south"}, wantError: "has no wave south: it has canary, production, rest"},
		"a wave that needs none":      {waves: []string{"canary"}, wantError: "needs no approval"},
		"another version":             {version: "24.3", wantError: "is at version 24.2, not 24.3"},
		"nothing waits":               {change: phase(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency), wantError: "name the wave with --wave"},
		"others of the wave start": {change: func(i *v1alpha1.FleetDiskImage) {
			phase(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency)(i)
			i.Status.PendingApproval = &v1alpha1.PendingApproval{Wave: "production"}
		}, wantWaves: 1},
		"of another spec":              {change: func(i *v1alpha1.FleetDiskImage) { i.Generation++ }, waves: []string{"production"}, wantError: "has not processed version 24.2"},
		"all, and none needs approval": {change: func(i *v1alpha1.FleetDiskImage) { i.Spec.Rollout.Waves[1].RequireApproval = false }, all: true, wantError: "no wave"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := approve(tt.change, tt.waves, tt.all, tt.version)
			if tt.wantError != "" {
				require.ErrorContains(t, err, tt.wantError)
				return
			}
			require.NoError(t, err)
			assert.Len(t, a.Waves, tt.wantWaves)
			if tt.wantAlready != "" {
				require.Len(t, a.Already, 1)
				assert.Equal(t, tt.wantAlready, a.Already[0].By)
			}
		})
	}
}

// The patch holds for what was read alone, and adds to what is there.
func TestApprovalPatch(t *testing.T) {
	img := newImage(nil)
	img.Spec.Approvals = []v1alpha1.Approval{}
	a, err := rollout.NewApproval(img, nil, nil, false, "", "anna", now)
	require.NoError(t, err)
	text, err := json.Marshal(a.Patch(img))
	require.NoError(t, err)
	assert.JSONEq(t, `[{"op":"test","path":"/metadata/uid","value":"`+string(img.UID)+`"},{"op":"test","path":"/metadata/generation","value":5},
		{"op":"add","path":"/spec/approvals/-","value":{"wave":"production","version":"24.2","by":"anna","at":"2026-03-02T16:21:00Z"}}]`, string(text))
	img.Spec.Approvals = nil
	assert.Equal(t, "/spec/approvals", a.Patch(img)[2].Path, "a hub of an older version stores no empty list")

	other := newImage(nil)
	assert.True(t, rollout.IsSameRollout(img, other))
	for name, change := range map[string]func(){
		"version":  func() { other.Spec.Version = "24.3" },
		"template": func() { other.Spec.Template.Checksum = "sha256:0" },
		"object":   func() { other.UID = "another" },
		"waves":    func() { other.Spec.Rollout.Waves = nil },
		"the gate": func() { other.Spec.Rollout.Waves[0].RequireApproval = true },
		"clusters": func() {
			other.Spec.Rollout.Waves[1].ClusterSelector = metav1.LabelSelector{MatchLabels: map[string]string{"all": "yes"}}
		},
		"pause":     func() { other.Spec.Rollout.Paused = true },
		"placement": func() { other.Spec.Placement.ClusterNames = append(other.Spec.Placement.ClusterNames, "tromso") },
	} {
		other = newImage(nil)
		change()
		assert.False(t, rollout.IsSameRollout(img, other), name)
	}
}

// An answer is about the waves that were shown: the rollout may have gone on to another one.
func TestAnotherDecisionIsAboutTheSameWaves(t *testing.T) {
	img := newImage(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Rollout.Waves[0].RequireApproval = true
		img.Status.CurrentWave = "canary"
	})
	shown, err := rollout.NewApproval(img, nil, nil, false, "", "bert", now)
	require.NoError(t, err)
	img.Spec.Approvals = []v1alpha1.Approval{{Wave: "canary", Version: "24.2", By: "anna"}}
	img.Status.CurrentWave = "production"
	again, err := rollout.NewApproval(img, nil, shown.WaveNames(), false, "", "bert", now)
	require.NoError(t, err)
	assert.Empty(t, again.Waves, "production was never shown")
	require.Len(t, again.Already, 1)
	assert.Equal(t, "anna", again.Already[0].By)
	assert.Equal(t, []string{"canary"}, again.WaveNames())
}

func TestAbort(t *testing.T) {
	img := newImage(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "bea"}, {Wave: "canary", Version: "24.1", By: "anna"}, {Wave: "production", Version: "24.2", By: "bea"}}
	})
	img.Spec.Template.Priority = 7
	a, err := rollout.Abort(img, "24.1", anna, "", now)
	require.NoError(t, err)
	assert.Equal(t, "24.1", img.Spec.Version)
	assert.Equal(t, img.Status.Versions[1].Revision, img.Spec.Template.Revision(), "the images that clusters have")
	assert.EqualValues(t, 7, img.Spec.Template.Priority)
	assert.False(t, img.Spec.Rollout.Paused)
	assert.Contains(t, a.Notes[1], "wave production needs approval of 24.1, also where it was given before")
	assert.Equal(t, []v1alpha1.Approval{{Wave: "production", Version: "24.2", By: "bea"}}, img.Spec.Approvals, "who may not approve carries no approval, not even an own one")

	img = newImage(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "bea"}}
	})
	a, err = rollout.Abort(img, "24.1", rollout.Caller{Name: "anna", MayApprove: true}, "", now)
	require.NoError(t, err)
	assert.Contains(t, a.Notes[1], "you approve 24.1 again for wave production")
	assert.Equal(t, []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "anna", At: &metav1.Time{Time: now}}}, img.Spec.Approvals)

	img = newImage(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.TargetNamespace, img.Spec.ImageName = "elsewhere", "renamed"
	})
	was := img.Status.Versions[1]
	a, err = rollout.Abort(img, "24.1", anna, "", now)
	require.NoError(t, err)
	assert.Contains(t, a.Notes[1], "spec.targetNamespace and spec.imageName become those of its images again, "+was.Namespace+"/"+was.Image)
	assert.Equal(t, was.Namespace, img.Spec.TargetNamespace)
	assert.Equal(t, was.Image, img.ImageNameForVersion("24.1"), "the API server refuses another name of the same version")

	for version, want := range map[string]string{
		"24.2": "is at version 24.2 already",
		"23.9": "the template of win-11 23.9 is not recorded: the hub was older then",
		"1":    "does not remember version 1: it remembers 24.1, 23.9",
	} {
		_, err := rollout.Abort(newImage(nil), version, anna, "", now)
		require.ErrorContains(t, err, want)
	}
	img = newImage(func(img *v1alpha1.FleetDiskImage) { img.Status.Versions[1].Revision = "edited" })
	_, err = rollout.Abort(img, "24.1", anna, "", now)
	require.ErrorContains(t, err, "makes another revision")

	img = newImage(nil)
	_, err = rollout.Abort(img, "", anna, "it does not boot", now)
	require.NoError(t, err)
	assert.True(t, img.Spec.Rollout.Paused)
	assert.Equal(t, "anna", img.Annotations[v1alpha1.AnnotationPausedBy])
	rollout.SetPaused(img, false, "bea", "")
	assert.False(t, img.Spec.Rollout.Paused)
	assert.Empty(t, img.Annotations)
}

func TestPauseCountsClusters(t *testing.T) {
	for _, test := range []struct {
		moving, toApply         int32
		wantPaused, wantResumed string
	}{
		{1, 1, "paused: 1 cluster in progress will finish, 1 does not begin", "resumed: 1 cluster begins as its turn comes"},
		{2, 0, "paused: 2 clusters in progress will finish, 0 do not begin", "resumed: 0 clusters begin as their turn comes"},
	} {
		img := newImage(nil)
		img.Status.Clusters = v1alpha1.ClusterCounts{Total: 9, Progressing: test.moving, ToApply: test.toApply}
		assert.Equal(t, test.wantPaused, rollout.SetPaused(img, true, "anna", "").Done)
		assert.Equal(t, test.wantResumed, rollout.SetPaused(img, false, "anna", "").Done)
	}
}

func TestRetry(t *testing.T) {
	img := newImage(failing)
	a, err := rollout.Retry(img, nil, now)
	require.NoError(t, err)
	assert.Contains(t, a.Done, "starts over in 1 cluster")
	first := img.Spec.Retry.Token
	_, err = rollout.Retry(img, []string{"lab"}, now.Add(time.Millisecond))
	require.NoError(t, err)
	assert.NotEqual(t, first, img.Spec.Retry.Token)
	assert.Empty(t, img.Spec.Retry.Clusters, "the request for all is not given to plans yet")

	two := func(img *v1alpha1.FleetDiskImage) {
		failing(img)
		img.Status.Clusters.Failed = 2
		img.Status.Failing = append(img.Status.Failing, v1alpha1.ClusterSummary{Cluster: "oslo", State: v1alpha1.ClusterFailed})
	}
	img = newImage(two)
	for _, cluster := range []string{"oslo", "lab"} {
		_, err = rollout.Retry(img, []string{cluster}, now)
		require.NoError(t, err)
	}
	assert.Equal(t, []string{"lab", "oslo"}, img.Spec.Retry.Clusters, "the first request is not lost")
	img.Status.ObservedRetry = img.Spec.Retry.Token
	_, err = rollout.Retry(img, []string{"lab"}, now)
	require.NoError(t, err)
	assert.Equal(t, []string{"lab"}, img.Spec.Retry.Clusters, "what was given to plans is done")
	_, err = rollout.Retry(img, []string{"kiel"}, now)
	require.ErrorContains(t, err, "has not failed in kiel")
	require.NoError(t, rollout.CheckRetryStored(img))
	require.ErrorContains(t, rollout.CheckRetryStored(newImage(nil)), "upgrade chart ot-hub")
	_, err = rollout.Retry(newImage(nil), nil, now)
	require.ErrorContains(t, err, "there is nothing to retry")
}

// TestRetryImage: what has not failed does not start over, and nobody is told that it does.
func TestRetryImage(t *testing.T) {
	for name, test := range map[string]struct {
		phase               v1alpha1.Phase
		reason              v1alpha1.Reason
		wantDone, wantError string
		wantState           string
	}{
		"failed":    {v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound, "farm/i4 starts over, with all attempts", "", ""},
		"ready":     {v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady, "", "farm/i4 has not failed: it is Succeeded, Ready: there is nothing to retry", ""},
		"backs off": {v1alpha1.PhaseQueued, v1alpha1.ReasonBackingOff, "farm/i4 has all attempts again", "", "Queued, BackingOff"},
		"new":       {"", "", "farm/i4 has all attempts again", "", "new"},
	} {
		t.Run(name, func(t *testing.T) {
			img := &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: "farm", Name: "i4"}, Status: v1alpha1.VMDiskImageStatus{Phase: test.phase, Reason: test.reason}}
			a, err := rollout.RetryImage(img)
			if test.wantError != "" {
				require.EqualError(t, err, test.wantError)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.wantDone, a.Done)
			assert.Equal(t, test.phase != v1alpha1.PhaseFailed, len(a.Notes) > 0)
			for _, note := range a.Notes {
				assert.Contains(t, note, "it has not failed: it is "+test.wantState+"; an import that runs goes on")
			}
		})
	}
}
