package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

var (
	everyCluster         = &metav1.LabelSelector{}
	storageClassOverride = v1alpha1.ImageOverride{ClusterSelector: everyCluster, StorageClass: ptr.To("lvm")}
	siteOverride         = v1alpha1.ImageOverride{ClusterSelector: everyCluster, URL: ptr.To(siteURL)}
)

// label sets label site of clusters by name, as in "canary-0=north".
func label(v rollout.View, sites string) rollout.View {
	for site := range strings.FieldsSeq(sites) {
		name, value, _ := strings.Cut(site, "=")
		for i := range v.Clusters {
			if c := &v.Clusters[i]; c.Name == name {
				c.Labels["site"] = value
			}
		}
	}
	return v
}

// planEffective plans for clusters what they are to have, as if they had started with it.
func planEffective(v rollout.View, names string) rollout.View {
	overrides, err := override.Parse(v.Image)
	if err != nil {
		panic(err)
	}
	for i := range v.Clusters {
		if c := &v.Clusters[i]; slices.Contains(strings.Fields(names), c.Name) {
			e := overrides.For(c.Name, c.Labels)
			c.PlannedDigest, c.PlannedRevision = e.Digest, e.Revision
			c.Report.Revision, c.Report.ServingRevision = e.Revision, e.Revision
		}
	}
	return v
}

// invalidate has the specs of clusters be invalid.
func invalidate(v rollout.View, names string) rollout.View {
	v.Image.Spec.Overrides = append(v.Image.Spec.Overrides, v1alpha1.ImageOverride{ClusterNames: strings.Fields(names), SourceType: ptr.To(v1alpha1.SourceRegistry)})
	overrides, err := override.Parse(v.Image)
	if err != nil {
		panic(err)
	}
	for i := range v.Clusters {
		if c := &v.Clusters[i]; slices.Contains(strings.Fields(names), c.Name) {
			e := *overrides.For(c.Name, c.Labels)
			e.Invalid = "a registry source has no checksum: set checksum: \"\" in spec.overrides[0]"
			c.Effective = &e
		}
	}
	return v
}

func digestOf(v rollout.View, cluster string) string {
	d := rollout.Decide(v)
	i := slices.IndexFunc(d.Placed, func(p rollout.PlacedCluster) bool { return p.Cluster == cluster })
	return d.Placed[i].Effective.Digest
}

// A cluster starts again when its source changes, and it alone.
func TestAnotherSourceStartsAgain(t *testing.T) {
	inCanary := v1alpha1.ImageOverride{ClusterNames: []string{"canary-0"}}
	with := func(change func(*v1alpha1.ImageOverride)) *builder {
		o := *inCanary.DeepCopy()
		change(&o)
		return newUbuntu().WithOverride(o)
	}
	for name, tt := range map[string]struct {
		img        *builder
		wantStates string
	}{
		"none":          {newUbuntu(), "canary=SS eu=S"},
		"storageClass":  {with(func(o *v1alpha1.ImageOverride) { o.StorageClass = ptr.To("lvm") }), "canary=PS eu=S"},
		"secretRef":     {with(func(o *v1alpha1.ImageOverride) { o.SecretRef = ptr.To("theirs") }), "canary=PS eu=S"},
		"snapshotClass": {with(func(o *v1alpha1.ImageOverride) { o.SnapshotClass = ptr.To("lvm") }), "canary=PS eu=S"},
		"headers":       {with(func(o *v1alpha1.ImageOverride) { o.ExtraHeaders = &[]string{"a: b"} }), "canary=PS eu=S"},
		"priority":      {with(func(o *v1alpha1.ImageOverride) { o.Priority = ptr.To[int32](3) }), "canary=SS eu=S"},
		"what it was":   {with(func(o *v1alpha1.ImageOverride) { o.StorageClass = ptr.To("") }), "canary=SS eu=S"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decideAndCheck(t, newView(tt.img, "canary=SS eu=S"))
			assert.Equal(t, tt.wantStates, formatStates(d))
			paused := decideAndCheck(t, newView(tt.img.Paused(), "canary=SS eu=S"))
			assert.Equal(t, strings.ReplaceAll(tt.wantStates, "P", "."), formatStates(paused))
			applied := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionOverridesApplied)
			if name == "none" {
				assert.Nil(t, applied)
			} else {
				assert.Equal(t, metav1.ConditionTrue, applied.Status)
			}
		})
	}
}

// The source of each cluster is judged by its own revision.
func TestStatesFollowTheEffectiveRevision(t *testing.T) {
	v := planEffective(label(newView(newUbuntu().WithOverride(siteOverride), "canary=SFP eu=."), "canary-0=north canary-1=north canary-2=south eu-0=north"), "canary-0 canary-1 canary-2")
	assert.Equal(t, "canary=SFP eu=.", formatStates(decideAndCheck(t, v)))
	v = label(v, "canary-0=south")
	assert.Equal(t, "canary=.FP eu=.", formatStates(decideAndCheck(t, v)), "a label changes the source")
	v = label(v, "canary-0=")
	d := decideAndCheck(t, v)
	assert.Equal(t, "canary=.FP eu=.", formatStates(d))
	assert.Equal(t, v1alpha1.ReasonLabelMissing, d.Placed[0].Reason)
}

// What cannot begin says why, and others go on.
func TestClustersWithoutASource(t *testing.T) {
	site := func(fleet, sites string) rollout.View {
		return label(newView(newUbuntu().WithOverride(siteOverride), fleet), sites)
	}
	const lacks = "its MemberCluster has no label site, which spec.overrides[0].url names: set it there, or have the override select other clusters"
	const invalid = "a registry source has no checksum: set checksum: \"\" in spec.overrides[0]"
	for name, tt := range map[string]struct {
		view                    rollout.View
		wantStates, wantReason  string
		wantBlocked             []v1alpha1.ClusterSummary
		wantApplied             string // reason of the condition
		wantMessage, wantStatus string
	}{
		"one lacks a label": {site("canary=..", "canary-1=north"), "canary=.P", v1alpha1.ReasonLabelMissing,
			[]v1alpha1.ClusterSummary{{Cluster: "canary-0", State: v1alpha1.ClusterToApply, Reason: v1alpha1.ReasonLabelMissing, Message: lacks}},
			v1alpha1.ReasonLabelMissing, "1 cluster (canary-0) cannot begin, and keep what they have; in canary-0, " + lacks,
			"1 cluster in wave canary cannot start, and later waves wait for that: set the labels of the MemberClusters (canary-0) that spec.overrides name, or add these clusters to spec.placement.excludedClusters"},
		"offline, and lacks it": {site("canary=D.", "canary-1=north"), "canary=DP", v1alpha1.ReasonAwaitingClusters, nil,
			v1alpha1.ReasonLabelMissing, "1 cluster (canary-0) cannot begin", "in progress"},
		"invalid": {invalidate(newView(newUbuntu(), "canary=.."), "canary-0"), "canary=.P", v1alpha1.ReasonSourceInvalid,
			[]v1alpha1.ClusterSummary{{Cluster: "canary-0", State: v1alpha1.ClusterToApply, Reason: v1alpha1.ReasonSourceInvalid, Message: invalid}},
			v1alpha1.ReasonSourceInvalid, invalid, "correct spec.overrides for these clusters (canary-0)"},
		"none": {site("canary=.", "canary-0=north"), "canary=P", v1alpha1.ReasonAwaitingClusters, nil, v1alpha1.ReasonOverridesApplied, "every placed cluster", "in progress"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decideAndCheck(t, tt.view)
			assert.Equal(t, tt.wantStates, formatStates(d))
			assert.Equal(t, tt.wantReason, d.Status.Reason)
			assert.Equal(t, tt.wantBlocked, d.Status.Blocked)
			assert.Contains(t, d.Status.Message, tt.wantStatus)
			applied := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionOverridesApplied)
			require.NotNil(t, applied)
			assert.Equal(t, tt.wantApplied, applied.Reason)
			assert.Equal(t, tt.wantApplied == v1alpha1.ReasonOverridesApplied, applied.Status == metav1.ConditionTrue)
			assert.Contains(t, applied.Message, tt.wantMessage)
		})
	}
}

func TestInvalidOverrideSelectorFreezes(t *testing.T) {
	broken := v1alpha1.ImageOverride{ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "site", Operator: "Near"}}}}
	d := decideAndCheck(t, newView(newUbuntu().WithOverride(storageClassOverride).WithOverride(broken), "canary=."))
	assert.True(t, d.Freeze)
	assert.Equal(t, v1alpha1.ReasonSelectorInvalid, d.Status.Reason)
	assert.Contains(t, d.Status.Message, "spec.overrides[1].clusterSelector")
	applied := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionOverridesApplied)
	require.NotNil(t, applied)
	assert.Equal(t, v1alpha1.ReasonSelectorInvalid, applied.Reason)
	assert.Contains(t, applied.Message, "spec.overrides[1].clusterSelector")
}

// An approval covers the sources that it names, and without any the template's.
func TestApprovalsCoverSources(t *testing.T) {
	wave := v1alpha1.Wave{Name: "canary", ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"wave": "canary"}}, RequireApproval: true}
	lvm := v1alpha1.ImageOverride{ClusterNames: []string{"canary-0"}, StorageClass: ptr.To("lvm")}
	base := func(overrides ...v1alpha1.ImageOverride) *builder {
		b := apitest.FleetDiskImage("ubuntu").WithWaves(wave)
		for _, o := range overrides {
			b.WithOverride(o)
		}
		return b
	}
	ofLVM := digestOf(newView(base(lvm), "canary=.."), "canary-0")
	require.NotEqual(t, digest, ofLVM)
	both := []string{digest, ofLVM}
	slices.Sort(both)
	for name, tt := range map[string]struct {
		img         *builder
		fleet       string
		wantStates  string
		wantReason  string
		wantPending []string
		wantMessage string
	}{
		"none":                          {base(), "canary=..", "canary=..", v1alpha1.ReasonAwaitingApproval, []string{digest}, "wave canary, with 2 clusters to start, needs approval: kubectl patch"},
		"none, two sources":             {base(lvm), "canary=..", "canary=..", v1alpha1.ReasonAwaitingApproval, both, "wave canary, with 2 clusters to start, needs approval of 2 sources: kubectl ot rollout approve ubuntu --wave canary names them"},
		"without sources":               {base().WithApproval("canary", "1.0.0"), "canary=..", "canary=PP", v1alpha1.ReasonAwaitingClusters, nil, ""},
		"without sources, two there":    {base(lvm).WithApproval("canary", "1.0.0"), "canary=..", "canary=.P", v1alpha1.ReasonAwaitingApproval, []string{ofLVM}, "wave canary, with 1 cluster to start, needs approval of 1 source: "},
		"of one":                        {base(lvm).WithApproval("canary", "1.0.0", ofLVM), "canary=..", "canary=P.", v1alpha1.ReasonAwaitingApproval, []string{digest}, "wave canary, with 1 cluster to start, needs approval: kubectl ot rollout approve ubuntu --wave canary"},
		"of both":                       {base(lvm).WithApproval("canary", "1.0.0", both...), "canary=..", "canary=PP", v1alpha1.ReasonAwaitingClusters, nil, ""},
		"of both, for another version":  {base(lvm).WithApproval("canary", "0.9.0", both...), "canary=..", "canary=..", v1alpha1.ReasonAwaitingApproval, both, ""},
		"of another":                    {base(lvm).WithApproval("canary", "1.0.0", "another"), "canary=..", "canary=..", v1alpha1.ReasonAwaitingApproval, both, ""},
		"of one, no slot is left":       {base(lvm).WithMaxConcurrency("1").WithApproval("canary", "1.0.0", digest), "canary=...", "canary=.P.", v1alpha1.ReasonMaxConcurrency, []string{ofLVM}, "maxConcurrency allows 1"},
		"offline ones are named":        {base(lvm), "canary=D.", "canary=D.", v1alpha1.ReasonAwaitingApproval, both, "with 1 cluster to start"},
		"only offline ones wait":        {base(lvm).WithApproval("canary", "1.0.0"), "canary=DS", "canary=DS", v1alpha1.ReasonRolledOut, nil, ""},
		"priority needs no other":       {base(v1alpha1.ImageOverride{ClusterNames: []string{"canary-0"}, Priority: ptr.To[int32](1)}).WithApproval("canary", "1.0.0"), "canary=..", "canary=PP", v1alpha1.ReasonAwaitingClusters, nil, ""},
		"what has no source is not one": {base(siteOverride), "canary=..", "canary=..", v1alpha1.ReasonLabelMissing, nil, ""},
		"paused":                        {base(lvm).Paused(), "canary=..", "canary=..", v1alpha1.ReasonRolloutPaused, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(tt.img, tt.fleet)
			d := decideAndCheck(t, v)
			assert.Equal(t, tt.wantStates, formatStates(d))
			assert.Equal(t, tt.wantReason, d.Status.Reason)
			assert.Contains(t, d.Status.Message, tt.wantMessage)
			if tt.wantPending == nil {
				assert.Nil(t, d.Status.PendingApproval)
				return
			}
			require.NotNil(t, d.Status.PendingApproval)
			assert.Equal(t, v1alpha1.PendingApproval{Wave: "canary", Sources: tt.wantPending}, *d.Status.PendingApproval)
		})
	}
}

// A status names what one approval can.
func TestPendingSourcesAreBounded(t *testing.T) {
	wave := v1alpha1.Wave{Name: "canary", RequireApproval: true}
	v := newView(apitest.FleetDiskImage("ubuntu").WithWaves(wave).WithOverride(v1alpha1.ImageOverride{ClusterSelector: everyCluster, URL: ptr.To("https://${cluster.name}.example.com")}),
		"canary="+strings.Repeat(".", 300))
	d := decideAndCheck(t, v)
	require.Len(t, d.Status.PendingApproval.Sources, v1alpha1.MaxPendingSources)
	assert.Contains(t, d.Status.Message, "needs approval of 300 sources")
	assert.Contains(t, d.Status.Message, "An approval names at most 256: split the wave")
}

// A version before comes back with its overrides, as long as it is kept.
func TestOverridesAreRecorded(t *testing.T) {
	img := newUbuntu().WithRetention(2, time.Hour).Obj()
	template := img.Spec.Template.DeepCopy()
	img.Spec.Overrides = []v1alpha1.ImageOverride{storageClassOverride}
	setImage(t, img, "1", template)
	img.Spec.Overrides = []v1alpha1.ImageOverride{siteOverride, {ClusterNames: []string{"kiel"}, ExtraHeaders: &[]string{}}}
	versions := setImage(t, img, "2", template)
	assert.Equal(t, img.Spec.Overrides, versions[0].Overrides.Items)
	require.NotNil(t, versions[1].Overrides)
	assert.Equal(t, []v1alpha1.ImageOverride{storageClassOverride}, versions[1].Overrides.Items)

	former := versions[1]
	img.Spec.Overrides = former.Overrides.Items
	back := setImage(t, img, "1", former.Template)
	assert.Equal(t, former.Overrides, back[0].Overrides)
	assert.Equal(t, former.Revision, back[0].Revision)

	img.Spec.Overrides = nil
	versions = setImage(t, img, "3", template)
	assert.Nil(t, versions[0].Overrides)
	assert.NotNil(t, versions[0].Template)
	assert.NotNil(t, versions[1].Overrides)
	assert.Nil(t, versions[2].Overrides)
	assert.Nil(t, versions[2].Template, "without its overrides it would bring back something else")
	assert.Equal(t, "it has overrides, which are recorded of the versions that spec.retention keeps", versions[2].TemplateOmitted)

	img.Spec.Overrides = []v1alpha1.ImageOverride{storageClassOverride}
	versions = setImage(t, img, "3", template)
	assert.Equal(t, img.Spec.Overrides, versions[0].Overrides.Items, "the first version follows the spec")
	img.Spec.Retention.KeepVersions = 1
	versions = setImage(t, img, "3", template)
	assert.NotNil(t, versions[0].Overrides)
	assert.Nil(t, versions[1].Overrides)
}

func TestOverridesThatAreNotRecorded(t *testing.T) {
	var large []v1alpha1.ImageOverride
	for i := range 5 {
		large = append(large, v1alpha1.ImageOverride{ClusterNames: []string{fmt.Sprint("c", i)}, URL: ptr.To("https://example.com/" + strings.Repeat("x", 2000))})
	}
	for name, tt := range map[string]struct {
		overrides   []v1alpha1.ImageOverride
		wantOmitted string
	}{
		"usual":      {[]v1alpha1.ImageOverride{storageClassOverride}, ""},
		"signed url": {[]v1alpha1.ImageOverride{storageClassOverride, {ClusterSelector: everyCluster, URL: ptr.To("https://example.com/a?sig=abc")}}, "the url of its overrides[1] has a query, which may be a credential"},
		"headers":    {[]v1alpha1.ImageOverride{{ClusterSelector: everyCluster, ExtraHeaders: &[]string{"Authorization: abc"}}}, "its overrides[0] has extraHeaders, which may be credentials"},
		"too large":  {large, "it has more than 8 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			img := newUbuntu().Obj()
			img.Spec.Overrides = tt.overrides
			v := setImage(t, img, "1", img.Spec.Template.DeepCopy())[0]
			assert.Equal(t, tt.wantOmitted, v.TemplateOmitted)
			assert.Equal(t, tt.wantOmitted == "", v.Template != nil)
			assert.Equal(t, tt.wantOmitted == "", v.Overrides != nil)
		})
	}
}
