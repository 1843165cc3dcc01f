package shard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

func TestIsSuspect(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	deleted := metav1.NewTime(now)
	reports := func(last *time.Time) report.Root {
		return report.Root{Report: &v1alpha1.ReportRoot{HeartbeatSeconds: 20}, Sequence: 7, ReceivedAt: last}
	}
	for name, tt := range map[string]struct {
		root report.Root
		// since is when this process began to read reports, made when the MemberCluster
		// was created.
		since, made *time.Time
		status      v1alpha1.MemberLinkStatus
		change      func(*v1alpha1.MemberCluster, *v1alpha1.MemberLink)
		want        bool
	}{
		"it reports":                       {root: reports(ago(50 * time.Second))},
		"it is silent":                     {root: reports(ago(61 * time.Second)), want: true},
		"it was silent before":             {root: reports(nil), since: ago(50 * time.Second)},
		"it has been silent since":         {root: reports(nil), since: ago(61 * time.Second), want: true},
		"it has never reported":            {want: true},
		"it has never reported, nor could": {made: ago(20 * time.Second)},
		"it has never reported, and reports have only just been read": {since: ago(20 * time.Second)},
		"it has only just been made, and is not reached": {
			made: ago(time.Second), status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "two"}, want: true,
		},
		"its replica does not reach it":   {root: reports(ago(0)), status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "two"}, want: true},
		"its replica has not tried":       {root: reports(ago(0)), status: v1alpha1.MemberLinkStatus{Carrier: "two"}},
		"the one before did not reach it": {root: reports(ago(0)), status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "three"}},
		"this replica does not reach it": {
			root: reports(ago(0)), status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "one"},
			change: func(_ *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) { link.Spec.Replica = "one" },
		},
		"no replica is assigned": {change: func(_ *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) { link.Spec.Replica = "" }},
		"it is in pull mode":     {change: func(_ *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) { link.Spec.Mode = v1alpha1.LinkPull }},
		"it leaves":              {change: func(m *v1alpha1.MemberCluster, _ *v1alpha1.MemberLink) { m.DeletionTimestamp = &deleted }},
	} {
		t.Run(name, func(t *testing.T) {
			for _, at := range []**time.Time{&tt.since, &tt.made} {
				if *at == nil {
					*at = ago(time.Hour)
				}
			}
			m := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(*tt.made)}}
			link := linkAssignedTo("two")
			link.Status = tt.status
			if tt.change != nil {
				tt.change(m, link)
			}
			assert.Equal(t, tt.want, isSuspect(m, link, tt.root, *tt.since, "one", now))
		})
	}
	assert.False(t, isSuspect(&v1alpha1.MemberCluster{}, nil, report.Root{}, time.Time{}, "one", now), "it has no MemberLink")
}

func TestIsSyncable(t *testing.T) {
	known := report.Root{Report: &v1alpha1.ReportRoot{}, ClusterUID: "a"}
	for name, tt := range map[string]struct {
		recorded types.UID
		copied   report.Root
		there    types.UID
		want     bool
	}{
		"of the same cluster":              {"a", known, "a", true},
		"of another one":                   {"a", known, "b", false},
		"the first one":                    {"", report.Root{}, "a", true},
		"the first one of a known cluster": {"a", report.Root{}, "a", true},
		"the first one of another one":     {"a", report.Root{}, "b", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.MemberCluster{Status: v1alpha1.MemberClusterStatus{ClusterUID: tt.recorded}}
			assert.Equal(t, tt.want, isSyncable(m, tt.copied, &v1alpha1.ClusterReport{ClusterUID: tt.there}))
		})
	}
}

// A member that is down costs a probe its timeout each time.
func TestSilentMembersAreProbedLessOften(t *testing.T) {
	w, now := &Watchdog{probes: map[string]probeResult{}}, time.Now()
	var waits []time.Duration
	for range 5 {
		wait := w.nextProbeDelay("edge")
		waits = append(waits, wait)
		w.probes["edge"] = probeResult{probedAt: now, nextAfter: wait}
		assert.False(t, w.isDue("edge", now.Add(wait-1)))
		assert.True(t, w.isDue("edge", now.Add(wait)))
	}
	assert.Equal(t, []time.Duration{probeInterval, 2 * probeInterval, 4 * probeInterval, maxProbeInterval, maxProbeInterval}, waits)
	assert.True(t, w.isDue("other", now))
}
