package mailbox_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

type object = map[string]any

// readSchema returns the schema of a chart's CRD.
func readSchema(t *testing.T, file string) object {
	text, err := os.ReadFile("../../charts/ot-agent/files/" + file)
	require.NoError(t, err)
	var crd object
	require.NoError(t, yaml.Unmarshal(text, &crd))
	return crd["spec"].(object)["versions"].([]any)[0].(object)["schema"].(object)["openAPIV3Schema"].(object)
}

func withoutValue(field object, value string) {
	field["enum"] = slices.DeleteFunc(field["enum"].([]any), func(v any) bool { return v == value })
}

func TestServedImageFields(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(spec object)
		missing []string
	}{
		"same version":                {change: func(object) {}},
		"an older one":                {change: func(spec object) { delete(spec, "checksum") }, missing: []string{"checksum"}},
		"without a value":             {change: func(spec object) { withoutValue(spec["sourceType"].(object), "gcs") }, missing: []string{"sourceType=gcs"}},
		"values of a field that goes": {change: func(spec object) { delete(spec, "sourceType") }, missing: []string{"sourceType"}},
		"any value":                   {change: func(spec object) { delete(spec["sourceType"].(object), "enum") }},
		"a newer version":             {change: func(spec object) { spec["new"] = object{} }},
	} {
		t.Run(name, func(t *testing.T) {
			schemas := object{}
			for kind, file := range map[string]string{"VMDiskImage": "crds/pelotech.ot_vmdiskimages.yaml", "SyncLedger": "crds/pelotech.ot_syncledgers.yaml"} {
				schema := readSchema(t, file)
				schema["x-kubernetes-group-version-kind"] = []object{{"kind": kind}}
				schemas[kind] = schema
			}
			tt.change(schemas["VMDiskImage"].(object)["properties"].(object)["spec"].(object)["properties"].(object))
			document, err := json.Marshal(object{"components": object{"schemas": schemas}})
			require.NoError(t, err)
			got, err := mailbox.ServedImageFields(document)
			require.NoError(t, err)
			want := slices.DeleteFunc(v1alpha1.ImageFields(), func(field string) bool {
				name, _, _ := strings.Cut(field, "=")
				return slices.Contains(tt.missing, field) || slices.Contains(tt.missing, name)
			})
			assert.Equal(t, want, got)
		})
	}
	_, err := mailbox.ServedImageFields([]byte("no JSON"))
	require.Error(t, err)
}

// The token of a retry is remembered in the status: an older CustomResourceDefinition drops it.
func TestServedPlanFields(t *testing.T) {
	schema := readSchema(t, "crds/pelotech.ot_vmdiskimages.yaml")
	schema["x-kubernetes-group-version-kind"] = []object{{"kind": "VMDiskImage"}}
	served := func() []string {
		document, err := json.Marshal(object{"components": object{"schemas": object{"VMDiskImage": schema}}})
		require.NoError(t, err)
		fields, err := mailbox.ServedPlanFields(document)
		require.NoError(t, err)
		return fields
	}
	assert.Equal(t, []string{v1alpha1.PlanFieldRetry}, served())
	delete(schema["properties"].(object)["status"].(object)["properties"].(object), "observedPlanRetry")
	assert.Empty(t, served())
	_, err := mailbox.ServedPlanFields([]byte("no JSON"))
	require.Error(t, err)
}

// A plan brings fields that its CustomResourceDefinition does not have.
func TestPlansTakeEveryImageField(t *testing.T) {
	schema := readSchema(t, "mailbox/pelotech.ot_clusterplans.yaml")
	images := schema["properties"].(object)["spec"].(object)["properties"].(object)["images"].(object)
	assert.Equal(t, true, images["items"].(object)["properties"].(object)["spec"].(object)["x-kubernetes-preserve-unknown-fields"])
}
