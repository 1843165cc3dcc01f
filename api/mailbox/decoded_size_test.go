package mailbox

import (
	"encoding/json"
	"testing"
	"time"
	_ "time/tzdata" // a zone with transitions

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Timestamps are decoded in the local time zone, which they share: a process with TZ set
// measures the same report as one without.
func TestDecodedBytesOmitTimeZone(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	measure := func(zone string) int64 {
		var err error
		time.Local, err = time.LoadLocation(zone)
		require.NoError(t, err)
		var report v1alpha1.ClusterReport
		require.NoError(t, json.Unmarshal([]byte(`{"page":{"images":[{"name":"a","syncedAt":"2026-01-01T00:00:00Z","unreferencedSince":"2026-07-01T00:00:00Z"}]}}`), &report))
		require.Equal(t, zone, report.Page.Images[0].SyncedAt.Location().String())
		return DecodedBytes(&report)
	}
	assert.Equal(t, measure("UTC"), measure("America/New_York"))
}
