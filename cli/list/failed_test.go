package list_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/list"
)

func TestFailedImages(t *testing.T) {
	failing := func(name string, failed int32, images ...string) *v1alpha1.MemberCluster {
		return newMember(name, func(m *v1alpha1.MemberCluster) {
			m.Status.Images.Failed = failed
			for _, image := range images {
				m.Status.Failing = append(m.Status.Failing, v1alpha1.ImageSummary{Namespace: "vmdi-" + image, Name: image})
			}
		})
	}
	silent := func(name string) *v1alpha1.MemberCluster {
		m := failing(name, 1, "debian")
		m.Status.SilentSince = ago(0)
		return m
	}
	const first = "The hub lists the first failed images of each cluster: --cluster NAME lists all of one"
	for name, test := range map[string]struct {
		members   []*v1alpha1.MemberCluster
		query     list.Query
		namespace string

		want          []string
		wantNotListed int
		wantUnread    string
	}{
		"all":                      {members: []*v1alpha1.MemberCluster{failing("lab", 2, "centos", "debian")}, want: []string{"centos", "debian"}},
		"of a namespace":           {members: []*v1alpha1.MemberCluster{failing("lab", 2, "centos", "debian")}, namespace: "vmdi-debian", want: []string{"debian"}},
		"not all are listed":       {members: []*v1alpha1.MemberCluster{failing("lab", 7, "centos")}, want: []string{"centos"}, wantNotListed: 6, wantUnread: first},
		"nor of the namespace":     {members: []*v1alpha1.MemberCluster{failing("lab", 7, "centos")}, namespace: "vmdi-debian", wantUnread: "6 more failed images are not listed. " + first},
		"a name that is well":      {members: []*v1alpha1.MemberCluster{failing("lab", 1, "centos")}, query: list.Query{Names: []string{"centos", "ubuntu"}}, want: []string{"centos"}, wantUnread: "No failed image that is listed has the name ubuntu"},
		"a cluster that is silent": {members: []*v1alpha1.MemberCluster{silent("edge-3")}, want: []string{"debian"}, wantUnread: "There is no current report of edge-3"},
		"none":                     {members: []*v1alpha1.MemberCluster{failing("lab", 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			test.query.Failing = true
			f, err := list.NewFailedImages(now, test.query, test.namespace)
			require.NoError(t, err)
			for _, m := range test.members {
				f.AddMember(m)
			}
			rows := f.Finish()
			var names []string
			for _, item := range rows.Items {
				names = append(names, item.Name)
			}
			assert.Equal(t, test.want, names)
			assert.Equal(t, test.wantNotListed, rows.NotListed)
			assert.Equal(t, test.wantUnread, rows.Unread)
		})
	}
	many, err := list.NewFailedImages(now, list.Query{}, "")
	require.NoError(t, err)
	for i := range 7 {
		many.AddMember(silent(fmt.Sprintf("edge-%d", i)))
	}
	assert.Equal(t, "There is no current report of edge-0, edge-1, edge-2, edge-3, edge-4 and 2 more", many.Finish().Unread)
}
