package v1alpha1_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestConventions checks the kinds that people and pipelines use against the API conventions of
// Kubernetes, as far as a CRD shows them.
func TestConventions(t *testing.T) {
	for _, path := range []string{
		"ot-hub/files/crds/pelotech.ot_fleetdiskimages.yaml", "ot-hub/files/crds/pelotech.ot_prunereports.yaml",
		"ot-hub/files/crds/pelotech.ot_imageprunes.yaml", "ot-hub/files/crds/pelotech.ot_memberclusters.yaml",
		"ot-agent/files/crds/pelotech.ot_vmdiskimages.yaml", "ot-agent/files/crds/pelotech.ot_virtualmachines.yaml",
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, "charts", path))
			require.NoError(t, err)
			crd := &apiextensionsv1.CustomResourceDefinition{}
			require.NoError(t, yaml.Unmarshal(text, crd))
			version := crd.Spec.Versions[0]
			require.NotNil(t, version.Subresources)
			assert.NotNil(t, version.Subresources.Status, "status is a subresource")
			assert.True(t, slices.ContainsFunc(version.AdditionalPrinterColumns, func(c apiextensionsv1.CustomResourceColumnDefinition) bool {
				return c.Name == "Age" && c.JSONPath == ".metadata.creationTimestamp"
			}), "column Age")

			schema := version.Schema.OpenAPIV3Schema
			status := schema.Properties["status"]
			require.NotNil(t, status.Default, "a status that nobody wrote says so")
			assert.JSONEq(t, `{"observedGeneration":-1}`, string(status.Default.Raw))
			assert.NotContains(t, schema.Required, "status")
			assert.Equal(t, "int64", status.Properties["observedGeneration"].Format)
			conditions := status.Properties["conditions"]
			assert.Equal(t, []string{"type"}, conditions.XListMapKeys)
			for _, part := range []string{"spec", "status"} {
				for name, field := range schema.Properties[part].Properties {
					assert.NotEmpty(t, field.Description, "%s.%s has no description", part, name)
				}
				checkSchema(t, part, schema.Properties[part])
			}
		})
	}
}

// checkSchema checks a field and all below it.
func checkSchema(t *testing.T, path string, schema apiextensionsv1.JSONSchemaProps) {
	assert.NotEqual(t, "number", schema.Type, "%s: numbers are integers or quantities", path)
	if schema.Type == "array" {
		assert.NotNil(t, schema.XListType, "%s: appliers have to know how the list is merged", path)
		checkSchema(t, path+"[]", *schema.Items.Schema)
	}
	for name, field := range schema.Properties {
		checkSchema(t, path+"."+name, field)
	}
}
