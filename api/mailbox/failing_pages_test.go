package mailbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var errWebhook = apierrors.NewInternalError(errors.New("failed calling webhook"))

// writePages writes pages and a root that lists them.
func (r *activityRelay) writePages(names ...string) {
	r.t.Helper()
	var refs []v1alpha1.PageRef
	for _, name := range names {
		r.write(name, func(o *v1alpha1.ClusterReport) { o.Page = &v1alpha1.ReportPage{} })
		refs = append(refs, v1alpha1.PageRef{Name: name, Sequence: 1})
	}
	r.write(v1alpha1.MailboxName, func(o *v1alpha1.ClusterReport) { o.Root.Pages = refs })
}

// beatFor has the agent write a root every second, each of which is synced, and returns how long the
// hub's root stayed older at most.
func (r *activityRelay) beatFor(d time.Duration) (silence time.Duration) {
	r.t.Helper()
	last := time.Now()
	for end := last.Add(d); time.Now().Before(end); {
		r.write(v1alpha1.MailboxName, func(*v1alpha1.ClusterReport) {})
		if up, _ := r.SyncUp(r.t.Context(), "u"); up.RootSequence > 0 {
			silence, last = max(silence, time.Since(last)), time.Now()
		}
		require.NoError(r.t, trigger.Sleep(r.t.Context(), time.Second))
	}
	return max(silence, time.Since(last))
}

// copiedNames returns the names of the hub's copies.
func (r *activityRelay) copiedNames() (names []string) {
	r.t.Helper()
	var list v1alpha1.ClusterReportList
	require.NoError(r.t, r.Hub.Live.List(r.t.Context(), &list, client.InNamespace(r.Hub.Namespace)))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// A webhook of the hub that is down for one page, or denies with a code of its own, must not make the
// member silent.
func TestFailingPageDoesNotHoldTheRoot(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("clusterreports").GroupResource()
	denial := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: "admission webhook denied the request"}}
	}
	for name, failure := range map[string]error{
		"a webhook is down":              errWebhook,
		"a webhook denies with 503":      denial(503),
		"a webhook denies with 404":      denial(404),
		"a webhook denies with 429":      denial(429),
		"a webhook denies with 409":      apierrors.NewConflict(resource, "page-1", errors.New("denied")),
		"the client does not wait":       fmt.Errorf("Put \"https://10.0.0.1\": %w", context.DeadlineExceeded),
		"a webhook that does not answer": apierrors.NewTimeoutError("request did not complete within the allotted timeout", 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newActivityRelay(t)
				tries := 0
				r.failure = func(name string) error {
					if name == "page-1" || name == "page-2" {
						tries++
						return failure
					}
					return nil
				}
				r.writePages("page-0", "page-1", "page-2", "page-3")
				up, err := r.SyncUp(t.Context(), "u")
				require.ErrorIs(t, err, failure, "what passes is not shown as missing")
				assert.Zero(t, up.RootSequence)
				assert.LessOrEqual(t, r.beatFor(time.Minute), LastingFailure+time.Second)
				assert.Equal(t, []string{v1alpha1.MailboxName, "page-0", "page-3"}, r.copiedNames())

				tries = 0
				assert.LessOrEqual(t, r.beatFor(10*time.Minute), time.Second, "each try again holds the root")
				assert.LessOrEqual(t, tries, 2*11, "they are tried each minute")
				r.write(v1alpha1.MailboxName, func(*v1alpha1.ClusterReport) {})
				up, err = r.SyncUp(t.Context(), "u")
				assert.True(t, up.OnlyRefused, "a recheck would find no more")
				assert.True(t, IsRefused(err), "it is not the replica that fails")
				assert.False(t, apierrors.IsConflict(err), "it would be tried again at once")

				r.failure = nil
				require.NoError(t, trigger.Sleep(t.Context(), RefusedPageDelay))
				r.sync()
				assert.Len(t, r.copiedNames(), 5)
			})
		})
	}
}

// A webhook that does not answer holds up each page for as long as its timeout.
func TestHangingPagesDoNotHoldTheRoot(t *testing.T) {
	const timeout = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		r := newActivityRelay(t)
		r.failure = func(name string) error {
			if name == v1alpha1.MailboxName {
				return nil
			}
			return errors.Join(trigger.Sleep(t.Context(), timeout), errWebhook)
		}
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("page-%d", i))
		}
		r.writePages(names...)
		assert.LessOrEqual(t, r.beatFor(10*time.Minute), timeout+MaxFailedPageTime+time.Second)
	})
}

// A hub that takes nothing for a while says nothing about pages: they are copied once it is back.
func TestFailureOfHubIsNoFailureOfPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newActivityRelay(t)
		r.failure = func(string) error { return errWebhook }
		r.writePages("page-0", "page-1")
		r.beatFor(10 * time.Minute)
		assert.Empty(t, r.copiedNames())
		_, err := r.SyncUp(t.Context(), "u")
		assert.False(t, IsRefused(err), "the status would blame the member")
		r.failure = nil
		r.sync()
		assert.Len(t, r.copiedNames(), 3)
	})
}

// A failure that is over says nothing about one that comes long after.
func TestFailureOfPageThatIsOverIsForgotten(t *testing.T) {
	for name, tt := range map[string]struct{ unlisted bool }{
		"since the page was copied":         {},
		"since the root lists it no longer": {unlisted: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newActivityRelay(t)
				r.failure = func(string) error { return errWebhook }
				r.writePages("page-0")
				_, err := r.SyncUp(t.Context(), "u")
				require.Error(t, err)
				r.failure = nil
				if tt.unlisted {
					r.writePages("page-1")
				}
				r.sync()
				require.NoError(t, trigger.Sleep(t.Context(), time.Hour))
				r.failure = func(name string) error {
					if name == v1alpha1.MailboxName {
						return nil
					}
					return errWebhook
				}
				r.writePages("page-0", "page-2")
				up, err := r.SyncUp(t.Context(), "u")
				require.Error(t, err)
				assert.False(t, IsRefused(err), "another try may do")
				assert.Zero(t, up.RootSequence)
			})
		})
	}
}
