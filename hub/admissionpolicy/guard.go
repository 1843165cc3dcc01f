// Package admissionpolicy tells whether the API server checks who approves: of the waves of
// FleetDiskImages, and of what ImagePrunes delete. It does so by two admission policies
// of the chart, which a cluster may have lost. The hub reads them by name. A request
// that they have to refuse would tell more, and would need the right to create
// FleetDiskImages and ImagePrunes: they are there to keep such requests away.
package admissionpolicy

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

// checkInterval between two looks.
const checkInterval = 10 * time.Second

// ApprovalCheck looks, where the hub is elected. It is a Runnable of a manager.
type ApprovalCheck struct {
	Live client.Reader
	// Enforced: the chart has the policies. Without them nothing is amiss, and there is
	// nothing to look for.
	Enforced bool
	Metrics  *metrics.Approvals
	// OnWavesChanged is called when something else is told of the policy of that name.
	OnWavesChanged func(metav1.Condition)
}

// NeedLeaderElection is true: FleetDiskImages are the elected replica's to tell of.
func (g *ApprovalCheck) NeedLeaderElection() bool { return true }

// Start looks until ctx ends.
func (g *ApprovalCheck) Start(ctx context.Context) error {
	told := map[string]metav1.Condition{}
	for {
		for _, p := range []Policy{WavesPolicy, PrunesPolicy} {
			c, err := g.CheckPolicy(ctx, p)
			switch {
			case err == nil:
				g.publishCondition(ctx, p, told[p.Name], c)
				told[p.Name] = c
			case ctx.Err() == nil:
				log.FromContext(ctx).Error(err, "Not knowing whether the API server checks who approves", "policy", p.Name)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(checkInterval):
		}
	}
}

func (g *ApprovalCheck) publishCondition(ctx context.Context, p Policy, before, c metav1.Condition) {
	if before == c {
		return
	}
	if g.Enforced {
		g.Metrics.SetGuarded(p.Name, c.Status == metav1.ConditionTrue)
	}
	if c.Status != metav1.ConditionTrue {
		log.FromContext(ctx).Info("The API server does not check who approves", "policy", p.Name, "because", c.Message)
	}
	if p == WavesPolicy {
		g.OnWavesChanged(c)
	}
}

// CheckPolicy reads a policy as it is now, and returns condition ApprovalGuarded.
func (g *ApprovalCheck) CheckPolicy(ctx context.Context, p Policy) (metav1.Condition, error) {
	if !g.Enforced {
		return p.notEnforcedCondition(), nil
	}
	seen := PolicyState{Policy: &admissionv1.ValidatingAdmissionPolicy{}, Binding: &admissionv1.ValidatingAdmissionPolicyBinding{}}
	err := g.Live.Get(ctx, client.ObjectKey{Name: p.Name}, seen.Policy)
	switch {
	case meta.IsNoMatchError(err):
		return ApprovalCondition(p, PolicyState{}), nil
	case apierrors.IsNotFound(err):
		seen.Policy = nil
	case err != nil:
		return metav1.Condition{}, fmt.Errorf("reading ValidatingAdmissionPolicy %s: %w", p.Name, err)
	}
	seen.PoliciesServed = true
	if err := g.Live.Get(ctx, client.ObjectKey{Name: p.Name}, seen.Binding); apierrors.IsNotFound(err) {
		seen.Binding = nil
	} else if err != nil {
		return metav1.Condition{}, fmt.Errorf("reading ValidatingAdmissionPolicyBinding %s: %w", p.Name, err)
	}
	return ApprovalCondition(p, seen), nil
}
