package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
)

func TestBackoffDoublesUpToItsCap(t *testing.T) {
	p := apitest.Policy().Backoff(time.Minute, 10*time.Minute).Obj()
	for n, want := range map[int32]time.Duration{
		1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 4: 8 * time.Minute, 5: 10 * time.Minute, 6: 10 * time.Minute, 101: 10 * time.Minute,
	} {
		got := image.ComputeBackoff(p, "uid", n)
		assert.LessOrEqual(t, got, want, "attempt %d", n)
		assert.Greater(t, got, want-want/5, "attempt %d", n)
	}
}

func TestBackoffSpreadsImagesThatFailedTogether(t *testing.T) {
	p := apitest.Policy().Backoff(time.Minute, time.Hour).Obj()
	waits := map[time.Duration]bool{}
	for i := range 100 {
		waits[image.ComputeBackoff(p, types.UID(rune('a'+i)), 1)] = true
	}
	assert.Greater(t, len(waits), 90)
}

func TestBackoffIsBoundedForAnyPolicy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const month = int64(30 * 24 * time.Hour) // the most that a policy may say
		first := rapid.Int64Range(0, month).Draw(t, "first")
		most := rapid.Int64Range(first, month).Draw(t, "most")
		p := apitest.Policy().Backoff(time.Duration(first), time.Duration(most)).Obj()
		uid := types.UID(rapid.String().Draw(t, "uid"))
		n := rapid.Int32Range(1, 101).Draw(t, "n")

		got := image.ComputeBackoff(p, uid, n)

		require.Equal(t, got, image.ComputeBackoff(p, uid, n), "the same question has the same answer")
		require.LessOrEqual(t, got, p.MaxRetryBackoff)
		require.GreaterOrEqual(t, got, p.RetryBackoff-p.RetryBackoff/5)
	})
}
