package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	// The future: by the wall clock, slots that start then are new.
	opens  = time.Date(2040, 6, 1, 22, 0, 0, 0, time.UTC)
	closes = opens.Add(8 * time.Hour)
)

// newWindowMember is a member under a plan whose window lets concurrency imports run at night.
func newWindowMember(t *testing.T, plain, concurrency int32, images int) (m *fleetMember, now *time.Time) {
	m = newFleetMember(t, 0, queuedImages(images)...)
	now = ptr.To(opens.Add(-time.Hour))
	m.Now = func() time.Time { return *now }
	m.Policy.Now = m.Now
	p := policy.Default()
	p.Concurrency = plain
	p.Windows = policy.Windows{{Cron: "0 22 * * *", Duration: 8 * time.Hour, Concurrency: &concurrency}}
	m.updatePlan(p)
	return m, now
}

func (m *fleetMember) updatePlan(p policy.Policy) {
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(m.t, m.Client.Get(m.t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.MailboxName}, plan))
	plan.Spec.Sequence++
	plan.Spec.Policy = p.ToData()
	require.NoError(m.t, m.Client.Update(m.t.Context(), plan))
}

// takeFromQueue removes the images with a slot, as the handler of their events does.
func (m *fleetMember) takeFromQueue() {
	for _, slot := range m.storedStatus().Slots {
		m.Queue.Remove(slot.Image.UID)
	}
}

// deleteImagesWithSlots deletes the images with a slot, and their DataVolumes.
func (m *fleetMember) deleteImagesWithSlots() {
	for _, slot := range m.storedStatus().Slots {
		require.NoError(m.t, m.Client.Delete(m.t.Context(), &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: slot.DataVolume}}))
		img := &v1alpha1.VMDiskImage{}
		key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.Image.Name}
		require.NoError(m.t, m.Client.Get(m.t.Context(), key, img))
		img.Finalizers = nil
		require.NoError(m.t, m.Client.Update(m.t.Context(), img))
		require.NoError(m.t, client.IgnoreNotFound(m.Client.Delete(m.t.Context(), img)))
	}
}

// Nothing starts before the window opens; what runs when it closes runs on, and nothing new
// starts. A restart, and a clock that is set back, change nothing about that.
func TestWindowsOfThePlan(t *testing.T) {
	m, now := newWindowMember(t, 0, 2, 4)
	assert.Equal(t, maxEdgeDelay, m.mustReconcile().RequeueAfter)
	require.Empty(t, m.namesWithSlots())
	require.NotNil(t, m.PolicyInForce.Opening())
	assert.Equal(t, opens, m.PolicyInForce.Opening().At)
	assert.Equal(t, v1alpha1.InForceConcurrency{ChangesAt: toTime(opens), OpensAt: toTime(opens)}, *m.storedStatus().InForce)
	assert.Contains(t, meta.FindStatusCondition(m.storedStatus().Conditions, v1alpha1.ConditionPolicyAccepted).Message,
		"concurrency is 0 until 2040-06-01T22:00:00Z at least, and 2 from 2040-06-01T22:00:00Z on")
	assert.Zero(t, m.Queue.Stats().OldestArrival, "what waits for a window is no age")

	*now = opens.Add(-time.Second)
	assert.Equal(t, time.Second, m.mustReconcile().RequeueAfter, "exactly at the edge")
	require.Empty(t, m.namesWithSlots())

	*now = opens
	m.mustReconcile()
	require.Equal(t, []string{"img-0", "img-1"}, m.namesWithSlots())
	m.takeFromQueue()
	assert.Equal(t, v1alpha1.InForceConcurrency{Concurrency: 2, ChangesAt: toTime(closes)}, *m.storedStatus().InForce)
	assert.Equal(t, opens, m.Queue.Stats().OldestArrival, "they have waited for a slot since it opened")

	*now = closes
	m.mustReconcile()
	assert.Equal(t, []string{"img-0", "img-1"}, m.namesWithSlots(), "they run on")
	assert.Zero(t, m.storedStatus().Budget)
	m.deleteImagesWithSlots()
	m.startProcess("toob")
	m.mustReconcile()
	assert.Empty(t, m.namesWithSlots(), "a slot that is freed is not taken, also after a restart")

	*now = closes.Add(-time.Minute) // the clock is set back into the window
	m.mustReconcile()
	assert.Equal(t, []string{"img-2", "img-3"}, m.namesWithSlots())
}

// The window closes after the decision, before its write.
func TestWindowThatClosesBeforeTheWrite(t *testing.T) {
	m, now := newWindowMember(t, 0, 2, 1)
	*now = closes.Add(-time.Second)
	m.beforeRead = func() { *now = closes }
	m.mustReconcile()
	assert.Empty(t, m.namesWithSlots())
	assert.Zero(t, m.storedStatus().Budget)
}

// Outside the window some may run: of the others those wait for it that it lets run.
func TestWaitingForAWindowBesideWhatRuns(t *testing.T) {
	m, now := newWindowMember(t, 1, 3, 5)
	m.mustReconcile()
	require.Equal(t, []string{"img-0"}, m.namesWithSlots())
	m.takeFromQueue()
	m.mustReconcile()
	images := queuedImages(5)
	for i, want := range []v1alpha1.Reason{"", v1alpha1.ReasonWaitingForWindow, v1alpha1.ReasonWaitingForWindow, "", ""} {
		assert.Equal(t, want, m.Queue.WithheldReason(images[i].UID), "img-%d", i)
	}
	*now = opens
	m.mustReconcile()
	assert.Equal(t, []string{"img-0", "img-1", "img-2"}, m.namesWithSlots())
	m.takeFromQueue()
	m.mustReconcile()
	assert.Empty(t, m.Queue.WithheldReason(images[3].UID), "it waits for a slot")
}

func toTime(t time.Time) *metav1.Time { return &metav1.Time{Time: t.Local()} }
