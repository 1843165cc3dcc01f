// Package metricset creates and registers the Prometheus metrics of one program.
package metricset

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Set registers metrics whose names begin with Namespace.
type Set struct {
	Registerer prometheus.Registerer
	Namespace  string
}

// Counter registers a counter.
func (s Set) Counter(name, help string) prometheus.Counter {
	return promauto.With(s.Registerer).NewCounter(prometheus.CounterOpts{Namespace: s.Namespace, Name: name, Help: help})
}

// CounterVec registers a counter with labels.
func (s Set) CounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(s.Registerer).NewCounterVec(prometheus.CounterOpts{Namespace: s.Namespace, Name: name, Help: help}, labels)
}

// Gauge registers a gauge.
func (s Set) Gauge(name, help string) prometheus.Gauge {
	return promauto.With(s.Registerer).NewGauge(prometheus.GaugeOpts{Namespace: s.Namespace, Name: name, Help: help})
}

// GaugeVec registers a gauge with labels.
func (s Set) GaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(s.Registerer).NewGaugeVec(prometheus.GaugeOpts{Namespace: s.Namespace, Name: name, Help: help}, labels)
}

// Histogram registers a histogram.
func (s Set) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(s.Registerer).NewHistogram(prometheus.HistogramOpts{Namespace: s.Namespace, Name: name, Help: help, Buckets: buckets})
}
