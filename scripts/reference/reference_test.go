package main

import (
	"os"
	"path/filepath"
	"strings"
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
	for _, other := range []string{"", "Reasons of condition Ready.", "ReasonPaused of an image: it is paused.", "ReasonPaused: "} {
		assert.Empty(t, trimName(other, "ReasonPaused"), other)
	}
}

// A heading inside a block is not taken for the meaning of the constant below it.
func TestConstantsWithoutMeaningAreNamed(t *testing.T) {
	const source = `package p

// Reasons of an image.
const (
	// ReasonPaused: the policy pauses it.
	ReasonPaused = "Paused"
	// Reasons of something else.
	ReasonFirst = "First"
	ReasonSecond Reason = "Second"
	MaxReasons = "9"
)

// ConditionDone of an image: it is done.
const ConditionDone = "Done"

// ConditionLonely: it stands alone.
const ConditionLonely = "Lonely"

// Reasons of a rollout.
const (
	// ReasonRolloutPaused: a person pauses it.
	ReasonRolloutPaused = "Paused"
)
`
	directory := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(directory, "reasons.go"), []byte(source), 0o600))
	groups, err := readConstants(directory)
	require.NoError(t, err)
	require.Len(t, groups, 4)
	assert.Equal(t, constantGroup{"Reasons of a rollout.", []constant{{"ReasonRolloutPaused", "Paused", "A person pauses it."}}}, groups[3])

	err = checkMeanings(groups)
	require.Error(t, err)
	assert.Equal(t, []string{
		`ReasonFirst has no meaning: give it a comment "// ReasonFirst: …"`,
		`ReasonSecond has no meaning: give it a comment "// ReasonSecond: …"`,
		`ConditionDone has no meaning: give it a comment "// ConditionDone: …"`,
		"ConditionLonely has no heading: put it into a block of constants with a comment",
	}, strings.Split(err.Error(), "\n"))
	assert.NoError(t, checkMeanings(groups[3:]))
}

// The page is for users: it has no name of a Go constant.
func TestConditionsPage(t *testing.T) {
	t.Chdir("../..")
	page, err := renderConditions()
	require.NoError(t, err)
	assert.NotRegexp(t, "[^`](Reason|Condition|Max)[A-Z]", page)
}

// Each row of the page tells its signal apart: of one layer, no two describe the same one.
func TestWaitsPage(t *testing.T) {
	page, err := renderWaits()
	require.NoError(t, err)
	seen := map[string]bool{}
	for line := range strings.Lines(page) {
		signal := strings.Join(strings.SplitN(line, " | ", 3)[:2], " | ")
		assert.False(t, seen[signal], signal)
		seen[signal] = true
	}
	assert.Contains(t, page, "| container of the importer Pod | `CreateContainerConfigError`, and the text names a Secret | `SecretMissing` |")
	assert.Contains(t, page, "| latest event of a claim | the text names an exceeded quota | `QuotaExceeded` |")
	assert.Contains(t, page, "| importer Pod | anything else |")
}

func TestTable(t *testing.T) {
	assert.Equal(t, "| A |\n| --- |\n| x \\| y z |\n", table([]string{"A"}, [][]string{{"x | y\nz"}}))
}
