package v1alpha1_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestActivityLines(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	for name, tt := range map[string]struct {
		entry any
		want  string
	}{
		"import": {
			v1alpha1.ActiveImport{Namespace: "farm", Name: "ubuntu-24", Source: "eu", BytesDone: 5, BytesTotal: 10, BytesPerSecond: 2, StartedAt: at, Attempt: 1, MaxAttempts: 4},
			"farm/ubuntu-24 eu 1/4 1772366400 5/10 2",
		},
		"import of unknown size and rate": {
			v1alpha1.ActiveImport{Namespace: "farm", Name: "ubuntu-24", Source: "other", AtMostBytes: 10, StartedAt: at, Attempt: 2, MaxAttempts: 4},
			"farm/ubuntu-24 other 2/4 1772366400 0/max10 -",
		},
		"queued": {
			v1alpha1.QueuedImport{Namespace: "farm", Name: "ubuntu-24", Source: "eu", Bytes: 10, QueuedAt: at, Reason: v1alpha1.ReasonWaitingForSlot},
			"farm/ubuntu-24 eu 1772366400 10 WaitingForSlot",
		},
		"queued with all values": {
			v1alpha1.QueuedImport{Namespace: "farm", Name: "ubuntu-24", Source: "eu", AtMostBytes: 10, QueuedAt: at, Priority: -3, Attempts: 2, NotBefore: &at},
			"farm/ubuntu-24 eu 1772366400 max10 - priority=-3 attempts=2 notBefore=1772366400",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(tt.entry)
			require.NoError(t, err)
			var line string
			require.NoError(t, json.Unmarshal(text, &line))
			assert.Equal(t, tt.want, line)
		})
	}
}

func TestLaterColumnsOfActivityLinesAreIgnored(t *testing.T) {
	var active v1alpha1.ActiveImport
	require.NoError(t, json.Unmarshal([]byte(`"farm/ubuntu-24 eu 1/4 1772366400 5/10 2 retries=3"`), &active))
	assert.Equal(t, int64(2), active.BytesPerSecond)
	var queued v1alpha1.QueuedImport
	require.NoError(t, json.Unmarshal([]byte(`"farm/ubuntu-24 eu 1772366400 10 WaitingForSlot later=1 attempts=2"`), &queued))
	assert.Equal(t, int32(2), queued.Attempts)
}

func TestActivityLinesRoundTrip(t *testing.T) {
	name := rapid.StringMatching(`[a-z0-9][a-z0-9.-]{0,20}`)
	size := rapid.Int64Range(0, 1<<60)
	at := rapid.Map(rapid.Int64Range(0, 253402300799), func(seconds int64) metav1.Time {
		if seconds == 0 {
			return metav1.Time{}
		}
		return metav1.NewTime(time.Unix(seconds, 0).UTC())
	})
	count := rapid.Int32Range(0, 1<<30)
	rapid.Check(t, func(t *rapid.T) {
		total := size.Draw(t, "total")
		atMost := int64(0)
		if total == 0 {
			atMost = size.Draw(t, "at most")
		}
		active := v1alpha1.ActiveImport{
			Namespace: name.Draw(t, "namespace"), Name: name.Draw(t, "name"), Source: name.Draw(t, "source"),
			BytesDone: size.Draw(t, "done"), BytesTotal: total, AtMostBytes: atMost, BytesPerSecond: size.Draw(t, "rate"),
			StartedAt: at.Draw(t, "started"), Attempt: count.Draw(t, "attempt"), MaxAttempts: count.Draw(t, "attempts"),
		}
		assertRoundTrip(t, active)
		queued := v1alpha1.QueuedImport{
			Namespace: active.Namespace, Name: active.Name, Source: active.Source, Bytes: total, AtMostBytes: atMost,
			QueuedAt: at.Draw(t, "queued"), Priority: rapid.Int32().Draw(t, "priority"), Attempts: count.Draw(t, "started"),
			Reason: v1alpha1.Reason(rapid.StringMatching(`([A-Z][A-Za-z]{0,63})?`).Draw(t, "reason")),
		}
		if notBefore := at.Draw(t, "not before"); !notBefore.IsZero() {
			queued.NotBefore = &notBefore
		}
		assertRoundTrip(t, queued)
	})
}

func assertRoundTrip[T any](t *rapid.T, entry T) {
	text, err := json.Marshal(entry)
	require.NoError(t, err)
	var got T
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, entry, got)
}

// Invariant: no line makes a report unreadable, and what is read can be written again.
func TestAnyActivityLineIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(`"farm/a eu 1/4 1772366400 5/10 2"`)
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			text, _ = json.Marshal(rapid.String().Draw(t, "line"))
		case 1:
			text, _ = json.Marshal(rapid.StringMatching(`[a-z/]{0,9}( (-|[0-9]{1,30}|max[0-9]*|[0-9/-]*|priority=[0-9-]*|notBefore=[0-9]*)){0,9}`).Draw(t, "columns"))
		case 2:
			text = []byte(rapid.SampledFrom([]string{"null", "1", "{}", "[]", "true", `""`}).Draw(t, "value"))
		}
		activity := v1alpha1.ReportedActivity{}
		require.NoError(t, json.Unmarshal([]byte(`{"active":[`+string(text)+`],"head":[`+string(text)+`]}`), &activity))
		again, err := json.Marshal(activity)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(again, &v1alpha1.ReportedActivity{}))
		for _, i := range activity.Active {
			require.GreaterOrEqual(t, min(i.BytesDone, i.BytesTotal, i.AtMostBytes, i.BytesPerSecond), int64(0))
		}
	})
}
