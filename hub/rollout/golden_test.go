package rollout_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/statuscheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// api/kstatus tests how clients that wait read these statuses.
func TestGoldenStatuses(t *testing.T) {
	approval := v1alpha1.Wave{Name: "all", RequireApproval: true}
	deleted := newUbuntu().Deleted(now, v1alpha1.DeletionDelete)
	views := map[string]rollout.View{
		"AwaitingApproval":                       newView(apitest.FleetDiskImage("ubuntu").WithWaves(approval), "canary=."),
		"AwaitingClusters":                       newView(newUbuntu(), "canary=P"),
		"MaxConcurrency":                         newView(newUbuntu().WithMaxConcurrency("1"), "canary=P.."),
		"MaxFailures":                            newView(newUbuntu(), "canary=F"),
		"MaxFailures, one in progress":           newView(newUbuntu(), "canary=FP"),
		"MinSuccessTime":                         newView(newUbuntu().WithMinSuccessTime(time.Hour), "canary=S eu=."),
		"NoClusters":                             newView(newUbuntu(), ""),
		"OfflineClusters":                        newView(newUbuntu().WithOfflineClusters(v1alpha1.OfflineWait), "canary=D"),
		"WaitingForWindow":                       waitForWindow(newView(newUbuntu(), "canary=P"), now.Add(8*time.Hour), "canary-0"),
		"Paused":                                 newView(newUbuntu().Paused(), "canary=."),
		"Paused, one in progress":                newView(newUbuntu().Paused(), "canary=P."),
		"PlanFull":                               newView(newUbuntu(), "canary=f"),
		"FieldsUnknown, one in progress":         age(newView(newUbuntu(), "canary=.P"), "canary-0"),
		"AwaitingApproval, of a source":          newView(apitest.FleetDiskImage("ubuntu").WithWaves(approval).WithOverride(storageClassOverride), "canary=."),
		"LabelMissing, for a moment":             newView(newUbuntu().WithOverride(siteOverride), "canary=."),
		"SourceInvalid, one in progress":         invalidate(newView(newUbuntu(), "canary=.P"), "canary-0"),
		"RolledOut, with overrides":              newView(newUbuntu().WithOverride(v1alpha1.ImageOverride{ClusterNames: []string{"canary-0"}, Priority: ptr.To[int32](7)}), "canary=S"),
		"RolledOut":                              newView(newUbuntu(), "canary=S"),
		"RolledOut, one offline":                 newView(newUbuntu(), "canary=SD"),
		"RolledOut, one failed within the limit": newView(newUbuntu().WithMaxFailures("1"), "canary=SF"),
		"ClustersBlocked":                        block(newView(newUbuntu(), "canary=P"), "canary-0"),
		"DeletingImages":                         newView(deleted, "canary=S"),
		"NameConflict":                           newView(newUbuntu(), "canary=S"),
		"SelectorInvalid":                        newView(newUbuntu(), "canary=S"),
	}
	change := func(name string, how func(*rollout.View)) {
		v := views[name]
		how(&v)
		views[name] = v
	}
	change("NameConflict", func(v *rollout.View) { v.Conflict = "jammy" })
	change("DeletingImages", func(v *rollout.View) { v.Holders = []string{"canary-0"} })
	change("SelectorInvalid", func(v *rollout.View) {
		v.Image.Spec.Placement.ClusterSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "wave", Operator: "Near"}}}
	})
	change("ClustersBlocked", func(v *rollout.View) { *v = advanceView(*v, decideAndCheck(t, *v), time.Minute) })
	old := age(newView(newUbuntu(), "canary=."), "canary-0")
	views["FieldsUnknown, for a moment"], views["FieldsUnknown"] = old, advanceView(old, decideAndCheck(t, old), time.Minute)
	views["AwaitingClusters, one blocked for a moment"] = block(newView(newUbuntu(), "canary=P"), "canary-0")
	labelled := newView(newUbuntu().WithOverride(siteOverride), "canary=.")
	views["LabelMissing"] = advanceView(labelled, decideAndCheck(t, labelled), time.Minute)
	invalid := invalidate(newView(newUbuntu(), "canary=."), "canary-0")
	views["SourceInvalid"] = advanceView(invalid, decideAndCheck(t, invalid), time.Minute)
	objects := map[string]statuscheck.Object{}
	for name, v := range views {
		v.Image.Generation = 7
		d := decideAndCheck(t, v)
		needsPerson := d.Status.Reason == v1alpha1.ReasonRolloutPaused || d.Status.Reason == v1alpha1.ReasonAwaitingApproval ||
			slices.Contains([]string{v1alpha1.ReasonFieldsUnknown, v1alpha1.ReasonLabelMissing, v1alpha1.ReasonSourceInvalid}, d.Status.Reason) || meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled)
		assert.Equal(t, needsPerson, rollout.NeedsPerson(d.Status.Reason), "%s: a person learns of it by an event", name)
		objects[name] = statuscheck.Object{Status: &d.Status, Deleted: v.Image.DeletionTimestamp}
	}
	statuscheck.CompareGolden(t, "FleetDiskImage", objects)
}
