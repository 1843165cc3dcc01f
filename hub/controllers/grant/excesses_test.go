package grant

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/budget"
)

// A member that reports 256 slots takes everything from the others for the tolerance,
// once, through elections and the removal of the member.
func TestLyingMemberHoldsUpOthersOnce(t *testing.T) {
	for _, removed := range []bool{false, true} {
		t.Run(fmt.Sprintf("removed %v", removed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestHub(t, "liar", "b")
				policy := map[string]string{"concurrency": "9", "fleetConcurrency": "4", "fleetExcessTolerance": "20m"}
				s.applyPolicy(policy)
				s.reconcile()
				begin, stoodStill, process := time.Now(), time.Duration(0), 0
				for time.Since(begin) < 3*time.Hour {
					if time.Since(begin) > 5*time.Minute && removed && len(s.reports) == 2 {
						require.NoError(t, s.live.Delete(t.Context(), s.getMember("liar")))
						delete(s.reports, "liar")
						s.reconcile()
						require.NoError(t, s.live.Delete(t.Context(), &v1alpha1.TransferGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-member-liar", Name: v1alpha1.MailboxName}}))
					}
					if !removed || len(s.reports) == 2 {
						s.reportDemand("liar", 256, 256)
					}
					if int(time.Since(begin)/time.Minute)%7 == 6 {
						process++
						name := fmt.Sprint("process ", process)
						s.elect(name)
						s.applyPolicy(policy)
						for member := range s.reports {
							s.confirm(member, name)
						}
					}
					s.acknowledgePlan("b", 0)
					s.reportDemand("b", 0, 9)
					s.reconcile()
					require.NoError(t, trigger.Sleep(t.Context(), time.Second))
					s.reconcile()
					if s.getGrant("b").Limits.Slots == 0 {
						stoodStill += time.Minute
					}
					if len(s.reports) == 2 {
						assert.Positive(t, s.Shares.ForMember("liar").Excess, "it shows from the first report on")
					}
					require.NoError(t, trigger.Sleep(t.Context(), time.Minute-time.Second))
				}
				t.Logf("the others stood still for %s", stoodStill)
				assert.GreaterOrEqual(t, stoodStill, 15*time.Minute, "what it claims counts")
				assert.LessOrEqual(t, stoodStill, 25*time.Minute, "once")
				assert.Equal(t, int32(2), s.getGrant("b").Limits.Slots, "beside what the liar was granted")
			})
		})
	}
}

// A hub that follows shortly after the end of the tolerance does not count what the member claims again.
func TestEndedExcessIsStoredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestHub(t, "liar", "b")
		s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4", "fleetExcessTolerance": "20m"})
		begin := time.Now()
		for _, after := range []time.Duration{0, 20*time.Minute - time.Second, 20*time.Minute + time.Second} {
			require.NoError(t, trigger.Sleep(t.Context(), time.Until(begin.Add(after))))
			s.reportDemand("liar", 256, 256)
			s.reconcile()
		}
		stored, err := parseExcesses(s.departures.configMap)
		require.NoError(t, err)
		assert.Equal(t, map[string]int64{"liar": 0}, stored.Members)
	})
}

// A damaged record is no reason to begin anew, or to go on without it.
func TestDamagedExcessRecordStopsLearning(t *testing.T) {
	s := newTestHub(t, "a")
	s.applyPolicy(map[string]string{"concurrency": "9", "fleetConcurrency": "4"})
	s.reportDemand("a", 256, 0)
	s.reconcile()
	require.NotNil(t, s.departures.configMap)
	cm := s.departures.configMap.DeepCopy()
	cm.Data[excessKey] = "{"
	require.NoError(t, s.live.Update(t.Context(), cm))
	s.elect("second")
	_, err := s.Reconcile(t.Context(), fleetRequest)
	require.ErrorContains(t, err, "key excess of ConfigMap ot-hub/ot-hub-departed")
	require.NoError(t, s.live.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
	delete(cm.Data, excessKey)
	require.NoError(t, s.live.Update(t.Context(), cm))
	_, err = s.Reconcile(t.Context(), fleetRequest)
	assert.NoError(t, err)
}

// The previous release did not store under which share attempts may have begun before the
// grant: what a member runs is no excess after the upgrade, once.
func TestGrantOfPreviousRelease(t *testing.T) {
	for name, tt := range map[string]struct {
		possible    string
		want, again int32
	}{
		"of the previous release":         {`{"slots":2,"seconds":1}`, 0, 2},
		"nothing ran before":              {`{"slots":2,"seconds":1,"ended":0}`, 2, 2},
		"what ran before":                 {`{"slots":2,"seconds":1,"ended":4}`, 0, 0},
		"no annotation: it gives nothing": {"", 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestHub(t, "a")
			s.applyPolicy(policyOfFour)
			s.reportDemand("a", 0, 2)
			s.reconcile()
			g := &v1alpha1.TransferGrant{}
			require.NoError(t, s.live.Get(t.Context(), client.ObjectKey{Namespace: "ot-member-a", Name: v1alpha1.MailboxName}, g))
			require.Equal(t, int32(2), g.Spec.Limits.Slots)
			g.Annotations[annotationPossible] = tt.possible
			require.NoError(t, s.live.Update(t.Context(), g))
			s.acknowledgePlan("a", 4)
			elect := func(challenge string) int32 {
				s.elect(challenge)
				s.applyPolicy(policyOfFour)
				s.reports["a"].Report.Transfers.Nonce = ""
				s.confirm("a", challenge)
				s.reconcile()
				s.reconcile()
				return s.Shares.ForMember("a").Excess
			}
			assert.Equal(t, tt.want, elect("second"))
			assert.Equal(t, tt.again, elect("third"), "what is unknown counts once")
		})
	}
}

// The next process knows who is a witness of a restore, and for how long.
func TestWitnessesAreStored(t *testing.T) {
	now := time.Now()
	stored := storedExcesses{
		Members: map[string]int64{"joined": 0, "witness": 60, "restored": 9}, Witnesses: map[string]int64{"witness": 70},
		AfterRestore: map[string]bool{"restored": true}, RestoredSeconds: 9,
	}
	read, err := parseExcesses(&corev1.ConfigMap{Data: map[string]string{excessKey: stored.String()}})
	require.NoError(t, err)
	accountant := budget.NewAccountant()
	read.learn(accountant, now)
	assert.Equal(t, stored, encodeExcesses(accountant, now))
	assert.True(t, stored.sameMembers(read))
	read.Witnesses["joined"] = 5
	assert.False(t, read.sameMembers(stored))
	read.Witnesses, read.AfterRestore = stored.Witnesses, nil
	assert.False(t, read.sameMembers(stored))
}

// A member that reports and never confirms that the hub's copy is current holds up the
// others for a bounded time.
func TestUnconfirmedMemberDelaysOthersForBoundedTime(t *testing.T) {
	policy := map[string]string{"concurrency": "9", "fleetConcurrency": "4"}
	s := newTestHub(t, "liar", "b")
	s.elect("second")
	s.applyPolicy(policy)
	s.confirm("b", "second")
	s.reportDemand("liar", 0, 0)
	s.reportDemand("b", 0, 4)
	s.reconcile()
	s.startedAt = time.Now().Add(-maxConfirmDelay + time.Minute)
	s.reportDemand("b", 0, 4)
	s.reconcile()
	require.Zero(t, s.getGrant("b").Limits.Slots)
	s.startedAt = time.Now().Add(-maxConfirmDelay)
	s.reportDemand("b", 0, 4)
	s.reconcile()
	assert.Equal(t, int32(4), s.getGrant("b").Limits.Slots)
}
