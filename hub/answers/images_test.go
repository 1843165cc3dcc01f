package answers_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func TestListImages(t *testing.T) {
	at := metav1.NewTime(apitest.Epoch)
	all := []readapi.Image{
		{Source: "http https://a/debian", Members: 3, Counts: readapi.Counts{Bytes: 1, References: 9}},
		{Source: "http https://b/ubuntu", Members: 1, Counts: readapi.Counts{Bytes: 3}, UnreferencedSince: &at},
		{Source: "s3 https://b/win-11", Members: 2, Counts: readapi.Counts{Bytes: 2, References: 1}},
	}
	for name, tt := range map[string]struct {
		q     answers.ImageQuery
		want  string // the last letter of each source
		total int
	}{
		"by source":              {answers.ImageQuery{}, "nu1", 3},
		"reversed":               {answers.ImageQuery{Descending: true}, "1un", 3},
		"search":                 {answers.ImageQuery{Search: "HTTPS://B"}, "u1", 2},
		"an offset":              {answers.ImageQuery{Offset: 1, Limit: 1}, "u", 3},
		"beyond the end":         {answers.ImageQuery{Offset: 7}, "", 3},
		"by members":             {answers.ImageQuery{Sort: readapi.ImagesByMembers}, "u1n", 3},
		"by bytes":               {answers.ImageQuery{Sort: readapi.ImagesByBytes, Descending: true}, "u1n", 3},
		"by references":          {answers.ImageQuery{Sort: readapi.ImagesByReferences}, "u1n", 3},
		"by unreferenced":        {answers.ImageQuery{Sort: readapi.ImagesByUnreferenced}, "un1", 3},
		"those in use stay last": {answers.ImageQuery{Sort: readapi.ImagesByUnreferenced, Descending: true}, "un1", 3},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.q.Limit == 0 {
				tt.q.Limit = 9
			}
			page, total := answers.ListImages(all, tt.q)
			got := ""
			for _, img := range page {
				got += map[string]string{all[0].Source: "n", all[1].Source: "u", all[2].Source: "1"}[img.Source]
			}
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.total, total)
		})
	}
	assert.Equal(t, "http https://a/debian", all[0].Source, "what was given is not sorted")
}

// newCells are two versions of ubuntu in four clusters, the last of which never reported.
func newCells() ([]v1alpha1.FleetDiskImage, *answers.ImageCells) {
	img := apitest.FleetDiskImage("ubuntu").WithVersion("2.1.0").Obj()
	img.Spec.Retention = &v1alpha1.Retention{KeepVersions: 1}
	former := img.Spec.Template.DeepCopy()
	former.URL = "https://anna:secret@images.example.com/ubuntu"
	img.Status.Versions = []v1alpha1.VersionStatus{{Version: "2.1.0", Namespace: "images", Image: "ubuntu-2.1.0"}, {Version: "2.0.3", Namespace: "images", Image: "ubuntu-2.0.3", Template: former}}
	images := []v1alpha1.FleetDiskImage{*img}
	c := &answers.ImageCells{Rows: answers.VersionRows(images, nil), Unknown: []string{"", "", "Silent", "NeverReported"}}
	for _, name := range []string{"aarhus", "bergen", "lund", "oslo"} {
		c.Columns = append(c.Columns, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, cell := range []readapi.Cell{
		readapi.CellReady | readapi.CellReferenced, readapi.CellSyncing, readapi.CellReady | readapi.CellStale, readapi.CellUnknown,
		readapi.CellReady, readapi.CellReady | readapi.CellReferenced, readapi.CellAbsent, readapi.CellUnknown,
	} {
		c.Cells = append(c.Cells, byte(cell))
	}
	return images, c
}

func TestListFleetImages(t *testing.T) {
	images, cells := newCells()
	list := answers.ListFleetImages(images, 7, cells)
	assert.Equal(t, []int{7, 4, 2}, []int{list.Total, list.Clusters, list.UnknownClusters})
	require.Len(t, list.Images, 1)
	current, former := list.Images[0].Versions[0], list.Images[0].Versions[1]
	assert.Equal(t, map[readapi.ImageState]int{readapi.ImageReady: 2, readapi.ImageImporting: 1, readapi.ImageUnknown: 1}, current.States)
	assert.Equal(t, []int{1, 1, 1}, []int{current.Referenced, current.Unreferenced, current.Stale})
	assert.Equal(t, map[readapi.ImageState]int{readapi.ImageReady: 2, readapi.ImageAbsent: 1, readapi.ImageUnknown: 1}, former.States)
	assert.Equal(t, []bool{true, false}, []bool{current.Kept, former.Kept})
	assert.True(t, current.Current)
	assert.NotContains(t, former.Source, "secret")
	assert.Positive(t, current.DiskBytes)
	assert.Len(t, readapi.ImageStates(), int(readapi.CellOther)+1, "each state of a cell has a word")
}

func TestSelectFleetImages(t *testing.T) {
	var all []v1alpha1.FleetDiskImage
	for _, name := range []string{"win-11", "debian", "ubuntu"} {
		all = append(all, *apitest.FleetDiskImage(name).Obj())
	}
	all[0].Status.Versions = []v1alpha1.VersionStatus{{Version: "23.9"}}
	for name, tt := range map[string]struct {
		q     answers.FleetImageQuery
		want  []string
		total int
	}{
		"all":              {answers.FleetImageQuery{Limit: 9}, []string{"debian", "ubuntu", "win-11"}, 3},
		"a page":           {answers.FleetImageQuery{Offset: 1, Limit: 1}, []string{"ubuntu"}, 3},
		"a name":           {answers.FleetImageQuery{Name: "ubuntu", Limit: 9}, []string{"ubuntu"}, 1},
		"search":           {answers.FleetImageQuery{Search: "WIN", Limit: 9}, []string{"win-11"}, 1},
		"a former version": {answers.FleetImageQuery{Search: "23.9", Limit: 9}, []string{"win-11"}, 1},
		"none":             {answers.FleetImageQuery{Name: "fedora", Limit: 9}, []string{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			page, total := answers.SelectFleetImages(all, tt.q)
			names := []string{}
			for i := range page {
				names = append(names, page[i].Name)
			}
			assert.Equal(t, tt.want, names)
			assert.Equal(t, tt.total, total)
		})
	}
}

func TestImageClusters(t *testing.T) {
	_, cells := newCells()
	for name, tt := range map[string]struct {
		q     answers.ImageClusterQuery
		want  []int
		total int
	}{
		"all that have any, or may": {answers.ImageClusterQuery{}, []int{0, 1, 2, 3}, 4},
		"a page":                    {answers.ImageClusterQuery{Offset: 1, Limit: 2}, []int{1, 2}, 4},
		"a version":                 {answers.ImageClusterQuery{Version: "2.0.3"}, []int{0, 1, 3}, 3},
		"a state of any version":    {answers.ImageClusterQuery{State: readapi.ImageImporting}, []int{1}, 1},
		"a state of a version":      {answers.ImageClusterQuery{Version: "2.0.3", State: readapi.ImageReady}, []int{0, 1}, 2},
		"absent":                    {answers.ImageClusterQuery{Version: "2.0.3", State: readapi.ImageAbsent}, []int{2}, 1},
		"unreferenced":              {answers.ImageClusterQuery{Version: "2.0.3", Unreferenced: true}, []int{0}, 1},
		"search":                    {answers.ImageClusterQuery{Search: "ER"}, []int{1}, 1},
		"unreferenced, of any":      {answers.ImageClusterQuery{Unreferenced: true}, []int{0, 2}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.q.Limit == 0 {
				tt.q.Limit = 9
			}
			page, total := answers.SelectImageClusters(cells, tt.q)
			assert.Equal(t, tt.want, page)
			assert.Equal(t, tt.total, total)
		})
	}
	img := apitest.FleetDiskImage("ubuntu").Obj()
	img.Spec.Placement = v1alpha1.Placement{ClusterNames: []string{cells.Columns[0].Name}}
	list, err := answers.ListImageClusters(img, cells, []int{0, 2}, 4, func(cluster, _, name string) (*v1alpha1.ReportedImage, error) {
		return &v1alpha1.ReportedImage{Name: cluster + "/" + name}, nil
	})
	require.NoError(t, err)
	require.Len(t, list.Clusters, 2)
	require.NotNil(t, list.Clusters[0].Effective)
	assert.Equal(t, img.Spec.Template.Revision(), list.Clusters[0].Effective.Revision)
	assert.Nil(t, list.Clusters[1].Effective, "the placement does not select it")
	assert.Len(t, list.Clusters[0].Versions, 2)
	require.Len(t, list.Clusters[1].Versions, 1, "the other one is absent")
	assert.True(t, list.Clusters[1].Versions[0].Stale)
	assert.Equal(t, "Silent", list.Clusters[1].Unknown)
	assert.Equal(t, "lund/ubuntu-2.1.0", list.Clusters[1].Versions[0].Reported.Name)
	_, err = answers.ListImageClusters(img, cells, []int{0}, 4, func(string, string, string) (*v1alpha1.ReportedImage, error) { return nil, errors.New("no page") })
	require.Error(t, err)
}
