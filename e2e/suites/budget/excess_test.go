//go:build linux

package budget_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// assertNoExcess: no honest member was ever taken for one that reports too much.
func (f *testFleet) assertNoExcess(t *testing.T) {
	t.Helper()
	var events eventsv1.EventList
	require.NoError(t, f.List(context.Background(), &events))
	for _, e := range events.Items {
		if f.Members[e.Regarding.Name] != nil {
			assert.NotEqual(t, v1alpha1.ReasonReportedSlotsExceedGrants, e.Reason, "%s: %s", e.Regarding.Name, e.Note)
		}
	}
}
