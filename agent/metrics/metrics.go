// Package metrics holds what the agent counts, by Prometheus' rules for names:
// seconds, bytes, _total.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const namespace = "ot_agent"

// Metrics of an agent. Create them with New.
type Metrics struct {
	slots          prometheus.Gauge
	budget         prometheus.Gauge
	attempts       *prometheus.CounterVec
	bytes          prometheus.Counter
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
}

// New registers the metrics. What can be counted by reason is there, at 0,
// before it first happens.
func New(r prometheus.Registerer, index *ledger.Queue) *Metrics {
	m := &Metrics{
		slots:  prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "slots", Help: "Slots of the SyncLedger that are taken."}),
		budget: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "slots_budget", Help: "Slots that the acknowledged policy allows."}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "attempts_total",
			Help: "Attempts that ended, by result and, where they failed, reason."}, []string{"result", "reason"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "transferred_bytes_total",
			Help: "Bytes that attempts are taken to have downloaded, worked out from CDI's progress."}),
		syncDuration: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "sync_duration_seconds",
			Help: "Time from slot to imported, of attempts that succeeded.", Buckets: prometheus.ExponentialBuckets(1, 2, 15)}),
		queueDuration: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "queue_duration_seconds",
			Help: "Time from arrival in the queue to the slot of the first attempt.", Buckets: prometheus.ExponentialBuckets(1, 2, 15)}),
		strays: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "stray_data_volumes_total",
			Help: "DataVolumes of the agent's that were in no slot and not finished, and were deleted."}),
		resyncs: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "resyncs_total",
			Help: "Finished images whose lost storage was synced again."}),
		pruned: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "images_pruned_total",
			Help: "Images that were deleted because an ImagePrune of the hub asked for it."}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "prunes_skipped_total",
			Help: "Images that an ImagePrune of the hub asked for and that stay, by the reason for that."}, []string{"reason"}),
		invalidKeys: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "policy_key_invalid",
			Help: "1 for a key of the policy ConfigMap that cannot be used; the last valid policy is in force."}, []string{"key"}),
		policyAccepted: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "policy_accepted",
			Help: "1 while the policy ConfigMap is in force as it is, 0 while an older policy or none is."}),
		planAccepted: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "plan_accepted",
			Help: "1 while the hub's ClusterPlan is gone by, 0 while there is none or it is refused."}),
		conditions: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "condition",
			Help: "1 for the status (True, False, Unknown) that a condition of the SyncLedger has."}, []string{"type", "status"}),
	}
	m.attempts.WithLabelValues("Succeeded", "")
	for _, reason := range v1alpha1.FailureReasons() {
		m.attempts.WithLabelValues("Failed", string(reason))
	}
	for _, reason := range []string{v1alpha1.PruneReferenced, v1alpha1.PruneWanted, v1alpha1.PruneChanged, v1alpha1.PruneInTransition} {
		m.skipped.WithLabelValues(reason)
	}
	r.MustRegister(m.slots, m.budget, m.attempts, m.bytes, m.syncDuration, m.queueDuration, m.strays, m.resyncs, m.pruned, m.skipped, m.invalidKeys, m.policyAccepted, m.planAccepted, m.conditions,
		&queueCollector{index: index})
	return m
}

// SetSlots tells slots and budget.
func (m *Metrics) SetSlots(slots int, budget int32) {
	m.slots.Set(float64(slots))
	m.budget.Set(float64(budget))
}

// SetPolicy tells whether the ConfigMap is in force and which of its keys cannot
// be used.
func (m *Metrics) SetPolicy(accepted bool, invalid []string) {
	m.policyAccepted.Set(0)
	if accepted {
		m.policyAccepted.Set(1)
	}
	m.invalidKeys.Reset()
	for _, key := range invalid {
		m.invalidKeys.WithLabelValues(key).Set(1)
	}
}

// SetPlanAccepted tells whether there is a ClusterPlan that is gone by.
func (m *Metrics) SetPlanAccepted(accepted bool) {
	m.planAccepted.Set(0)
	if accepted {
		m.planAccepted.Set(1)
	}
}

// SetConditions tells those of the SyncLedger. One that went is not told any more.
func (m *Metrics) SetConditions(all []metav1.Condition) {
	m.conditions.Reset()
	for _, c := range all {
		m.conditions.WithLabelValues(c.Type, string(c.Status)).Set(1)
	}
}

// RecordSuccess counts an attempt that imported an image; took is 0 where it is not
// known.
func (m *Metrics) RecordSuccess(bytes int64, took time.Duration) {
	m.attempts.WithLabelValues("Succeeded", "").Inc()
	m.bytes.Add(float64(bytes))
	if took > 0 {
		m.syncDuration.Observe(took.Seconds())
	}
}

// RecordFailure counts an attempt that failed.
func (m *Metrics) RecordFailure(reason v1alpha1.Reason, bytes int64) {
	m.attempts.WithLabelValues("Failed", string(reason)).Inc()
	m.bytes.Add(float64(bytes))
}

// ObserveQueueDuration counts an image that got the slot of its first attempt.
func (m *Metrics) ObserveQueueDuration(waited time.Duration) {
	m.queueDuration.Observe(max(0, waited.Seconds()))
}

// CountStrayDataVolume counts a DataVolume that was in no slot.
func (m *Metrics) CountStrayDataVolume() { m.strays.Inc() }

// CountResync counts a finished image that is synced again.
func (m *Metrics) CountResync() { m.resyncs.Inc() }

// CountPrunedImage counts an image that was deleted for an ImagePrune.
func (m *Metrics) CountPrunedImage() { m.pruned.Inc() }

// CountSkippedPrune counts an image that an ImagePrune asked for and that stays.
func (m *Metrics) CountSkippedPrune(reason string) { m.skipped.WithLabelValues(reason).Inc() }

// queueCollector counts the queue when it is asked, not at every change of it.
type queueCollector struct{ index *ledger.Queue }

var (
	queueImagesDesc = prometheus.NewDesc(namespace+"_queue_images", "Images in the queue: ready for a slot, pending a check, or skipped while they wait for something of their own.", []string{"standing"}, nil)
	queueOldestDesc = prometheus.NewDesc(namespace+"_queue_oldest_age_seconds", "How long ago the image arrived that has waited longest; 0 for an empty queue.", nil, nil)
)

func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- queueImagesDesc
	ch <- queueOldestDesc
}

func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.index.Stats()
	for standing, n := range map[string]int{"ready": s.Admissible, "pending": s.Pending, "skipped": s.Skipped} {
		ch <- prometheus.MustNewConstMetric(queueImagesDesc, prometheus.GaugeValue, float64(n), standing)
	}
	age := 0.0
	if !s.OldestArrival.IsZero() {
		age = max(0, time.Since(s.OldestArrival).Seconds())
	}
	ch <- prometheus.MustNewConstMetric(queueOldestDesc, prometheus.GaugeValue, age)
}
