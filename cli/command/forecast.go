package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/preload"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// gatherForecast adds to targets what estimates go by: what each imports and queues, and with --live
// what has no room there. unread says what of it could not be read.
func (e *environment) gatherForecast(ctx context.Context, hub *connect.Cluster, images []*v1alpha1.FleetDiskImage, targets []preload.Target) (f preload.Fleet, unread string, err error) {
	f = preload.Fleet{Now: e.now(), Live: e.live}
	var noPolicy error
	var inForce *policy.Policy
	inForce, f.Budget, noPolicy = e.readBudget(ctx, hub, f.Now)
	if e.live {
		err = e.gatherLive(ctx, images, &targets[0])
	}
	switch {
	case noPolicy != nil: // the group of the source is not known, nor is its rate
		for i := range targets {
			targets[i].Activity = nil
		}
		return f, "Not known when clusters have it, since the policy cannot be read: " + noPolicy.Error(), cmp.Or(err, ctx.Err())
	case e.live:
		return f, "", err
	}
	activities, err := e.listActivities(ctx, hub)
	if err != nil {
		return f, "", err
	}
	isOpen := f.Budget != nil && !inForce.Budget(f.Now).IsClosed()
	if isOpen {
		var members v1alpha1.MemberClusterList
		if err := hub.List(ctx, &members); err != nil {
			return f, "", err
		}
		f.CountHeld(inForce, members.Items, activities)
	}
	for i := range targets {
		targets[i].Activity = activities[v1alpha1.MemberNamespacePrefix+targets[i].Member.Name]
	}
	if !e.reportsForbidden {
		return f, "", nil
	}
	unread, err = e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) error {
		if isOpen && len(f.Budget.Sources) > 0 {
			running, err := api.Transfers(ctx, readapi.TransfersQuery{State: readapi.TransferRunning, Limit: transferPage})
			if err != nil {
				return err
			}
			f.CountRunning(running.Running)
		}
		for i := range targets {
			m, err := api.Member(ctx, targets[i].Member.Name)
			switch {
			case errors.Is(err, readapi.ErrNotFound): // it has not seen the member yet
				continue
			case err != nil:
				return err
			}
			if m.Activity != nil && m.ActivityUnknown == "" {
				targets[i].Activity = m.Activity.Reported(ptr.Deref(m.Budget, 0), ptr.Deref(m.SlotsUsed, 0))
			}
		}
		return nil
	})
	return f, unread, err
}

// readBudget returns the policy in force and its budget, or while its window is closed, that of the next
// opening; nil for none.
func (e *environment) readBudget(ctx context.Context, hub *connect.Cluster, now time.Time) (*policy.Policy, *policy.Budget, error) {
	data, err := (&policyReader{Cluster: hub, hubNamespace: e.HubNamespace}).readInForce(ctx)
	if err != nil || data == nil {
		return nil, nil, err
	}
	inForce, _, errs := policy.ParsePolicy(data)
	if len(errs) > 0 {
		return nil, nil, fmt.Errorf("%s", policy.FormatErrors(errs))
	}
	budget := inForce.Budget(now)
	if budget.IsClosed() {
		budget = inForce.Budget(budget.RisesAt)
	}
	return inForce, budget, nil
}

// gatherLive asks the member itself: its queue, and whether there is room.
func (e *environment) gatherLive(ctx context.Context, images []*v1alpha1.FleetDiskImage, t *preload.Target) error {
	member, m, err := e.gatherMember(ctx)
	if err != nil {
		return err
	}
	s := m.OfImage("", "")
	t.Activity, t.SourceLimits, t.Shortages = s.Activity, s.SourceLimits, map[string]string{}
	var classes storagev1.StorageClassList
	o := &optional{cluster: member}
	if err := o.list(ctx, &classes); err != nil {
		return err
	}
	storage := capacity.NewReader(member.Client)
	for _, img := range images {
		image, err := preload.NewMemberImage(img, t.Member)
		if err != nil {
			continue // which the estimate says
		}
		class := cmp.Or(image.Spec.StorageClass, capacity.DefaultStorageClass(classes.Items))
		if blocker := capacity.FindBlocker(image, class, storage.AvailabilityFor(ctx, image.Namespace, class, capacity.MaxAgeAtAdmission)); blocker != nil {
			t.Shortages[img.Name] = blocker.Message
		}
	}
	return nil
}
