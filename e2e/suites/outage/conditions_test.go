//go:build linux

package outage_test

import (
	"slices"
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

// awaitReadMember reads a member from the read API, which answers from a cache, until it meets a
// condition.
func (f *testFleet) awaitReadMember(t *testing.T, name string, holds func(readapi.Member) bool) (m readapi.Member) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		all, err := f.Hub.ListMembers(t.Context())
		i := slices.IndexFunc(all, func(m readapi.Member) bool { return m.Member == name })
		if err != nil || i < 0 {
			return false
		}
		m = all[i]
		return holds(m)
	}), "the read API has %+v of %s", &m, name)
	return m
}

func isKnown(m readapi.Member) bool { return m.Unknown == "" }

func isUnknown(m readapi.Member) bool { return m.Unknown != "" }

// awaitImage reads the image with a file from the read API until it meets a condition.
func (f *testFleet) awaitImage(t *testing.T, file string, holds func(readapi.ImageDetail) bool) {
	t.Helper()
	var detail readapi.ImageDetail
	require.True(t, testenv.AwaitCondition(t, func() bool {
		images, err := f.Hub.ListImages(t.Context())
		if err != nil {
			return false // the hub, or what it asks, has not answered in time
		}
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
