// Package podevents reads the Events of Pods that do not start and do not say why.
package podevents

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/importcause"
)

// +kubebuilder:rbac:groups="",resources=events,verbs=list

const (
	// maxReadsPerMinute bounds the reads for all Pods: the API server reads through the Events
	// of a whole namespace for each.
	maxReadsPerMinute = 60
	// maxEvents bounds the Events that one read returns.
	maxEvents = 50
	// readTimeout bounds one read: a reconcile waits for it.
	readTimeout = 3 * time.Second
	// maxPods bounds the memory of answers.
	maxPods = 1024
)

// Reader reads at most once per EventsInterval and Pod. It is safe for concurrent use; nil
// reads nothing.
type Reader struct {
	apiReader client.Reader

	mu      sync.Mutex
	answers map[types.UID]answer
	reads   int // since minute
	minute  time.Time
	// failed: the last read failed, which is logged once.
	failed bool
}

type answer struct {
	warning *corev1.PodCondition
	readAt  time.Time
}

// NewReader returns a Reader; apiReader must not be cached.
func NewReader(apiReader client.Reader) *Reader {
	return &Reader{apiReader: apiReader, answers: map[types.UID]answer{}}
}

// AddTo adds condition ConditionEvents to those of pods that await it.
func (r *Reader) AddTo(ctx context.Context, pods []corev1.Pod) {
	if r == nil {
		return
	}
	for i := range pods {
		if in, awaits := importcause.AwaitsEvents(&pods[i], time.Now()); !awaits || in > 0 {
			continue
		}
		if warning := r.latestWarning(ctx, &pods[i]); warning != nil && !importcause.IsOver(&pods[i], warning) {
			pods[i].Status.Conditions = append(pods[i].Status.Conditions, *warning)
		}
	}
}

func (r *Reader) latestWarning(ctx context.Context, pod *corev1.Pod) *corev1.PodCondition {
	known, due := r.claimRead(pod.UID, time.Now())
	if !due {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var list corev1.EventList
	err := r.apiReader.List(ctx, &list, client.InNamespace(pod.Namespace), client.Limit(maxEvents), client.MatchingFields{"involvedObject.uid": string(pod.UID)})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if !r.failed {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to read the Events of a Pod that does not start; its image or machine says less", "pod", client.ObjectKeyFromObject(pod))
		}
		r.failed = true
		return known
	}
	r.failed = false
	warning := importcause.LatestWarning(pod, list.Items, time.Now())
	r.answers[pod.UID] = answer{warning, time.Now()}
	return warning
}

// claimRead returns what is known of a Pod, and whether the caller is to read its Events: no
// other will for an interval.
func (r *Reader) claimRead(uid types.UID, now time.Time) (known *corev1.PodCondition, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, read := r.answers[uid]
	if read && now.Sub(last.readAt) < importcause.EventsInterval {
		return last.warning, false
	}
	if now.Sub(r.minute) >= time.Minute {
		r.reads, r.minute = 0, now
	}
	if r.reads >= maxReadsPerMinute {
		return last.warning, false
	}
	r.reads++
	if len(r.answers) >= maxPods {
		clear(r.answers)
	}
	r.answers[uid] = answer{last.warning, now}
	return last.warning, true
}
