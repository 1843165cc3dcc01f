package rollout_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

func newSiteMember(name, site string) v1alpha1.MemberCluster {
	m := v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"wave": "production"}}}
	if site != "" {
		m.Labels["site"] = site
	}
	m.Status.LastReport = ago(time.Second)
	return m
}

// mirrored is win-11 with a mirror per site; bergen is left to the template.
func mirrored(img *v1alpha1.FleetDiskImage) {
	img.Spec.Rollout.Waves[1].ClusterSelector = metav1.LabelSelector{MatchLabels: map[string]string{"wave": "production"}}
	img.Spec.Template.SourceType, img.Spec.Template.StorageClass = v1alpha1.SourceHTTP, "ceph"
	img.Spec.Placement = v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}}
	img.Spec.Overrides = []v1alpha1.ImageOverride{
		{ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "site", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"cloud"}}}},
			URL: ptr.To("https://mirror.${labels.site}.example.com/win-11/24.2.qcow2?token=secret")},
		{ClusterNames: []string{"oslo"}, StorageClass: ptr.To("lvm"), ExtraHeaders: &[]string{"Authorization: secret"}},
	}
}

var mirroredFleet = []v1alpha1.MemberCluster{newSiteMember("bergen", "cloud"), newSiteMember("kiel", "south"), newSiteMember("oslo", "north"), newSiteMember("turku", "south"), newSiteMember("edge", "")}

func digestOf(t *testing.T, img *v1alpha1.FleetDiskImage, m v1alpha1.MemberCluster) string {
	t.Helper()
	overrides, err := override.Parse(img)
	require.NoError(t, err)
	return overrides.For(m.Name, m.Labels).Digest
}

func TestApprovalNamesSources(t *testing.T) {
	img := newImage(mirrored)
	template, south, north := digestOf(t, img, mirroredFleet[0]), digestOf(t, img, mirroredFleet[1]), digestOf(t, img, mirroredFleet[2])
	require.Equal(t, img.Spec.Template.SourceDigest(), template)
	approvalOf := func(sources ...string) v1alpha1.Approval {
		return v1alpha1.Approval{Wave: "production", Version: "24.2", By: "bea", Sources: sources}
	}
	for name, tc := range map[string]struct {
		approvals   []v1alpha1.Approval
		pending     []string
		version     string
		wantNew     []string
		wantStored  []string
		wantExtends string
	}{
		"the wave's sources, before the hub says it":      {wantNew: []string{template, south, north}, wantStored: []string{template, south, north}},
		"what the hub says":                               {pending: []string{north}, wantNew: []string{north}, wantStored: []string{north}},
		"one approval names none":                         {approvals: []v1alpha1.Approval{approvalOf()}, wantNew: []string{south, north}, wantStored: []string{template, south, north}, wantExtends: "bea"},
		"an approval names some":                          {approvals: []v1alpha1.Approval{approvalOf(south)}, pending: []string{north}, wantNew: []string{north}, wantStored: []string{south, north}, wantExtends: "bea"},
		"all are covered":                                 {approvals: []v1alpha1.Approval{approvalOf(template, south, north)}},
		"those of another version":                        {approvals: []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "bea", Sources: []string{south}}}, pending: []string{south}, wantNew: []string{south}, wantStored: []string{south}},
		"a source of labels that a cluster has no longer": {pending: []string{"another"}, wantNew: []string{"another"}, wantStored: []string{"another"}},
	} {
		t.Run(name, func(t *testing.T) {
			img := newImage(mirrored)
			img.Spec.Approvals = tc.approvals
			if tc.pending != nil {
				img.Status.PendingApproval = &v1alpha1.PendingApproval{Wave: "production", Sources: tc.pending}
			}
			a, err := rollout.NewApproval(img, mirroredFleet, []string{"production"}, false, "", "anna", now)
			require.NoError(t, err)
			if tc.wantNew == nil {
				assert.Empty(t, a.Waves)
				require.Len(t, a.Already, 1)
				return
			}
			var got []string
			for _, source := range a.Sources {
				got = append(got, source.Digest)
			}
			assert.ElementsMatch(t, tc.wantNew, got)
			require.Len(t, a.Waves, 1)
			assert.ElementsMatch(t, tc.wantStored, a.Waves[0].Sources)
			assert.Equal(t, tc.wantExtends, a.Waves[0].Extends)
			assert.Equal(t, 1, a.Unusable, "edge has no label site")
			text, err := json.Marshal(a)
			require.NoError(t, err)
			assert.NotContains(t, string(text), "secret")
			for _, operation := range a.Patch(img) {
				assert.NotEqual(t, "/spec/approvals/-", map[bool]string{true: operation.Path}[tc.wantExtends != ""], "the list has one entry of a wave and version")
			}
		})
	}
}

func TestApprovalScreenOfSources(t *testing.T) {
	img := newImage(mirrored)
	img.Status.PendingApproval = &v1alpha1.PendingApproval{Wave: "production", Sources: []string{digestOf(t, img, mirroredFleet[1]), digestOf(t, img, mirroredFleet[2])}}
	img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.2", By: "bea"}}
	a, err := rollout.NewApproval(img, mirroredFleet, nil, false, "", "anna@example.com", now)
	require.NoError(t, err)
	rendertest.Golden(t, "approval-sources", now, a)
}

// A label that changes between question and answer changes what would be approved of.
func TestAnotherSourceIsAnotherQuestion(t *testing.T) {
	img := newImage(mirrored)
	shown, err := rollout.NewApproval(img, mirroredFleet, []string{"production"}, false, "", "anna", now)
	require.NoError(t, err)
	moved := append([]v1alpha1.MemberCluster{newSiteMember("bergen", "elsewhere")}, mirroredFleet[1:]...)
	again, err := rollout.NewApproval(img, moved, []string{"production"}, false, "", "anna", now)
	require.NoError(t, err)
	assert.True(t, shown.HasSameSources(shown))
	assert.False(t, again.HasSameSources(shown))
	other := newImage(mirrored)
	other.Spec.Overrides[0].URL = ptr.To("https://evil.example.com/a")
	assert.False(t, rollout.IsSameRollout(img, other))
}

func TestAbortBringsOverridesBack(t *testing.T) {
	former := []v1alpha1.ImageOverride{{ClusterNames: []string{"kiel"}, StorageClass: ptr.To("lvm")}}
	img := newImage(mirrored)
	img.Status.Versions[1].Overrides = &v1alpha1.RecordedOverrides{Items: former}
	img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "bea", Sources: []string{"a"}}}
	a, err := rollout.Abort(img, "24.1", rollout.Caller{Name: "anna", MayApprove: true}, "", now)
	require.NoError(t, err)
	assert.Equal(t, former, img.Spec.Overrides)
	assert.Equal(t, []string{"a"}, img.Spec.Approvals[0].Sources, "what was approved of is approved of again")
	assert.Contains(t, a.Notes[1], "spec.overrides become those of 24.1 again: 1 override instead of 2")

	img = newImage(mirrored)
	_, err = rollout.Abort(img, "24.1", anna, "", now)
	require.NoError(t, err)
	assert.Empty(t, img.Spec.Overrides, "24.1 had none")

	img = newImage(mirrored)
	img.Status.Versions[1].Template, img.Status.Versions[1].TemplateOmitted = nil, "its overrides[1] has extraHeaders, which may be credentials"
	_, err = rollout.Abort(img, "24.1", anna, "", now)
	require.ErrorContains(t, err, "its overrides[1] has extraHeaders, which may be credentials. Publish it with kubectl ot image publish win-11 --version 24.1 --url …, and -f for its overrides")
}

func TestWaitIsForTheEffectiveRevision(t *testing.T) {
	img := newImage(func(img *v1alpha1.FleetDiskImage) {
		mirrored(img)
		phase(v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency)(img)
	})
	overrides, err := override.Parse(img)
	require.NoError(t, err)
	judge := func(cluster int, revision string) rollout.Verdict {
		m := &mirroredFleet[cluster]
		in := &rollout.InCluster{
			Known: true, Placed: true, Effective: overrides.For(m.Name, m.Labels),
			Image: &v1alpha1.ReportedImage{Revision: revision, Phase: v1alpha1.PhaseSucceeded},
		}
		return rollout.JudgeWait(img, rollout.WantOf(img), rollout.Goal{Kind: rollout.GoalIn, Target: m.Name}, in, rollout.WaitOptions{})
	}
	assert.False(t, judge(1, img.Spec.Template.Revision()).End, "kiel is to have its mirror's")
	assert.Equal(t, exit.Yes, judge(1, overrides.For("kiel", mirroredFleet[1].Labels).Revision).Code)
	assert.Contains(t, judge(4, "").Message, "win-11 24.2 in edge cannot begin: its MemberCluster has no label site")

	want := rollout.WantOf(img)
	img.Spec.Overrides[1].ExtraHeaders, img.Spec.Overrides[1].Priority = nil, ptr.To[int32](1)
	assert.Equal(t, want, rollout.WantOf(img), "no revision changes")
	img.Spec.Overrides[1].StorageClass = ptr.To("ceph")
	assert.NotEqual(t, want, rollout.WantOf(img))
}

func TestWhereShowsSources(t *testing.T) {
	img := newImage(mirrored)
	newWhere := func(members ...v1alpha1.MemberCluster) *rollout.Where {
		where, err := rollout.NewWhere(img)
		require.NoError(t, err)
		for i := range members {
			where.Add(&members[i], true)
		}
		where.Put("kiel", "24.2", rollout.InIt{Phase: v1alpha1.PhaseSucceeded, References: 3})
		return where
	}
	all := newWhere(mirroredFleet...)
	rendertest.Golden(t, "where-overrides", now, all)
	rendertest.Golden(t, "where-overrides-of-one", now, newWhere(mirroredFleet[2]))
	text, err := json.Marshal(all)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "secret")
}
