package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/agent/ledger"
	agentmetrics "github.com/pelotech/ot-fleet/agent/metrics"
	hubmetrics "github.com/pelotech/ot-fleet/hub/metrics"
)

// recorder is a Registerer that keeps the descriptions of what is registered.
type recorder struct{ descriptions []string }

func (r *recorder) Register(c prometheus.Collector) error {
	channel := make(chan *prometheus.Desc)
	go func() {
		defer close(channel)
		c.Describe(channel)
	}()
	for description := range channel {
		r.descriptions = append(r.descriptions, description.String())
	}
	return nil
}

func (r *recorder) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		_ = r.Register(c)
	}
}

func (r *recorder) Unregister(prometheus.Collector) bool { return false }

func renderMetrics() (string, error) {
	var agent, hub recorder
	agentmetrics.New(&agent, ledger.NewQueue())
	agentmetrics.NewReport(&agent)
	agentmetrics.NewMachines(&agent)
	agentmetrics.NewPullMode(&agent)
	hubmetrics.New(&hub)
	hubmetrics.NewApprovals(&hub)
	hubmetrics.NewDashboard(&hub)
	hubmetrics.NewGrants(&hub)
	hubmetrics.NewInstalls(&hub)
	hubmetrics.NewRegistrations(&hub)
	hubmetrics.NewReports(&hub)
	hubmetrics.NewShards(&hub)
	hub.MustRegister(&hubmetrics.FleetCollector{})
	var b strings.Builder
	for _, program := range []struct {
		title   string
		metrics recorder
	}{{"Agent", agent}, {"Hub", hub}} {
		rows, err := metricRows(program.metrics.descriptions)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n", program.title, table([]string{"Metric", "Labels", "Meaning"}, rows))
	}
	return b.String(), nil
}

// descriptionText is how client_golang v1 prints a Desc.
var descriptionText = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "(.*?)", (?:unit: "[^"]*", )?constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

func metricRows(descriptions []string) (rows [][]string, err error) {
	for _, description := range descriptions {
		m := descriptionText.FindStringSubmatch(description)
		if m == nil {
			return nil, fmt.Errorf("client_golang prints a description in another form: %s", description)
		}
		var labels []string
		for _, label := range strings.Split(m[3], ",") {
			if label != "" {
				labels = append(labels, "`"+label+"`")
			}
		}
		rows = append(rows, []string{"`" + m[1] + "`", strings.Join(labels, ", "), strings.ReplaceAll(m[2], `\"`, `"`)})
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return rows, nil
}
