package grant

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What a person writes off is free at once, the record says who did it, and the next
// process does not reserve it again.
func TestWriteOffOfDepartedMember(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.holdAll("a")
	require.NoError(t, s.live.Delete(t.Context(), s.getMember("a")))
	s.reportDemand("b", 0, 4)
	s.reconcile()
	require.Zero(t, s.getGrant("b").Limits.Slots)
	require.NotEmpty(t, s.departures.stored)

	annotate := func(text string) {
		s.annotateWriteOff(text)
		s.departures.readWriteOffAt = time.Time{}
		s.reconcile()
		s.reconcile()
	}
	annotate("b by alice")
	require.Zero(t, s.getGrant("b").Limits.Slots, "another member is written off")
	annotate("nonsense")
	require.Zero(t, s.getGrant("b").Limits.Slots)
	annotate("a by alice")
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
	cm := s.departures.configMap
	assert.NotContains(t, cm.Annotations, AnnotationWriteOff)
	var all []writeOff
	require.NoError(t, json.Unmarshal([]byte(cm.Data[writtenOffKey]), &all))
	require.Len(t, all, 1)
	assert.Equal(t, "a", all[0].Member)
	assert.Equal(t, "alice", all[0].By)
	assert.Equal(t, int32(4), all[0].Slots)
	assert.False(t, all[0].At.IsZero())
	assert.Equal(t, "[]", cm.Data[departedKey])
}

func (s *testHub) annotateWriteOff(text string) {
	s.t.Helper()
	cm := &corev1.ConfigMap{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKeyFromObject(s.departures.configMap), cm))
	metav1.SetMetaDataAnnotation(&cm.ObjectMeta, AnnotationWriteOff, text)
	require.NoError(s.t, s.live.Update(s.t.Context(), cm))
}

// getWriteOff returns the write-off that waits; empty for none.
func (s *testHub) getWriteOff() string {
	s.t.Helper()
	cm := &corev1.ConfigMap{}
	require.NoError(s.t, s.live.Get(s.t.Context(), client.ObjectKeyFromObject(s.departures.configMap), cm))
	return cm.Annotations[AnnotationWriteOff]
}

// A write-off that is made while nothing is held for its member does not wait for a later
// departure, whether or not the hub reads it before that.
func TestEarlyWriteOffIsDropped(t *testing.T) {
	for _, read := range []string{"before", "after a conflict", "with a failure"} {
		t.Run("read "+read, func(t *testing.T) {
			s := newTestHub(t, "a", "b")
			s.holdAll("a")
			s.departures.configMap = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: DepartedConfigMap}, Data: map[string]string{}}
			require.NoError(t, s.live.Create(t.Context(), s.departures.configMap))
			s.annotateWriteOff("a by alice")
			s.departures.readWriteOffAt = time.Now().Add(time.Hour)
			switch read {
			case "before":
				s.departures.readWriteOffAt = time.Time{}
				s.reconcile()
				require.Empty(t, s.getWriteOff())
			case "with a failure": // loaded with the annotation
				require.NoError(t, s.live.Get(t.Context(), client.ObjectKeyFromObject(s.departures.configMap), s.departures.configMap))
			}
			require.NoError(t, s.live.Delete(t.Context(), s.getMember("a")))
			for range 4 {
				s.departures.retryAt = time.Time{} // the write conflicts with the annotation
				s.reportDemand("b", 0, 4)
				s.reconcile()
			}
			assert.Empty(t, s.getWriteOff())
			require.True(t, s.departures.holds("a"))
			s.departures.readWriteOffAt = time.Time{}
			s.reportDemand("b", 0, 4)
			s.reconcile()
			assert.True(t, s.departures.holds("a"))
			assert.Zero(t, s.getGrant("b").Limits.Slots)
		})
	}
}

// A write-off of a member that is still leaving takes effect when it has left.
func TestWriteOffOfLeavingMemberWaits(t *testing.T) {
	s := newTestHub(t, "a", "b")
	s.holdAll("a")
	a := s.getMember("a")
	a.Finalizers = []string{"test/keep"}
	require.NoError(t, s.live.Update(t.Context(), a))
	require.NoError(t, s.live.Delete(t.Context(), a))
	s.reconcile()
	require.True(t, s.departures.holds("a"))
	s.annotateWriteOff("a by alice")
	for range 3 {
		s.departures.readWriteOffAt, s.departures.retryAt = time.Time{}, time.Time{}
		s.reconcile()
	}
	require.Equal(t, "a by alice", s.getWriteOff())

	a = s.getMember("a")
	a.Finalizers = nil
	require.NoError(t, s.live.Update(t.Context(), a))
	for range 3 {
		s.departures.readWriteOffAt, s.departures.retryAt = time.Time{}, time.Time{}
		s.reportDemand("b", 0, 4)
		s.reconcile()
	}
	assert.Empty(t, s.getWriteOff())
	assert.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
}
