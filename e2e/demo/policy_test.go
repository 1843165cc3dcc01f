//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// The fleet that stays up has a window in lab, and none elsewhere.
func TestPolicyHasAWindow(t *testing.T) {
	data := newPolicy(firstBudget, firstEdge)
	data["overrides"] += labAtNight
	parsed, unknown, errs := policy.ParsePolicy(data)
	require.Empty(t, errs)
	require.Empty(t, unknown)
	for name, want := range map[string]int32{lab: 6, bergen: firstBudget} {
		planned, _, errs := parsed.ForMember(name, nil)
		require.Empty(t, errs)
		member, _, errs := apipolicy.Parse(planned)
		require.Empty(t, errs)
		atNight, _ := member.At(time.Date(2026, 6, 1, 21, 0, 0, 0, time.UTC))
		assert.Equal(t, want, atNight.Concurrency, name)
	}
}
