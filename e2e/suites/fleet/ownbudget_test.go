//go:build linux

package fleet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestBudgetHeldByOwnConfigMap raises the budget of a member whose own ConfigMap has a lower
// one: whoever raises it finds out before and after, and the member follows once the key is gone.
func TestBudgetHeldByOwnConfigMap(t *testing.T) {
	shared.AwaitMember(t, frankfurt, "ready", hasBudget(5))
	own := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: program.PolicyNamespace, Name: program.PolicyName}, Data: map[string]string{"concurrency": "3", "retryLimit": "2"}}
	member := shared.Members[frankfurt]
	require.NoError(t, member.Create(t.Context(), own))
	t.Cleanup(func() { assert.NoError(t, member.Delete(context.WithoutCancel(t.Context()), own)) })
	says := func(budget, limit int32, text string) func(*v1alpha1.MemberCluster) bool {
		return func(m *v1alpha1.MemberCluster) bool {
			if !hasBudget(budget)(m) || !ptr.Equal(m.Status.OwnConcurrency, &limit) {
				return false
			}
			for _, of := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionPolicyAcknowledged} {
				if c := meta.FindStatusCondition(m.Status.Conditions, of); c == nil || !strings.Contains(c.Message, text) {
					return false
				}
			}
			return true
		}
	}
	shared.AwaitMember(t, frankfurt, "held", says(3, 3, "; concurrency 5, held to 3 by the member's own ConfigMap"))
	// The read API answers from the hub's cache, which shows the hub's own write later.
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		var list readapi.MemberList
		require.NoError(check, shared.Hub.GetJSON(t.Context(), "/fleet/v1/members", &list))
		require.Len(check, list.Members, 2)
		assert.Equal(check, ptr.To[int32](3), list.Members[1].OwnConcurrency)
		assert.Nil(check, list.Members[0].OwnConcurrency)
	}, testenv.Patience, 50*time.Millisecond)

	preview := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.PolicyNamespace, Name: "raise", Labels: map[string]string{v1alpha1.LabelPolicyPreview: ""}},
		Data:       map[string]string{"concurrency": "3", "overrides": "[{cluster: frankfurt, concurrency: 8}]"},
	}
	require.NoError(t, shared.Create(t.Context(), preview))
	t.Cleanup(func() { require.NoError(t, shared.Delete(context.WithoutCancel(t.Context()), preview)) })
	awaitAnswer := func(has bool, text string) {
		t.Helper()
		require.True(t, testenv.AwaitCondition(t, func() bool {
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(preview), preview))
			answer := preview.Annotations[v1alpha1.AnnotationPreview]
			return answer != "" && strings.Contains(answer, text) == has
		}), "the preview says %s", preview.Annotations[v1alpha1.AnnotationPreview])
	}
	awaitAnswer(true, "Held lower by key concurrency of their own policy ConfigMap: frankfurt.")
	awaitAnswer(true, "8, held to 3")

	require.NoError(t, member.Patch(t.Context(), own, client.RawPatch(types.MergePatchType, []byte(`{"data":{"concurrency":null}}`))))
	shared.AwaitMember(t, frankfurt, "follows the hub", func(m *v1alpha1.MemberCluster) bool {
		return hasBudget(5)(m) && m.Status.OwnConcurrency == nil
	})
	awaitAnswer(false, "held")
}
