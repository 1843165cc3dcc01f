package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/history"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/metrics"
)

// gatherSeries returns the values of one metric by member.
func gatherSeries(t *testing.T, r *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			member := ""
			for _, label := range m.GetLabel() {
				member = label.GetValue()
			}
			values[member] = m.GetGauge().GetValue()
		}
	}
	return values
}

func TestPolicyIsSetByElectedReplica(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	assert.Empty(t, gatherSeries(t, r, "ot_hub_policy_valid"))
	m.SetPolicyValid(false, nil)
	assert.Equal(t, map[string]float64{"": 0}, gatherSeries(t, r, "ot_hub_policy_valid"))
	m.SetPolicyValid(true, nil)
	assert.Equal(t, map[string]float64{"": 1}, gatherSeries(t, r, "ot_hub_policy_valid"))
}

type fakeReports struct{}

func (fakeReports) ReceivedAt(string) (time.Time, bool) { return time.Time{}, false }

func TestUnknownIsNotZero(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	of := func(name string, status metav1.ConditionStatus, conditions ...string) *v1alpha1.MemberCluster {
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, c := range conditions {
			m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: c, Status: status})
		}
		return m
	}
	all := []string{v1alpha1.ConditionReachable, v1alpha1.ConditionAgentHealthy, v1alpha1.ConditionPolicyAcknowledged, v1alpha1.ConditionWithinBudget}
	apart := of("apart", metav1.ConditionFalse, all...)
	apart.Spec.Quarantine = &v1alpha1.MemberQuarantine{}
	r := prometheus.NewRegistry()
	r.MustRegister(&metrics.FleetCollector{Elected: closedChannel(), Reports: fakeReports{}, Index: inventory.NewIndex(), Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		of("new", metav1.ConditionUnknown), of("open", metav1.ConditionUnknown, all...),
		of("no", metav1.ConditionFalse, all...), of("yes", metav1.ConditionTrue, all...), apart,
	).Build()})
	for name, want := range map[string]map[string]float64{
		"ot_hub_member_reachable":         {"no": 0, "yes": 1},
		"ot_hub_member_healthy":           {"no": 0, "yes": 1},
		"ot_hub_member_plan_acknowledged": {"no": 0, "yes": 1},
		"ot_hub_member_over_budget":       {"no": 1, "yes": 0},
		"ot_hub_members":                  {"all": 5, "quarantined": 1, "reachable": 1, "healthy": 1, "unknown": 0},
	} {
		assert.Equal(t, want, gatherSeries(t, r, name), name)
	}
}

func TestRotationFails(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	b := fake.NewClientBuilder().WithScheme(scheme)
	for _, reason := range []string{v1alpha1.ReasonRotated, v1alpha1.ReasonLegacyToken, v1alpha1.ReasonRotationFailed, v1alpha1.ReasonCredentialRefused, v1alpha1.ReasonNotRotated} {
		m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: strings.ToLower(reason)}}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionCredentialRotated, Status: metav1.ConditionFalse, Reason: reason}}
		b = b.WithObjects(m)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(&metrics.FleetCollector{Elected: closedChannel(), Reports: fakeReports{}, Index: inventory.NewIndex(), Reader: b.Build()})
	assert.Equal(t, map[string]float64{"rotated": 0, "legacytoken": 0, "rotationfailed": 1, "credentialrefused": 1}, gatherSeries(t, r, "ot_hub_member_rotation_fails"))
}

func TestRolloutMetrics(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	status := v1alpha1.FleetDiskImageStatus{Phase: v1alpha1.RolloutFailed, Clusters: v1alpha1.ClusterCounts{Total: 5, Succeeded: 3, TimedOut: 2}}
	r := prometheus.NewRegistry()
	r.MustRegister(&metrics.FleetCollector{Elected: closedChannel(), Reports: fakeReports{}, Index: inventory.NewIndex(), Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		apitest.FleetDiskImage("ubuntu").WithStatus(status).Obj(), apitest.FleetDiskImage("new").Obj(),
	).Build()})
	assert.Equal(t, map[string]float64{"Progressing": 0, "Waiting": 0, "Succeeded": 0, "Failed": 1}, gatherSeries(t, r, "ot_hub_rollout_phase"))
	assert.Equal(t, map[string]float64{"ToApply": 0, "Progressing": 0, "Succeeded": 3, "Failed": 0, "TimedOut": 2, "Deferred": 0}, gatherSeries(t, r, "ot_hub_rollout_clusters"))
}

// closedChannel is the signal of an elected replica.
func closedChannel() <-chan struct{} {
	is := make(chan struct{})
	close(is)
	return is
}

// A replica that is not elected has no series of the fleet, and does not read its cache,
// which would fill it.
func TestReplicaNotElectedHasNoFleetMetrics(t *testing.T) {
	index := inventory.NewIndex()
	index.SetRoot("a", &v1alpha1.ReportRoot{})
	r := prometheus.NewRegistry()
	r.MustRegister(&metrics.FleetCollector{Elected: make(chan struct{}), Reports: fakeReports{}, Index: index})
	all, err := r.Gather()
	require.NoError(t, err)
	assert.Empty(t, all)
}

// What the history is filled from is served as long as the sample is a new one.
func TestTransfersAreRendered(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	latest := history.LatestSample{
		BySource:       map[string]map[string]float64{"": {readapi.SeriesBytes: 10, readapi.SeriesSlots: 2, readapi.SeriesQueued: 3}, "bucket": {readapi.SeriesSlots: 1}},
		UnknownMembers: 4, BytesByMember: map[string]float64{"a": 5},
	}
	known := true
	r := prometheus.NewRegistry()
	r.MustRegister(&metrics.FleetCollector{
		Elected: closedChannel(), Reports: fakeReports{}, Index: inventory.NewIndex(), Reader: fake.NewClientBuilder().WithScheme(scheme).Build(),
		Transfers: func(time.Time) (history.LatestSample, bool) { return latest, known },
	})
	gather := func() map[string]float64 {
		families, err := r.Gather()
		require.NoError(t, err)
		values := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				for _, label := range m.GetLabel() {
					name += " " + label.GetValue()
				}
				if strings.Contains(name, "fleet_transfers") || strings.Contains(name, "bytes_per_second") {
					values[name] = m.GetGauge().GetValue()
				}
			}
		}
		return values
	}
	assert.Equal(t, map[string]float64{
		"ot_hub_fleet_transfers_bytes_per_second ": 10, "ot_hub_fleet_transfers_running ": 2, "ot_hub_fleet_transfers_running bucket": 1,
		"ot_hub_fleet_transfers_queued ": 3, "ot_hub_fleet_transfers_unknown_members": 4, "ot_hub_member_bytes_per_second a": 5,
	}, gather())
	known = false
	assert.Empty(t, gather())
}
