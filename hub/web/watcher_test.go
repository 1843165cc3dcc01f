package web

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A report that says nothing new marks no topic, and is in the next answer. Readers ask for that
// after the next sample: the times of the last reports never stand still.
func TestSamplesAnnounceReportTimes(t *testing.T) {
	f := newTestFleet(t, "a")
	w := Watcher{Index: f.Index, Changes: f.Changes, Groups: func() []string { return nil }, remembered: f.History()}
	before, start := &v1alpha1.MemberCluster{}, f.Changes.Current().Seq
	heartbeat, relabelled := before.DeepCopy(), before.DeepCopy()
	now := metav1.Now()
	heartbeat.Status.LastReport, relabelled.Labels = &now, map[string]string{"region": "nordics"}
	handler := w.markChanges(readapi.TopicMembers)

	handler.OnUpdate(before, heartbeat)
	assert.Empty(t, f.Changes.Since(start).Topics)
	assert.NotEqual(t, start, f.Changes.Current().Seq, "what is remembered is rendered again")
	w.sample(time.Now())
	assert.Equal(t, []readapi.Topic{readapi.TopicTransfers}, f.Changes.Since(start).Topics)
	handler.OnUpdate(before, relabelled)
	assert.Contains(t, f.Changes.Since(start).Topics, readapi.TopicMembers)
}
