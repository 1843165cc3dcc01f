package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

func TestFlagRows(t *testing.T) {
	const help = "Usage of ot-agent:\n" +
		"  -leader-elect\n    \tElect a leader. (default true)\n" +
		"  -namespace string\n    \tNamespace\n    \tof the agent. (default \"here\")\n" +
		"  -v\tShort.\n"
	assert.Equal(t, [][]string{
		{"`--leader-elect`", "bool", "`true`", "Elect a leader."},
		{"`--namespace`", "string", "`here`", "Namespace of the agent."},
		{"`--v`", "bool", "", "Short."},
	}, flagRows(help))
}

func TestMetricRows(t *testing.T) {
	rows, err := metricRows([]string{
		`Desc{fqName: "b_total", help: "Counts \"b\".", unit: "", constLabels: {}, variableLabels: {x,y}}`,
		`Desc{fqName: "a", help: "Gauges a.", constLabels: {}, variableLabels: {}}`,
	})
	require.NoError(t, err)
	assert.Equal(t, [][]string{{"`a`", "", "Gauges a."}, {"`b_total`", "`x`, `y`", `Counts "b".`}}, rows)
	_, err = metricRows([]string{"Desc of another form"})
	assert.Error(t, err)
}

func TestLimitRows(t *testing.T) {
	schema := &apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"list": {MaxItems: ptr.To(int64(3)), Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{MinLength: ptr.To(int64(1))}}},
		"none": {Type: "string"},
		"size": {Minimum: ptr.To(0.0), Maximum: ptr.To(10.0)},
	}}
	assert.Equal(t, [][]string{{"`list`", "", "3"}, {"`list[]`", "1", ""}, {"`size`", "0", "10"}}, limitRows("", schema))
}

func TestTrimName(t *testing.T) {
	assert.Equal(t, "The policy's concurrency is 0.", trimName("ReasonPaused: the policy's\nconcurrency is 0.\n", "ReasonPaused"))
	assert.Equal(t, "Something else.", trimName("Something else.", "ReasonPaused"))
	assert.Empty(t, trimName("", "ReasonPaused"))
}

func TestTable(t *testing.T) {
	assert.Equal(t, "| A |\n| --- |\n| x \\| y z |\n", table([]string{"A"}, [][]string{{"x | y\nz"}}))
}
