package shard

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/metrics"
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
		"it is in quarantine": {change: func(m *v1alpha1.MemberCluster, _ *v1alpha1.MemberLink) {
			m.Spec.Quarantine = &v1alpha1.MemberQuarantine{}
		}},
		"the hub refuses its report":                    {status: v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Carrier: "two", ReportRefused: true}},
		"its replica gets no answers that another gets": {status: v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Carrier: "two", SyncError: "it does not answer in time"}, want: true},
		"its report was refused, and it is not reached": {status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "two", ReportRefused: true}, want: true},
		"its credential may not list":                   {status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "two", Reason: v1alpha1.ReasonUnauthorized}},
		"its certificate is not valid yet, by that replica's clock": {
			status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "two", Reason: v1alpha1.ReasonCertificateNotTrusted}, want: true,
		},
		"its credential may not list, by this replica": {
			status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "one", Reason: v1alpha1.ReasonUnauthorized},
			change: func(_ *v1alpha1.MemberCluster, link *v1alpha1.MemberLink) { link.Spec.Replica = "one" },
		},
		"its replica says that it sends too much": {status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "two", Reason: v1alpha1.ReasonOverLimits}},
		"the one before said so":                  {status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "three", Reason: v1alpha1.ReasonOverLimits}, want: true},
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
			assert.Equal(t, tt.want, isSyncExpected(m, link) && isSuspect(m, link, tt.root, *tt.since, "one", now))
		})
	}
	assert.False(t, isSyncExpected(&v1alpha1.MemberCluster{}, nil), "it has no MemberLink")
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

// noReport is a member that answers, and has no report that the hub lacks.
type noReport struct{}

func (noReport) Root(context.Context, *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error) {
	return &v1alpha1.ClusterReport{}, nil
}

// A member that only the elected replica reaches moves with its next report: waiting a whole
// probeInterval for that may make it count as silent.
func TestMissedMemberIsProbedInEveryPass(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	for name, tt := range map[string]struct {
		replica   string
		reachable bool
		wantDue   bool
	}{
		"another replica does not reach it":    {replica: "two", wantDue: true},
		"it is silent, and reached by another": {replica: "two", reachable: true},
		"it is silent, and this replica's own": {replica: "one", reachable: true},
		"this replica did not reach it before": {replica: "one"},
	} {
		t.Run(name, func(t *testing.T) {
			link := linkAssignedTo(tt.replica)
			link.Namespace, link.Name = v1alpha1.MemberNamespacePrefix+"edge", v1alpha1.MailboxName
			link.Status = v1alpha1.MemberLinkStatus{Known: true, Reachable: tt.reachable, Carrier: tt.replica}
			w := &Watchdog{
				Probe: noReport{}, Reports: report.NewStore(),
				Links:    &Links{Cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(link).Build()},
				Assigner: &Assigner{Replica: &Replica{Options: Options{Name: "one"}}},
			}
			w.ProbeMember(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}, tt.replica)
			assert.Equal(t, tt.wantDue, w.isDue("edge", w.probes["edge"].probedAt))
			assert.True(t, w.isDue("edge", w.probes["edge"].probedAt.Add(probeInterval)))
		})
	}
}

// foundReport is a report that the hub does not have.
type foundReport struct{}

func (foundReport) Root(context.Context, *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error) {
	return &v1alpha1.ClusterReport{Sequence: 7, Root: &v1alpha1.ReportRoot{}}, nil
}

// A member may be moved while it is probed: its next replica has done nothing wrong.
func TestProbeBlamesTheFormerReplica(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	link := linkAssignedTo("two")
	link.Namespace, link.Name = v1alpha1.MemberNamespacePrefix+"edge", v1alpha1.MailboxName
	w := &Watchdog{
		Probe: foundReport{}, Reports: report.NewStore(),
		Links:    &Links{Cached: fake.NewClientBuilder().WithScheme(scheme).WithObjects(link).Build()},
		Assigner: &Assigner{Replica: &Replica{Options: Options{Name: "one"}}},
	}
	w.ProbeMember(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}, "three")
	assert.Empty(t, w.ForMember("edge"))
	assert.Empty(t, w.Assigner.avoidances)
}

// slowReport is a report that the hub does not have, and that takes a while to read.
type slowReport struct {
	foundReport
	takes         time.Duration
	reading, most atomic.Int32
}

func (p *slowReport) Root(ctx context.Context, m *v1alpha1.MemberCluster) (*v1alpha1.ClusterReport, error) {
	if n := p.reading.Add(1); n > p.most.Load() {
		p.most.Store(n)
	}
	defer p.reading.Add(-1)
	if err := trigger.Sleep(ctx, p.takes); err != nil {
		return nil, err
	}
	return p.foundReport.Root(ctx, m)
}

// A replica that is cut off has hundreds of members: the last is moved as soon as all are read.
func TestMembersAreWaitedForTogether(t *testing.T) {
	const members = 5 * maxConcurrentProbes
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	var links []client.Object
	var targets []probeTarget
	for i := range members {
		name := fmt.Sprintf("edge-%d", i)
		link := linkAssignedTo("two")
		link.Namespace, link.Name = v1alpha1.MemberNamespacePrefix+name, v1alpha1.MailboxName
		links = append(links, link)
		targets = append(targets, probeTarget{&v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}, "two"})
	}
	synctest.Test(t, func(t *testing.T) {
		c, probe := fake.NewClientBuilder().WithScheme(scheme).WithObjects(links...).Build(), &slowReport{takes: time.Second}
		replica := NewReplica(c, options)
		w := &Watchdog{
			Probe: probe, Reports: report.NewStore(), Links: &Links{Cached: c}, Events: events.NewFakeRecorder(members),
			Assigner: &Assigner{Replica: replica, Peers: NewPeers(c, replica, nil, nil)}, Metrics: metrics.NewShards(prometheus.NewRegistry()),
		}
		start := time.Now()
		w.probeAll(t.Context(), targets)
		assert.Equal(t, 5*probe.takes+syncGrace+options.RetryPeriod, time.Since(start))
		assert.EqualValues(t, maxConcurrentProbes, probe.most.Load())
		for _, target := range targets {
			assert.NotEmpty(t, w.ForMember(target.member.Name))
		}
	})
}

func TestNextIncidentDoesNotWaitForTheLast(t *testing.T) {
	now := time.Now()
	moved := probeResult{probedAt: now, nextAfter: movedProbeInterval, sequence: 7}
	reached := v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Carrier: "two"}
	for name, tt := range map[string]struct {
		last    probeResult
		status  v1alpha1.MemberLinkStatus
		copied  int64
		wantDue bool
	}{
		"it was moved, and its report arrived":      {last: moved, status: reached, copied: 7, wantDue: true},
		"its report has not arrived":                {last: moved, status: reached, copied: 6},
		"the next replica does not reach it either": {last: moved, status: v1alpha1.MemberLinkStatus{Known: true, Carrier: "two"}, copied: 7},
		"the next replica has not tried":            {last: moved, status: v1alpha1.MemberLinkStatus{Known: true, Reachable: true, Carrier: "one"}, copied: 7},
		"it was down, and is reached":               {last: probeResult{probedAt: now, nextAfter: maxProbeInterval}, status: reached, wantDue: true},
	} {
		t.Run(name, func(t *testing.T) {
			link := linkAssignedTo("two")
			link.Status = tt.status
			w := &Watchdog{probes: map[string]probeResult{"edge": tt.last}}
			w.forgetResolved("edge", link, tt.copied)
			assert.Equal(t, tt.wantDue, w.isDue("edge", now))
		})
	}
}
