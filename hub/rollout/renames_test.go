package rollout_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// findRenameProblem returns why the API server refuses an update, as a rename; empty for nothing.
func findRenameProblem(t *testing.T, before, after *v1alpha1.FleetDiskImage) string {
	text, err := os.ReadFile("../../charts/ot-hub/files/crds/pelotech.ot_fleetdiskimages.yaml")
	require.NoError(t, err)
	var crd apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.Unmarshal(text, &crd))
	var internal apiextensions.JSONSchemaProps
	require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil))
	structural, err := structuralschema.NewStructural(&internal)
	require.NoError(t, err)
	content := func(img *v1alpha1.FleetDiskImage) map[string]any {
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(img)
		require.NoError(t, err)
		return u
	}
	errs, _ := cel.NewValidator(structural, true, 1_000_000).Validate(t.Context(), nil, structural, content(after), content(before), 10_000_000)
	for _, problem := range errs {
		if strings.Contains(problem.Detail, "under another name") {
			return problem.Detail
		}
	}
	return ""
}

// TestFormerVersionsOfOlderHubAreNotRenamed: members have their images, which a rename would leave
// unprotected.
func TestFormerVersionsOfOlderHubAreNotRenamed(t *testing.T) {
	older := newView(newUbuntu().WithVersion("2"), "canary=.")
	older.Image.Status.Versions = []v1alpha1.VersionStatus{
		{Version: "2", Namespace: "images", Image: "ubuntu-2", Revision: revision, Since: *toStoredTime(now)},
		{Version: "1", Namespace: "images", Image: "ubuntu-1", Revision: revision, Since: *toStoredTime(now.Add(-time.Hour))},
	}
	decided := advanceView(older, decideAndCheck(t, older), time.Hour)
	require.True(t, decided.Image.Status.SuccessesRecorded)
	failed := advanceView(decided, decideAndCheck(t, decided), time.Hour)
	failed.Image.Spec.Version = "3"
	failed = advanceView(failed, decideAndCheck(t, failed), time.Hour)

	for name, tt := range map[string]struct {
		before *v1alpha1.FleetDiskImage
		rename string // the version
		want   bool   // is refused
	}{
		"a former version, before the first decision":   {older.Image, "1", true},
		"the current version, before the first":         {older.Image, "2", true},
		"a former version, after it":                    {decided.Image, "1", true},
		"the current version, which no cluster had":     {decided.Image, "2", false},
		"a former version of this release, likewise":    {failed.Image, "2", false},
		"a former version of the older hub, long after": {failed.Image, "1", true},
		"a new version": {older.Image, "4", false},
	} {
		t.Run(name, func(t *testing.T) {
			after := tt.before.DeepCopy()
			after.Spec.Version, after.Spec.ImageName = tt.rename, "jammy"
			assert.Equal(t, tt.want, findRenameProblem(t, tt.before, after) != "")
		})
	}
}

// TestOnlyTakenVersionIsRenamedInConflict: the older FleetDiskImage protects the images of the names that
// both have, and nobody those of others.
func TestOnlyTakenVersionIsRenamedInConflict(t *testing.T) {
	rolledOut := newView(newUbuntu().WithVersion("1").Created(now), "canary=S")
	rolledOut = advanceView(rolledOut, decideAndCheck(t, rolledOut), time.Hour)
	rolledOut.Image.Spec.Version = "2"
	rolledOut = advanceView(rolledOut, decideAndCheck(t, rolledOut), time.Hour)
	rolledOut = advanceView(rolledOut, decideAndCheck(t, rolledOut), time.Hour)
	rolledOut.Image.Status.Versions[0].Succeeded, rolledOut.Image.Status.LastSuccessAt = true, toStoredTime(now)

	for name, tt := range map[string]struct {
		taken       string // the version whose name the older one has
		rename      string
		wantRefused bool
	}{
		"the current one is taken":                   {"2", "2", false},
		"a former one is taken, and the current not": {"1", "2", true},
		"a former one is taken":                      {"1", "1", false},
		"the current one is taken, and a former not": {"2", "1", true},
	} {
		t.Run(name, func(t *testing.T) {
			older := newUbuntu().WithImageName("ubuntu").WithVersion(tt.taken).Created(now.Add(-time.Hour)).Obj()
			older.Name, older.Spec.TargetNamespace = "older", rolledOut.Image.Status.Versions[0].Namespace
			v := rolledOut
			v.Image = v.Image.DeepCopy()
			all := []v1alpha1.FleetDiskImage{*older, *v.Image}
			v.Conflict, v.Taken = rollout.FindConflict(v.Image, all), rollout.FindTakenNames(v.Image, all)
			require.Equal(t, "older", v.Conflict)
			before := advanceView(v, decideAndCheck(t, v), time.Hour).Image
			require.Equal(t, v1alpha1.ReasonNameConflict, before.Status.Reason)
			if tt.taken == "1" {
				require.Contains(t, before.Status.Message, "former versions of this one (1)")
				require.Contains(t, before.Status.Message, "Set spec.version back to each of these with another spec.imageName")
			} else {
				require.Contains(t, before.Status.Message, "Give this one another spec.imageName")
			}
			after := before.DeepCopy()
			after.Spec.Version, after.Spec.ImageName = tt.rename, "jammy"
			assert.Equal(t, tt.wantRefused, findRenameProblem(t, before, after) != "")
			free := v
			free.Conflict, free.Taken = "", nil
			free.Image = before
			for _, version := range decideAndCheck(t, free).Status.Versions {
				assert.False(t, version.Taken, "the other is deleted")
			}
		})
	}
}
