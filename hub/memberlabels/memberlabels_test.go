package memberlabels_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberlabels"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type labelSet = map[string]string

func newMember(labels labelSet, change ...func(*v1alpha1.MemberCluster)) *v1alpha1.MemberCluster {
	m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "oslo", Labels: maps.Clone(labels)}}
	for _, do := range change {
		do(m)
	}
	return m
}

func ofSecret(m *v1alpha1.MemberCluster) {
	m.Spec.Connection.KubeconfigSecretRef = &v1alpha1.SecretKeyRef{Name: "oslo"}
	metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelDiscovered, "secret")
}

func ofCluster(name string) func(*v1alpha1.MemberCluster) {
	return func(m *v1alpha1.MemberCluster) {
		m.Spec.Connection.ClusterAPI = &v1alpha1.ClusterAPIRef{Namespace: "team-a", Name: name}
		metav1.SetMetaDataLabel(&m.ObjectMeta, v1alpha1.LabelDiscovered, memberlabels.OriginCluster)
	}
}

func withUID(uid string) func(*v1alpha1.MemberCluster) {
	return func(m *v1alpha1.MemberCluster) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, memberlabels.AnnotationClusterUID, uid)
	}
}

func withCopied(record string) func(*v1alpha1.MemberCluster) {
	return func(m *v1alpha1.MemberCluster) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, memberlabels.AnnotationCopied, record)
	}
}

func withFields(operation metav1.ManagedFieldsOperationType, fields string) func(*v1alpha1.MemberCluster) {
	return func(m *v1alpha1.MemberCluster) {
		m.ManagedFields = append(m.ManagedFields, metav1.ManagedFieldsEntry{Operation: operation, FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}})
	}
}

func TestKept(t *testing.T) {
	const fields = `{"f:metadata":{"f:labels":{".":{},"f:edge":{}}}}`
	for name, tt := range map[string]struct {
		member *v1alpha1.MemberCluster
		want   labelSet
	}{
		"none":                       {newMember(nil), nil},
		"set by hand":                {newMember(labelSet{"edge": "true"}, withFields(metav1.ManagedFieldsOperationUpdate, fields)), labelSet{"edge": "true"}},
		"of a manifest, server-side": {newMember(labelSet{"edge": "true", "ring": "1"}, withFields(metav1.ManagedFieldsOperationApply, fields)), labelSet{"ring": "1"}},
		"of a manifest, client-side": {newMember(labelSet{"edge": "true", "ring": "1"}, func(m *v1alpha1.MemberCluster) {
			m.Annotations = labelSet{"kubectl.kubernetes.io/last-applied-configuration": `{"metadata":{"labels":{"edge":"true"}}}`}
		}), labelSet{"ring": "1"}},
		"of its Secret":                  {newMember(labelSet{"edge": "true"}, ofSecret, withCopied(`{"edge":"true"}`)), labelSet{"edge": "true"}},
		"of its Cluster":                 {newMember(labelSet{"edge": "true", "ring": "1"}, ofCluster("oslo"), withCopied(`{"edge":"true"}`)), labelSet{"ring": "1"}},
		"of its Cluster, changed":        {newMember(labelSet{"edge": "false"}, ofCluster("oslo"), withCopied(`{"edge":"true"}`)), labelSet{"edge": "false"}},
		"of its Cluster, record damaged": {newMember(labelSet{"edge": "true"}, ofCluster("oslo"), withCopied(`{`)), labelSet{"edge": "true"}},
		"consent to install the agent":   {newMember(labelSet{v1alpha1.LabelInstallAgent: "true", "edge": "true"}, ofSecret), labelSet{"edge": "true"}},
		"of tools":                       {newMember(labelSet{"app.kubernetes.io/instance": "x", "argocd.argoproj.io/instance": "x", "edge": "true"}), labelSet{"edge": "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, memberlabels.Kept(tt.member))
		})
	}
}

func TestRestore(t *testing.T) {
	for name, tt := range map[string]struct {
		left, back *v1alpha1.MemberCluster
		want       labelSet
	}{
		"by hand, in pull mode":           {newMember(labelSet{"edge": "true"}), newMember(nil), labelSet{"edge": "true"}},
		"by hand, of a Secret":            {newMember(labelSet{"edge": "true"}, ofSecret), newMember(nil, ofSecret), labelSet{"edge": "true"}},
		"from push to pull":               {newMember(labelSet{"edge": "true"}, ofSecret), newMember(nil), labelSet{"edge": "true"}},
		"by hand, of the same Cluster":    {newMember(labelSet{"edge": "true"}, ofCluster("oslo")), newMember(nil, ofCluster("oslo")), labelSet{"edge": "true"}},
		"the same Cluster":                {newMember(labelSet{"edge": "true"}, ofCluster("oslo"), withUID("a")), newMember(nil, ofCluster("oslo"), withUID("a")), labelSet{"edge": "true"}},
		"a Cluster created again":         {newMember(labelSet{"edge": "true"}, ofCluster("oslo"), withUID("a")), newMember(nil, ofCluster("oslo"), withUID("b")), nil},
		"left before an upgrade":          {newMember(labelSet{"edge": "true"}, ofCluster("oslo")), newMember(nil, ofCluster("oslo"), withUID("b")), labelSet{"edge": "true"}},
		"another Cluster takes the name":  {newMember(labelSet{"edge": "true"}, ofCluster("oslo")), newMember(nil, ofCluster("other")), nil},
		"a Cluster takes a person's name": {newMember(labelSet{"edge": "true"}), newMember(nil, ofCluster("oslo")), nil},
		"its own value is newer":          {newMember(labelSet{"edge": "true", "ring": "1"}), newMember(labelSet{"edge": "false"}), labelSet{"ring": "1"}},
		"nothing was kept":                {newMember(nil), newMember(labelSet{"edge": "false"}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			data := labelSet{}
			assert.Equal(t, len(tt.left.Labels) > 0 && len(memberlabels.Kept(tt.left)) > 0, memberlabels.Remember(data, tt.left, now))
			assert.False(t, memberlabels.Remember(data, tt.left, now), "the same departure again")
			before := maps.Clone(tt.back.Labels)
			restored := memberlabels.Restore(data, tt.back, now)
			if len(tt.want) == 0 {
				assert.Empty(t, restored)
			} else {
				assert.Equal(t, tt.want, restored)
			}
			for key, value := range before {
				assert.Equal(t, value, tt.back.Labels[key], "its own labels stay")
			}
			for key, value := range tt.want {
				assert.Equal(t, value, tt.back.Labels[key])
			}
		})
	}
}

func TestUnusableEntriesAreIgnored(t *testing.T) {
	member := newMember(nil)
	assert.Empty(t, memberlabels.Restore(labelSet{"oslo": "{"}, member, now))
	labels := `{"edge":"true","two words":"x","ring":"two words","pelotech.ot/discovered":"secret","pelotech.ot/install-agent":"true"}`
	restored := memberlabels.Restore(labelSet{"oslo": `{"labels":` + labels + `,"leftAt":"` + now.Format(time.RFC3339) + `"}`}, member, now)
	assert.Equal(t, labelSet{"edge": "true"}, restored)
	assert.Equal(t, labelSet{"edge": "true"}, member.Labels)
}

// After a month another cluster may have taken the name.
func TestLabelsExpire(t *testing.T) {
	const month = 30 * 24 * time.Hour
	data := labelSet{}
	require.True(t, memberlabels.Remember(data, newMember(labelSet{"edge": "true"}), now))
	assert.Empty(t, memberlabels.Restore(data, newMember(nil), now.Add(month+time.Second)))
	assert.NotEmpty(t, memberlabels.Restore(data, newMember(nil), now.Add(month)))
	other := newMember(nil)
	other.Name = "bergen"
	require.False(t, memberlabels.Remember(data, other, now.Add(month)))
	require.True(t, memberlabels.Remember(data, other, now.Add(month+time.Second)), "expired entries are dropped")
	assert.Empty(t, data)
}

// A Cluster that takes a name cannot erase the labels of the member that had it.
func TestOtherClustersForgetNothing(t *testing.T) {
	for name, left := range map[string]*v1alpha1.MemberCluster{
		"of a Secret": newMember(labelSet{"edge": "true"}, ofSecret), "of a Cluster": newMember(labelSet{"edge": "true"}, ofCluster("oslo")),
	} {
		t.Run(name, func(t *testing.T) {
			data := labelSet{}
			require.True(t, memberlabels.Remember(data, left, now))
			for _, labels := range []labelSet{nil, {"ring": "1"}} {
				other := newMember(labels, ofCluster("other"))
				assert.False(t, memberlabels.Forget(data, other), "it joins")
				assert.False(t, memberlabels.Remember(data, other, now.Add(time.Hour)), "it leaves")
			}
			back := newMember(nil, func(m *v1alpha1.MemberCluster) { m.Spec = left.Spec })
			assert.Equal(t, labelSet{"edge": "true"}, memberlabels.Restore(data, back, now.Add(time.Hour)))
			assert.True(t, memberlabels.Forget(data, back))
			assert.Empty(t, data)
		})
	}
}

// A Cluster that is created again gets its own labels back, not those of the former one.
func TestLabelsOfAClusterCreatedAgain(t *testing.T) {
	data := labelSet{}
	former, next := []func(*v1alpha1.MemberCluster){ofCluster("oslo"), withUID("a")}, []func(*v1alpha1.MemberCluster){ofCluster("oslo"), withUID("b")}
	require.True(t, memberlabels.Remember(data, newMember(labelSet{"edge": "true"}, former...), now))
	require.True(t, memberlabels.Remember(data, newMember(labelSet{"ring": "1"}, next...), now.Add(time.Hour)))
	assert.Equal(t, labelSet{"ring": "1"}, memberlabels.Restore(data, newMember(nil, next...), now.Add(time.Hour)))
}

// A member that leaves without labels does not get older ones back.
func TestLabelsThatWereRemovedStayAway(t *testing.T) {
	data := labelSet{}
	require.True(t, memberlabels.Remember(data, newMember(labelSet{"edge": "true"}), now))
	require.True(t, memberlabels.Remember(data, newMember(nil), now))
	assert.Empty(t, data)
}

// The ConfigMap is bounded, and the last departure is in it.
func TestPropertyDeparturesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := labelSet{}
		for i := range rapid.SampledFrom([]int{1, 20}).Draw(t, "departures") {
			labels := labelSet{}
			for k := range rapid.SampledFrom([]int{1, 3, 200}).Draw(t, "labels") {
				labels[fmt.Sprintf("fleet.example/%s-%d", strings.Repeat("k", 50), k)] = strings.Repeat("v", 63)
			}
			member := newMember(labels)
			member.Name = fmt.Sprintf("%s-%d", strings.Repeat("m", 45), rapid.IntRange(0, 300).Draw(t, "member"))
			changed := memberlabels.Remember(data, member, now.Add(time.Duration(i)*time.Minute))
			require.Contains(t, data, member.Name)
			require.LessOrEqual(t, len(data[member.Name]), 8<<10)
			total := 0
			for name, text := range data {
				total += len(name) + len(text)
			}
			require.LessOrEqual(t, total, 512<<10)
			if changed {
				again := newMember(nil)
				again.Name = member.Name
				require.NotEmpty(t, memberlabels.Restore(data, again, now.Add(time.Hour)))
			}
		}
	})
}

// Over the limit, those that left first are forgotten.
func TestOldestDeparturesAreDropped(t *testing.T) {
	data, labels := labelSet{}, labelSet{}
	for k := range 100 {
		labels[fmt.Sprintf("label-%03d", k)] = strings.Repeat("v", 63)
	}
	const departures = 300
	for i := range departures {
		member := newMember(labels)
		member.Name = fmt.Sprintf("m-%03d", departures-i)
		require.True(t, memberlabels.Remember(data, member, now.Add(time.Duration(i)*time.Minute)))
	}
	assert.Less(t, len(data), departures)
	assert.Greater(t, len(data), 50)
	assert.Contains(t, data, "m-001", "the last")
	assert.NotContains(t, data, "m-300", "the first")
}
