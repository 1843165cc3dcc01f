// Package metrics defines the agent's metrics.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/metricset"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const namespace = "ot_agent"

// Metrics has the metrics of images and the ledger. New creates it.
type Metrics struct {
	slots          prometheus.Gauge
	budget         prometheus.Gauge
	leftovers      prometheus.Gauge
	attempts       *prometheus.CounterVec
	bytes          *prometheus.CounterVec
	sources        sourceLabels
	syncDuration   prometheus.Histogram
	queueDuration  prometheus.Histogram
	strays         prometheus.Counter
	resyncs        prometheus.Counter
	pruned         prometheus.Counter
	skipped        *prometheus.CounterVec
	invalidKeys    *prometheus.GaugeVec
	policyAccepted prometheus.Gauge
	planAccepted   prometheus.Gauge
	conditions     *prometheus.GaugeVec
	windowOpens    prometheus.Gauge
}

// New registers the metrics. Counters by reason start at 0 for every reason.
func New(r prometheus.Registerer, queue *ledger.Queue) *Metrics {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	m := &Metrics{
		slots:          set.Gauge("slots", "Slots of the SyncLedger that are taken."),
		budget:         set.Gauge("slots_budget", "Slots that the acknowledged policy allows."),
		leftovers:      set.Gauge("slots_leftover", "Imports that belong to no VMDiskImage and keep slots from images; condition SlotsReclaimed of the SyncLedger names them."),
		attempts:       set.CounterVec("attempts_total", "Attempts that ended, by result and, for failed ones, reason.", "result", "reason"),
		bytes:          set.CounterVec("transferred_bytes_total", "Bytes that attempts have downloaded, estimated from CDI's progress, by group of the policy's fleetSources; other for all other sources.", "source"),
		syncDuration:   set.Histogram("sync_duration_seconds", "Time from slot to import, of attempts that succeeded.", prometheus.ExponentialBuckets(1, 2, 15)),
		queueDuration:  set.Histogram("queue_duration_seconds", "Time from arrival in the queue to the slot of the first attempt.", prometheus.ExponentialBuckets(1, 2, 15)),
		strays:         set.Counter("stray_data_volumes_total", "Unfinished DataVolumes with the agent's labels and without a slot, which were deleted."),
		resyncs:        set.Counter("resyncs_total", "Finished images whose lost storage was synced again."),
		pruned:         set.Counter("images_pruned_total", "Images that were deleted for an ImagePrune of the hub."),
		skipped:        set.CounterVec("prunes_skipped_total", "Images of an ImagePrune of the hub that were not deleted, by reason.", "reason"),
		invalidKeys:    set.GaugeVec("policy_key_invalid", "1 for each key of the policy ConfigMap with an invalid value; the last valid policy stays in force.", "key"),
		policyAccepted: set.Gauge("policy_accepted", "1 while the current policy ConfigMap is in force, 0 while an older policy or none is."),
		planAccepted:   set.Gauge("plan_accepted", "1 while the agent applies the hub's ClusterPlan, 0 while there is none or it is refused."),
		conditions:     set.GaugeVec("condition", "1 for the current status (True, False, Unknown) of each condition of the SyncLedger.", "type", "status"),
		windowOpens:    set.Gauge("policy_window_opens_timestamp_seconds", "When a window of the policy lets more imports run than now, as a Unix time; 0 for never, or where that is unknown."),
	}
	m.attempts.WithLabelValues("Succeeded", "")
	m.bytes.WithLabelValues(v1alpha1.SourceOther)
	for _, reason := range v1alpha1.FailureReasons() {
		m.attempts.WithLabelValues("Failed", string(reason))
	}
	for _, reason := range []string{v1alpha1.PruneReferenced, v1alpha1.PruneWanted, v1alpha1.PruneChanged, v1alpha1.PruneInTransition} {
		m.skipped.WithLabelValues(reason)
	}
	r.MustRegister(&queueCollector{queue: queue})
	return m
}

func setBool(g prometheus.Gauge, value bool) {
	g.Set(0)
	if value {
		g.Set(1)
	}
}

// SetLeftovers sets how many imports belong to no image and keep slots from others.
func (m *Metrics) SetLeftovers(leftovers int) { m.leftovers.Set(float64(leftovers)) }

// SetSlots sets the taken slots and the budget.
func (m *Metrics) SetSlots(slots int, budget int32) {
	m.slots.Set(float64(slots))
	m.budget.Set(float64(budget))
}

// SetPolicy sets whether the current ConfigMap is in force, and its invalid keys.
func (m *Metrics) SetPolicy(accepted bool, invalidKeys []string) {
	setBool(m.policyAccepted, accepted)
	m.invalidKeys.Reset()
	for _, key := range invalidKeys {
		m.invalidKeys.WithLabelValues(key).Set(1)
	}
}

// SetPlanAccepted sets whether the agent applies a ClusterPlan.
func (m *Metrics) SetPlanAccepted(accepted bool) { setBool(m.planAccepted, accepted) }

// SetWindowOpens sets when a window of the policy lets more imports run; nil for never.
func (m *Metrics) SetWindowOpens(opening *policy.Opening) {
	m.windowOpens.Set(0)
	if opening != nil {
		m.windowOpens.Set(float64(opening.At.Unix()))
	}
}

// SetConditions replaces the conditions of the SyncLedger.
func (m *Metrics) SetConditions(all []metav1.Condition) {
	m.conditions.Reset()
	for _, c := range all {
		m.conditions.WithLabelValues(c.Type, string(c.Status)).Set(1)
	}
}

// RecordSuccess counts an attempt that imported an image from a group of sources; took is 0
// if unknown.
func (m *Metrics) RecordSuccess(source string, bytes int64, took time.Duration) {
	m.attempts.WithLabelValues("Succeeded", "").Inc()
	m.addBytes(source, bytes)
	if took > 0 {
		m.syncDuration.Observe(took.Seconds())
	}
}

// RecordFailure counts a failed attempt.
func (m *Metrics) RecordFailure(reason v1alpha1.Reason, source string, bytes int64) {
	m.attempts.WithLabelValues("Failed", string(reason)).Inc()
	m.addBytes(source, bytes)
}

func (m *Metrics) addBytes(source string, bytes int64) {
	if bytes > 0 {
		m.bytes.WithLabelValues(m.sources.bound(source)).Add(float64(bytes))
	}
}

// ObserveQueueDuration records how long an image waited for the slot of its first attempt.
func (m *Metrics) ObserveQueueDuration(waited time.Duration) {
	m.queueDuration.Observe(max(0, waited.Seconds()))
}

// CountStrayDataVolume counts a deleted DataVolume without a slot.
func (m *Metrics) CountStrayDataVolume() { m.strays.Inc() }

// CountResync counts a finished image that is synced again.
func (m *Metrics) CountResync() { m.resyncs.Inc() }

// CountPrunedImage counts an image that was deleted for an ImagePrune.
func (m *Metrics) CountPrunedImage() { m.pruned.Inc() }

// CountSkippedPrune counts an image of an ImagePrune that was not deleted.
func (m *Metrics) CountSkippedPrune(reason string) { m.skipped.WithLabelValues(reason).Inc() }
