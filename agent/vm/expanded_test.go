package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// expandMatchers has KubeVirt replace instancetype and preference by their values, as its
// referencePolicy may ask for.
func (w *world) expandMatchers() {
	unstructured.RemoveNestedField(w.KubeVirtVM.Object, "spec", "preference")
	if w.VM.Spec.Instancetype == nil {
		return
	}
	unstructured.RemoveNestedField(w.KubeVirtVM.Object, "spec", "instancetype")
	require.NoError(w.t, unstructured.SetNestedMap(w.KubeVirtVM.Object, map[string]any{"cores": int64(2)}, "spec", "template", "spec", "domain", "cpu"))
	require.NoError(w.t, unstructured.SetNestedMap(w.KubeVirtVM.Object, map[string]any{"guest": "4Gi"}, "spec", "template", "spec", "domain", "memory"))
}

// What KubeVirt has expanded is not applied again: an instancetype would be refused, and a
// preference expanded each time.
func TestExpandedMatchersAreNotAppliedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		instancetype, preference string
		change                   func(w *world)
		// wantSpec are the matchers that are applied; nil where nothing is.
		wantSpec map[string]any
	}{
		"both":         {instancetype: "u1", preference: "linux", change: (*world).expandMatchers},
		"instancetype": {instancetype: "u1", change: (*world).expandMatchers},
		"preference":   {preference: "linux", change: (*world).expandMatchers},
		"of an earlier release": {instancetype: "u1", preference: "linux", change: func(w *world) {
			w.expandMatchers()
			annotations := w.KubeVirtVM.GetAnnotations()
			delete(annotations, v1alpha1.AnnotationAppliedInstancetype)
			w.KubeVirtVM.SetAnnotations(annotations)
		}, wantSpec: map[string]any{}},
		"another instancetype, of an earlier release": {instancetype: "u1", preference: "linux", change: func(w *world) {
			w.expandMatchers()
			annotations := w.KubeVirtVM.GetAnnotations()
			delete(annotations, v1alpha1.AnnotationAppliedInstancetype)
			w.KubeVirtVM.SetAnnotations(annotations)
			w.VM.Spec.Instancetype.Name = "u2"
		}, wantSpec: map[string]any{"instancetype": map[string]any{"name": "u2"}, "preference": map[string]any{"name": "linux"}}},
		"the first preference": {change: func(w *world) {
			w.VM.Spec.Preference = &v1alpha1.Matcher{Name: "linux"}
		}, wantSpec: map[string]any{"preference": map[string]any{"name": "linux"}}},
		"the first instancetype": {change: func(w *world) {
			w.VM.Spec.Instancetype = &v1alpha1.Matcher{Name: "u1"}
		}, wantSpec: map[string]any{"instancetype": map[string]any{"name": "u1"}}},
		"another change of the spec": {instancetype: "u1", preference: "linux", change: func(w *world) {
			w.expandMatchers()
			w.VM.Spec.Version = "2"
		}, wantSpec: map[string]any{}},
		"another instancetype": {instancetype: "u1", preference: "linux", change: func(w *world) {
			w.expandMatchers()
			w.VM.Spec.Instancetype.Name = "u2"
		}, wantSpec: map[string]any{"instancetype": map[string]any{"name": "u2"}, "preference": map[string]any{"name": "linux"}}},
		"the same name of another kind": {instancetype: "u1", preference: "linux", change: func(w *world) {
			w.expandMatchers()
			w.VM.Spec.Preference.Kind = "VirtualMachinePreference"
		}, wantSpec: map[string]any{"instancetype": map[string]any{"name": "u1"}, "preference": map[string]any{"name": "linux", "kind": "VirtualMachinePreference"}}},
		"removed by somebody": {instancetype: "u1", preference: "linux", change: func(w *world) {
			w.expandMatchers()
			unstructured.RemoveNestedField(w.KubeVirtVM.Object, "spec", "template", "spec", "domain", "cpu")
		}, wantSpec: map[string]any{"instancetype": map[string]any{"name": "u1"}, "preference": map[string]any{"name": "linux"}}},
		"one of them removed": {instancetype: "u1", preference: "linux", change: func(w *world) {
			unstructured.RemoveNestedField(w.KubeVirtVM.Object, "spec", "preference")
		}, wantSpec: map[string]any{"instancetype": map[string]any{"name": "u1"}, "preference": map[string]any{"name": "linux"}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := apitest.VirtualMachine("ns", "vm").WithMatchers(tt.instancetype, tt.preference)
			w := newWorld(t, b).withRootDisk(goldenImage(1), cdiv1.Succeeded).withKubeVirtVM("Stopped", map[string]any{"runStrategy": "Always"})
			tt.change(w)
			applied := w.reconcile().ApplyKubeVirtVM
			if tt.wantSpec == nil {
				assert.Nil(t, applied)
				return
			}
			require.NotNil(t, applied)
			for _, matcher := range []string{"instancetype", "preference"} {
				got, _, err := unstructured.NestedMap(applied.Object, "spec", matcher)
				require.NoError(t, err)
				want, _ := tt.wantSpec[matcher].(map[string]any)
				assert.Equal(t, want, got, matcher)
			}
		})
	}
}
