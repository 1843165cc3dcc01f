package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func renderLimits() (string, error) {
	files, err := filepath.Glob(filepath.Join("charts", "*", "files", "*", "pelotech.ot_*.yaml"))
	if err != nil {
		return "", err
	}
	kinds := map[string][][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return "", fmt.Errorf("reading %s: %w", file, err)
		}
		for _, version := range crd.Spec.Versions {
			kinds[crd.Spec.Names.Kind] = limitRows("", version.Schema.OpenAPIV3Schema)
		}
	}
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if len(kinds[kind]) > 0 {
			fmt.Fprintf(&b, "## %s\n\n%s\n", kind, table([]string{"Field", "At least", "At most"}, kinds[kind]))
		}
	}
	return b.String(), nil
}

// limitRows lists the bounded fields below a schema, by their paths.
func limitRows(path string, schema *apiextensionsv1.JSONSchemaProps) (rows [][]string) {
	low := firstBound(schema.MinLength, schema.MinItems, schema.MinProperties)
	high := firstBound(schema.MaxLength, schema.MaxItems, schema.MaxProperties)
	if schema.Minimum != nil {
		low = fmt.Sprint(*schema.Minimum)
	}
	if schema.Maximum != nil {
		high = fmt.Sprintf("%.0f", *schema.Maximum)
	}
	if low != "" || high != "" {
		rows = append(rows, []string{"`" + path + "`", low, high})
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		rows = append(rows, limitRows(path+"[]", schema.Items.Schema)...)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		rows = append(rows, limitRows(path+"{}", schema.AdditionalProperties.Schema)...)
	}
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		rows = append(rows, limitRows(strings.TrimPrefix(path+"."+name, "."), &property)...)
	}
	return rows
}

func firstBound(bounds ...*int64) string {
	for _, bound := range bounds {
		if bound != nil {
			return fmt.Sprint(*bound)
		}
	}
	return ""
}
