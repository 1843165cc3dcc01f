// Package guard tells whether the API server checks who approves: of the waves of
// FleetDiskImages, and of what ImagePrunes delete. It does so by two admission policies
// of the chart, which a cluster may have lost. The hub reads them by name. A request
// that they have to refuse would tell more, and would need the right to create
// FleetDiskImages and ImagePrunes: they are there to keep such requests away.
package guard

import (
	"context"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/hub/metrics"
)

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=ot-hub-approvals;ot-hub-prunes,verbs=get

// pause between two looks.
const pause = 10 * time.Second

// Guard looks, where the hub is elected. It is a Runnable of a manager.
type Guard struct {
	Live client.Reader
	// Enforced: the chart has the policies. Without them nothing is amiss, and there is
	// nothing to look for.
	Enforced bool
	Metrics  *metrics.Approvals
	// Waves is called when something else is told of the policy of that name.
	Waves func(metav1.Condition)
}

// NeedLeaderElection is true: FleetDiskImages are the elected replica's to tell of.
func (g *Guard) NeedLeaderElection() bool { return true }

// Start looks until ctx ends.
func (g *Guard) Start(ctx context.Context) error {
	told := map[string]metav1.Condition{}
	for {
		for _, p := range []Policy{Waves, Prunes} {
			c, err := g.Look(ctx, p)
			switch {
			case err == nil:
				g.tell(ctx, p, told[p.Name], c)
				told[p.Name] = c
			case ctx.Err() == nil:
				log.FromContext(ctx).Error(err, "Not knowing whether the API server checks who approves", "policy", p.Name)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (g *Guard) tell(ctx context.Context, p Policy, before, c metav1.Condition) {
	if before == c {
		return
	}
	if g.Enforced {
		g.Metrics.Guarded(p.Name, c.Status == metav1.ConditionTrue)
	}
	if c.Status != metav1.ConditionTrue {
		log.FromContext(ctx).Info("The API server does not check who approves", "policy", p.Name, "because", c.Message)
	}
	if p == Waves {
		g.Waves(c)
	}
}

// Look reads a policy as it is now, and returns condition ApprovalGuarded.
func (g *Guard) Look(ctx context.Context, p Policy) (metav1.Condition, error) {
	if !g.Enforced {
		return p.unenforced(), nil
	}
	seen := Seen{Policy: &admissionv1.ValidatingAdmissionPolicy{}, Binding: &admissionv1.ValidatingAdmissionPolicyBinding{}}
	err := g.Live.Get(ctx, client.ObjectKey{Name: p.Name}, seen.Policy)
	switch {
	case meta.IsNoMatchError(err):
		return Judge(p, Seen{}), nil
	case apierrors.IsNotFound(err):
		seen.Policy = nil
	case err != nil:
		return metav1.Condition{}, fmt.Errorf("reading ValidatingAdmissionPolicy %s: %w", p.Name, err)
	}
	seen.Served = true
	if err := g.Live.Get(ctx, client.ObjectKey{Name: p.Name}, seen.Binding); apierrors.IsNotFound(err) {
		seen.Binding = nil
	} else if err != nil {
		return metav1.Condition{}, fmt.Errorf("reading ValidatingAdmissionPolicyBinding %s: %w", p.Name, err)
	}
	return Judge(p, seen), nil
}
