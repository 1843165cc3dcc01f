package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	ownNight  = `[{cron: "0 22 * * *", duration: 8h, timeZone: Europe/Berlin, concurrency: 6}]`
	planNight = `[{cron: "0 20 * * *", duration: 12h, concurrency: 4}]`
)

// Each side's windows are judged by themselves, then the smaller number applies: with and
// without a plan, while the ConfigMap is invalid, and after a restart.
func TestWindowsOfConfigMapAndPlan(t *testing.T) {
	noon, night := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 6, 1, 21, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		own, planned        map[string]string
		wantNoon, wantNight int32
		wantOpens           string
	}{
		"its own alone":               {own: map[string]string{"concurrency": "0", "windows": ownNight}, wantNoon: 0, wantNight: 6, wantOpens: "2026-06-01T20:00:00Z"},
		"its own, under a plan":       {own: map[string]string{"concurrency": "1", "windows": ownNight}, planned: map[string]string{"concurrency": "5"}, wantNoon: 1, wantNight: 5, wantOpens: "2026-06-01T20:00:00Z"},
		"its own sets none outside":   {own: map[string]string{"windows": ownNight}, planned: map[string]string{"concurrency": "9"}, wantNoon: 9, wantNight: 6},
		"the plan's":                  {own: map[string]string{"concurrency": "3"}, planned: map[string]string{"concurrency": "0", "windows": planNight}, wantNoon: 0, wantNight: 3, wantOpens: "2026-06-01T20:00:00Z"},
		"both":                        {own: map[string]string{"concurrency": "1", "windows": ownNight}, planned: map[string]string{"concurrency": "2", "windows": planNight}, wantNoon: 1, wantNight: 4, wantOpens: "2026-06-01T20:00:00Z"},
		"no window of either changes": {own: map[string]string{"concurrency": "2"}, planned: map[string]string{"concurrency": "3"}, wantNoon: 2, wantNight: 2},
	} {
		t.Run(name, func(t *testing.T) {
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "sync-operator-policy"}, Data: tt.own}
			c := fake.NewClientBuilder().WithObjects(cm).Build()
			now := noon
			newReader := func() *Reader {
				return &Reader{Cached: c, Live: c, Events: events.NewFakeRecorder(10), ConfigMapKey: client.ObjectKeyFromObject(cm), Now: func() time.Time { return now }}
			}
			status := v1alpha1.SyncLedgerStatus{}
			read := func(r *Reader) State {
				plan := planState{}
				if tt.planned != nil {
					p, _, errs := policy.Parse(tt.planned)
					require.Empty(t, errs)
					plan = planState{policy: &p}
				}
				own, err := r.readConfigMap(t.Context(), status, tt.planned != nil)
				require.NoError(t, err)
				s := r.combineWithPlan(own, plan, status).InForceAt(r.Now())
				s.SetStatus(&status, 1)
				return s
			}
			check := func(when string, r *Reader) {
				now = noon
				s := read(r)
				assert.Equal(t, tt.wantNoon, s.Policy.Concurrency, when)
				assert.Equal(t, tt.wantNight, s.ConcurrencyAt(night), when)
				if tt.wantOpens != "" {
					require.NotNil(t, status.InForce, when)
					assert.Equal(t, tt.wantOpens, status.InForce.OpensAt.UTC().Format(time.RFC3339), when)
				}
				now = night
				assert.Equal(t, tt.wantNight, read(r).Policy.Concurrency, when)
			}
			r := newReader()
			check("valid", r)
			if tt.own["windows"] == "" && tt.planned["windows"] == "" {
				assert.Nil(t, status.InForce)
			}
			cm.Data = map[string]string{"windows": "nights"}
			require.NoError(t, c.Update(t.Context(), cm))
			check("invalid", r)
			check("invalid, after a restart", newReader())
			if tt.planned != nil && tt.own["windows"] != "" {
				tt.planned = nil
				now = night
				assert.LessOrEqual(t, read(newReader()).Policy.Concurrency, tt.wantNight, "without its plan, its own windows limit it still")
			}
		})
	}
}

func TestDescribeWindow(t *testing.T) {
	p := policy.Policy{Concurrency: 1}
	edge := time.Date(2026, 6, 1, 20, 0, 0, 0, time.UTC)
	assert.Empty(t, Window{}.describe(&p))
	assert.Equal(t, "; by the windows, concurrency is 1 until 2026-06-01T20:00:00Z at least, and 6 from Mon 1 Jun 22:00 in Europe/Berlin (2026-06-01T20:00:00Z) on",
		Window{NextEdge: edge, Opening: &policy.Opening{At: edge, Concurrency: 6, TimeZone: "Europe/Berlin"}}.describe(&p))
}

// Images are reconciled when the opening changes that they show.
func TestReplaceRequeuesImagesWhenTheOpeningChanges(t *testing.T) {
	p := &policy.Policy{}
	edge := time.Date(2026, 6, 1, 20, 0, 0, 0, time.UTC)
	in := &InForce{}
	in.SetInitial(p, nil)
	assert.True(t, in.Replace(p, &policy.Opening{At: edge}).WaitingImages)
	assert.False(t, in.Replace(p, &policy.Opening{At: edge}).WaitingImages)
	assert.True(t, in.Replace(p, &policy.Opening{At: edge.Add(time.Hour)}).WaitingImages)
	assert.True(t, in.Replace(p, nil).WaitingImages)
}
