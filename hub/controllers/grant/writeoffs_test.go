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
		cm := &corev1.ConfigMap{}
		require.NoError(t, s.live.Get(t.Context(), client.ObjectKeyFromObject(s.departures.configMap), cm))
		metav1.SetMetaDataAnnotation(&cm.ObjectMeta, AnnotationWriteOff, text)
		require.NoError(t, s.live.Update(t.Context(), cm))
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
	require.Len(t, all, 2)
	assert.Equal(t, "a", all[1].Member)
	assert.Equal(t, "alice", all[1].By)
	assert.Equal(t, int32(4), all[1].Slots)
	assert.False(t, all[1].At.IsZero())
	assert.Equal(t, "[]", cm.Data[departedKey])
}
