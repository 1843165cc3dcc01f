package plan_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const ownClusterUID = types.UID("here")

func planVersion(epoch, sequence int64, hash string) v1alpha1.PlanVersion {
	return v1alpha1.PlanVersion{Epoch: epoch, Sequence: sequence, Hash: hash}
}

func TestEvaluatePlan(t *testing.T) {
	good := apitest.Policy().Concurrency(2).Obj()
	for _, tt := range []struct {
		name         string
		version      v1alpha1.PlanVersion
		cluster      types.UID
		policy       map[string]string
		acknowledged *v1alpha1.PlanVersion
		wantReason   string
		wantMessage  string
		wantUnknown  []string
	}{
		{"the first", planVersion(1, 1, "a"), ownClusterUID, good.ToData(), nil, v1alpha1.ReasonPlanInForce, "the plan of epoch 1, sequence 1 is in force", nil},
		{"without a policy", planVersion(1, 1, "a"), ownClusterUID, nil, nil, v1alpha1.ReasonPlanInForce, "the plan of epoch 1, sequence 1 is in force; it says nothing about the policy", nil},
		{"the one that was acknowledged", planVersion(1, 4, "a"), ownClusterUID, good.ToData(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanInForce, "is in force", nil},
		{"a newer one", planVersion(1, 5, "b"), ownClusterUID, good.ToData(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanInForce, "is in force", nil},
		{"one of a later epoch", planVersion(2, 1, "b"), ownClusterUID, good.ToData(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanInForce, "is in force", nil},
		{"an older one", planVersion(1, 3, "b"), ownClusterUID, good.ToData(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanOlder, "the plan of epoch 1, sequence 3 is refused: the plan of epoch 1, sequence 4 was acknowledged before", nil},
		{"one of an earlier epoch", planVersion(1, 9, "b"), ownClusterUID, good.ToData(), &v1alpha1.PlanVersion{Epoch: 2, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanOlder, "was acknowledged before", nil},
		{"another of the same version", planVersion(1, 4, "b"), ownClusterUID, good.ToData(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanOlder, "another plan of that version was acknowledged", nil},
		{"for another cluster", planVersion(1, 1, "a"), "there", good.ToData(), nil, v1alpha1.ReasonPlanForAnotherCluster, "was made for cluster there, this is here", nil},
		{"for another cluster, and older", planVersion(1, 1, "a"), "there", good.ToData(), &v1alpha1.PlanVersion{Epoch: 2, Sequence: 1, Hash: "a"}, v1alpha1.ReasonPlanForAnotherCluster, "was made for cluster there", nil},
		{"a wrong policy", planVersion(1, 1, "a"), ownClusterUID, map[string]string{"concurrency": "x", "retryLimit": "-1"}, nil, v1alpha1.ReasonPlanPolicyInvalid, `is not used, its policy is wrong: concurrency: "x" is not a whole number from 0 to 256; retryLimit: -1 is too small`, nil},
		{"a key of a later hub", planVersion(1, 1, "a"), ownClusterUID, map[string]string{"concurrency": "2", "colour": "blue"}, nil, v1alpha1.ReasonPlanInForce, "keys of its policy that this agent does not know are ignored: colour", []string{"colour"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := plan.EvaluatePlan(v1alpha1.ClusterPlanSpec{PlanVersion: tt.version, ClusterUID: tt.cluster, Policy: tt.policy}, ownClusterUID, tt.acknowledged)
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Contains(t, got.Message, tt.wantMessage)
			assert.Equal(t, tt.wantReason == v1alpha1.ReasonPlanInForce, got.Accepted)
			assert.Equal(t, tt.wantUnknown, got.UnknownPolicyKeys)
			if got.Accepted && tt.policy != nil {
				assert.Equal(t, &good, got.Policy)
			} else {
				assert.Nil(t, got.Policy, "a refused plan has no policy")
			}
		})
	}
}

// Plans arrive in any order, and repeatedly.
func TestAcknowledgedPlanVersionsNeverDecrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var acknowledged *v1alpha1.PlanVersion
		for range rapid.IntRange(1, 20).Draw(t, "plans") {
			next := planVersion(rapid.Int64Range(0, 3).Draw(t, "epoch"), rapid.Int64Range(0, 3).Draw(t, "sequence"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "hash"))
			verdict := plan.EvaluatePlan(v1alpha1.ClusterPlanSpec{PlanVersion: next, ClusterUID: ownClusterUID}, ownClusterUID, acknowledged)
			if acknowledged != nil {
				order := next.Compare(*acknowledged)
				require.Equal(t, order > 0 || next == *acknowledged, verdict.Accepted, "%+v after %+v", next, *acknowledged)
			}
			if verdict.Accepted {
				acknowledged = &next
			}
		}
	})
}
