package memberstatus_test

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/plan"
)

const uid = types.UID("11111111-0000-0000-0000-000000000000")

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func timeAt(second int) *metav1.Time {
	t := metav1.NewTime(now.Add(time.Duration(second) * time.Second))
	return &t
}

func concurrencyPolicy(n int) map[string]string {
	return apitest.Policy().Concurrency(int32(n)).ToData()
}

func planVersion(epoch, sequence int64) v1alpha1.PlanVersion {
	return v1alpha1.PlanVersion{Epoch: epoch, Sequence: sequence}
}

// newPlan returns a plan with the hash of its content.
func newPlan(version v1alpha1.PlanVersion, policy map[string]string) *v1alpha1.ClusterPlanSpec {
	p := &v1alpha1.ClusterPlanSpec{PlanVersion: version, ClusterUID: uid, Policy: policy, PolicySource: "fleet default"}
	p.Hash = plan.Hash(p)
	return p
}

// withHeldPolicy has a plan keep the member's policy while the ConfigMap asks for another one.
func withHeldPolicy(p *v1alpha1.ClusterPlanSpec, held map[string]string) *v1alpha1.ClusterPlanSpec {
	p.HeldPolicy, p.PolicySource = plan.HashPolicy(held), "the member's"
	return p
}

// acknowledgingReport returns the report of a member that runs a plan.
func acknowledgingReport(p *v1alpha1.ClusterPlanSpec) *v1alpha1.ReportRoot {
	version := p.PlanVersion
	return &v1alpha1.ReportRoot{Plan: &version, PlanPolicy: p.Policy, PlanPolicySource: "the member's"}
}

func pageRef(name string, sequence int64) v1alpha1.PageRef {
	return v1alpha1.PageRef{Name: name, Sequence: sequence}
}
