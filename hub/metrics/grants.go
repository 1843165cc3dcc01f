package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
	"github.com/pelotech/ot-fleet/hub/budget"
)

// Grants has the metrics of the fleet-wide budget. Create it with NewGrants. Only the
// elected replica sets it.
type Grants struct {
	concurrency, held, granted, wanted, reserved *prometheus.GaugeVec
	written                                      prometheus.Counter
}

// NewGrants registers the metrics.
func NewGrants(r prometheus.Registerer) *Grants {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return set.GaugeVec("fleet_transfers_"+name, help+" By source group; empty for all.", "source")
	}
	g := &Grants{
		concurrency: gauge("limit", "Imports that may run at a time in the whole fleet."),
		held:        gauge("held", "Imports that the members may be running."),
		granted:     gauge("granted", "Imports that grants in force allow."),
		wanted:      gauge("wanted", "Imports that the members could run."),
		reserved:    gauge("reserved", "Imports that silent or departed members may be running."),
		written:     set.Counter("grants_written_total", "Writes of TransferGrants."),
	}
	return g
}

// Reset removes all series: there is no fleet-wide budget.
func (g *Grants) Reset() {
	for _, v := range []*prometheus.GaugeVec{g.concurrency, g.held, g.granted, g.wanted, g.reserved} {
		v.Reset()
	}
}

// CountWrite counts a written TransferGrant.
func (g *Grants) CountWrite() { g.written.Inc() }

// SetAllocation shows an allocation.
func (g *Grants) SetAllocation(rules budget.Rules, plan budget.Allocation) {
	g.Reset()
	var granted, wanted, reserved float64
	held, ofSilent := map[string]float64{}, map[string]float64{}
	for _, a := range plan.Accounts {
		granted, wanted = granted+float64(a.Granted), wanted+float64(a.Wanted)
		away := a.Silent || a.Departed
		if away {
			reserved += float64(a.Held)
		}
		for name, n := range a.Sources {
			held[name] += float64(n)
			if away {
				ofSilent[name] += float64(n)
			}
		}
	}
	g.concurrency.WithLabelValues("").Set(float64(rules.Total))
	g.held.WithLabelValues("").Set(float64(plan.Held))
	g.granted.WithLabelValues("").Set(granted)
	g.wanted.WithLabelValues("").Set(wanted)
	g.reserved.WithLabelValues("").Set(reserved)
	for _, group := range rules.Groups {
		g.concurrency.WithLabelValues(group.Name).Set(float64(group.Concurrency))
		g.held.WithLabelValues(group.Name).Set(held[group.Name])
		g.reserved.WithLabelValues(group.Name).Set(ofSilent[group.Name])
	}
}
