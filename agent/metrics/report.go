package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Report counts what the agent tells the hub. Create it with NewReport.
type Report struct {
	pages   prometheus.Gauge
	omitted prometheus.Gauge
	written prometheus.Gauge
	writes  *prometheus.CounterVec

	orphaned      prometheus.Gauge
	orphanedBytes prometheus.Gauge
}

// Objects that a report consists of.
const (
	ReportRoot = "root"
	ReportPage = "page"
)

// NewReport registers the metrics of a reporter.
func NewReport(r prometheus.Registerer) *Report {
	m := &Report{
		pages:   prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "report", Name: "pages", Help: "Pages that the ClusterReport lists."}),
		omitted: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "report", Name: "omitted_images", Help: "Images that the pages of the ClusterReport have no room for."}),
		written: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "report", Name: "last_write_timestamp_seconds",
			Help: "When this agent last wrote the root of the ClusterReport; 0 where it never has, as one that does not lead."}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: "report", Name: "writes_total",
			Help: "Objects of the ClusterReport that were stored or deleted."}, []string{"object"}),
		orphaned: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "orphaned_objects",
			Help: "DataVolumes, PersistentVolumeClaims and VolumeSnapshots that were made for VMDiskImages which are not there any more."}),
		orphanedBytes: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "orphaned_bytes",
			Help: "What they take, as provisioned."}),
	}
	m.writes.WithLabelValues(ReportRoot)
	m.writes.WithLabelValues(ReportPage)
	r.MustRegister(m.pages, m.omitted, m.written, m.writes, m.orphaned, m.orphanedBytes)
	return m
}

// CountWrite counts a write of a root or a page.
func (m *Report) CountWrite(object string) { m.writes.WithLabelValues(object).Inc() }

// SetRoot tells what the root that was written says.
func (m *Report) SetRoot(at time.Time, pages int, omitted int32) {
	m.pages.Set(float64(pages))
	m.omitted.Set(float64(omitted))
	m.written.Set(float64(at.UnixMilli()) / 1000)
}

// SetOrphans tells how much storage belongs to no image.
func (m *Report) SetOrphans(objects int32, bytes int64) {
	m.orphaned.Set(float64(objects))
	m.orphanedBytes.Set(float64(bytes))
}
