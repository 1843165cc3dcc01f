// The kinds of Prometheus' operator, which the charts' ServiceMonitor and PrometheusRule
// are held against: files of this module, none of its code.
module github.com/pelotech/ot-fleet/e2e/suites/chart/prometheusoperator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
