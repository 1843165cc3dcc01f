package gather

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/doctor"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// Hub reads what the hub knows of a member. It fails where there is no such member.
func Hub(ctx context.Context, hub *connect.Cluster, o Options) (*doctor.Snapshot, error) {
	r := newReader(hub, o, doctor.ViewHub)
	member, err := hub.GetMember(ctx, o.Cluster)
	if err != nil {
		return nil, err
	}
	h := &doctor.Hub{AgentVersion: member.Status.AgentVersion, Conditions: member.Status.Conditions, LastReport: member.Status.LastReport, SilentSince: member.Status.SilentSince}
	r.snapshot.Hub = h
	if err := r.readVersion(ctx); err != nil { // without the hub's time, nothing is in progress
		r.snapshot.ServerTime = time.Time{}
	}
	r.readHubReports(ctx, h)
	return r.snapshot, ctx.Err()
}

// readHubReports reads root and pages as the hub has them.
func (r *reader) readHubReports(ctx context.Context, h *doctor.Hub) {
	var reports v1alpha1.ClusterReportList
	if !r.list(ctx, doctor.SourceHubReports, &reports, client.InNamespace(v1alpha1.MemberNamespacePrefix+r.options.Cluster)) {
		return
	}
	for i := range reports.Items {
		if root := reports.Items[i].Root; root != nil {
			h.Reported, h.HeartbeatSeconds = root.Conditions, root.HeartbeatSeconds
		}
	}
	seen := map[types.NamespacedName]bool{} // an image that has moved to another page: the newest comes first
	images := rollout.ListReported(reports.Items)
	for i := range images {
		img, key := &images[i], types.NamespacedName{Namespace: images[i].Namespace, Name: images[i].Name}
		if problem, found := problemOf(img); found && !seen[key] {
			h.ReportedImage = append(h.ReportedImage, problem)
		}
		seen[key] = true
	}
}

// problemOf returns why an image is held up: by its own reason, or by that of its plan.
func problemOf(img *v1alpha1.ReportedImage) (doctor.ImageProblem, bool) {
	p := doctor.ImageProblem{Namespace: img.Namespace, Name: img.Name, Reason: img.Reason, Message: img.Message}
	if img.Plan != nil && img.Plan.Reason != "" {
		p.Reason, p.Message = img.Plan.Reason, img.Plan.Message
	}
	return p, p.Reason != "" && img.Phase != v1alpha1.PhaseSucceeded
}
