package podevents_test

import (
	"cmp"
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
	"github.com/pelotech/ot-fleet/api/apitest"
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
		apitest.AdvanceClock(30 * time.Second)
		for range 20 {
			assert.Equal(t, "FailedMount", visit())
		}
		assert.Equal(t, 1, s.lists)
		apitest.AdvanceClock(time.Minute)
		s.err = errors.New("EOF")
		assert.Equal(t, "FailedMount", visit(), "the former answer stays")
		assert.Equal(t, 2, s.lists)
		apitest.AdvanceClock(time.Minute)
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

func silentPodIn(namespace, name string) []corev1.Pod {
	pod := silentPod(name, time.Now().Add(-time.Hour))
	pod.Namespace, pod.UID = namespace, types.UID(namespace+"/"+name)
	return []corev1.Pod{pod}
}

// A warning that was read is no longer told once the Pod has changed.
func TestWarningsEndBetweenReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &eventServer{events: []corev1.Event{{Type: corev1.EventTypeWarning, Reason: "FailedMount", LastTimestamp: metav1.Now()}}}
		r := podevents.NewReader(s)
		pods := silentPodIn("ns", "a")
		r.AddTo(t.Context(), pods)
		assert.Equal(t, "FailedMount", warningOf(pods))
		apitest.AdvanceClock(10 * time.Second)
		pods = silentPodIn("ns", "a")
		pods[0].Status.Conditions = append(pods[0].Status.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		r.AddTo(t.Context(), pods)
		assert.Empty(t, warningOf(pods))
		assert.Equal(t, 1, s.lists)
	})
}

// However many Pods are silent, reads are bounded. A namespace leaves some to others, and each of
// its own Pods gets its turn.
func TestReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &eventServer{}
		r := podevents.NewReader(s)
		read := map[string]bool{}
		for minute := range 12 {
			before := s.lists
			for i := range 90 {
				lists := s.lists
				name := fmt.Sprint(i)
				r.AddTo(t.Context(), silentPodIn("hostile", name))
				if s.lists > lists {
					read[name] = true
				}
			}
			require.Equal(t, before+10, s.lists)
			r.AddTo(t.Context(), silentPodIn("other", fmt.Sprint(minute)))
			assert.Equal(t, before+11, s.lists, "others are read for")
			for ns := range 20 {
				for i := range 30 {
					r.AddTo(t.Context(), silentPodIn(fmt.Sprint(ns), fmt.Sprint(i)))
				}
			}
			require.Equal(t, before+60, s.lists)
			apitest.AdvanceClock(time.Minute)
		}
		assert.Len(t, read, 90, "each gets its turn")
	})
}

// Events that cannot be read, or only slowly, hold reconciles up for a part of the time, and the
// reads of one namespace not those of others.
func TestSlowReadsAreBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		takes     time.Duration
		err       error
		wantReads int // of one namespace, within an hour
	}{
		"timeouts":       {3 * time.Second, context.DeadlineExceeded, 20},
		"quick failures": {0, errors.New("forbidden"), 20},
		"slow answers":   {2 * time.Second, nil, 60 * 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &eventServer{}
				r := podevents.NewReader(&slowServer{s, tt.takes, tt.err})
				visit := func(namespace string, pods int) {
					for i := range pods {
						r.AddTo(t.Context(), silentPodIn(namespace, fmt.Sprint(i)))
					}
				}
				hour, waited := time.Now(), time.Duration(0)
				for time.Since(hour) < time.Hour {
					start := time.Now()
					visit("slow", 20)
					waited += time.Since(start)
					apitest.AdvanceClock(5 * time.Second)
				}
				assert.LessOrEqual(t, s.lists, tt.wantReads)
				assert.GreaterOrEqual(t, s.lists, 10, "it is noticed when they can be read")
				assert.LessOrEqual(t, waited, 60*8*time.Second)
				before := s.lists
				visit("other", 1)
				assert.Equal(t, before+1, s.lists)

				apitest.AdvanceClock(time.Minute)
				start := time.Now()
				for ns := range 100 {
					visit(fmt.Sprint(ns), 1)
				}
				assert.LessOrEqual(t, time.Since(start), time.Minute/2, "of many namespaces")
			})
		})
	}
}

// slowServer answers late, or fails.
type slowServer struct {
	*eventServer
	takes time.Duration
	err   error
}

func (s *slowServer) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	apitest.AdvanceClock(s.takes)
	return cmp.Or(s.eventServer.List(ctx, list, opts...), s.err)
}
