// Package podevents reads the Events of Pods that do not start, and of claims that CDI does not fill, where
// these do not say why.
package podevents

import (
	"context"
	"maps"
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
	// maxReadsPerMinute bounds the reads for all Pods, and maxReadsOfNamespace those for the Pods
	// of one namespace: the API server reads through all Events of the namespace for each.
	maxReadsPerMinute   = 60
	maxReadsOfNamespace = 10
	// maxTime and maxTimeOfNamespace bound how long reconciles wait for reads in a minute.
	maxTime            = 20 * time.Second
	maxTimeOfNamespace = 5 * time.Second
	// readRetryDelay is how long a namespace is not read after a failure. It doubles with each
	// that follows, up to maxReadRetryDelay.
	readRetryDelay    = 30 * time.Second
	maxReadRetryDelay = 4 * time.Minute
	// maxEvents bounds the Events that one read returns.
	maxEvents = 50
	// readTimeout bounds one read: a reconcile waits for it.
	readTimeout = 3 * time.Second
	// maxPods bounds the memory of answers, and maxPodsOfNamespace the share of one namespace.
	maxPods            = 2048
	maxPodsOfNamespace = 100
	// answerLifetime is how long an answer is kept that no reconcile asks for.
	answerLifetime = 3 * importcause.EventsInterval
	// maxWarningAge is how long ago a warning may have been reported that is not read again:
	// reads are rare where many Pods wait, or they fail.
	maxWarningAge = 20 * time.Minute
)

// Reader reads at most once per EventsInterval and Pod, and less often where many Pods of a
// namespace wait. It is safe for concurrent use; nil reads nothing.
type Reader struct {
	apiReader client.Reader

	mu      sync.Mutex
	answers map[types.UID]answer
	// used is what was read since minute, by namespace and, under "", in all.
	used   map[string]usage
	minute time.Time
	// failures are by namespace.
	failures map[string]failure
	// failed: the last read failed, which is logged once.
	failed bool
}

type answer struct {
	namespace       string
	warning         *corev1.PodCondition
	readAt, askedAt time.Time
}

// usage of reads that are in flight has readTimeout for each.
type usage struct {
	reads int
	time  time.Duration
}

type failure struct {
	delay time.Duration
	until time.Time
}

// NewReader returns a Reader; apiReader must not be cached.
func NewReader(apiReader client.Reader) *Reader {
	return &Reader{apiReader: apiReader, answers: map[types.UID]answer{}, used: map[string]usage{}, failures: map[string]failure{}}
}

// AddToClaims adds condition ConditionEvents to those of claims that await it.
func (r *Reader) AddToClaims(ctx context.Context, claims []corev1.PersistentVolumeClaim) {
	if r == nil {
		return
	}
	for i := range claims {
		claim := &claims[i]
		if in, awaits := importcause.AwaitsClaimEvents(claim, time.Now()); !awaits || in > 0 {
			continue
		}
		if w := r.latestWarning(ctx, claim, func(events []corev1.Event, _ time.Time) *corev1.PodCondition {
			return importcause.LatestRefusal(events)
		}); w != nil {
			claim.Status.Conditions = append(claim.Status.Conditions, corev1.PersistentVolumeClaimCondition{
				Type: importcause.ConditionClaimEvents, Status: corev1.ConditionTrue, Reason: w.Reason, Message: w.Message, LastTransitionTime: w.LastTransitionTime,
			})
		}
	}
}

// AddTo adds condition ConditionEvents to those of pods that await it.
func (r *Reader) AddTo(ctx context.Context, pods []corev1.Pod) {
	if r == nil {
		return
	}
	for i := range pods {
		pod := &pods[i]
		if in, awaits := importcause.AwaitsEvents(pod, time.Now()); !awaits || in > 0 {
			continue
		}
		find := func(events []corev1.Event, now time.Time) *corev1.PodCondition {
			return importcause.LatestWarning(pod, events, now)
		}
		if warning := r.latestWarning(ctx, pod, find); warning != nil && !importcause.IsOver(pod, warning) && time.Since(warning.LastTransitionTime.Time) < maxWarningAge {
			pod.Status.Conditions = append(pod.Status.Conditions, *warning)
		}
	}
}

func (r *Reader) latestWarning(ctx context.Context, o client.Object, find func([]corev1.Event, time.Time) *corev1.PodCondition) *corev1.PodCondition {
	start := time.Now()
	known, due := r.reserveRead(o, start)
	if !due {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var list corev1.EventList
	err := r.apiReader.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.Limit(maxEvents), client.MatchingFields{"involvedObject.uid": string(o.GetUID())})
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addUsage(o.GetNamespace(), usage{time: now.Sub(start) - readTimeout})
	if err != nil {
		if !r.failed {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to list Events of a pending Pod or claim; leaving them out of the status message", "object", client.ObjectKeyFromObject(o))
		}
		r.failed = true
		delay := min(max(2*r.failures[o.GetNamespace()].delay, readRetryDelay), maxReadRetryDelay)
		r.failures[o.GetNamespace()] = failure{delay, now.Add(delay)}
		return known
	}
	r.failed = false
	delete(r.failures, o.GetNamespace())
	warning := find(list.Items, now)
	r.answers[o.GetUID()] = answer{o.GetNamespace(), warning, now, now}
	return warning
}

// reserveRead returns what is known of a Pod or claim, and whether the caller is to read its Events: no
// other will for an interval.
//
// Invariant: a namespace with many Pods that do not start, or with Events that cannot be read,
// leaves most of the reads to others, and each of its Pods gets its turn.
func (r *Reader) reserveRead(o client.Object, now time.Time) (known *corev1.PodCondition, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.minute) >= time.Minute {
		r.beginMinute(now)
	}
	last, asked := r.answers[o.GetUID()]
	pods := r.countPods(o.GetNamespace())
	if !asked {
		if pods >= maxPodsOfNamespace {
			return nil, false
		}
		if len(r.answers) >= maxPods {
			clear(r.answers) // each is one read away
		}
		pods++
	}
	last.namespace, last.askedAt = o.GetNamespace(), now
	turns := (pods + maxReadsOfNamespace - 1) / maxReadsOfNamespace
	due = now.Sub(last.readAt) >= time.Duration(turns)*importcause.EventsInterval && r.mayRead(o.GetNamespace(), now)
	if due {
		r.addUsage(o.GetNamespace(), usage{1, readTimeout})
		last.readAt = now
	}
	r.answers[o.GetUID()] = last
	return last.warning, due
}

func (r *Reader) beginMinute(now time.Time) {
	r.minute = now
	// Reads in flight are taken off when they end.
	clear(r.used)
	maps.DeleteFunc(r.answers, func(_ types.UID, a answer) bool { return now.Sub(a.askedAt) > answerLifetime })
	maps.DeleteFunc(r.failures, func(_ string, f failure) bool { return now.Sub(f.until) > maxReadRetryDelay })
}

func (r *Reader) countPods(namespace string) (n int) {
	for _, a := range r.answers {
		if a.namespace == namespace {
			n++
		}
	}
	return n
}

func (r *Reader) mayRead(namespace string, now time.Time) bool {
	all, own := r.used[""], r.used[namespace]
	return all.reads < maxReadsPerMinute && all.time < maxTime &&
		own.reads < maxReadsOfNamespace && own.time < maxTimeOfNamespace && !now.Before(r.failures[namespace].until)
}

func (r *Reader) addUsage(namespace string, more usage) {
	for _, key := range []string{"", namespace} {
		u := r.used[key]
		r.used[key] = usage{u.reads + more.reads, max(0, u.time+more.time)}
	}
}
