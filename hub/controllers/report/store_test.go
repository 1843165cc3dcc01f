package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func reportKey(member, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: name}
}

func TestStoreHasSyncedWhenStoredReportsAreRead(t *testing.T) {
	s, notified := NewStore(), 0
	s.OnSynced(func() { notified++ })
	s.markRead(reportKey("a", "default"))
	assert.False(t, s.HasSynced(), "it is not known yet what there is")
	s.expectReports([]types.NamespacedName{reportKey("a", "default"), reportKey("a", "page"), reportKey("b", "default")})
	assert.False(t, s.HasSynced())
	s.markRead(reportKey("a", "page"))
	s.markRead(reportKey("c", "default"))
	assert.False(t, s.HasSynced())
	s.markRead(reportKey("b", "default"))
	assert.True(t, s.HasSynced())
	s.markRead(reportKey("b", "default"))
	assert.Equal(t, 1, notified)

	empty := NewStore()
	empty.OnSynced(func() { notified++ })
	empty.expectReports(nil)
	assert.True(t, empty.HasSynced())
	assert.Equal(t, 2, notified)
}

func TestReceivedAtIgnoresStoredReports(t *testing.T) {
	s, now := NewStore(), time.Now()
	at := func(sequence int64) *v1alpha1.ClusterReport {
		return &v1alpha1.ClusterReport{ClusterUID: "uid", Sequence: sequence, Root: &v1alpha1.ReportRoot{}}
	}
	received := func() time.Time {
		t, _ := s.ReceivedAt("a")
		return t
	}
	s.setRoot("a", at(1), now)
	assert.Zero(t, received(), "it may have been stored for long")
	s.expectReports(nil)
	s.setRoot("a", at(1), now)
	assert.Zero(t, received())
	s.setRoot("a", at(2), now)
	assert.Equal(t, now, received())
	s.setRoot("a", at(2), now.Add(time.Minute))
	assert.Equal(t, now, received(), "nothing new")
	s.setRoot("b", at(1), now)
	_, ok := s.ReceivedAt("b")
	assert.True(t, ok, "the first of a member that comes later is new")
	s.setRoot("a", nil, now)
	assert.Nil(t, s.Root("a").Report)
}

func TestIncompleteSinceFirstMissingPage(t *testing.T) {
	s, now := NewStore(), time.Now()
	s.setIncomplete("a", true, now)
	assert.Nil(t, s.Root("a").IncompleteSince)
	s.setRoot("a", &v1alpha1.ClusterReport{Sequence: 1, Root: &v1alpha1.ReportRoot{}}, now)
	s.setIncomplete("a", true, now)
	s.setRoot("a", &v1alpha1.ClusterReport{Sequence: 2, Root: &v1alpha1.ReportRoot{}}, now)
	s.setIncomplete("a", true, now.Add(time.Second))
	assert.Equal(t, now, *s.Root("a").IncompleteSince)
	s.setIncomplete("a", false, now.Add(time.Second))
	assert.Nil(t, s.Root("a").IncompleteSince)
}

func TestMemberForNamespace(t *testing.T) {
	for namespace, want := range map[string]string{"ot-member-a": "a", "ot-member-": "", "ot-agent": "", "x-ot-member-a": ""} {
		member, ok := MemberForNamespace(namespace)
		assert.Equal(t, want != "", ok, namespace)
		if ok {
			assert.Equal(t, want, member)
		}
	}
}
