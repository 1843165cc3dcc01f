package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
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
	set := metricset.Set{Registerer: r, Namespace: namespace}
	m := &Report{
		pages:         set.Gauge("report_pages", "Pages that the ClusterReport lists."),
		omitted:       set.Gauge("report_omitted_images", "Images that do not fit into the pages of the ClusterReport, or are on pages that cannot be written."),
		written:       set.Gauge("report_last_write_timestamp_seconds", "When this agent last wrote the root of the ClusterReport; 0 for never, as without leadership."),
		writes:        set.CounterVec("report_writes_total", "Objects of the ClusterReport that were written or deleted.", "object"),
		orphaned:      set.Gauge("orphaned_objects", "DataVolumes, PersistentVolumeClaims and VolumeSnapshots of VMDiskImages that no longer exist."),
		orphanedBytes: set.Gauge("orphaned_bytes", "Provisioned size of the orphaned objects."),
	}
	m.writes.WithLabelValues(ReportRoot)
	m.writes.WithLabelValues(ReportPage)
	m.writes.WithLabelValues(ReportActivity)
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
