package report

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A page that cannot be stored would hide all its images from the hub. The statuses are as an
// agent of an earlier version stored them.
func TestPagesCanBeStoredWhateverImagesSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(what string) string { return apitest.HostileText().Draw(t, what) }
		p := NewPaginator(nil)
		items, pruned := map[Key]v1alpha1.PlanItemReport{}, map[Key]v1alpha1.ReportedPrune{}
		for i := range rapid.IntRange(1, 5).Draw(t, "images") {
			img := testImage(i)
			img.Spec.URL = apitest.HostileURL().Draw(t, "url")
			img.Status.Message = text("message")
			img.Status.BytesTotal = rapid.Int64().Draw(t, "bytes")
			img.Status.Prune = &v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePending, Message: text("prune")}
			p.SetImage(img)
			key := Key{Namespace: img.Namespace, Name: img.Name}
			items[key] = v1alpha1.PlanItemReport{State: v1alpha1.PlanItemRejected, Message: text("item")}
			gone := Key{Namespace: img.Namespace, Name: img.Name + "-gone"}
			pruned[gone] = v1alpha1.ReportedPrune{PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PruneSkipped, Message: text("pruned")}, ImageUID: "uid"}
		}
		p.SetPlanItems(items)
		p.SetPrunedImages(pruned)
		for _, page := range p.Pages() {
			stored := &v1alpha1.ReportPage{Images: p.PageImages(page.Name)}
			schemacheck.RequireFieldStorable(t, "ClusterReport", "page", stored)
			for _, img := range stored.Images {
				require.NotContains(t, img.Source+img.Message, apitest.Secret)
				if img.Plan != nil {
					require.NotContains(t, img.Plan.Message, apitest.Secret)
				}
				if img.Prune != nil {
					require.NotContains(t, img.Prune.Message, apitest.Secret)
				}
			}
		}
		at := metav1.Unix(1000, 0)
		ledger := &v1alpha1.SyncLedger{Status: &v1alpha1.SyncLedgerStatus{Conditions: []metav1.Condition{{
			Type: "PolicyAccepted", Status: metav1.ConditionFalse, Reason: "Invalid", Message: text("condition"), LastTransitionTime: at,
		}}}}
		snapshot := StorageSnapshot{GoneImages: map[v1alpha1.ImageKey]bool{}}
		for i := range rapid.IntRange(0, 3).Draw(t, "claims") {
			claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Namespace: "farm", Name: fmt.Sprintf("claim-%d", i),
				Labels: map[string]string{v1alpha1.LabelImageUID: "x"}, Annotations: map[string]string{v1alpha1.AnnotationImageName: text("annotation")},
			}}
			claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(rapid.SampledFrom([]string{"1Gi", "5Ei", "7Ei", "-1"}).Draw(t, "requested"))}
			snapshot.Objects.Claims = append(snapshot.Objects.Claims, claim)
			snapshot.GoneImages[v1alpha1.ImageKey{Namespace: "farm", Name: claim.Annotations[v1alpha1.AnnotationImageName], UID: "x"}] = true
		}
		orphans := FindOrphans(snapshot)
		require.Len(t, orphans.First, len(snapshot.Objects.Claims))
		require.GreaterOrEqual(t, orphans.Bytes, int64(0))
		root := BuildRoot(RootInput{Orphans: orphans, Ledger: ledger, AgentVersion: "v1", BootID: "boot", Now: at.Time, Heartbeat: time.Minute})
		schemacheck.RequireFieldStorable(t, "ClusterReport", "root", &root)
	})
}
