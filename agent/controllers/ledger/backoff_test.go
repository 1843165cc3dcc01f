package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
)

var errWebhook = apierrors.NewInternalError(errors.New("failed calling webhook"))

// askAll asks each namespace, in the same order in each reconcile, and returns when the worker is
// done, and which it could serve.
func askAll(b *namespaceBackoff, now time.Time, namespaces []string, latency map[string]time.Duration) (done time.Time, served map[string]bool) {
	b.startReconcile(now)
	served = map[string]bool{}
	for _, namespace := range namespaces {
		if b.skips(namespace, now) {
			continue
		}
		began := now
		var err error
		if took, fails := latency[namespace]; fails {
			now, err = now.Add(took), errWebhook
		}
		b.record(namespace, err, began, now)
		served[namespace] = err == nil
	}
	return now, served
}

// However many namespaces fail, and however late, another one behind them is served after as many
// reconciles as it takes to ask each of them once.
func TestFailingNamespacesHoldUpNoOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		latency := map[string]time.Duration{}
		var namespaces []string
		for i := range rapid.IntRange(0, 40).Draw(t, "failing") {
			namespaces = append(namespaces, fmt.Sprint("failing-", i))
			latency[namespaces[i]] = time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second
		}
		namespaces = append(namespaces, "other")
		var b namespaceBackoff
		now := apitest.Epoch
		for range 2*len(latency)/maxFailuresPerReconcile + 1 {
			done, served := askAll(&b, now, namespaces, latency)
			if served["other"] {
				return
			}
			require.Positive(t, b.requeueAfter, "it is asked again")
			require.LessOrEqual(t, b.requeueAfter, maxNamespaceDelay)
			now = done.Add(minNamespaceDelay)
		}
		t.Fatal("the other namespace starves")
	})
}

// A webhook that never answers takes a small part of the worker's time.
func TestSlowFailuresTakeLittleTime(t *testing.T) {
	var b namespaceBackoff
	now, busy := apitest.Epoch, time.Duration(0)
	end := now.Add(2 * time.Hour)
	for now.Before(end) {
		done, _ := askAll(&b, now, []string{"slow"}, map[string]time.Duration{"slow": 30 * time.Second})
		busy += done.Sub(now)
		now = done.Add(max(b.requeueAfter, time.Second))
	}
	assert.Less(t, busy, 10*time.Minute)
}

func TestNamespaceBackoff(t *testing.T) {
	stall := apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	for name, tt := range map[string]struct {
		results  []error
		took     time.Duration
		wantWait time.Duration
	}{
		"success":               {results: []error{nil}},
		"first failure":         {results: []error{errWebhook}, wantWait: minNamespaceDelay},
		"third failure":         {results: []error{errWebhook, errWebhook, errWebhook}, wantWait: 4 * minNamespaceDelay},
		"after a success":       {results: []error{errWebhook, errWebhook, nil, errWebhook}, wantWait: minNamespaceDelay},
		"late answer":           {results: []error{errWebhook}, took: 10 * time.Second, wantWait: 200 * time.Second},
		"a stalled API server":  {results: []error{stall}, took: 30 * time.Second, wantWait: maxUnansweredDelay},
		"no answer":             {results: []error{errors.New("connection refused")}, wantWait: minNamespaceDelay},
		"many failures at once": {results: slices.Repeat([]error{errWebhook}, 40), wantWait: maxNamespaceDelay},
	} {
		t.Run(name, func(t *testing.T) {
			var b namespaceBackoff
			now := apitest.Epoch
			for _, err := range tt.results {
				b.startReconcile(now)
				b.record("ns", err, now.Add(-tt.took), now)
			}
			assert.Equal(t, tt.wantWait, b.requeueAfter)
			assert.Equal(t, tt.wantWait > 0, b.skips("ns", now.Add(tt.wantWait-1)))
			b.startReconcile(now)
			assert.False(t, b.skips("ns", now.Add(tt.wantWait)))
			b.startReconcile(now.Add(tt.wantWait + forgetAfter + 1))
			assert.Empty(t, b.waiting)
		})
	}
}
