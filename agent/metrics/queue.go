package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/agent/ledger"
)

// queueCollector reads the queue at each scrape.
type queueCollector struct{ queue *ledger.Queue }

var (
	queueImagesDesc = prometheus.NewDesc(namespace+"_queue_images", "Images in the queue: ready for a slot, pending a check, or skipped while they wait for something else.", []string{"standing"}, nil)
	queueOldestDesc = prometheus.NewDesc(namespace+"_queue_oldest_age_seconds", "Time since the image that has waited longest arrived, without those that wait for a window of the policy; 0 for an empty queue.", nil, nil)
)

func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- queueImagesDesc
	ch <- queueOldestDesc
}

func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.queue.Stats()
	for standing, n := range map[string]int{"ready": s.Admissible, "pending": s.Pending, "skipped": s.Skipped} {
		ch <- prometheus.MustNewConstMetric(queueImagesDesc, prometheus.GaugeValue, float64(n), standing)
	}
	age := 0.0
	if !s.OldestArrival.IsZero() {
		age = max(0, time.Since(s.OldestArrival).Seconds())
	}
	ch <- prometheus.MustNewConstMetric(queueOldestDesc, prometheus.GaugeValue, age)
}
