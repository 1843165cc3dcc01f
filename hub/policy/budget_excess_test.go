package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExcessTolerance(t *testing.T) {
	for name, tt := range map[string]struct {
		data map[string]string
		want time.Duration
	}{
		"by default":              {map[string]string{}, 30 * time.Minute},
		"at most an attempt":      {map[string]string{"attemptTimeout": "10m"}, 10 * time.Minute},
		"as it is set":            {map[string]string{"fleetExcessTolerance": "45m"}, 45 * time.Minute},
		"as long as attempts run": {map[string]string{"fleetExcessTolerance": "6h"}, 6 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			tt.data["fleetConcurrency"] = "4"
			p, _, errs := ParsePolicy(tt.data)
			require.Empty(t, errs)
			assert.Equal(t, tt.want, p.Budget(time.Now()).ExcessTolerance)
		})
	}
}
