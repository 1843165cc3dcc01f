//go:build linux

package dashboard_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// What nothing needs is ticked in a report and approved by clicks, under the person's own name and
// for the digest that they saw, and is taken back before it is gone.
func TestPruneInMembers(t *testing.T) {
	f := openHub(t)
	img := fleet.NewFleetImage("forgotten", bergen)
	img.Spec.Version = "1.0.0"
	require.NoError(t, f.Create(t.Context(), img))
	f.awaitImage(t, img, "rolled out", func(img *v1alpha1.FleetDiskImage) bool { return img.Status.Phase == v1alpha1.RolloutSucceeded })
	require.NoError(t, f.Delete(t.Context(), img))
	f.AwaitGone(t, img)
	name := img.ImageNameForVersion("1.0.0")
	plan := &v1alpha1.ClusterPlan{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return f.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.MemberNamespacePrefix + bergen, Name: v1alpha1.MailboxName}, plan) == nil &&
			!slices.ContainsFunc(plan.Spec.Images, func(planned v1alpha1.PlannedImage) bool { return planned.Name == name })
	}), "the plan still wants it")
	report := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "clicks"}}
	report.Spec.ImageSelector = &v1alpha1.ImageSelector{Names: []string{name}}
	f.CreateForTest(t, report)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return f.Get(t.Context(), keyOf(report), report) == nil && report.Status.Phase == v1alpha1.PruneReportComplete
	}), "the report is not complete: %+v", &report.Status)
	require.Equal(t, int32(1), report.Status.Candidates.Count, "%+v", report.Status)

	p := f.openSignedIn(t, anna, "/cleanup/clicks")
	p.Click(t, "checkbox", name)
	p.Click(t, "button", "Approve as "+anna+"…")
	p.AwaitElement(t, "dialog", "Delete images of report clicks")
	p.AwaitText(t, report.Status.Digest[:12])
	p.Click(t, "button", "Approve as "+anna)
	prune := &v1alpha1.ImagePrune{}
	require.True(t, testenv.AwaitCondition(t, func() bool {
		var all v1alpha1.ImagePruneList
		if f.List(t.Context(), &all) != nil || len(all.Items) != 1 {
			return false
		}
		prune = &all.Items[0]
		return prune.Status.Targets.Pending == 1
	}), "no image is pending: %+v", &prune.Status)
	t.Cleanup(func() { f.deleteObject(t, prune) })
	assert.Equal(t, anna, prune.Spec.ApprovedBy)
	assert.Equal(t, v1alpha1.PruneReportRef{Name: "clicks", Digest: report.Status.Digest}, prune.Spec.ReportRef)

	p.Visit(t, "/cleanup")
	p.Click(t, "button", "Undo…")
	p.Click(t, "button", "Take it back")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return f.Get(t.Context(), keyOf(prune), prune) == nil && prune.Status.Phase == v1alpha1.ImagePruneUndone
	}), "it is not undone: %+v", &prune.Status)
	assert.NotNil(t, f.Members[bergen].GetImage(t, name), "it was deleted all the same")
}
