package trigger

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

var (
	errWebhook = apierrors.NewInternalError(errors.New("failed calling webhook"))
	// errNoAnswer is what a client says whose own timeout ends before a webhook's.
	errNoAnswer = errors.New("Client.Timeout exceeded while awaiting headers")
)

// hostile is how requests in a namespace go.
type hostile struct {
	took time.Duration
	err  error
}

// askAll asks each namespace, and returns when the worker is done, and which it could serve.
func askAll(b *NamespaceBackoff, now time.Time, namespaces []string, all map[string]hostile) (done time.Time, served map[string]bool) {
	b.StartReconcile(now)
	served = map[string]bool{}
	for _, namespace := range InTurn(b, namespaces, func(namespace string) (string, string) { return namespace, "image" }) {
		if b.Skips(namespace, now) {
			continue
		}
		began, h := now, all[namespace]
		now = now.Add(h.took)
		b.Record(namespace, "image", h.err, began, now)
		served[namespace] = h.err == nil
	}
	return now, served
}

func drawHostile(t *rapid.T) (namespaces []string, all map[string]hostile) {
	all = map[string]hostile{}
	for i := range rapid.IntRange(0, 40).Draw(t, "hostile") {
		namespaces = append(namespaces, fmt.Sprint("hostile-", i))
		h := hostile{
			time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second,
			rapid.SampledFrom([]error{errWebhook, errNoAnswer, nil}).Draw(t, "error"),
		}
		if h.err == nil {
			h.took = max(h.took, lateAnswer) // each faster one uses up a slot, as anybody's does
		}
		all[namespaces[i]] = h
	}
	return namespaces, all
}

// However many namespaces hold up or refuse requests, another one is served in the next reconcile
// where they have been asked before; at the latest after as many as it takes to ask each of them once,
// also if it has failed once itself.
func TestHostileNamespacesHoldUpNoOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		namespaces, all := drawHostile(t)
		namespaces = append(namespaces, "other")
		var b NamespaceBackoff
		now := apitest.Epoch
		hasFailed := rapid.Bool().Draw(t, "it has failed once")
		known := rapid.Bool().Draw(t, "they have all been asked before")
		if known {
			for range len(all) + 1 {
				done, _ := askAll(&b, now, namespaces[:len(all)], all)
				now = done.Add(minNamespaceDelay)
			}
		}
		if hasFailed {
			b.Record("other", "image", errNoAnswer, now, now)
		}
		for range len(all) + 2 {
			done, served := askAll(&b, now, namespaces, all)
			if served["other"] {
				return
			}
			require.False(t, known && !hasFailed, "it goes first")
			require.Positive(t, b.RequeueAfter, "it is asked again")
			now = done.Add(max(b.RequeueAfter, minNamespaceDelay))
		}
		t.Fatal("the other namespace starves")
	})
}

// A reconcile ends soon, whatever webhooks do: then slots are freed, and given to others.
func TestReconcileEndsInBoundedTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		namespaces, all := drawHostile(t)
		done, _ := askAll(&NamespaceBackoff{}, apitest.Epoch, namespaces, all)
		require.Less(t, done.Sub(apitest.Epoch), maxRequestTime+31*time.Second)
	})
}

// Webhooks that hold up and refuse each request take a small part of the worker's time.
func TestSlowNamespacesTakeLittleTime(t *testing.T) {
	for name, err := range map[string]error{"refused": errWebhook, "no answer": errNoAnswer} {
		t.Run(name, func(t *testing.T) {
			all := map[string]hostile{}
			var namespaces []string
			for i := range 4 {
				namespaces = append(namespaces, fmt.Sprint("slow-", i))
				all[namespaces[i]] = hostile{30 * time.Second, err}
			}
			var b NamespaceBackoff
			now, busy := apitest.Epoch, time.Duration(0)
			for end := now.Add(4 * time.Hour); now.Before(end); {
				done, _ := askAll(&b, now, namespaces, all)
				busy += done.Sub(now)
				now = done.Add(max(b.RequeueAfter, time.Second))
			}
			assert.Less(t, busy, time.Hour)
		})
	}
}

// An object that always fails holds up no other of its namespace.
func TestOtherObjectsOfTheNamespaceHaveTheirTurn(t *testing.T) {
	var b NamespaceBackoff
	now := apitest.Epoch
	names := []string{"fails", "waits"}
	for range 2 {
		b.StartReconcile(now)
		for _, name := range InTurn(&b, names, func(name string) (string, string) { return "ns", name }) {
			if b.Skips("ns", now) {
				continue
			}
			if name == "waits" {
				return
			}
			b.Record("ns", name, errWebhook, now, now)
		}
		now = now.Add(b.RequeueAfter)
	}
	t.Fatal("the other object is not asked for")
}

// askInTurn asks each object of a namespace, of which those in failing fail, and returns when to ask
// again, and the objects that were served.
func askInTurn(b *NamespaceBackoff, now time.Time, names []string, failing map[string]bool) (next time.Time, served []string) {
	b.StartReconcile(now)
	for _, name := range InTurn(b, names, func(name string) (string, string) { return "ns", name }) {
		if b.Skips("ns", now) {
			continue
		}
		if failing[name] {
			b.Record("ns", name, errWebhook, now, now)
		} else {
			b.Record("ns", name, nil, now, now)
			served = append(served, name)
		}
	}
	return now.Add(max(b.RequeueAfter, minNamespaceDelay)), served
}

// Requests that all fail for a while are in order afterwards.
func TestOrderStaysWhileAllFail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NamespaceBackoff{KeepOrderFor: time.Minute}
		names := []string{"first", "second", "third"}
		began := apitest.Epoch
		if rapid.Bool().Draw(t, "another one has failed before, and is gone") {
			askInTurn(&b, began, []string{"former"}, map[string]bool{"former": true})
			began = began.Add(forgetAfter / 2)
		}
		now := began
		for range rapid.IntRange(0, 20).Draw(t, "failures") {
			now, _ = askInTurn(&b, now, names, map[string]bool{"first": true, "second": true, "third": true})
			if now.Sub(began) >= b.KeepOrderFor {
				return
			}
		}
		_, served := askInTurn(&b, now, names, nil)
		require.Equal(t, names, served)
	})
}

// An object that always fails holds up the others of its namespace once.
func TestOrderIsKeptForALimitedTime(t *testing.T) {
	b := NamespaceBackoff{KeepOrderFor: time.Minute}
	failing := map[string]bool{"fails": true, "fails, too": true}
	names := []string{"fails", "fails, too", "waits"}
	now := apitest.Epoch
	for !slices.Contains(names[3:], "waits") {
		next, served := askInTurn(&b, now, names[:3], failing)
		names = append(names, served...)
		require.Less(t, now.Sub(apitest.Epoch), b.KeepOrderFor+2*maxNamespaceDelay, "the second, which fails at once, keeps it waiting as long again")
		now = next
	}
	for range 3 {
		var served []string
		now, served = askInTurn(&b, now, names[:3], failing)
		require.Equal(t, []string{"waits"}, served, "what has failed for long goes last, also after others have succeeded")
	}
	now, served := askInTurn(&b, now, names[:3], nil)
	require.Equal(t, []string{"waits", "fails", "fails, too"}, served)
	_, served = askInTurn(&b, now, names[:3], nil)
	require.Equal(t, names[:3], served, "what no longer fails has its place again")
}

// What failed is forgotten once nothing was asked of it for long, also where others succeed or fail.
func TestFailuresAreForgotten(t *testing.T) {
	b := NamespaceBackoff{KeepOrderFor: time.Minute}
	now := apitest.Epoch
	for i := range 100 {
		name := fmt.Sprint("attempt-", i)
		now, _ = askInTurn(&b, now, []string{name, "other"}, map[string]bool{name: true})
		now = now.Add(forgetAfter / 10)
	}
	require.Less(t, len(b.waiting["ns"].failed), 15)
}

// Where nothing fails, nothing leaves the order of the queue.
func TestOrderStaysWhereNothingFails(t *testing.T) {
	var b NamespaceBackoff
	b.Record("a", "image", nil, apitest.Epoch, apitest.Epoch.Add(lateAnswer-1))
	list := []string{"c", "a", "b"}
	assert.Equal(t, list, InTurn(&b, list, func(namespace string) (string, string) { return namespace, "image" }))
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
		"late refusal":          {results: []error{errWebhook}, took: 10 * time.Second, wantWait: maxNamespaceDelay},
		"late success":          {results: []error{nil}, took: 5 * time.Second},
		"a stalled API server":  {results: []error{stall}, took: 30 * time.Second, wantWait: maxNamespaceDelay},
		"it never answers":      {results: slices.Repeat([]error{stall}, 10), took: 30 * time.Second, wantWait: maxLateDelay},
		"no answer":             {results: []error{errNoAnswer}, wantWait: minNamespaceDelay},
		"many failures at once": {results: slices.Repeat([]error{errWebhook}, 40), wantWait: maxNamespaceDelay},
	} {
		t.Run(name, func(t *testing.T) {
			var b NamespaceBackoff
			now := apitest.Epoch
			for _, err := range tt.results {
				b.StartReconcile(now)
				b.Record("ns", "image", err, now.Add(-tt.took), now)
			}
			assert.Equal(t, tt.wantWait, b.RequeueAfter)
			assert.Equal(t, tt.wantWait > 0, b.Skips("ns", now.Add(max(tt.wantWait-1, 0))))
			b.StartReconcile(now)
			assert.False(t, b.Skips("ns", now.Add(tt.wantWait)))
			b.StartReconcile(now.Add(tt.wantWait + forgetAfter + 1))
			assert.Empty(t, b.waiting)
		})
	}
}
