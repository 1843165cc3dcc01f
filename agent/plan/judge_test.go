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

const here = types.UID("here")

func version(epoch, sequence int64, hash string) v1alpha1.PlanVersion {
	return v1alpha1.PlanVersion{Epoch: epoch, Sequence: sequence, Hash: hash}
}

func TestJudge(t *testing.T) {
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
		{"the first", version(1, 1, "a"), here, good.Data(), nil, v1alpha1.ReasonPlanInForce, "the plan of epoch 1, sequence 1 is in force", nil},
		{"without a policy", version(1, 1, "a"), here, nil, nil, v1alpha1.ReasonPlanInForce, "the plan of epoch 1, sequence 1 is in force; it says nothing about the policy", nil},
		{"the one that was acknowledged", version(1, 4, "a"), here, good.Data(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanInForce, "is in force", nil},
		{"a newer one", version(1, 5, "b"), here, good.Data(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanInForce, "is in force", nil},
		{"one of a later epoch", version(2, 1, "b"), here, good.Data(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanInForce, "is in force", nil},
		{"an older one", version(1, 3, "b"), here, good.Data(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanOlder, "the plan of epoch 1, sequence 3 is refused: the plan of epoch 1, sequence 4 was acknowledged before", nil},
		{"one of an earlier epoch", version(1, 9, "b"), here, good.Data(), &v1alpha1.PlanVersion{Epoch: 2, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanOlder, "was acknowledged before", nil},
		{"another of the same version", version(1, 4, "b"), here, good.Data(), &v1alpha1.PlanVersion{Epoch: 1, Sequence: 4, Hash: "a"}, v1alpha1.ReasonPlanOlder, "another plan of that version was acknowledged", nil},
		{"for another cluster", version(1, 1, "a"), "there", good.Data(), nil, v1alpha1.ReasonPlanForAnother, "was made for cluster there, this is here", nil},
		{"for another cluster, and older", version(1, 1, "a"), "there", good.Data(), &v1alpha1.PlanVersion{Epoch: 2, Sequence: 1, Hash: "a"}, v1alpha1.ReasonPlanForAnother, "was made for cluster there", nil},
		{"a wrong policy", version(1, 1, "a"), here, map[string]string{"concurrency": "x", "retryLimit": "-1"}, nil, v1alpha1.ReasonPlanPolicyFaulty, `is not used, its policy is wrong: concurrency: "x" is not a whole number from 0 to 256; retryLimit: -1 is too small`, nil},
		{"a key of a later hub", version(1, 1, "a"), here, map[string]string{"concurrency": "2", "colour": "blue"}, nil, v1alpha1.ReasonPlanInForce, "keys of its policy that this agent does not know are ignored: colour", []string{"colour"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := plan.Judge(v1alpha1.ClusterPlanSpec{PlanVersion: tt.version, ClusterUID: tt.cluster, Policy: tt.policy}, here, tt.acknowledged)
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Contains(t, got.Message, tt.wantMessage)
			assert.Equal(t, tt.wantReason == v1alpha1.ReasonPlanInForce, got.Accepted)
			assert.Equal(t, tt.wantUnknown, got.Unknown)
			if got.Accepted && tt.policy != nil {
				assert.Equal(t, &good, got.Policy)
			} else {
				assert.Nil(t, got.Policy, "nothing of a plan that is refused is to be used")
			}
		})
	}
}

// TestAcknowledgedPlansOnlyRise has plans arrive in any order, and again.
func TestAcknowledgedPlansOnlyRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var acknowledged *v1alpha1.PlanVersion
		for range rapid.IntRange(1, 20).Draw(t, "plans") {
			next := version(rapid.Int64Range(0, 3).Draw(t, "epoch"), rapid.Int64Range(0, 3).Draw(t, "sequence"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "hash"))
			verdict := plan.Judge(v1alpha1.ClusterPlanSpec{PlanVersion: next, ClusterUID: here}, here, acknowledged)
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
