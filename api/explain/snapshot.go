package explain

import (
	"time"

	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// FromReadAPI returns what the hub's read API says of an image.
func FromReadAPI(now time.Time, w *readapi.Why) ImageSnapshot {
	s := ImageSnapshot{Now: now, Cluster: w.Cluster, Namespace: w.Namespace, Name: w.Name, Unknown: w.Unknown, Expected: w.Expected}
	if w.ReportedAt != nil {
		s.ObservedAt = w.ReportedAt.Time
	}
	s.Budget = Budget{
		Slots: w.Budget.Slots, Budget: w.Budget.Budget, PolicyConcurrency: w.Budget.PolicyConcurrency, PolicySource: w.Budget.PolicySource,
		OwnConcurrency: w.Budget.OwnConcurrency, FleetConcurrency: w.Budget.FleetConcurrency, SourceConcurrency: w.Budget.SourceConcurrency,
	}
	if w.Budget.Transfers != nil {
		s.Budget.Granted = &w.Budget.Transfers.Granted
	}
	s.SetReported(w.Image, w.Planned)
	if w.Activity == nil {
		return s
	}
	s.SetActivity(w.Activity.Reported(ptr.Deref(w.Budget.Budget, 0), ptr.Deref(w.Budget.Slots, 0)))
	return s
}

// SetReported sets what a member reports of the image; nil for none.
func (s *ImageSnapshot) SetReported(img *v1alpha1.ReportedImage, isPlanned bool) {
	if img == nil {
		s.Missing = true
		if isPlanned {
			s.Plan, s.Message, s.Missing = v1alpha1.PlanItemWaiting, "planned; the cluster has not reported the image yet", false
		}
		return
	}
	s.Phase, s.Reason, s.Message, s.Stalled = img.Phase, img.Reason, DescribeMessage(string(img.Phase), img.Message), img.Stalled
	s.Holders, s.HolderN, s.Bytes = img.Holders, img.References, img.Bytes
	if plan := img.UnappliedPlan(); plan != nil {
		s.Plan, s.Reason, s.Message = plan.State, plan.Reason, plan.Message
	}
}

// SetActivity sets what the member imports, and since when the image waits.
func (s *ImageSnapshot) SetActivity(a *v1alpha1.ReportedActivity) {
	s.Activity = a
	for i := range a.Head {
		if q := &a.Head[i]; q.Namespace == s.Namespace && q.Name == s.Name {
			s.QueuedAt = &q.QueuedAt
		}
	}
}
