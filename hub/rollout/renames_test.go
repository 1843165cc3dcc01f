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
