//go:build linux

package outage_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// isHealthy reports a member that is Ready and has acknowledged its newest plan.
func isHealthy(m *v1alpha1.MemberCluster) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, v1alpha1.ConditionReady) && m.Status.Plan != nil && m.Status.AcknowledgedPlan != nil &&
		m.Status.Plan.Compare(*m.Status.AcknowledgedPlan) == 0
}

// hasBudget matches the member's budget.
func hasBudget(budget int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool { return m.Status.Budget != nil && *m.Status.Budget == budget }
}

// hasImages matches n images, all of them ready, besides those that are being deleted.
func hasImages(n int32) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		return m.Status.Images != nil && m.Status.Images.Total-m.Status.Images.Leaving == n && m.Status.Images.Ready == n
	}
}

// hasCondition matches a condition, with words in its message.
func hasCondition(condition string, status metav1.ConditionStatus, reason string, words ...string) func(*v1alpha1.MemberCluster) bool {
	return func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, condition)
		if c == nil || c.Status != status || c.Reason != reason {
			return false
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return false
			}
		}
		return true
	}
}

// getMemberFromReadAPI returns a member of the read API.
func (f *testFleet) getMemberFromReadAPI(t *testing.T, name string) readapi.Member {
	t.Helper()
	all, err := f.Hub.ListMembers(t.Context())
	require.NoError(t, err)
	for i := range all {
		if all[i].Member == name {
			return all[i]
		}
	}
	require.Failf(t, "the read API does not list a member", name)
	return readapi.Member{}
}

// awaitImage reads the image with a file from the read API until it meets a condition.
func (f *testFleet) awaitImage(t *testing.T, file string, holds func(readapi.ImageDetail) bool) {
	t.Helper()
	var detail readapi.ImageDetail
	require.True(t, testenv.AwaitCondition(t, func() bool {
		images, err := f.Hub.ListImages(t.Context())
		require.NoError(t, err)
		detail = readapi.ImageDetail{}
		for _, image := range images {
			if strings.Contains(image.Source, file) {
				if detail, err = f.Hub.GetImage(t.Context(), image.Source); err != nil {
					return false // its members have dropped it since
				}
			}
		}
		return holds(detail)
	}), "image %s is %+v", file, &detail)
}
