package publish_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/publish"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

var fleet = []v1alpha1.MemberCluster{newMember("bergen", "nordics"), newMember("oslo", "nordics"), newMember("kiel", "south")}

func newMember(name, region string) v1alpha1.MemberCluster {
	return v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"region": region}}}
}

const checksum = "sha256:5d1f0c9e7a3b8842c0de11faa72b3d905d1f0c9e7a3b8842c0de11faa72b3d90"

func newDisk() *publish.Disk {
	return &publish.Disk{Path: "build/disk.qcow2", Format: "qcow2", VirtualBytes: 24 << 30, FileBytes: 3651928064, Checksum: checksum}
}

func newRequest(change func(*publish.Request)) publish.Request {
	r := publish.Request{Name: "ubuntu", Version: "2.1.0", URL: "https://images.example.com/ubuntu/2.1.0/disk.qcow2", Size: "24Gi", TargetNamespace: "images", Selector: ptr.To("region=nordics")}
	if change != nil {
		change(&r)
	}
	return r
}

// newStored is ubuntu 2.0.3, which kubectl ot has applied with its placement and waves.
func newStored(change func(*v1alpha1.FleetDiskImage)) *v1alpha1.FleetDiskImage {
	img := apitest.FleetDiskImage("ubuntu").WithVersion("2.0.3").WithWave("canary").Obj()
	img.Spec.Template.Checksum, img.Spec.Template.Priority = "sha256:old", 5
	img.ResourceVersion, img.Spec.Rollout.Paused = "7", false
	img.Spec.Placement = v1alpha1.Placement{ClusterNames: []string{"oslo"}}
	img.Spec.Approvals = []v1alpha1.Approval{{Wave: "canary", Version: "2.0.3", By: "anna"}}
	img.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kubectl-ot", Operation: metav1.ManagedFieldsOperationApply,
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:version":{},"f:placement":{"f:clusterNames":{}},"f:rollout":{"f:waves":{}},"f:template":{"f:url":{},"f:checksum":{}}}}`)},
	}}
	if change != nil {
		change(img)
	}
	return img
}

func field(t *testing.T, p *publish.Plan, path ...string) any {
	t.Helper()
	value, _, err := unstructured.NestedFieldNoCopy(p.Object.Object, append([]string{"spec"}, path...)...)
	require.NoError(t, err)
	return value
}

func TestFirstPublication(t *testing.T) {
	p, err := publish.NewPlan(newRequest(func(r *publish.Request) { r.Waves = []string{"canary=ring=canary", "rest-of-it=ring in (a,b)"} }), nil, fleet)
	require.NoError(t, err)
	assert.True(t, p.Created)
	assert.Equal(t, 2, p.Clusters)
	assert.True(t, p.AtMost)
	assert.EqualValues(t, 48<<30, p.Bytes)
	assert.Equal(t, "http", field(t, p, "template", "sourceType"))
	assert.Equal(t, "ubuntu", field(t, p, "template", "name"))
	assert.Equal(t, map[string]any{"matchLabels": map[string]any{"region": "nordics"}}, field(t, p, "placement", "clusterSelector"))
	assert.Len(t, field(t, p, "rollout", "waves"), 2)

	all, err := publish.NewPlan(newRequest(func(r *publish.Request) { r.Selector = ptr.To("") }), nil, fleet)
	require.NoError(t, err)
	assert.Equal(t, 3, all.Clusters)

	none, err := publish.NewPlan(newRequest(func(r *publish.Request) { r.Selector = ptr.To("region=moon") }), nil, fleet)
	require.NoError(t, err)
	assert.Contains(t, none.Notes[0], "no cluster of the fleet is selected")

	_, err = publish.NewPlan(publish.Request{Name: "ubuntu"}, nil, fleet)
	require.EqualError(t, err, "FleetDiskImage ubuntu needs --version, --url, --size or --file, --target-namespace, -l or --clusters")
}

// What a flag does not name stays: an apply without it would remove it.
func TestNextPublicationKeepsTheRest(t *testing.T) {
	p, err := publish.NewPlan(publish.Request{Name: "ubuntu", Version: "2.1.0", URL: "https://images.example.com/ubuntu/2.1.0/disk.qcow2"}, newStored(nil), fleet)
	require.NoError(t, err)
	assert.Equal(t, []any{"oslo"}, field(t, p, "placement", "clusterNames"))
	assert.Len(t, field(t, p, "rollout", "waves"), 1)
	assert.Nil(t, field(t, p, "template", "priority"), "another's field is left to them")
	assert.Nil(t, field(t, p, "approvals"), "approvers write these")
	assert.Nil(t, field(t, p, "rollout", "paused"), "who paused resumes")
	assert.Nil(t, field(t, p, "template", "checksum"), "that of another file is removed, for an empty one is refused")
	assert.Equal(t, "7", p.Object.GetResourceVersion(), "what others write meanwhile is not written back")
	assert.Equal(t, 1, p.Clusters)
	var fields []string
	for _, c := range p.Changes {
		fields = append(fields, c.Field)
	}
	assert.ElementsMatch(t, []string{"url", "checksum"}, fields)

	// What others own is left to them.
	p, err = publish.NewPlan(publish.Request{Name: "ubuntu", Version: "2.1.0"}, newStored(func(img *v1alpha1.FleetDiskImage) { img.ManagedFields = nil }), fleet)
	require.NoError(t, err)
	assert.Nil(t, field(t, p, "placement"))
	assert.Nil(t, field(t, p, "rollout"))
	assert.Equal(t, 1, p.Clusters, "by the placement that is stored")
}

// A flag replaces its own field, and keeps what is beside it.
func TestFlagsKeepWhatIsBeside(t *testing.T) {
	stored := newStored(func(img *v1alpha1.FleetDiskImage) {
		img.Spec.Placement.ExcludedClusters = []string{"kiel"}
		img.Spec.Rollout.Waves[0].RequireApproval, img.Spec.Rollout.Paused = true, true
		img.ManagedFields[0].FieldsV1.SetRawBytes([]byte(`{"f:spec":{"f:version":{},"f:placement":{"f:clusterNames":{},"f:excludedClusters":{}},"f:rollout":{"f:waves":{},"f:paused":{}},"f:retention":{"f:keepVersions":{}},"f:template":{"f:url":{}}}}`))
		img.Spec.Retention = &v1alpha1.Retention{KeepVersions: 4}
	})
	p, err := publish.NewPlan(publish.Request{Name: "ubuntu", Version: "2.1.0", Selector: ptr.To("region"), Waves: []string{"canary=ring=canary", "more=ring=more"}}, stored, fleet)
	require.NoError(t, err)
	assert.Equal(t, []any{"kiel"}, field(t, p, "placement", "excludedClusters"))
	assert.Equal(t, []any{"oslo"}, field(t, p, "placement", "clusterNames"))
	assert.Equal(t, 2, p.Clusters, "without kiel")
	waves := field(t, p, "rollout", "waves").([]any)
	require.Len(t, waves, 2)
	assert.Equal(t, map[string]any{"name": "canary", "requireApproval": true, "clusterSelector": map[string]any{"matchLabels": map[string]any{"ring": "canary"}}}, waves[0])
	assert.Nil(t, field(t, p, "rollout", "paused"))
	assert.EqualValues(t, 4, field(t, p, "retention", "keepVersions"))
	var fields []string
	for _, c := range p.Changes {
		fields = append(fields, c.Field)
	}
	assert.Equal(t, []string{"placement.clusterSelector", "rollout.waves"}, fields, "nothing changes unseen")
	assert.ElementsMatch(t, []string{"spec.version", "spec.placement", "spec.rollout"}, p.Fields())
}

// A checksum that another manager keeps cannot be left out: the new file would never match it.
func TestChecksumOfTheFormerFile(t *testing.T) {
	stored := newStored(func(img *v1alpha1.FleetDiskImage) {
		img.ManagedFields = append(img.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:template":{"f:checksum":{}}}}`)},
		})
	})
	request := publish.Request{Name: "ubuntu", Version: "2.1.0", URL: "https://images.example.com/new"}
	_, err := publish.NewPlan(request, stored, fleet)
	require.ErrorContains(t, err, "--checksum of the new file is missing: the one that is stored is of the former file, and kubectl keeps it")
	request.Checksum = checksum
	p, err := publish.NewPlan(request, stored, fleet)
	require.NoError(t, err)
	assert.Equal(t, checksum, field(t, p, "template", "checksum"))

	// The same file keeps its checksum.
	p, err = publish.NewPlan(publish.Request{Name: "ubuntu", Version: "2.1.0"}, newStored(nil), fleet)
	require.NoError(t, err)
	assert.Equal(t, "sha256:old", field(t, p, "template", "checksum"))
	p, err = publish.NewPlan(publish.Request{Name: "ubuntu", Version: "2.1.0", Type: "registry", URL: "docker://registry.example.com/ubuntu"}, newStored(nil), fleet)
	require.NoError(t, err)
	assert.Nil(t, field(t, p, "template", "checksum"))
}

func TestPublicationNotes(t *testing.T) {
	for name, tt := range map[string]struct {
		request publish.Request
		change  func(*v1alpha1.FleetDiskImage)
		want    string
	}{
		"again":            {publish.Request{Version: "2.0.3"}, nil, "it is at this version already"},
		"the same version": {publish.Request{Version: "2.0.3", URL: "https://images.example.com/other"}, nil, "clusters download it again"},
		"the same source":  {publish.Request{Version: "2.1.0"}, nil, "only the version changes"},
		"paused":           {publish.Request{Version: "2.1.0", URL: "https://images.example.com/other"}, func(img *v1alpha1.FleetDiskImage) { img.Spec.Rollout.Paused = true }, "kubectl ot rollout resume ubuntu"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.request.Name = "ubuntu"
			p, err := publish.NewPlan(tt.request, newStored(tt.change), fleet)
			require.NoError(t, err)
			require.NotEmpty(t, p.Notes)
			assert.Contains(t, p.Notes[0], tt.want)
		})
	}
}

// TestPublicationIsComparedWithWhatIsThere: a slip shows before a cluster has downloaded anything.
func TestPublicationIsComparedWithWhatIsThere(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*publish.Request)
		want   []string
	}{
		"nothing is known":     {func(*publish.Request) {}, nil},
		"the file":             {func(r *publish.Request) { r.Disk, r.SourceBytes = newDisk(), newDisk().FileBytes }, nil},
		"another file":         {func(r *publish.Request) { r.Disk, r.SourceBytes = newDisk(), 1127 }, []string{"the source has 1127 bytes, and build/disk.qcow2 has 3651928064: clusters would download it and refuse its checksum, unless it is uploaded before"}},
		"it fits":              {func(r *publish.Request) { r.SourceBytes = 24<<30 + 1<<20 }, nil},
		"it does not fit":      {func(r *publish.Request) { r.Size, r.SourceBytes = "1Gi", 6<<30 }, []string{"the download, 6 GiB, is larger than the disk, 1Gi: correct --size"}},
		"all are there":        {func(r *publish.Request) { r.Clusters = []string{"kiel", "bergen"} }, nil},
		"one name is misspelt": {func(r *publish.Request) { r.Clusters = []string{"bergen", "bergne", "kile"} }, []string{"the fleet has no cluster bergne, kile: it gets the image once it joins"}},
		"one of a manifest": {func(r *publish.Request) {
			r.Selector, r.Manifest = nil, []byte("spec: {placement: {clusterSelector: {}, excludedClusters: [osol]}}")
		}, []string{"the fleet has no cluster osol, which spec.placement.excludedClusters names"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := publish.NewPlan(newRequest(test.change), nil, fleet)
			require.NoError(t, err)
			assert.Equal(t, test.want, p.Notes)
		})
	}
}

func TestDiskOfAPublication(t *testing.T) {
	p, err := publish.NewPlan(newRequest(func(r *publish.Request) { r.Size, r.Disk = "", newDisk() }), nil, fleet)
	require.NoError(t, err)
	assert.Equal(t, checksum, field(t, p, "template", "checksum"))
	assert.Equal(t, "24576Mi", field(t, p, "template", "diskSize"))
	assert.EqualValues(t, 2*3651928064, p.Bytes)
	assert.False(t, p.AtMost)

	p, err = publish.NewPlan(newRequest(func(r *publish.Request) { r.Disk, r.URL = newDisk(), "docker://registry.example.com/ubuntu" }), nil, fleet)
	require.NoError(t, err)
	assert.Nil(t, field(t, p, "template", "checksum"), "only http sources have one")
	assert.Equal(t, "registry", field(t, p, "template", "sourceType"))
}

func TestMistakesOfAPublication(t *testing.T) {
	for want, change := range map[string]func(*publish.Request){
		"must be a size, as in 24Gi":                        func(r *publish.Request) { r.Size = "big" },
		"the disk in build/disk.qcow2 has 24 GiB":           func(r *publish.Request) { r.Size, r.Disk = "1Gi", newDisk() },
		"is not that of build/disk.qcow2":                   func(r *publish.Request) { r.Checksum, r.Disk = "sha256:0", newDisk() },
		"-l region in nordics: must be a label selector":    func(r *publish.Request) { r.Selector = ptr.To("region in nordics") },
		"--wave canary: must be a name and a selector":      func(r *publish.Request) { r.Waves = []string{"canary"} },
		"there is a wave canary already":                    func(r *publish.Request) { r.Waves = []string{"canary=ring=a", "more=ring=b", "canary=ring=c"} },
		"--wave canary ring in x: must be a label selector": func(r *publish.Request) { r.Waves = []string{"canary=ring in x"} },
		"has a Pod, and must have a FleetDiskImage":         func(r *publish.Request) { r.Manifest = []byte("kind: Pod\nspec: {}") },
		"has FleetDiskImage debian, and ubuntu is to be":    func(r *publish.Request) { r.Manifest = []byte("metadata: {name: debian}\nspec: {}") },
		"-f: has no spec":                                   func(r *publish.Request) { r.Manifest = []byte("kind: FleetDiskImage") },
		"the spec is wrong":                                 func(r *publish.Request) { r.Manifest = []byte("spec: {rollout: 5}") },
	} {
		t.Run(want, func(t *testing.T) {
			_, err := publish.NewPlan(newRequest(change), nil, fleet)
			require.ErrorContains(t, err, want)
		})
	}
}

func TestManifestIsTheBase(t *testing.T) {
	manifest := []byte(`
apiVersion: pelotech.ot/v1alpha1
kind: FleetDiskImage
metadata: {name: ubuntu}
spec:
  version: 1.0.0
  targetNamespace: farm
  template: {name: Ubuntu, sourceType: http, url: "https://images.example.com/old", diskSize: 10Gi, checksum: "sha256:0"}
  placement: {clusterSelector: {}}
  retention: {keepVersions: 3}
`)
	p, err := publish.NewPlan(publish.Request{Name: "ubuntu", Version: "2.1.0", URL: "https://images.example.com/new", Manifest: manifest}, nil, fleet)
	require.NoError(t, err)
	assert.Equal(t, "2.1.0", field(t, p, "version"))
	assert.Equal(t, "https://images.example.com/new", field(t, p, "template", "url"))
	assert.Equal(t, "Ubuntu", field(t, p, "template", "name"))
	assert.EqualValues(t, 3, field(t, p, "retention", "keepVersions"))
	assert.Equal(t, 3, p.Clusters)
}

func TestScreens(t *testing.T) {
	p, err := publish.NewPlan(newRequest(func(r *publish.Request) { r.Size, r.Disk = "", newDisk() }), newStored(nil), fleet)
	require.NoError(t, err)
	p.Written = true
	rendertest.Golden(t, "published", now, p)
	p, err = publish.NewPlan(newRequest(func(r *publish.Request) { r.SourceBytes = 3651928064 }), nil, fleet)
	require.NoError(t, err)
	p.DryRun = "server"
	rendertest.Golden(t, "dry-run", now, p)
}
