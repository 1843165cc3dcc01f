package v1alpha1

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestParseSelector(t *testing.T) {
	expressions := func(all ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: all}
	}
	here := labels.Set{"region": "nordics", "edge": "true"}
	for name, tt := range map[string]struct {
		selector *metav1.LabelSelector
		want     bool
		wantErr  string
	}{
		"none":                   {nil, false, ""},
		"empty":                  {&metav1.LabelSelector{}, true, ""},
		"labels":                 {&metav1.LabelSelector{MatchLabels: here}, true, ""},
		"another label":          {&metav1.LabelSelector{MatchLabels: labels.Set{"edge": "true", "region": "dach"}}, false, ""},
		"an expression":          {expressions(metav1.LabelSelectorRequirement{Key: "edge", Operator: metav1.LabelSelectorOpExists}), true, ""},
		"one of two expressions": {expressions(metav1.LabelSelectorRequirement{Key: "edge", Operator: metav1.LabelSelectorOpExists}, metav1.LabelSelectorRequirement{Key: "region", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"nordics"}}), false, ""},
		"no values":              {expressions(metav1.LabelSelectorRequirement{Key: "edge", Operator: metav1.LabelSelectorOpExists}, metav1.LabelSelectorRequirement{Key: "region", Operator: metav1.LabelSelectorOpIn}), false, "key region: values: Invalid value"},
		"no such operator":       {expressions(metav1.LabelSelectorRequirement{Key: "region", Operator: "Near"}), false, `key region: "Near" is not a valid label selector operator`},
		"wrong labels":           {&metav1.LabelSelector{MatchLabels: labels.Set{"a": "-", "b": "-", "c": "-", "d": "-"}}, false, "key a: values[0][a]: Invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			selector, err := ParseSelector(tt.selector)
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, selector.Matches(here))
		})
	}
}
