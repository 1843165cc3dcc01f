package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/hub/metrics"
)

func TestApprovalsAreSetByElectedReplica(t *testing.T) {
	r := prometheus.NewRegistry()
	a := metrics.NewApprovals(r)
	assert.Empty(t, gatherSeries(t, r, "ot_hub_approvals_guarded"))
	a.SetGuarded("waves", true)
	a.SetGuarded("prunes", false)
	assert.Equal(t, map[string]float64{"waves": 1, "prunes": 0}, gatherSeries(t, r, "ot_hub_approvals_guarded"))
}
