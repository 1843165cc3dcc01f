package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Report has the metrics of the ClusterReport. NewReport creates it.
type Report struct {
	pages   prometheus.Gauge
	omitted prometheus.Gauge
	written prometheus.Gauge
	writes  *prometheus.CounterVec

	orphaned      prometheus.Gauge
	orphanedBytes prometheus.Gauge
}

// Objects of a report.
const (
	ReportRoot     = "root"
	ReportPage     = "page"
	ReportActivity = "activity"
)

// NewReport registers the metrics.
func NewReport(r prometheus.Registerer) *Report {
	m := &Report{
		pages:   prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "report", Name: "pages", Help: "Pages that the ClusterReport lists."}),
		omitted: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "report", Name: "omitted_images", Help: "Images that do not fit into the pages of the ClusterReport, or are on pages that cannot be written."}),
		written: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "report", Name: "last_write_timestamp_seconds",
			Help: "When this agent last wrote the root of the ClusterReport; 0 for never, as without leadership."}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: "report", Name: "writes_total",
			Help: "Objects of the ClusterReport that were written or deleted."}, []string{"object"}),
		orphaned: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "orphaned_objects",
			Help: "DataVolumes, PersistentVolumeClaims and VolumeSnapshots of VMDiskImages that no longer exist."}),
		orphanedBytes: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "orphaned_bytes",
			Help: "Provisioned size of the orphaned objects."}),
	}
	m.writes.WithLabelValues(ReportRoot)
	m.writes.WithLabelValues(ReportPage)
	m.writes.WithLabelValues(ReportActivity)
	r.MustRegister(m.pages, m.omitted, m.written, m.writes, m.orphaned, m.orphanedBytes)
	return m
}

// CountWrite counts a write of a root, a page or an activity.
func (m *Report) CountWrite(object string) { m.writes.WithLabelValues(object).Inc() }

// SetRoot sets what the written root contains.
func (m *Report) SetRoot(at time.Time, pages int, omitted int32) {
	m.pages.Set(float64(pages))
	m.omitted.Set(float64(omitted))
	m.written.Set(float64(at.UnixMilli()) / 1000)
}

// SetOrphans sets the storage that belongs to no image.
func (m *Report) SetOrphans(objects int32, bytes int64) {
	m.orphaned.Set(float64(objects))
	m.orphanedBytes.Set(float64(bytes))
}
