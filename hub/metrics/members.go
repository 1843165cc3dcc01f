package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/inventory"
)

// ReportTimes knows when a member's report last changed.
type ReportTimes interface {
	ReceivedAt(member string) (time.Time, bool)
}

// FleetCollector renders the metrics of the members on each scrape.
//
// Invariant: unknown is never zero. A member that has not reported has no series for what
// only a report shows, and an Unknown condition has none.
type FleetCollector struct {
	// Elected is closed when this replica is elected. Other replicas have no series of
	// the fleet: reading it would fill their caches with it.
	Elected <-chan struct{}
	Reader  client.Reader
	Reports ReportTimes
	Index   *inventory.Index
	// Transfers is what members download; nil: not rendered.
	Transfers TransfersFunc
}

// fleetMetrics are all that newDesc has returned.
var fleetMetrics []*prometheus.Desc

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	fleetMetrics = append(fleetMetrics, d)
	return d
}

var (
	members                = newDesc("members", "Members of the fleet, by state: all, quarantined, reachable, healthy, unknown (their images may have changed since the last report).", "state")
	memberReachable        = newDesc("member_reachable", "1 while condition Reachable of the member is True, otherwise 0.", "member")
	memberHealthy          = newDesc("member_healthy", "1 while the member's agent reports in time, otherwise 0.", "member")
	memberBudget           = newDesc("member_budget", "Imports that the member's ledger allows at the same time.", "member")
	memberSlots            = newDesc("member_slots", "Imports that the member's ledger lists.", "member")
	memberOverBudget       = newDesc("member_over_budget", "1 while the member's ledger lists more imports than it allows, or allows more than the plan that it acknowledged.", "member")
	memberImages           = newDesc("member_images", "Images of the member, by phase.", "member", "phase")
	memberReferences       = newDesc("member_references", "VirtualMachines that use an image, over all images of the member.", "member")
	memberBytes            = newDesc("member_images_bytes", "Provisioned storage of the member's images.", "member")
	memberPlanAcknowledged = newDesc("member_plan_acknowledged", "1 while the member's ledger is written under the newest plan, otherwise 0.", "member")
	memberReportAge        = newDesc("member_report_age_seconds", "Time since the member's report last changed.", "member")
	memberVersionSupported = newDesc("member_version_supported", "1 while the versions of hub and agent are compatible, 0 while they are too far apart or the member's CRDs are older than both.", "member")
	memberExceedsGrants    = newDesc("member_exceeds_grants", "1 while the member reports more imports than the hub has planned or granted, otherwise 0; only with a fleet-wide budget.", "member")
	memberQuarantined      = newDesc("member_quarantined", "1 while the member is in quarantine; its conditions have no series then.", "member")
	memberAgentInstalled   = newDesc("member_agent_installed", "1 while the agent is installed as desired, otherwise 0; only of members that opt in.", "member")
	memberRotationFails    = newDesc("member_rotation_fails", "1 while the hub has no new token that the member accepts, otherwise 0; only of members whose token the hub rotates.", "member")
	images                 = newDesc("images", "Distinct images, by source, that members are known to have.")
	indexPages             = newDesc("index_pages", "Pages of reports that the hub's index holds.")
	indexEntries           = newDesc("index_entries", "Images of members that the hub's index holds.")
)

// Describe implements prometheus.Collector.
func (f *FleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range fleetMetrics {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (f *FleetCollector) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-f.Elected:
	default:
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	stats := f.Index.Stats()
	gauge(images, float64(stats.Images))
	gauge(indexPages, float64(stats.Pages))
	gauge(indexEntries, float64(stats.Entries))
	for _, summary := range f.Index.Members() {
		if summary.Unknown != "" {
			continue
		}
		for phase, n := range summary.Phases {
			gauge(memberImages, float64(n), summary.Member, string(phase))
		}
		gauge(memberReferences, float64(summary.References), summary.Member)
		gauge(memberBytes, float64(summary.Bytes), summary.Member)
	}

	// A read from a cache that has not synced waits for it.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	f.collectTransfers(gauge)
	f.collectRollouts(ctx, gauge)
	f.collectPruneReports(ctx, gauge)
	f.collectImagePrunes(ctx, gauge)
	var list v1alpha1.MemberClusterList
	if err := f.Reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list MemberClusters; their metrics are missing from this scrape")
		return
	}
	var quarantined, reachable, healthy float64
	for i := range list.Items {
		m := &list.Items[i]
		isReachable, isHealthy := f.collectMember(m, gauge)
		reachable, healthy, quarantined = reachable+isReachable, healthy+isHealthy, quarantined+boolValue(m.Spec.Quarantine != nil)
	}
	gauge(members, float64(len(list.Items)), "all")
	gauge(members, quarantined, "quarantined")
	gauge(members, reachable, "reachable")
	gauge(members, healthy, "healthy")
	unknown := 0
	for _, n := range stats.Unknown {
		unknown += n
	}
	gauge(members, float64(unknown), "unknown")
}

// collectMember renders one member, and returns 1 for each of two conditions that is True.
func (f *FleetCollector) collectMember(m *v1alpha1.MemberCluster, gauge func(d *prometheus.Desc, value float64, labels ...string)) (reachable, healthy float64) {
	// judged renders a condition that is True or False, and returns 1 if it has the
	// wanted status.
	judged := func(d *prometheus.Desc, condition string, want metav1.ConditionStatus) (value float64) {
		c := meta.FindStatusCondition(m.Status.Conditions, condition)
		if c == nil || m.Spec.Quarantine != nil || c.Status == metav1.ConditionUnknown {
			return 0
		}
		value = boolValue(c.Status == want)
		gauge(d, value, m.Name)
		return value
	}
	reachable = judged(memberReachable, v1alpha1.ConditionReachable, metav1.ConditionTrue)
	healthy = judged(memberHealthy, v1alpha1.ConditionAgentHealthy, metav1.ConditionTrue)
	judged(memberPlanAcknowledged, v1alpha1.ConditionPolicyAcknowledged, metav1.ConditionTrue)
	judged(memberVersionSupported, v1alpha1.ConditionVersionSupported, metav1.ConditionTrue)
	judged(memberAgentInstalled, v1alpha1.ConditionAgentInstalled, metav1.ConditionTrue)
	if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionCredentialRotated); c != nil && c.Reason != v1alpha1.ReasonNotRotated && m.Spec.Quarantine == nil {
		gauge(memberRotationFails, boolValue(c.Reason == v1alpha1.ReasonRotationFailed || c.Reason == v1alpha1.ReasonCredentialRefused), m.Name)
	}
	judged(memberExceedsGrants, v1alpha1.ConditionTransfersAccounted, metav1.ConditionFalse)
	judged(memberOverBudget, v1alpha1.ConditionWithinBudget, metav1.ConditionFalse)
	if m.Spec.Quarantine != nil {
		gauge(memberQuarantined, 1, m.Name)
	}
	if budget, slots := m.Status.Budget, m.Status.SlotsUsed; budget != nil && slots != nil {
		gauge(memberBudget, float64(*budget), m.Name)
		gauge(memberSlots, float64(*slots), m.Name)
	}
	at, known := f.Reports.ReceivedAt(m.Name)
	if !known && m.Status.LastReport != nil {
		at, known = m.Status.LastReport.Time, true
	}
	if known {
		gauge(memberReportAge, max(0, time.Since(at).Seconds()), m.Name)
	}
	return reachable, healthy
}
