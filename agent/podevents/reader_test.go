package podevents_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/podevents"
)

// eventServer answers lists of Events.
type eventServer struct {
	client.Reader
	lists  int
	events []corev1.Event
	err    error
}

func (s *eventServer) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.lists++
	list.(*corev1.EventList).Items = s.events
	return s.err
}

// silentPod is scheduled since, and its container is being created.
func silentPod(name string, since time.Time) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Status: corev1.PodStatus{
		Phase:             corev1.PodPending,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)}},
		ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}},
	}}
}

func warningOf(pods []corev1.Pod) string {
	for _, c := range pods[0].Status.Conditions {
		if c.Type == importcause.ConditionEvents {
			return c.Reason
		}
	}
	return ""
}

// Events are read for Pods that have been silent for a while, once a minute and not for others.
func TestEventsAreReadSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &eventServer{events: []corev1.Event{{Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: "no such volume", LastTimestamp: metav1.NewTime(time.Now().Add(time.Second))}}}
		r := podevents.NewReader(s)
		since := time.Now()
		visit := func() string {
			pods := []corev1.Pod{silentPod("a", since)}
			r.AddTo(t.Context(), pods)
			return warningOf(pods)
		}
		assert.Empty(t, visit(), "it may just take a little")
		assert.Zero(t, s.lists)
		time.Sleep(30 * time.Second) //nolint:forbidigo // the clock of a synctest bubble
		for range 20 {
			assert.Equal(t, "FailedMount", visit())
		}
		assert.Equal(t, 1, s.lists)
		time.Sleep(time.Minute) //nolint:forbidigo // the clock of a synctest bubble
		s.err = errors.New("EOF")
		assert.Equal(t, "FailedMount", visit(), "the former answer stays")
		assert.Equal(t, 2, s.lists)
		time.Sleep(time.Minute) //nolint:forbidigo // the clock of a synctest bubble
		s.err, s.events = nil, nil
		assert.Empty(t, visit())

		running := silentPod("b", since)
		running.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		waiting := silentPod("c", since)
		waiting.Status.ContainerStatuses[0].State.Waiting.Reason = "ErrImagePull"
		unscheduled := silentPod("d", since)
		unscheduled.Status.Conditions = nil
		deleted := silentPod("e", since)
		deleted.DeletionTimestamp = &metav1.Time{}
		before := s.lists
		r.AddTo(t.Context(), []corev1.Pod{running, waiting, unscheduled, deleted})
		assert.Equal(t, before, s.lists, "these say it themselves, or need not")
		var none *podevents.Reader
		none.AddTo(t.Context(), []corev1.Pod{silentPod("f", since)})
	})
}

// However many Pods are silent, reads are bounded.
func TestReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &eventServer{}
		r := podevents.NewReader(s)
		var pods []corev1.Pod
		for i := range 3000 {
			pods = append(pods, silentPod(fmt.Sprint(i), time.Now().Add(-time.Hour)))
		}
		for minute := range 3 {
			r.AddTo(t.Context(), pods)
			require.Equal(t, 60*(minute+1), s.lists)
			time.Sleep(time.Minute) //nolint:forbidigo // the clock of a synctest bubble
		}
	})
}
