package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// With a hub, a ConfigMap limits the member only where it sets concurrency. There is a
// budget in every case in which there ever was a policy.
func TestBudgetOfConfigMapAndPlan(t *testing.T) {
	invalid := map[string]string{"retryLimit": "many"}
	last := apitest.Policy().Concurrency(5).ToData()
	for name, tt := range map[string]struct {
		own       map[string]string // nil: there is no ConfigMap
		noPlan    bool
		stored    map[string]string // the policy in the ledger
		want      int32
		wantOwn   *int32
		wantText  string
		noPolicy  bool
		notStored bool // the ledger keeps what it has of the ConfigMap
	}{
		"it sets none":                           {own: map[string]string{"retryLimit": "1"}, want: 8, wantText: "the hub's policy is in force (a test)"},
		"it is empty":                            {own: map[string]string{}, want: 8, wantText: "the hub's policy is in force (a test)"},
		"it sets less":                           {own: map[string]string{"concurrency": "3"}, want: 3, wantOwn: ptr.To[int32](3), wantText: ", with the smaller concurrency of ConfigMap sync-operator/sync-operator-policy, 3"},
		"it sets more":                           {own: map[string]string{"concurrency": "9"}, want: 8, wantOwn: ptr.To[int32](9), wantText: "the hub's policy is in force (a test)"},
		"it pauses":                              {own: map[string]string{"concurrency": "0"}, want: 0, wantOwn: ptr.To[int32](0), wantText: ", with the smaller concurrency of ConfigMap sync-operator/sync-operator-policy, 0"},
		"it does not exist":                      {want: 8, wantText: "the hub's policy is in force (a test)"},
		"it is invalid":                          {own: invalid, stored: last, want: 6, notStored: true, wantText: "is not used"},
		"it sets none, and there is no plan yet": {own: map[string]string{}, noPlan: true, want: 3, wantText: "in force"},
		"it does not exist, and the plan is gone": {noPlan: true, stored: last, want: 5, notStored: true, wantText: "The last valid policy stays in force, concurrency 5"},
		"there never was anything":                {noPlan: true, noPolicy: true, notStored: true, wantText: "nothing is downloaded"},
	} {
		t.Run(name, func(t *testing.T) {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"}, Data: tt.own}
			b := fake.NewClientBuilder()
			if tt.own != nil {
				b = b.WithObjects(cm)
			}
			c := b.Build()
			r := &Reader{Cached: c, Live: c, Events: events.NewFakeRecorder(10), ConfigMapKey: client.ObjectKeyFromObject(cm), Now: time.Now}
			status := v1alpha1.SyncLedgerStatus{Policy: tt.stored}
			if tt.stored != nil {
				status.PolicyVersion, status.OwnConcurrency = "1", ptr.To[int32](6)
			}
			plan := planState{}
			if !tt.noPlan {
				planned := apitest.Policy().Concurrency(8).Obj()
				plan = planState{policy: &planned, policySource: "a test"}
			}
			own, err := r.readConfigMap(t.Context(), status, plan.policy != nil)
			require.NoError(t, err)
			got := r.combineWithPlan(own, plan, status).InForceAt(r.Now())
			assert.Contains(t, got.message, tt.wantText)
			if tt.noPolicy {
				assert.Nil(t, got.Policy)
				return
			}
			require.NotNil(t, got.Policy)
			assert.Equal(t, tt.want, got.Policy.Concurrency)
			assert.False(t, got.Policy.ConcurrencyUnset)
			got.SetStatus(&status, 1)
			if tt.notStored {
				assert.Equal(t, ptr.To[int32](6), status.OwnConcurrency)
				assert.False(t, status.OwnConcurrencyUnset)
				return
			}
			assert.Equal(t, tt.wantOwn, status.OwnConcurrency)
			assert.Equal(t, tt.wantOwn == nil, status.OwnConcurrencyUnset)
			parsed, _, errs := policy.Parse(status.Policy)
			require.Empty(t, errs)
			assert.Equal(t, tt.want, parsed.Concurrency)
		})
	}
}

// A ConfigMap that set no concurrency when it was last valid limits nothing while it is
// invalid, either, also after a restart of the agent and a higher plan.
func TestInvalidConfigMapKeepsItsLastLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		last       map[string]string
		olderAgent bool // wrote the ledger before the restart
		want       int32
		wantLater  int32
	}{
		"it set none":                            {map[string]string{}, false, 8, 20},
		"it set less":                            {map[string]string{"concurrency": "2"}, false, 2, 2},
		"it set more":                            {map[string]string{"concurrency": "9"}, false, 8, 9},
		"it set none, as an older agent read it": {map[string]string{}, true, 8, 8},
	} {
		t.Run(name, func(t *testing.T) {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"}, Data: tt.last}
			c := fake.NewClientBuilder().WithObjects(cm).Build()
			r := &Reader{Cached: c, Live: c, Events: events.NewFakeRecorder(10), ConfigMapKey: client.ObjectKeyFromObject(cm), Now: time.Now}
			status := v1alpha1.SyncLedgerStatus{}
			read := func(planned int32) State {
				concurrency := apitest.Policy().Concurrency(planned).Obj()
				plan := planState{policy: &concurrency}
				own, err := r.readConfigMap(t.Context(), status, true)
				require.NoError(t, err)
				s := r.combineWithPlan(own, plan, status).InForceAt(r.Now())
				s.SetStatus(&status, 1)
				return s
			}
			assert.Equal(t, tt.want, read(8).Policy.Concurrency)
			cm.Data = map[string]string{"concurrency": "four"}
			require.NoError(t, c.Update(t.Context(), cm))
			assert.Equal(t, tt.want, read(8).Policy.Concurrency)
			r.lastOwn = ownLimits{}
			if tt.olderAgent {
				status.OwnConcurrency, status.OwnConcurrencyUnset = nil, false
			}
			assert.Equal(t, tt.wantLater, read(20).Policy.Concurrency)
		})
	}
}
