package ownership_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pelotech/ot-fleet/api/ownership"
)

func entry(manager, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}}
}

const specVersion = `{"f:spec":{"f:version":{},"f:template":{"f:url":{}}}}`

func TestFindOwner(t *testing.T) {
	flux := map[string]string{"kustomize.toolkit.fluxcd.io/name": "images", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
	helm := map[string]string{"helm.toolkit.fluxcd.io/name": "images", "helm.toolkit.fluxcd.io/namespace": "apps"}
	argo := map[string]string{"argocd.argoproj.io/tracking-id": "images:pelotech.ot/FleetDiskImage:/ubuntu"}
	status := entry("kustomize-controller", specVersion)
	status.Subresource = "status"
	for name, tt := range map[string]struct {
		labels, annotations map[string]string
		entry               metav1.ManagedFieldsEntry
		field               string
		want                string
	}{
		"Flux":                       {flux, nil, entry("kustomize-controller", specVersion), "spec.version", "Flux (Kustomization flux-system/images)"},
		"Flux, by Helm":              {helm, nil, entry("helm-controller", specVersion), "spec.version", "Flux (HelmRelease apps/images)"},
		"Argo CD":                    {nil, argo, entry("argocd-controller", specVersion), "spec.version", "Argo CD (Application images)"},
		"Argo CD as kubectl":         {nil, argo, entry("kubectl-client-side-apply", specVersion), "spec.version", "Argo CD (Application images)"},
		"without a mark":             {nil, nil, entry("argocd-controller", specVersion), "spec.version", "Argo CD (field manager argocd-controller)"},
		"a part of the field":        {flux, nil, entry("kustomize-controller", specVersion), "spec.template", "Flux (Kustomization flux-system/images)"},
		"another field":              {flux, nil, entry("kustomize-controller", `{"f:spec":{"f:versions":{}}}`), "spec.version", ""},
		"the status":                 {flux, nil, status, "spec.version", ""},
		"a person":                   {nil, nil, entry("kubectl-edit", specVersion), "spec.version", ""},
		"kubectl ot, beside Argo CD": {nil, argo, entry(ownership.FieldManager, specVersion), "spec.version", ""},
		"broken fields":              {flux, nil, entry("kustomize-controller", `{"f:spec":5`), "spec.version", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := &metav1.ObjectMeta{Labels: tt.labels, Annotations: tt.annotations, ManagedFields: []metav1.ManagedFieldsEntry{tt.entry}}
			got := ownership.FindOwner(o, "spec.paused", tt.field)
			if tt.want == "" {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, tt.want, got.String())
			assert.Contains(t, got.Refusal("FleetDiskImage ubuntu").Error(), tt.want+" owns "+tt.field+" of FleetDiskImage ubuntu")
		})
	}
}

func TestConflictsWithItself(t *testing.T) {
	conflict := func(causes ...metav1.StatusCause) error {
		return apierrors.NewApplyConflict(causes, "Apply failed")
	}
	with := func(manager string) metav1.StatusCause {
		return metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: fmt.Sprintf("conflict with %q using pelotech.ot/v1alpha1", manager), Field: ".spec.version"}
	}
	assert.True(t, ownership.ConflictsWithItself(conflict(with("kubectl-ot"), with("kubectl-ot"))))
	assert.False(t, ownership.ConflictsWithItself(conflict(with("kubectl-ot"), with("kubectl-edit"))))
	assert.False(t, ownership.ConflictsWithItself(conflict(with("kubectl-other"))))
	assert.False(t, ownership.ConflictsWithItself(conflict()))
	assert.False(t, ownership.ConflictsWithItself(apierrors.NewConflict(schema.GroupResource{}, "ubuntu", errors.New("changed"))))
	assert.False(t, ownership.ConflictsWithItself(nil))
}

func TestAppliedFields(t *testing.T) {
	patch := entry(ownership.FieldManager, `{"f:spec":{"f:approvals":{},"f:version":{}}}`)
	patch.Operation = metav1.ManagedFieldsOperationUpdate
	o := &metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		entry(ownership.FieldManager, `{"f:spec":{".":{},"f:version":{},"f:placement":{"f:clusterNames":{"v:\"a\"":{}}}}}`), entry("another", `{"f:spec":{"f:retention":{}}}`), patch,
	}}
	for field, want := range map[string]bool{
		"spec.version": true, "spec.placement": true, "spec.placement.clusterNames": true, "spec.placement.excludedClusters": false, "spec.retention": false, "spec.approvals": false,
	} {
		assert.Equal(t, want, ownership.IsApplied(o, field), field)
	}
	assert.Equal(t, []string{"another"}, ownership.OtherOwners(o, "spec.retention"))
	assert.Equal(t, []string{ownership.FieldManager}, ownership.OtherOwners(o, "spec.version"), "patched by another verb")
	assert.Empty(t, ownership.OtherOwners(o, "spec.placement"))
}
