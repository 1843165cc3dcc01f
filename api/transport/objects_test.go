package transport

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func repeat[T any](n int, item T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = item
	}
	return all
}

// The largest objects that hub and agent write are far within the limits.
func TestLargestObjectsAreWithinLimits(t *testing.T) {
	name := strings.Repeat("n", 40)
	plan := v1alpha1.ClusterPlan{Spec: v1alpha1.ClusterPlanSpec{
		Images: repeat(v1alpha1.MaxPlannedImages, v1alpha1.PlannedImage{Namespace: name, Name: name, Spec: v1alpha1.VMDiskImageSpec{
			URL: "https://images.example.com/" + strings.Repeat("u", 200), DiskSize: resource.MustParse("10Gi"), SourceType: v1alpha1.SourceHTTP,
		}}),
		Kept:      repeat(v1alpha1.MaxKeptImages, v1alpha1.KeptImage{Namespace: name, Name: name}),
		Retired:   repeat(v1alpha1.MaxRetiredImages, v1alpha1.RetiredImage{Namespace: name, Name: name, UnreferencedFor: metav1.Duration{Duration: 1}}),
		Inquiries: repeat(v1alpha1.MaxInquiries, v1alpha1.PlanInquiry{UID: "u", Epoch: 1, Sequence: 1}),
		Prunes: repeat(v1alpha1.MaxPlannedPrunes, v1alpha1.PlannedPrune{Namespace: name, Name: name, ImageUID: "7d3b6f0e-9d0c-4a0e-8d2c-0f6f5d0a3c11",
			Revision: "0123456789abcdef", UnreferencedSince: 1, Others: true, UID: "7d3b6f0e-9d0c-4a0e-8d2c-0f6f5d0a3c11", Undo: true}),
	}}
	now := metav1.Now()
	page := v1alpha1.ClusterReport{Page: &v1alpha1.ReportPage{Images: repeat(v1alpha1.MaxReportedImages, v1alpha1.ReportedImage{
		Namespace: name, Name: name, UID: "u", Source: strings.Repeat("s", 1500), Message: strings.Repeat("m", 1024), Phase: v1alpha1.PhaseFailed, Reason: "Reason", Stalled: true,
		UnreferencedSince: &now, SyncedAt: &now, Plan: &v1alpha1.PlanItemReport{Message: name}, Prune: &v1alpha1.ReportedPrune{},
	})}}
	for what, tt := range map[string]struct {
		object any
		limit  int64
	}{
		"plan, in an answer with nothing else":   {plan, Mailbox.AnswerCost / 2},
		"plan, in a watch":                       {plan, Mailbox.EventCost / 2},
		"pages that are larger than they may be": {repeat(MailboxPageSize, page), Mailbox.AnswerCost / 2},
	} {
		text, err := json.Marshal(tt.object)
		require.NoError(t, err)
		cost, within, err := MeasureCost(bytes.NewReader(text), tt.limit)
		require.NoError(t, err)
		require.True(t, within, "%s: %d KiB of JSON cost more than %d MiB", what, len(text)>>10, tt.limit>>20)
		t.Logf("%s: %d KiB of JSON cost %d KiB", what, len(text)>>10, cost>>10)
	}
}
