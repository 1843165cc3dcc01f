package reportlimits_test

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/reportlimits"
)

func newReport() *v1alpha1.ClusterReport {
	at := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return &v1alpha1.ClusterReport{
		Sequence: 7,
		Root: &v1alpha1.ReportRoot{
			ObservedAt: at, HeartbeatSeconds: 60, Plan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 2}, Images: 3, References: 4, OldestQueuedSince: &at,
			Phases: map[v1alpha1.Phase]int32{v1alpha1.PhaseSucceeded: 3}, OrphanCount: 1, OrphanBytes: 64 << 40,
			Orphans: []v1alpha1.OrphanedObject{{Kind: "DataVolume", Bytes: 64 << 40}},
			Pages:   []v1alpha1.PageRef{{Name: "page", Sequence: 9, Images: 3}}, Conditions: []metav1.Condition{{Type: "PolicyAccepted"}},
		},
		Page: &v1alpha1.ReportPage{Images: []v1alpha1.ReportedImage{
			{Name: "ubuntu", References: 4, Bytes: 64 << 40, UnreferencedSince: &at, Prune: &v1alpha1.ReportedPrune{PruneStatus: v1alpha1.PruneStatus{Until: &at}}},
		}},
	}
}

// What an agent writes is not copied, and not changed.
func TestReportWithinBoundsStays(t *testing.T) {
	report := newReport()
	before := report.DeepCopy()
	assert.Same(t, report, reportlimits.Bound(report))
	assert.Equal(t, before, report)
	assert.Nil(t, reportlimits.Bound(nil))
}

func TestBound(t *testing.T) {
	before := newReport()
	before.Root.Images, before.Root.References, before.Root.Phases[v1alpha1.PhaseFailed] = -3, math.MaxInt32, -1
	before.Root.Plan.Epoch, before.Root.OrphanBytes, before.Root.OrphanCount = math.MaxInt64, math.MaxInt64, math.MaxInt32
	before.Root.ObservedAt = metav1.NewTime(time.Date(0, 1, 1, 0, 0, 0, 0, time.FixedZone("", 23*3600)))
	before.Page.Images[0].References, before.Page.Images[0].Bytes, before.Page.Images[0].DownloadBytes = -40, math.MaxInt64, -1
	before.Page.Images[0].Prune.Until = ptr.To(metav1.NewTime(time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -12*3600))))
	given := before.DeepCopy()

	got := reportlimits.Bound(given)
	assert.Equal(t, before, given, "the given report may be a cache's")
	assert.Zero(t, got.Root.Images)
	assert.Equal(t, int32(1<<18), got.Root.References)
	assert.Equal(t, map[v1alpha1.Phase]int32{v1alpha1.PhaseSucceeded: 3, v1alpha1.PhaseFailed: 0}, got.Root.Phases)
	assert.Equal(t, v1alpha1.PlanVersion{Epoch: 1<<53 - 1, Sequence: 2}, *got.Root.Plan)
	assert.Equal(t, int64(1<<50), got.Root.OrphanBytes)
	assert.Equal(t, 1970, got.Root.ObservedAt.Year())
	img := got.Page.Images[0]
	assert.Equal(t, []int64{0, 128 << 40, 0}, []int64{int64(img.References), img.Bytes, img.DownloadBytes})
	assert.Equal(t, 9998, img.Prune.Until.Year())
	assert.Same(t, got, reportlimits.Bound(got))
}

// A member that reports once in 68 years is shown as what it says.
func TestHeartbeatIsShownAsItIs(t *testing.T) {
	report := newReport()
	report.Root.HeartbeatSeconds = math.MaxInt32
	assert.Same(t, report, reportlimits.Bound(report))
	report.Root.HeartbeatSeconds = -5
	assert.Zero(t, reportlimits.Bound(report).Root.HeartbeatSeconds)
}

// Every time that the schema admits is one that the API server stores again.
func TestTimesCanBeStored(t *testing.T) {
	for _, text := range []string{"9999-12-31T23:59:59-12:00", "0000-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "2026-03-01T12:00:00.5+01:00"} {
		var at metav1.Time
		require.NoError(t, json.Unmarshal([]byte(`"`+text+`"`), &at), text)
		report := newReport()
		report.Root.ObservedAt, report.Root.OldestQueuedSince = at, &at
		report.Page.Images[0].UnreferencedSince = at.DeepCopy()
		report = reportlimits.Bound(report)
		for _, bounded := range []metav1.Time{report.Root.ObservedAt, *report.Page.Images[0].UnreferencedSince} {
			stored, err := json.Marshal(bounded)
			require.NoError(t, err, text)
			var again metav1.Time
			require.NoError(t, json.Unmarshal(stored, &again), "%s became %s", text, stored)
		}
	}
}

// A field of another kind needs a bound of its own.
func TestKindsOfFieldsAreBounded(t *testing.T) {
	known := map[reflect.Kind]bool{reflect.String: true, reflect.Bool: true, reflect.Int32: true, reflect.Int64: true}
	var check func(of reflect.Type, path string)
	check = func(of reflect.Type, path string) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			check(of.Elem(), path)
		case reflect.Struct:
			if of == reflect.TypeFor[metav1.Time]() {
				return
			}
			for i := range of.NumField() {
				check(of.Field(i).Type, path+"."+of.Field(i).Name)
			}
		default:
			assert.True(t, known[of.Kind()], "%s is of kind %s", path, of.Kind())
		}
	}
	check(reflect.TypeFor[v1alpha1.ReportRoot](), "root")
	check(reflect.TypeFor[v1alpha1.ReportPage](), "page")
}
