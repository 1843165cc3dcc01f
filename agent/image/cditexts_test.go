package image_test

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// cdiText is a text of testdata/cdi-texts.yaml.
type cdiText struct {
	// CDI lists the versions whose sources have the text, From the file.
	CDI  []string `json:"cdi"`
	From string   `json:"from"`
	// Condition is Running unless it is set; Reason is Error.
	Condition cdiv1.DataVolumeConditionType `json:"condition"`
	Reason    string                        `json:"reason"`
	Message   string                        `json:"message"`
	// ImporterOnly: CDI puts a text of its own in place of it into conditions.
	ImporterOnly bool `json:"importerOnly"`
	// ConditionOnly: no importer ends with it.
	ConditionOnly bool `json:"conditionOnly"`
	// Want is empty for what is no failure.
	Want v1alpha1.Reason `json:"want"`
}

// TestCDITextsAreClassified wants every text of every version of CDI to get its reason, from
// the DataVolume and from the importer.
func TestCDITextsAreClassified(t *testing.T) {
	recorded, err := os.ReadFile("testdata/cdi-texts.yaml")
	require.NoError(t, err)
	var texts []cdiText
	require.NoError(t, yaml.UnmarshalStrict(recorded, &texts))
	for _, version := range []string{"1.64", "1.65", "1.66"} {
		t.Run(version, func(t *testing.T) {
			classified := 0
			for _, text := range texts {
				if !slices.Contains(text.CDI, version) {
					continue
				}
				classified++
				if !text.ImporterOnly {
					condition, status, reason := cdiv1.DataVolumeRunning, corev1.ConditionFalse, text.Reason
					if text.Condition != "" {
						condition = text.Condition
					}
					if reason == "" {
						reason = "Error"
					}
					dv := apitest.DataVolume("ns/dv").Phase(cdiv1.ImportScheduled).Condition(condition, status, reason, text.Message)
					got, failed := image.DetectFailure(&image.AttemptObjects{DataVolume: dv.Obj()})
					assert.Equal(t, text.Want, got.Reason, "condition of %s: %s", text.From, text.Message)
					assert.Equal(t, text.Want != "", failed)
				}
				if !text.ConditionOnly && (text.Reason == "" || text.Reason == "ImagePullFailed") {
					pod := apitest.Pod("ns/importer-dv").Phase(corev1.PodFailed).Terminated(1, "Error", text.Message).Obj()
					got, _ := image.DetectFailure(&image.AttemptObjects{DataVolume: apitest.DataVolume("ns/dv").Obj(), Pods: []corev1.Pod{*pod}})
					assert.Equal(t, text.Want, got.Reason, "importer of %s: %s", text.From, text.Message)
				}
			}
			assert.NotZero(t, classified)
		})
	}
}
