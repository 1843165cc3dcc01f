package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/hub/history"
)

// What the dashboard's history is filled from after a failover, where a Prometheus keeps it.
var (
	transferRate           = newDesc("fleet_transfers_bytes_per_second", "Bytes per second that members download, over the last minute. By source group; empty for all.", "source")
	transfersRunning       = newDesc("fleet_transfers_running", "Imports that members run. By source group; empty for all.", "source")
	transfersQueued        = newDesc("fleet_transfers_queued", "Images that wait for a slot. By source group; empty for all.", "source")
	transferUnknownMembers = newDesc("fleet_transfers_unknown_members", "Members of which it is unknown what they download; their part is missing in the sums.")
	memberTransferRate     = newDesc("member_bytes_per_second", "Bytes per second that the member downloads, over the last minutes.", "member")
)

// collectTransfers renders the newest sample of the history.
func (f *FleetCollector) collectTransfers(gauge func(*prometheus.Desc, float64, ...string)) {
	if f.Transfers == nil {
		return
	}
	latest, known := f.Transfers(time.Now())
	if !known {
		return
	}
	bySeries := map[string]*prometheus.Desc{readapi.SeriesBytes: transferRate, readapi.SeriesSlots: transfersRunning, readapi.SeriesQueued: transfersQueued}
	for source, values := range latest.BySource {
		for series, value := range values {
			gauge(bySeries[series], value, source)
		}
	}
	gauge(transferUnknownMembers, latest.UnknownMembers)
	for member, rate := range latest.BytesByMember {
		gauge(memberTransferRate, rate, member)
	}
}

// TransfersFunc returns the newest sample of the history; false where there is none.
type TransfersFunc func(now time.Time) (latest history.LatestSample, known bool)
