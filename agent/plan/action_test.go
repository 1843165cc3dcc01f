package plan_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const key = "lab/ubuntu"

func planItem(b *apitest.ImageBuilder) *v1alpha1.PlannedImage {
	img := b.Obj()
	return &v1alpha1.PlannedImage{Namespace: img.Namespace, Name: img.Name, Spec: img.Spec}
}

func plannedImage(b *apitest.ImageBuilder) *v1alpha1.VMDiskImage {
	img := b.Obj()
	img.Labels = map[string]string{v1alpha1.LabelPlanned: "true", "other": "label"}
	return img
}

// A plan's image is as the FleetDiskImage's template in every field.
func TestEveryFieldOfAPlanIsApplied(t *testing.T) {
	base := plannedImage(apitest.Image(key))
	for field, spec := range apitest.SpecVariants(base.Spec) {
		want := &v1alpha1.PlannedImage{Namespace: base.Namespace, Name: base.Name, Spec: spec}
		assert.Equal(t, spec, plan.NewImage(want).Spec, field)
		action, _ := plan.NextAction(want, base, nil, nil)
		assert.Equal(t, plan.Change, action, field)
		configuration, err := plan.NewApplyConfiguration(want, base)
		require.NoError(t, err)
		var applied v1alpha1.VMDiskImage
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(configuration.Object, &applied))
		assert.True(t, spec.Equal(&applied.Spec), "%s: %v", field, spec.DiffersIn(&applied.Spec))
		assert.NotEqual(t, plan.FingerprintSpec(planItem(apitest.Image(key))), plan.FingerprintSpec(want), field)
	}
}

func TestPlanIsRefusedInNamespacesThatAreNotAllowed(t *testing.T) {
	want := planItem(apitest.Image(key))
	differs := apitest.Image(key).WithURL("https://elsewhere.example.com/a")
	for _, tt := range []struct {
		name        string
		existing    *v1alpha1.VMDiskImage
		wantState   v1alpha1.PlanItemState
		wantMessage string
	}{
		{"missing", nil, v1alpha1.PlanItemRejected, "namespace lab is not allowed: allowedNamespaces of the cluster's own policy ConfigMap does not name it"},
		{"placed before", plannedImage(apitest.Image(key)), v1alpha1.PlanItemRejected, "no longer allowed"},
		{"placed before, with another spec", plannedImage(differs), v1alpha1.PlanItemRejected, "stays as it is"},
		{"made by somebody else", differs.Obj(), v1alpha1.PlanItemNotOurs, "made by somebody else"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			action, report := plan.NextAction(want, tt.existing, nil, policy.Namespaces{"farm", "lab-*"})
			assert.Equal(t, plan.Leave, action)
			assert.Equal(t, tt.wantState, report.State)
			assert.Contains(t, report.Message, tt.wantMessage)
		})
	}
}

func TestNextAction(t *testing.T) {
	want := planItem(apitest.Image(key))
	differs := func() *apitest.ImageBuilder { return apitest.Image(key).WithURL("https://elsewhere.example.com/a") }
	further := func() *apitest.ImageBuilder { return apitest.Image(key).WithPriority(7).WithGeneration(3) }
	uid := apitest.Image(key).Obj().UID
	before := plan.FingerprintSpec(planItem(differs()))
	notOurs := plannedImage(differs())
	notOurs.Labels[v1alpha1.LabelPlanned] = "false"

	for _, tt := range []struct {
		name       string
		existing   *v1alpha1.VMDiskImage
		applied    *plan.AppliedState
		wantAction plan.Action
		wantState  v1alpha1.PlanItemState
	}{
		{"missing", nil, nil, plan.Create, v1alpha1.PlanItemWaiting},
		{"deleted since it was applied", nil, &plan.AppliedState{UID: uid, SpecFingerprint: plan.FingerprintSpec(want), Generation: 1}, plan.Create, v1alpha1.PlanItemWaiting},
		{"as planned", plannedImage(apitest.Image(key)), nil, plan.Leave, v1alpha1.PlanItemApplied},
		{"another spec", plannedImage(differs()), nil, plan.Change, v1alpha1.PlanItemWaiting},
		{"not planned", differs().Obj(), nil, plan.Leave, v1alpha1.PlanItemNotOurs},
		{"not planned, the same spec", apitest.Image(key).Obj(), nil, plan.Leave, v1alpha1.PlanItemNotOurs},
		{"labelled as not planned", notOurs, nil, plan.Leave, v1alpha1.PlanItemNotOurs},
		{"not planned, being deleted", differs().Deleted(time.Unix(1, 0)).Obj(), nil, plan.Leave, v1alpha1.PlanItemNotOurs},
		{"being deleted", plannedImage(differs().Deleted(time.Unix(1, 0))), nil, plan.Leave, v1alpha1.PlanItemWaiting},
		{"applied, and extended by others", plannedImage(further()), &plan.AppliedState{UID: uid, SpecFingerprint: plan.FingerprintSpec(want), Generation: 3}, plan.Leave, v1alpha1.PlanItemApplied},
		{"changed since it was applied", plannedImage(further()), &plan.AppliedState{UID: uid, SpecFingerprint: plan.FingerprintSpec(want), Generation: 2}, plan.Change, v1alpha1.PlanItemWaiting},
		{"another spec was applied", plannedImage(further()), &plan.AppliedState{UID: uid, SpecFingerprint: before, Generation: 3}, plan.Change, v1alpha1.PlanItemWaiting},
		{"applied to a former image of that name", plannedImage(further()), &plan.AppliedState{UID: "former", SpecFingerprint: plan.FingerprintSpec(want), Generation: 9}, plan.Change, v1alpha1.PlanItemWaiting},
	} {
		t.Run(tt.name, func(t *testing.T) {
			action, report := plan.NextAction(want, tt.existing, tt.applied, policy.Namespaces{"farm", "la*"})
			assert.Equal(t, tt.wantAction, action)
			assert.Equal(t, tt.wantState, report.State)
			assert.Equal(t, tt.wantState == v1alpha1.PlanItemApplied, report.Message == "", "an item that is not applied has a message")
		})
	}
}

func TestApplyConfigurationNamesUIDAndResourceVersion(t *testing.T) {
	want := planItem(apitest.Image(key))
	u, err := plan.NewApplyConfiguration(want, plannedImage(apitest.Image(key).WithUID("existing")))
	require.NoError(t, err)
	assert.Equal(t, "existing", string(u.GetUID()))
	assert.Equal(t, "1", u.GetResourceVersion())
	assert.Equal(t, map[string]string{v1alpha1.LabelPlanned: "true"}, u.GetLabels(), "labels of other owners are not applied")
	spec, _, err := unstructured.NestedMap(u.Object, "spec")
	require.NoError(t, err)
	assert.NotContains(t, spec, "priority", "fields that the plan does not set are not applied")
	back := &v1alpha1.VMDiskImage{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, back))
	assert.Equal(t, plan.NewImage(want).Spec, back.Spec)
}

func TestClassifyRefusal(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "vmdiskimages"}
	terminating := apierrors.NewForbidden(resource, "ubuntu", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = append(terminating.ErrStatus.Details.Causes, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
	for _, tt := range []struct {
		name                         string
		err                          error
		wantState                    v1alpha1.PlanItemState
		wantReason                   v1alpha1.Reason
		wantMessage                  string
		wantNamespace, wantTransient bool
	}{
		{"invalid", apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("VMDiskImage").GroupKind(), "ubuntu", field.ErrorList{field.Invalid(field.NewPath("spec", "url"), "", "bad url")}), v1alpha1.PlanItemRejected, "", "bad url", false, false},
		{"forbidden", apierrors.NewForbidden(resource, "ubuntu", errors.New("not here")), v1alpha1.PlanItemRejected, "", "not here", false, false},
		{"too long", apierrors.NewBadRequest(strings.Repeat("ä", 2000)), v1alpha1.PlanItemRejected, "", "ää", false, false},
		{"quota", apierrors.NewForbidden(resource, "ubuntu", errors.New("exceeded quota: images")), v1alpha1.PlanItemWaiting, v1alpha1.ReasonQuotaExceeded, "exceeded quota", false, false},
		{"no namespace", apierrors.NewNotFound(corev1.Resource("namespaces"), "lab"), v1alpha1.PlanItemWaiting, v1alpha1.ReasonNamespaceMissing, "namespace lab does not exist: create it", true, false},
		{"a namespace that is terminating", terminating, v1alpha1.PlanItemWaiting, v1alpha1.ReasonNamespaceTerminating, "namespace lab is being deleted", true, false},
		{"kind not served", apierrors.NewNotFound(resource, ""), v1alpha1.PlanItemWaiting, "", "not found", false, true},
		{"no answer", errors.New("connection refused"), v1alpha1.PlanItemWaiting, "", "connection refused", false, true},
		{"overloaded", apierrors.NewTooManyRequests("later", 1), v1alpha1.PlanItemWaiting, "", "later", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := plan.ClassifyRefusal(planItem(apitest.Image(key)), tt.err)
			assert.Equal(t, tt.wantState, got.Report.State)
			assert.Equal(t, tt.wantReason, got.Report.Reason)
			assert.Contains(t, got.Report.Message, tt.wantMessage)
			assert.LessOrEqual(t, len(got.Report.Message), 1024)
			assert.Equal(t, tt.wantNamespace, got.NamespaceUnavailable)
			assert.Equal(t, tt.wantTransient, got.Transient)
		})
	}
}

func TestResultsNotifyOnChange(t *testing.T) {
	var r plan.Results
	changes := 0
	r.OnChange(func() { changes++ })
	assert.False(t, r.Known())
	r.SetItems(nil)
	assert.True(t, r.Known())
	assert.Equal(t, 1, changes, "the first results are a change, even empty ones")
	items := map[plan.Key]v1alpha1.PlanItemReport{{Namespace: "lab", Name: "ubuntu"}: plan.AppliedReport()}
	r.SetItems(items)
	r.SetItems(items)
	assert.Equal(t, 2, changes, "equal results are no change")
	clear(items)
	got := r.Items()
	assert.Len(t, got, 1)
	clear(got)
	assert.Len(t, r.Items(), 1, "the returned map is a copy")
}

func TestResultsOfPrunesNotifyOnChange(t *testing.T) {
	var r plan.Results
	changes := 0
	r.OnChange(func() { changes++ })
	r.SetPrunes(nil)
	assert.Zero(t, changes, "none is no change")
	assert.False(t, r.Known(), "the items are not known yet")
	gone := map[plan.Key]v1alpha1.ReportedPrune{
		{Namespace: "lab", Name: "ubuntu"}: {ImageUID: "image", PruneStatus: v1alpha1.PruneStatus{UID: "prune", State: v1alpha1.PrunePruned}},
	}
	r.SetPrunes(gone)
	r.SetPrunes(gone)
	assert.Equal(t, 1, changes, "equal results are no change")
	clear(gone)
	got := r.Prunes()
	assert.Len(t, got, 1)
	clear(got)
	assert.Len(t, r.Prunes(), 1, "the returned map is a copy")
	r.SetPrunes(nil)
	assert.Empty(t, r.Prunes())
	assert.Equal(t, 2, changes)
}
