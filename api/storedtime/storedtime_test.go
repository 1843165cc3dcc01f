package storedtime_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/storedtime"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func TestTruncate(t *testing.T) {
	berlin := time.FixedZone("Berlin", 3600)
	assert.Equal(t, metav1.NewTime(now), storedtime.Truncate(now.In(berlin).Add(time.Second-1)))
}

func TestRemaining(t *testing.T) {
	for name, tt := range map[string]struct {
		since time.Time
		want  time.Duration
	}{
		"now":        {now, time.Minute},
		"half of it": {now.Add(-30 * time.Second), 30 * time.Second},
		"all of it":  {now.Add(-time.Minute), 0},
		"long ago":   {time.Time{}, 0},
		"ahead":      {now.Add(time.Second), 0},
		"far ahead":  {now.AddDate(1, 0, 0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, storedtime.Remaining(now, tt.since, time.Minute))
		})
	}
}

func TestSince(t *testing.T) {
	earlier, ahead := metav1.NewTime(now.Add(-time.Hour)), metav1.NewTime(now.AddDate(1, 0, 0))
	assert.Equal(t, now, storedtime.Since(metav1.NewTime(now), nil).Time)
	assert.Equal(t, earlier.Time, storedtime.Since(metav1.NewTime(now), &earlier).Time)
	assert.Equal(t, now, storedtime.Since(metav1.NewTime(now), &ahead).Time)
}
