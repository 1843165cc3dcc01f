package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func key(member, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: name}
}

func TestFilledWhenAllThatWasStoredIsRead(t *testing.T) {
	s, told := NewStore(), 0
	s.OnFilled(func() { told++ })
	s.read(key("a", "default"))
	assert.False(t, s.Filled(), "it is not known yet what there is")
	s.begin([]types.NamespacedName{key("a", "default"), key("a", "page"), key("b", "default")})
	assert.False(t, s.Filled())
	s.read(key("a", "page"))
	s.read(key("c", "default"))
	assert.False(t, s.Filled())
	s.read(key("b", "default"))
	assert.True(t, s.Filled())
	s.read(key("b", "default"))
	assert.Equal(t, 1, told)

	empty := NewStore()
	empty.OnFilled(func() { told++ })
	empty.begin(nil)
	assert.True(t, empty.Filled())
	assert.Equal(t, 2, told)
}

func TestReceivedIsWhatCameSinceTheStart(t *testing.T) {
	s, now := NewStore(), time.Now()
	at := func(sequence int64) *v1alpha1.ClusterReport {
		return &v1alpha1.ClusterReport{ClusterUID: "uid", Sequence: sequence, Root: &v1alpha1.ReportRoot{}}
	}
	received := func() time.Time {
		t, _ := s.ReceivedAt("a")
		return t
	}
	s.set("a", at(1), now)
	assert.Zero(t, received(), "it may have been stored for long")
	s.begin(nil)
	s.set("a", at(1), now)
	assert.Zero(t, received())
	s.set("a", at(2), now)
	assert.Equal(t, now, received())
	s.set("a", at(2), now.Add(time.Minute))
	assert.Equal(t, now, received(), "nothing new")
	s.set("b", at(1), now)
	_, is := s.ReceivedAt("b")
	assert.True(t, is, "the first of a member that comes later is new")
	s.set("a", nil, now)
	assert.Nil(t, s.Root("a").Report)
}

func TestIncompleteSinceTheFirstPageIsMissing(t *testing.T) {
	s, now := NewStore(), time.Now()
	s.incomplete("a", true, now)
	assert.Nil(t, s.Root("a").IncompleteSince)
	s.set("a", &v1alpha1.ClusterReport{Sequence: 1, Root: &v1alpha1.ReportRoot{}}, now)
	s.incomplete("a", true, now)
	s.set("a", &v1alpha1.ClusterReport{Sequence: 2, Root: &v1alpha1.ReportRoot{}}, now)
	s.incomplete("a", true, now.Add(time.Second))
	assert.Equal(t, now, *s.Root("a").IncompleteSince)
	s.incomplete("a", false, now.Add(time.Second))
	assert.Nil(t, s.Root("a").IncompleteSince)
}

func TestMemberOfANamespace(t *testing.T) {
	for namespace, want := range map[string]string{"ot-member-a": "a", "ot-member-": "", "ot-agent": "", "x-ot-member-a": ""} {
		member, is := MemberOf(namespace)
		assert.Equal(t, want != "", is, namespace)
		if is {
			assert.Equal(t, want, member)
		}
	}
}
