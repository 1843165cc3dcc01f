package report

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// activityMember counts what is written of the activity. Time passes by making it due.
type activityMember struct {
	*fakeMember
	t      *testing.T
	writes int
	// drops and refuses are what the API server does with the activity.
	drops, refuses bool
}

func newActivityMember(t *testing.T) *activityMember {
	t.Helper()
	m := &activityMember{fakeMember: newFakeMember(t, 1), t: t}
	m.startProcess()
	m.report()
	return m
}

func (m *activityMember) startProcess() {
	m.fakeMember.startProcess()
	m.r.Client = m
}

func (m *activityMember) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if err := m.intercept(obj); err != nil {
		return err
	}
	return m.fakeMember.Create(ctx, obj, opts...)
}

func (m *activityMember) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	if err := m.intercept(obj); err != nil {
		return err
	}
	return m.fakeMember.Update(ctx, obj, opts...)
}

func (m *activityMember) intercept(obj client.Object) error {
	if obj.GetName() != v1alpha1.ActivityName {
		return nil
	}
	m.writes++
	if m.refuses {
		return apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("ClusterReport").GroupKind(), obj.GetName(), nil)
	}
	if m.drops {
		obj.(*v1alpha1.ClusterReport).Activity = nil
	}
	return nil
}

// report reconciles once, and returns when to do so again.
func (m *activityMember) report() time.Duration {
	m.t.Helper()
	m.r.served.Store(true)
	result, err := m.r.Reconcile(m.t.Context(), reconcile.Request{})
	require.NoError(m.t, err)
	return result.RequeueAfter
}

// passHeartbeat makes the next activity due.
func (m *activityMember) passHeartbeat() { m.r.activity.nextAt = time.Time{} }

func (m *activityMember) stored() *v1alpha1.ClusterReport {
	m.t.Helper()
	report := &v1alpha1.ClusterReport{}
	require.NoError(m.t, m.fakeMember.Client.Get(m.t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.ActivityName}, report))
	return report
}

func (m *activityMember) setWaiting(state ledger.QueueState) {
	m.r.Queue.Set(ledger.QueuedImage{Image: v1alpha1.ImageKey{Namespace: "lab", Name: "image-0", UID: "image-0"}, State: state})
}

func TestActivityIsWrittenWhileSomethingWaits(t *testing.T) {
	m := newActivityMember(t)
	assert.Equal(t, 1, m.writes, "each process says once what it does")
	assert.Equal(t, "boot", m.stored().Activity.BootID)
	m.passHeartbeat()
	m.report()
	assert.Equal(t, 1, m.writes, "nothing waits")

	m.setWaiting(ledger.Skipped)
	for range 3 {
		assert.Positive(t, m.report())
	}
	assert.Equal(t, 2, m.writes, "at most one per heartbeat")
	assert.EqualValues(t, 1, m.stored().Activity.Queued)
	assert.Equal(t, "image-0", m.stored().Activity.Head[0].Name)
	for range 2 {
		m.passHeartbeat()
		m.report()
	}
	assert.Equal(t, 4, m.writes)

	m.setWaiting(ledger.NotQueued)
	m.report()
	assert.Equal(t, 4, m.writes, "not before the heartbeat")
	version := ""
	for range 3 {
		m.passHeartbeat()
		m.report()
		assert.Zero(t, m.stored().Activity.Queued)
		if version != "" {
			assert.Equal(t, version, m.stored().ResourceVersion)
		}
		version = m.stored().ResourceVersion
	}
	assert.Equal(t, 5, m.writes, "the last one says that nothing waits")

	m.startProcess()
	m.report()
	assert.Equal(t, 6, m.writes)
	assert.Positive(t, m.stored().Sequence)
}

// TestRatesOfLastImportAreWritten: the ledger shows that the last slot is free before its image shows
// that it is imported.
func TestRatesOfLastImportAreWritten(t *testing.T) {
	m := newActivityMember(t)
	started := metav1.NewTime(time.Now().Truncate(time.Second).Add(time.Second))
	img := apitest.Image("lab/last").WithURL("https://images.example.com/last").WithDiskSize("1Gi").
		WithRevisions(v1alpha1.RevisionStatus{Attempt: 1, StartedAt: &started}).Obj()
	m.r.observeRates(img)
	m.passHeartbeat()
	m.report()
	assert.Equal(t, 1, m.writes)

	img.Status.BytesDone, img.Status.BytesTotal = 100, 100
	rev := &img.Status.Revisions[0]
	rev.AttemptEnded, rev.Outcome, rev.ImportedAt = 1, v1alpha1.OutcomeSucceeded, new(metav1.NewTime(started.Add(10*time.Second)))
	m.r.observeRates(img)
	for range 3 {
		m.passHeartbeat()
		m.report()
	}
	assert.Equal(t, 2, m.writes)
	require.Len(t, m.stored().Activity.Rates, 1)
	assert.EqualValues(t, 10, m.stored().Activity.Rates[0].P50)
	assert.EqualValues(t, 100, m.stored().Activity.Rates[0].TransferredBytes)
}

// TestActivityIsWrittenAgainIfSomebodyChangedIt: readers must not take it for what the agent
// says.
func TestActivityIsWrittenAgainIfSomebodyChangedIt(t *testing.T) {
	m := newActivityMember(t)
	sequence := m.stored().Sequence
	edited := m.stored()
	edited.Activity.Slots = 7
	require.NoError(t, m.fakeMember.Client.Update(t.Context(), edited))
	m.r.changes.objectChanged(v1alpha1.ActivityName, edited.ResourceVersion)
	m.passHeartbeat()
	m.report()
	assert.Zero(t, m.stored().Activity.Slots)
	assert.Greater(t, m.stored().Sequence, sequence)

	require.NoError(t, m.fakeMember.Client.Delete(t.Context(), m.stored()))
	m.r.changes.objectChanged(v1alpha1.ActivityName, "")
	m.passHeartbeat()
	m.report()
	assert.Greater(t, m.stored().Sequence, sequence+1)
	assert.Equal(t, 3, m.writes)
}

// TestReportGoesOnWithoutActivity: the member's definitions may be of an older version, which
// refuses the name or drops the field.
func TestReportGoesOnWithoutActivity(t *testing.T) {
	for name, set := range map[string]func(*activityMember){
		"refused": func(m *activityMember) { m.refuses = true },
		"dropped": func(m *activityMember) { m.drops = true },
	} {
		t.Run(name, func(t *testing.T) {
			m := newActivityMember(t)
			m.r.Heartbeat = time.Minute
			set(m)
			m.setWaiting(ledger.Admissible)
			m.passHeartbeat()
			before := m.writes
			for range 5 {
				m.changeImage(imageKey(0), false)
				m.deliverEvents()
				m.report()
			}
			assert.Equal(t, before+1, m.writes, "not again and again")
			assert.Greater(t, time.Until(m.r.activity.nextAt), refusedActivityDelay/2)
			assert.EqualValues(t, 1, m.readRoot(t).Images)

			m.refuses, m.drops = false, false
			m.passHeartbeat()
			m.report()
			assert.EqualValues(t, 1, m.stored().Activity.Queued, "somebody has upgraded them")
		})
	}
}

// TestActivityIsNoPageOfReport: the agent deletes pages that the root does not list.
func TestActivityIsNoPageOfReport(t *testing.T) {
	m := newActivityMember(t)
	uid := m.stored().UID
	for range 3 {
		m.changeImage(imageKey(0), false)
		m.deliverEvents()
		m.report()
	}
	assert.Equal(t, uid, m.stored().UID)
	assert.Len(t, m.readRoot(t).Pages, 1)
}
