package report

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
				require.NoError(t, trigger.Sleep(t.Context(), refusedPageDelay)) // by the clock of the bubble
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
	denial := &apierrors.StatusError{ErrStatus: metav1.Status{Code: 503, Message: "admission webhook denied the request"}}
	for name, failure := range map[string]error{
		"a webhook is down":              apierrors.NewInternalError(errors.New("failed calling webhook")),
		"a webhook denies with 503":      denial,
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
				assert.Positive(t, reportFor(lastingFailure), "what passes is not shown as missing")
				first := m.readRoot(t)
				assert.Positive(t, first.OmittedImages)
				assert.Zero(t, reportFor(5*time.Minute))
				m.r.Heartbeat = time.Second
				last := m.readRoot(t)
				assert.Greater(t, last.ObservedAt.Unix(), first.ObservedAt.Unix(), "the agent goes on beating")
				assert.EqualValues(t, 300, last.OmittedImages)
				m.r.Heartbeat = time.Hour

				m.refusePage = nil
				assert.Zero(t, reportFor(2*refusedPageDelay))
				root := m.readRoot(t)
				assert.Zero(t, root.OmittedImages)
				pages := len(root.Pages)
				require.Greater(t, pages, 1)

				m.refusePage = func() error { return failure }
				m.changeImage(imageKey(0), false)
				m.deliverEvents()
				_, err := m.writeReport(t.Context())
				require.Error(t, err, "another try may do")
				reportFor(lastingFailure)
				root = m.readRoot(t)
				assert.Len(t, root.Pages, pages)
				assert.Positive(t, root.OmittedImages, "they are shown as they were")
				assert.Less(t, root.OmittedImages, int32(300), "other pages are as stored")
			})
		})
	}
}

// A webhook that does not answer holds up each page for as long as its timeout.
func TestHangingPagesDoNotDelayTheRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember(t, 300)
		m.r.Heartbeat = time.Second
		m.refusePage = func() error {
			return errors.Join(trigger.Sleep(t.Context(), 10*time.Second), apierrors.NewInternalError(errors.New("failed calling webhook: context deadline exceeded")))
		}
		began := time.Now()
		for range 2 {
			_, _ = m.writeReport(t.Context())
		}
		written := m.readRoot(t).ObservedAt
		assert.WithinDuration(t, began.Add(30*time.Second), written.Time, 15*time.Second)
		for range 20 {
			_, err := m.writeReport(t.Context())
			require.NoError(t, err)
			next := m.readRoot(t).ObservedAt
			assert.Less(t, next.Sub(written.Time), time.Minute)
			written = next
			require.NoError(t, trigger.Sleep(t.Context(), time.Second))
		}
	})
}

// A write that the API server answers with a failure may be stored all the same.
func TestFailingPageThatIsStoredIsNotOmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newFakeMember(t, 3)
		m.storesRefused = true
		m.refusePage = func() error { return apierrors.NewTimeoutError("no answer of etcd", 1) }
		_, err := m.writeReport(t.Context())
		require.Error(t, err)
		root := m.readRoot(t)
		assert.Zero(t, root.OmittedImages)
		assert.Len(t, root.Pages, 1)
	})
}
