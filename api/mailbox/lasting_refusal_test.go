package mailbox

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestLastingRefusalCostsHubLittle: an object that stays refused is sent each minute at most, or
// when it changes, and the copies of the others are not listed with each sync. After an upgrade of
// the agents before the hub, that is so for a whole fleet.
func TestLastingRefusalCostsHubLittle(t *testing.T) {
	const pages, beat, retry, hour = 20, 20 * time.Second, 10 * time.Second, time.Hour
	const beats, retries, rechecks, minutes = int(hour / beat), int(hour / retry), int(hour / recheckInterval), int(hour / RefusedPageDelay)
	for name, tt := range map[string]struct {
		hubRefuses, memberRefuses string
		want                      map[string]int // at most so many requests to the hub
	}{
		"nothing is refused": {want: map[string]int{"list": rechecks, "get": 2 * rechecks, "update": rechecks}},
		"a page":             {hubRefuses: "page-7", want: map[string]int{"list": rechecks, "get": minutes + 2*rechecks, "create": minutes, "update": rechecks}},
		"the root":           {hubRefuses: v1alpha1.MailboxName, want: map[string]int{"list": rechecks, "get": retries, "create": beats}},
		"the plan":           {memberRefuses: v1alpha1.MailboxName, want: map[string]int{"list": rechecks, "get": retries + 2*rechecks, "update": rechecks}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub, member := newCountedSide(t, "ot-member-a"), newCountedSide(t, "ot-agent")
				hub.refuses, member.refuses = tt.hubRefuses, tt.memberRefuses
				root := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, ClusterUID: "a", Root: &v1alpha1.ReportRoot{}}
				for i := range pages {
					page := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: fmt.Sprintf("page-%d", i)}, ClusterUID: "a", Sequence: 1, Page: &v1alpha1.ReportPage{}}
					require.NoError(t, member.store.Create(t.Context(), page))
					root.Root.Pages = append(root.Root.Pages, v1alpha1.PageRef{Name: page.Name})
				}
				require.NoError(t, member.store.Create(t.Context(), root))
				plan := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: hub.Namespace, Name: v1alpha1.MailboxName}, Spec: v1alpha1.ClusterPlanSpec{ClusterUID: "a", PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}}}
				require.NoError(t, hub.store.Create(t.Context(), plan))

				relay, findings := Relay{Hub: hub.Side, Member: member.Side, Copies: &EqualCopies{}, SpareHeartbeats: true}, Findings{}
				sync := func() (failed bool) {
					began := time.Now()
					relay.Recheck = findings.NeedsRecheck(relay.Copies, began)
					up, upErr := relay.SyncUp(t.Context(), "a")
					down, downErr := relay.SyncDown(t.Context())
					relay.Copies.RecordSync(relay.Recheck, up, upErr, downErr, began)
					findings = findings.Merge(up, upErr, down, downErr)
					return upErr != nil || downErr != nil
				}
				sync()
				hub.takeAsked()
				for began := time.Now(); time.Since(began) < hour; apitest.AdvanceClock(retry) {
					if time.Since(began)%beat == 0 {
						root.Sequence++
						root.Root.ObservedAt = metav1.Now()
						require.NoError(t, member.store.Update(t.Context(), root))
					}
					assert.Equal(t, tt.hubRefuses+tt.memberRefuses != "", sync())
				}
				asked := map[string]int{}
				for _, request := range hub.takeAsked() {
					asked[request]++
				}
				t.Log(asked)
				for request, n := range asked {
					assert.LessOrEqual(t, n, tt.want[request], request)
				}
			})
		})
	}
}

// TestRootThatWasRefusedIsConfirmedLive: a sync that trusts caches may write a root that the hub
// accepts now, but the next one confirms the challenge.
func TestRootThatWasRefusedIsConfirmedLive(t *testing.T) {
	hub, member := newCountedSide(t, "ot-member-a"), newCountedSide(t, "ot-agent")
	hub.refuses = v1alpha1.MailboxName
	root := &v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: v1alpha1.MailboxName}, ClusterUID: "a", Sequence: 1, Root: &v1alpha1.ReportRoot{}}
	require.NoError(t, member.store.Create(t.Context(), root))
	relay, findings := Relay{Hub: hub.Side, Member: member.Side, Copies: &EqualCopies{}}, Findings{}
	sync := func() {
		root.Sequence++
		require.NoError(t, member.store.Update(t.Context(), root))
		began := time.Now()
		relay.Recheck = findings.NeedsRecheck(relay.Copies, began)
		up, upErr := relay.SyncUp(t.Context(), "a")
		relay.Copies.RecordSync(relay.Recheck, up, upErr, nil, began)
		findings = findings.Merge(up, upErr, DownResult{}, nil)
	}
	sync()
	assert.Equal(t, always, relay.Recheck)
	sync()
	assert.Equal(t, Recheck{}, relay.Recheck, "it is refused")
	hub.refuses = ""
	sync()
	assert.Equal(t, Recheck{}, relay.Recheck)
	assert.Zero(t, findings.ConfirmedSequence, "caches confirm nothing")
	sync()
	assert.Equal(t, always, relay.Recheck)
	assert.Equal(t, root.Sequence, findings.ConfirmedSequence)
}
