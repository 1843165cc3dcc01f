package readapi_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// TestEntriesAreObjects: a member's report has an import as one line; an answer has its fields
// beside what is expected.
func TestEntriesAreObjects(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Local())
	answer := readapi.WhyActivity{
		ObservedAt: at,
		Active:     []readapi.ActiveEntry{{ActiveImport: readapi.ActiveImport{Namespace: "farm", Name: "a", BytesDone: 5, StartedAt: at}, Expected: &readapi.Estimate{Reason: "SizeUnknown"}}},
		Head:       []readapi.QueuedEntry{{QueuedImport: readapi.QueuedImport{Namespace: "farm", Name: "b", QueuedAt: at}, Expected: &readapi.Estimate{At: &at}}},
	}
	text, err := json.Marshal(answer)
	require.NoError(t, err)
	assert.JSONEq(t, `{"observedAt": "2026-03-01T12:00:00Z", "queued": 0,
		"active": [{"namespace": "farm", "name": "a", "bytesDone": 5, "startedAt": "2026-03-01T12:00:00Z", "expected": {"reason": "SizeUnknown"}}],
		"head": [{"namespace": "farm", "name": "b", "queuedAt": "2026-03-01T12:00:00Z", "expected": {"at": "2026-03-01T12:00:00Z"}}]}`, string(text))
	var got readapi.WhyActivity
	require.NoError(t, json.Unmarshal(text, &got))
	assert.Equal(t, answer, got)
}
