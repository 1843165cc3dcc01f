package report

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
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Whatever refuses a page, the agent still beats, and the hub does not take images that are not shown
// for images that are not there.
func TestRefusedPageIsOmitted(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("clusterreports").GroupResource()
	for name, refusal := range map[string]error{
		"a policy or an older CRD": apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ClusterReport").GroupKind(), "page", nil),
		"a quota or a webhook":     apierrors.NewForbidden(resource, "page", errors.New("exceeded quota: count/clusterreports.pelotech.ot")),
		"its size":                 apierrors.NewRequestEntityTooLargeError("limit is 3145728"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newFakeMember(t, 3)
				writeRoot := func() *v1alpha1.ReportRoot {
					t.Helper()
					more, err := m.writeReport(t.Context())
					require.NoError(t, err)
					assert.False(t, more)
					stored := &v1alpha1.ClusterReport{}
					require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.MailboxName}, stored))
					return stored.Root
				}
				m.refusePage = func() error { return refusal }
				root := writeRoot()
				assert.EqualValues(t, 3, root.Images)
				assert.EqualValues(t, 3, root.OmittedImages)
				assert.Empty(t, root.Pages)

				tries := 0
				m.refusePage = func() error { tries++; return refusal }
				m.changeImage(imageKey(1), false)
				m.deliverEvents()
				assert.EqualValues(t, 3, writeRoot().OmittedImages)
				assert.Zero(t, tries, "it is tried again at once")
				require.NoError(t, trigger.Sleep(t.Context(), mailbox.RefusedPageDelay)) // by the clock of the bubble
				m.refusePage = nil
				root = writeRoot()
				assert.Zero(t, root.OmittedImages)
				assert.Len(t, root.Pages, 1)

				m.refusePage = func() error { return refusal }
				m.changeImage(imageKey(0), false)
				m.deliverEvents()
				root = writeRoot()
				assert.EqualValues(t, 3, root.OmittedImages, "they are shown as they were")
				assert.Len(t, root.Pages, 1)
			})
		})
	}
}

// A webhook for pages that is down, or denies with a code of its own, must not make the member silent.
func TestFailingPageIsOmittedOnceItLasts(t *testing.T) {
	resource := v1alpha1.GroupVersion.WithResource("clusterreports").GroupResource()
	denial := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: "admission webhook denied the request"}}
	}
	for name, failure := range map[string]error{
		"a webhook is down":              apierrors.NewInternalError(errors.New("failed calling webhook")),
		"a webhook denies with 503":      denial(503),
		"a webhook denies with 401":      denial(401),
		"a webhook denies with 404":      denial(404),
		"a webhook denies with 405":      denial(405),
		"a webhook denies with 409":      denial(409),
		"a webhook denies with 418":      denial(418),
		"a webhook denies with 429":      denial(429),
		"a conflict over nothing":        apierrors.NewConflict(resource, "page", errors.New("denied")),
		"one that exists nowhere":        apierrors.NewAlreadyExists(resource, "page"),
		"the client does not wait":       fmt.Errorf("Put \"https://10.0.0.1\": %w", context.DeadlineExceeded),
		"a webhook that does not answer": apierrors.NewTimeoutError("request did not complete within the allotted timeout", 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newFakeMember(t, 300)
				m.refusePage = func() error { return failure }
				reportFor := func(d time.Duration) (failed int) {
					for end := time.Now().Add(d); time.Now().Before(end); {
						if _, err := m.writeReport(t.Context()); err != nil {
							failed++
						}
						require.NoError(t, trigger.Sleep(t.Context(), maxRetryDelay))
					}
					return failed
				}
				assert.Positive(t, reportFor(mailbox.LastingFailure), "what passes is not shown as missing")
				first := m.readRoot(t)
				assert.Positive(t, first.OmittedImages)
				assert.Zero(t, reportFor(5*time.Minute))
				m.r.Heartbeat = time.Second
				last := m.readRoot(t)
				assert.Greater(t, last.ObservedAt.Unix(), first.ObservedAt.Unix(), "the agent goes on beating")
				assert.EqualValues(t, 300, last.OmittedImages)
				m.r.Heartbeat = time.Hour

				m.refusePage = nil
				assert.Zero(t, reportFor(2*mailbox.RefusedPageDelay))
				root := m.readRoot(t)
				assert.Zero(t, root.OmittedImages)
				pages := len(root.Pages)
				require.Greater(t, pages, 1)

				m.refusePage = func() error { return failure }
				m.changeImage(imageKey(0), false)
				m.deliverEvents()
				_, err := m.writeReport(t.Context())
				require.Error(t, err, "another try may do")
				reportFor(mailbox.LastingFailure)
				root = m.readRoot(t)
				assert.Len(t, root.Pages, pages)
				assert.Positive(t, root.OmittedImages, "they are shown as they were")
				assert.Less(t, root.OmittedImages, int32(300), "other pages are as stored")
			})
		})
	}
}

// A webhook that does not answer holds up each page for as long as its timeout, or the client's.
func TestHangingPagesDoNotDelayTheRoot(t *testing.T) {
	for name, tt := range map[string]struct {
		answer error
		after  time.Duration
		// wantWritten is when the second root is written.
		wantWritten time.Duration
		// wantWithin bounds the time of two reports, and the pause between them.
		wantWithin time.Duration
	}{
		"of a webhook": {apierrors.NewInternalError(errors.New("failed calling webhook: context deadline exceeded")), 10 * time.Second, 30 * time.Second, time.Minute},
		"no answer":    {context.DeadlineExceeded, 30 * time.Second, 90 * time.Second, 62 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newFakeMember(t, 300)
				m.r.Heartbeat = time.Second
				m.refusePage = func() error { return errors.Join(trigger.Sleep(t.Context(), tt.after), tt.answer) }
				began := time.Now()
				for range 2 {
					_, _ = m.writeReport(t.Context())
				}
				written := m.readRoot(t).ObservedAt
				assert.WithinDuration(t, began.Add(tt.wantWritten), written.Time, 15*time.Second)
				for range 20 {
					_, err := m.writeReport(t.Context())
					require.NoError(t, err)
					next := m.readRoot(t).ObservedAt
					assert.Less(t, next.Sub(written.Time), tt.wantWithin)
					written = next
					require.NoError(t, trigger.Sleep(t.Context(), time.Second))
				}
			})
		})
	}
}

// A write that the API server answers with a failure may be stored all the same.
func TestFailingPageThatIsStoredIsNotOmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember(t, 3)
		m.storesRefused = true
		m.refusePage = func() error { return apierrors.NewTimeoutError("no answer of etcd", 1) }
		_, err := m.writeReport(t.Context())
		require.NoError(t, err)
		root := m.readRoot(t)
		assert.Zero(t, root.OmittedImages)
		assert.Len(t, root.Pages, 1)
	})
}

// A failure that is over says nothing about one that comes long after.
func TestFailureThatIsOverIsForgotten(t *testing.T) {
	timeout, hiccup := apierrors.NewTimeoutError("no answer of etcd", 1), apierrors.NewInternalError(errors.New("a single hiccup"))
	for name, tt := range map[string]struct {
		stored bool
		undone bool
	}{
		"since the page was stored all the same": {stored: true},
		"since the page needs no write any more": {undone: true},
		"since another write has succeeded":      {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newFakeMember(t, 300)
				writeAll := func() {
					t.Helper()
					for range 4 {
						_, err := m.writeReport(t.Context())
						require.NoError(t, err)
					}
					assert.Zero(t, m.readRoot(t).OmittedImages)
				}
				writeAll()
				stamp := m.images[imageKey(0)]
				m.storesRefused, m.refusePage = tt.stored, func() error { return timeout }
				m.changeImage(imageKey(0), false)
				m.deliverEvents()
				_, err := m.writeReport(t.Context())
				assert.Equal(t, !tt.stored, err != nil)
				m.storesRefused, m.refusePage = false, nil
				if tt.undone {
					m.images[imageKey(0)] = stamp
					m.pendingEvents = append(m.pendingEvents, imageKey(0))
					m.deliverEvents()
				}
				writeAll()
				require.NoError(t, trigger.Sleep(t.Context(), 24*time.Hour))
				failed := 0
				m.refusePage = func() error {
					if failed++; failed == 1 {
						return hiccup
					}
					return nil
				}
				m.changeImage(imageKey(299), false)
				m.deliverEvents()
				_, err = m.writeReport(t.Context())
				require.Error(t, err, "it is repeated soon")
				assert.Zero(t, m.readRoot(t).OmittedImages)
			})
		})
	}
}

// A page that another writer has changed is no failure, however often that happens.
func TestPageOfAnotherWriterIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember(t, 3)
		_, err := m.writeReport(t.Context())
		require.NoError(t, err)
		name := m.r.paginator.Pages()[0].Name
		m.refusePage = func() error {
			page := &v1alpha1.ClusterReport{}
			require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, page))
			page.Page.Images = nil
			return m.Client.Update(t.Context(), page)
		}
		m.changeImage(imageKey(0), false)
		m.deliverEvents()
		for range 4 {
			_, err = m.writeReport(t.Context())
			require.ErrorIs(t, err, errReportChanged)
			require.NoError(t, trigger.Sleep(t.Context(), mailbox.LastingFailure))
		}
		m.refusePage = nil
		_, err = m.writeReport(t.Context())
		require.NoError(t, err)
		assert.Zero(t, m.readRoot(t).OmittedImages)
	})
}

// Its page is as it was read since: it answers the plan that it did.
func TestDeniedPageIsNotStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember(t, 3)
		_, err := m.writeReport(t.Context())
		require.NoError(t, err)
		m.refusePage = func() error { return &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Message: "denied"}} }
		m.changeImage(imageKey(0), false)
		m.deliverEvents()
		_, err = m.writeReport(t.Context())
		require.ErrorIs(t, err, errReportChanged)
		assert.Empty(t, m.r.changes.takeStaleObjects())
	})
}
