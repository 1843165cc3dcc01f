package plan

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// itemBackoff delays the next try of a refused image until it, or its plan, has changed.
type itemBackoff struct {
	specFingerprint string
	uid             types.UID
	generation      int64
	until           time.Time
	refusal         plan.Refusal
}

func newItemBackoff(want *v1alpha1.PlannedImage, existing *v1alpha1.VMDiskImage, until time.Time, refusal plan.Refusal) itemBackoff {
	b := itemBackoff{specFingerprint: plan.FingerprintSpec(want), until: until, refusal: refusal}
	if existing != nil {
		b.uid, b.generation = existing.UID, existing.Generation
	}
	return b
}

// planPass is one application of a plan to all its images.
type planPass struct {
	*Reconciler
	plan *v1alpha1.ClusterPlan
	// allowedNamespaces of the policy in force.
	allowedNamespaces policy.Namespaces
	// confirmed: a live read has shown that the plan applies.
	confirmed bool
	now       time.Time
	// before are the reports of the last pass, reports those of this one.
	before, reports map[plan.Key]v1alpha1.PlanItemReport
	// unavailableNamespaces are those in which no image can be created.
	unavailableNamespaces map[string]plan.Refusal
	// requeueAfter is when a refused image is tried again; 0 for never.
	requeueAfter time.Duration
}

func (p *planPass) requeueWithin(delay time.Duration) {
	p.requeueAfter = trigger.Earliest(p.requeueAfter, delay)
}

func (p *planPass) setReport(want *v1alpha1.PlannedImage, report v1alpha1.PlanItemReport) {
	report.Revision = want.Spec.Revision()
	p.reports[plan.KeyForImage(want)] = report
}

// keepReport reports an image that was not tried as before, or by a first report.
func (p *planPass) keepReport(want *v1alpha1.PlannedImage, first v1alpha1.PlanItemReport) {
	if last, known := p.before[plan.KeyForImage(want)]; known {
		p.reports[plan.KeyForImage(want)] = last
	} else {
		p.setReport(want, first)
	}
}

// reconcileImage creates or changes one image, and reports it. It returns errors that other images
// would meet, too; p.writes has those of this one.
func (p *planPass) reconcileImage(ctx context.Context, want *v1alpha1.PlannedImage) error {
	key := plan.KeyForImage(want)
	existing, err := p.getImage(ctx, p.Client, want)
	if err != nil {
		return err
	}
	action, report := p.nextAction(want, existing)
	if action == plan.Leave {
		p.setReport(want, report)
		return nil
	}
	if refusal, ok := p.unavailableNamespaces[want.Namespace]; ok {
		p.recordRefusal(want, existing, refusal)
		return nil
	}
	if b, ok := p.backoffs[key]; ok && b == newItemBackoff(want, existing, b.until, b.refusal) && p.now.Before(b.until) {
		p.setReport(want, b.refusal.Report)
		p.requeueWithin(b.until.Sub(p.now))
		return nil
	}
	if err := p.confirmPlanLive(ctx); err != nil {
		return err
	}
	began := time.Now()
	if p.writes.Skips(want.Namespace, began) {
		if p.before[key].Revision != want.Spec.Revision() || existing == nil { // what was reported is no longer so
			p.setReport(want, plan.PostponedReport())
		} else {
			p.keepReport(want, plan.PostponedReport())
		}
		return nil
	}
	delete(p.backoffs, key)
	report, err = p.writeImage(ctx, want, action)
	err = want.Spec.RedactError(err)
	p.writes.Record(want.Namespace, want.Name, p.recordWrite(want, existing, report, err), began, time.Now())
	return nil
}

// recordWrite stores the report of a write. It returns the error of one that failed though the image
// was not refused. A conflict that lasts, as of a webhook that denies with its code, is such an error.
func (p *planPass) recordWrite(want *v1alpha1.PlannedImage, existing *v1alpha1.VMDiskImage, report v1alpha1.PlanItemReport, err error) error {
	if err == nil {
		p.recordConflict(plan.KeyForImage(want), nil)
		p.setReport(want, report)
		return nil
	}
	refusal := plan.ClassifyRefusal(want, err)
	if delay := p.recordConflict(plan.KeyForImage(want), err); apierrors.IsConflict(err) && delay > 0 {
		p.setReport(want, refusal.Report)
		p.requeueWithin(delay)
		return nil
	}
	p.recordRefusal(want, existing, refusal)
	if !refusal.Transient {
		return nil
	}
	return fmt.Errorf("writing VMDiskImage %s/%s as planned: %w", want.Namespace, want.Name, err)
}

func (p *planPass) nextAction(want *v1alpha1.PlannedImage, existing *v1alpha1.VMDiskImage) (plan.Action, v1alpha1.PlanItemReport) {
	var last *plan.AppliedState
	if applied, ok := p.applied[plan.KeyForImage(want)]; ok {
		last = &applied
	}
	return plan.NextAction(want, existing, last, p.allowedNamespaces)
}

// confirmPlanLive reads live, once in a pass, whether the plan applies.
func (p *planPass) confirmPlanLive(ctx context.Context) error {
	if p.confirmed {
		return nil
	}
	live, verdict, err := p.readPlan(ctx, true)
	switch {
	case err != nil:
		return err
	case live == nil, live.UID != p.plan.UID, live.ResourceVersion != p.plan.ResourceVersion, !verdict.Accepted:
		return errStalePlan
	}
	p.confirmed = true
	return nil
}

// recordRefusal reports an image that the API server refuses, and delays its next try.
func (p *planPass) recordRefusal(want *v1alpha1.PlannedImage, existing *v1alpha1.VMDiskImage, refusal plan.Refusal) {
	p.setReport(want, refusal.Report)
	if refusal.Transient {
		return
	}
	if refusal.NamespaceUnavailable {
		p.unavailableNamespaces[want.Namespace] = refusal
	}
	delay := missingRetryDelay
	if refusal.Report.State == v1alpha1.PlanItemRejected {
		delay = rejectedRetryDelay
	}
	p.backoffs[plan.KeyForImage(want)] = newItemBackoff(want, existing, p.now.Add(delay), refusal)
	p.requeueWithin(delay)
}

// getImage returns the image of a planned one's name; nil for none.
func (p *planPass) getImage(ctx context.Context, reader client.Reader, want *v1alpha1.PlannedImage) (*v1alpha1.VMDiskImage, error) {
	img := &v1alpha1.VMDiskImage{}
	err := reader.Get(ctx, types.NamespacedName{Namespace: want.Namespace, Name: want.Name}, img)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading VMDiskImage %s/%s: %w", want.Namespace, want.Name, err)
	}
	return img, nil
}

// writeImage creates or changes an image. One that exists although the cache does not show
// it is changed, if a live read shows that it is a planned one.
func (p *planPass) writeImage(ctx context.Context, want *v1alpha1.PlannedImage, action plan.Action) (v1alpha1.PlanItemReport, error) {
	if action == plan.Create {
		err := p.Create(ctx, plan.NewImage(want), FieldOwner)
		if !apierrors.IsAlreadyExists(err) {
			return plan.AppliedReport(), err
		}
	}
	return p.updateImage(ctx, want)
}

// updateImage applies the plan to an existing image, if that is a planned one by a live
// read. What it writes names the UID and resourceVersion of that image.
func (p *planPass) updateImage(ctx context.Context, want *v1alpha1.PlannedImage) (v1alpha1.PlanItemReport, error) {
	existing, err := p.getImage(ctx, p.Live, want)
	if err != nil {
		return v1alpha1.PlanItemReport{}, err
	}
	action, report := p.nextAction(want, existing)
	switch action {
	case plan.Create:
		resource := v1alpha1.GroupVersion.WithResource("vmdiskimages").GroupResource()
		return report, apierrors.NewConflict(resource, want.Name, errors.New("it existed when it was to be created, and was deleted meanwhile"))
	case plan.Leave:
		return report, nil
	}
	if err := p.upgradeFieldOwner(ctx, existing); err != nil {
		return report, err
	}
	configuration, err := plan.NewApplyConfiguration(want, existing)
	if err != nil {
		return report, err
	}
	if err := p.Apply(ctx, client.ApplyConfigurationFromUnstructured(configuration), FieldOwner, client.ForceOwnership); err != nil {
		return report, err
	}
	p.applied[plan.KeyForImage(want)] = plan.AppliedState{UID: existing.UID, SpecFingerprint: plan.FingerprintSpec(want), Generation: configuration.GetGeneration()}
	return plan.AppliedReport(), nil
}

// upgradeFieldOwner turns the fields that the agent owns by creating the image into fields
// that it owns by applying. (It creates images instead of applying them so that it never
// takes over somebody else's.) Otherwise fields that the plan no longer sets would stay.
func (p *planPass) upgradeFieldOwner(ctx context.Context, existing *v1alpha1.VMDiskImage) error {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(existing, sets.New(string(FieldOwner)), string(FieldOwner))
	if err != nil {
		return fmt.Errorf("reading the field owners of VMDiskImage %s/%s: %w", existing.Namespace, existing.Name, err)
	}
	if patch == nil {
		return nil
	}
	return p.Patch(ctx, existing, client.RawPatch(types.JSONPatchType, patch), FieldOwner)
}
