// Command alerts runs unit tests of alerts, in the format of `promtool test rules`, with Prometheus'
// own rules and engine, and parses the queries of dashboards. promtool itself is linked with the
// clients of two dozen clouds and takes minutes to build, instead of one.
//
// Every alert needs a test in which it fires, with its labels and annotations, and one in which it
// does not although its series exist.
//
//	alerts charts/ot-hub/monitoring/alerts_test.yaml charts/ot-hub/monitoring/dashboard.json
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"gopkg.in/yaml.v2"
)

// file is a file of tests in promtool's format. Unknown fields are errors.
type file struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []test         `yaml:"tests"`
}

type test struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []alertTest `yaml:"alert_rule_test"`
}

type alertTest struct {
	Alert    string         `yaml:"alertname"`
	EvalTime model.Duration `yaml:"eval_time"`
	Want     []struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	} `yaml:"exp_alerts"`
}

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		check := alerts
		if strings.HasSuffix(path, ".json") {
			check = dashboard
		}
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func alerts(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f file
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return err
	}
	var ruleFiles []string
	for _, name := range f.RuleFiles {
		ruleFiles = append(ruleFiles, filepath.Join(filepath.Dir(path), name))
	}
	seen := map[string]map[bool]bool{}
	var faults []error
	for _, t := range f.Tests {
		known, err := t.run(ruleFiles, time.Duration(f.EvaluationInterval))
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", t.Name, err))
		}
		for _, name := range known {
			if seen[name] == nil {
				seen[name] = map[bool]bool{}
			}
		}
		for _, a := range t.Alerts {
			if seen[a.Alert] == nil {
				faults = append(faults, fmt.Errorf("%s: there is no alert %s", t.Name, a.Alert))
				continue
			}
			seen[a.Alert][len(a.Want) > 0] = true
		}
	}
	for name, cases := range seen {
		if !cases[true] || !cases[false] {
			faults = append(faults, fmt.Errorf("alert %s needs a test in which it fires and one in which it is quiet", name))
		}
	}
	return errors.Join(faults...)
}

// run evaluates all rules from time 0 on and compares alerts at the times of the test. It returns the
// names of all alerts.
func (t *test) run(ruleFiles []string, every time.Duration) (known []string, err error) {
	var load strings.Builder
	fmt.Fprintf(&load, "load %s\n", t.Interval)
	for _, s := range t.InputSeries {
		fmt.Fprintf(&load, "  %s %s\n", s.Series, s.Values)
	}
	suite, err := promqltest.NewLazyLoader(load.String(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, suite.Close()) }()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()), Appendable: suite.Storage(),
		Context: context.Background(), NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: promslog.NewNopLogger(),
	})
	groups, faults := manager.LoadGroups(time.Duration(t.Interval), labels.EmptyLabels(), "", nil, false, ruleFiles...)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	var alerting []*rules.AlertingRule
	for _, g := range groups {
		for _, r := range g.Rules() {
			if a, ok := r.(*rules.AlertingRule); ok {
				a.SetRestored(true)
				alerting, known = append(alerting, a), append(known, a.Name())
			}
		}
	}
	last := time.Duration(0)
	for _, a := range t.Alerts {
		last = max(last, time.Duration(a.EvalTime))
	}
	for since := time.Duration(0); since <= last; since += every {
		now := time.Unix(0, 0).UTC().Add(since)
		suite.WithSamplesTill(now, func(loadErr error) {
			err = loadErr
			for _, g := range groups {
				g.Eval(suite.Context(), now)
			}
		})
		for _, a := range alerting {
			err = errors.Join(err, a.LastError())
		}
		if err != nil {
			return known, fmt.Errorf("after %s: %w", since, err)
		}
		for _, want := range t.Alerts {
			if at := time.Duration(want.EvalTime); since <= at && at < since+every {
				err = errors.Join(err, want.compare(alerting))
			}
		}
		if err != nil {
			return known, err
		}
	}
	return known, nil
}

func (a *alertTest) compare(alerting []*rules.AlertingRule) error {
	var want, got []string
	for _, w := range a.Want {
		l := labels.NewBuilder(labels.FromMap(w.Labels)).Set(labels.AlertName, a.Alert).Labels()
		want = append(want, l.String()+"\n  "+labels.FromMap(w.Annotations).String())
	}
	for _, r := range alerting {
		for _, active := range r.ActiveAlerts() {
			if r.Name() == a.Alert && active.State == rules.StateFiring {
				got = append(got, active.Labels.String()+"\n  "+active.Annotations.String())
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		return fmt.Errorf("after %s it fires as\n  %s\nand is wanted to as\n  %s", a.EvalTime, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	return nil
}

// dashboard parses every query of a dashboard, with Grafana's variables replaced.
func dashboard(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var board any
	if err := json.Unmarshal(text, &board); err != nil {
		return err
	}
	var faults []error
	asked := 0
	var look func(any)
	look = func(node any) {
		switch node := node.(type) {
		case []any:
			for _, below := range node {
				look(below)
			}
		case map[string]any:
			if expr, ok := node["expr"].(string); ok {
				asked++
				plain := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(expr)
				if _, err := parser.ParseExpr(plain); err != nil {
					faults = append(faults, fmt.Errorf("%s: %w", expr, err))
				}
			}
			for _, below := range node {
				look(below)
			}
		}
	}
	look(board)
	if asked == 0 {
		faults = append(faults, errors.New("it asks nothing"))
	}
	return errors.Join(faults...)
}
