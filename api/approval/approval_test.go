package approval_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/approval"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func newImage() *v1alpha1.FleetDiskImage {
	img := apitest.FleetDiskImage("win-11").WithVersion("24.2").Obj()
	img.Spec.Rollout = v1alpha1.Rollout{
		MaxConcurrency: ptr.To(intstr.FromString("25%")), MinSuccessTime: &metav1.Duration{Duration: time.Hour},
		Waves: []v1alpha1.Wave{
			{Name: "canary", MaxConcurrency: ptr.To(intstr.FromInt32(1)), MinSuccessTime: &metav1.Duration{Duration: time.Minute}},
			{Name: "production", RequireApproval: true},
		},
	}
	img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.1", By: "anna"}}
	img.Status.Waves = []v1alpha1.WaveStatus{{Name: "production", Clusters: v1alpha1.ClusterCounts{Total: 9, ToApply: 4, Deferred: 2, Succeeded: 3}}}
	return img
}

func TestWaves(t *testing.T) {
	img := newImage()
	assert.True(t, approval.IsRequired(img, "production"))
	assert.False(t, approval.IsRequired(img, "canary"))
	assert.False(t, approval.IsRequired(img, v1alpha1.WaveRest))
	assert.Nil(t, approval.FindApproval(img, "production", "24.2"))
	assert.Equal(t, "anna", approval.FindApproval(img, "production", "24.1").By)
	assert.Equal(t, "1", approval.AtATime(img, "canary"))
	assert.Equal(t, "25%", approval.AtATime(img, v1alpha1.WaveRest))
	assert.Equal(t, time.Minute, approval.MinSuccessTime(img, "canary"))
	assert.Equal(t, time.Hour, approval.MinSuccessTime(img, v1alpha1.WaveRest))
	img.Spec.Rollout = v1alpha1.Rollout{}
	assert.Empty(t, approval.AtATime(img, v1alpha1.WaveRest))
	assert.Zero(t, approval.MinSuccessTime(img, v1alpha1.WaveRest))
	clusters, offline := approval.CountStarting(img, "production")
	assert.Equal(t, []int32{6, 2}, []int32{clusters, offline})
}

func TestChangesSinceVersionBefore(t *testing.T) {
	img := newImage()
	assert.Nil(t, approval.ChangesSinceVersionBefore(img))
	former := img.Spec.Template.SourceFields()
	former.URL, former.ExtraHeaders = "https://anna:secret@images.example.com/24.1?signature=secret", []string{"Authorization: secret"}
	img.Status.Versions = []v1alpha1.VersionStatus{{Version: "24.2"}, {Version: "24.1", Template: former}, {Version: "23.9"}}
	changes := approval.ChangesSinceVersionBefore(img)
	assert.Equal(t, "24.1", changes.Since)
	assert.Equal(t, []string{"url", "extraHeaders"}, fieldsOf(changes.Fields))
	for _, c := range changes.Fields {
		assert.NotContains(t, c.From, "secret")
	}
	img.Status.Versions[1].Template, img.Status.Versions[1].TemplateOmitted = nil, "it is too large"
	assert.Equal(t, &readapi.VersionChanges{Since: "24.1", NotRecorded: "it is too large"}, approval.ChangesSinceVersionBefore(img))
	assert.Equal(t, "the hub was older then", approval.WhyNotRecorded(&img.Status.Versions[2]))
}

func TestChangesOfOverrides(t *testing.T) {
	url := func(text string) v1alpha1.ImageOverride {
		return v1alpha1.ImageOverride{ClusterSelector: &metav1.LabelSelector{}, URL: &text}
	}
	before := []v1alpha1.ImageOverride{url("https://a.example.com/b?token=hunter2"), {ClusterNames: []string{"kiel"}, StorageClass: ptr.To("lvm"), ExtraHeaders: &[]string{"X-Key: hunter2"}}}
	after := []v1alpha1.ImageOverride{url("https://a.example.com/b?token=hunter3"), {ClusterNames: []string{"kiel", "oslo"}, StorageClass: ptr.To(""), ExtraHeaders: &[]string{}}, {ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"site": "north"}}, Priority: ptr.To[int32](3)}}
	assert.Equal(t, []readapi.Change{
		{Field: "overrides[0].url", From: "https://a.example.com/b?…", To: "https://a.example.com/b?…"},
		{Field: "overrides[1].clusterNames", From: `["kiel"]`, To: `["kiel","oslo"]`},
		{Field: "overrides[1].extraHeaders", From: "(not shown)", To: "(removed)"},
		{Field: "overrides[1].storageClass", From: "lvm", To: "(removed)"},
		{Field: "overrides[2].clusterSelector", To: "site=north"},
		{Field: "overrides[2].priority", To: "3"},
	}, approval.DiffOverrides(before, after))
	assert.Empty(t, approval.DiffOverrides(before, before))
	assert.Equal(t, []readapi.Change{{Field: "overrides[0].clusterSelector", From: "all clusters"}, {Field: "overrides[0].url", From: "https://a.example.com/b?…"}}, approval.DiffOverrides(before[:1], nil))

	img := newImage()
	img.Spec.Overrides = after
	img.Status.Versions = []v1alpha1.VersionStatus{{Version: "24.2"}, {Version: "24.1", Template: img.Spec.Template.SourceFields(), Overrides: &v1alpha1.RecordedOverrides{Items: before}}}
	assert.Len(t, approval.ChangesSinceVersionBefore(img).Fields, 6)
}

func TestNewApproval(t *testing.T) {
	at := time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)
	img := newImage()
	template := img.Spec.Template.SourceDigest()
	assert.Equal(t, v1alpha1.Approval{Wave: "production", Version: "24.2", By: "bea", At: &metav1.Time{Time: at}}, approval.New(img, "production", []string{template}, "bea", at), "as a hub before overrides has it")

	img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.2", By: "anna"}}
	assert.Empty(t, approval.PendingSources(img, "production", []string{template}))
	assert.Equal(t, []string{"a", "b"}, approval.PendingSources(img, "production", []string{"b", template, "a", "a"}))
	img.Status.ObservedGeneration = img.Generation
	img.Status.PendingApproval = &v1alpha1.PendingApproval{Wave: "production", Sources: []string{"c"}}
	assert.Equal(t, []string{"c"}, approval.PendingSources(img, "production", []string{"b"}), "the hub knows")
	assert.Nil(t, approval.FindComplete(img, "production"), "clusters wait for another one")
	img.Status.PendingApproval.Sources = []string{template}
	assert.Equal(t, "anna", approval.FindComplete(img, "production").By)
	img.Status.PendingApproval.Sources = []string{"c"}
	assert.Equal(t, []string{"b"}, approval.PendingSources(img, "canary", []string{"b"}), "it is about another wave")
	img.Generation++
	assert.Equal(t, []string{"b"}, approval.PendingSources(img, "production", []string{"b"}), "it is about another spec")

	assert.ElementsMatch(t, []string{template, "b"}, approval.New(img, "production", []string{"b"}, "bea", at).Sources, "what was covered stays covered")
	var many []string
	for i := range approval.MaxSources {
		many = append(many, fmt.Sprintf("%03d", i))
	}
	img.Spec.Overrides = make([]v1alpha1.ImageOverride, 1)
	assert.Equal(t, many, approval.New(img, "production", many, "bea", at).Sources, "what is pending comes first")
}

func fieldsOf(changes []readapi.Change) (fields []string) {
	for _, c := range changes {
		fields = append(fields, c.Field)
	}
	return fields
}

func TestDescribeEffective(t *testing.T) {
	img := newImage()
	img.Spec.Template = v1alpha1.VMDiskImageSpec{
		Name: "Windows", SourceType: v1alpha1.SourceHTTP, URL: "https://images.example.com/win?token=hunter2", Checksum: "md5:00000000000000000000000000000000",
		DiskSize: resource.MustParse("2Gi"), ExtraHeaders: []string{"X-Key: hunter2"},
	}
	img.Spec.Overrides = []v1alpha1.ImageOverride{
		{ClusterSelector: &metav1.LabelSelector{}, Checksum: ptr.To(""), StorageClass: ptr.To("lvm")},
		{ClusterNames: []string{"edge"}, URL: ptr.To("https://${labels.site}.example.com/win")},
	}
	overrides, err := override.Parse(img)
	require.NoError(t, err)
	got := approval.DescribeEffective(overrides.For("kiel", nil))
	assert.Equal(t, []readapi.EffectiveField{
		{Field: "checksum", From: "overrides[0]"}, {Field: "diskSize", Value: "2Gi", From: "template"}, {Field: "extraHeaders", Value: "(not shown)", From: "template"},
		{Field: "name", Value: "Windows", From: "template"}, {Field: "sourceType", Value: "http", From: "template"},
		{Field: "storageClass", Value: "lvm", From: "overrides[0]"}, {Field: "url", Value: "https://images.example.com/win?…", From: "template"},
	}, got.Fields)
	assert.NotContains(t, got.Source, "hunter2")
	assert.Empty(t, got.Waits)
	edge := approval.DescribeEffective(overrides.For("edge", nil))
	assert.Equal(t, []string{"site"}, edge.MissingLabels)
	assert.Contains(t, edge.Waits, "has no label site")
	assert.Equal(t, []string{"overrides[0]", "overrides[1]"}, approval.OverridesOf(overrides.For("edge", nil)))
	assert.Equal(t, "dataSource images/fedora", approval.DescribeSource(&v1alpha1.VMDiskImageSpec{SourceType: v1alpha1.SourceDataSource, DataSource: &v1alpha1.DataSourceReference{Namespace: "images", Name: "fedora"}}))
}
