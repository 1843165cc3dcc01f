package diagnosis_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/diagnosis"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// What KubeVirt 1.8 and CDI 1.65 have written, as e2e/suites/workspaces records it with
// OT_FLEET_RECORD.
func TestRecordedObjects(t *testing.T) {
	tests := map[string]struct {
		urgency diagnosis.Urgency
		reason  v1alpha1.Reason
		want    string
	}{
		"MissingInstancetypeAndPreference-virtualmachine.json":    {diagnosis.Act, v1alpha1.ReasonPreferenceMissing, `KubeVirt reports FailedFindPreference: `},
		"RefusedInstances-LimitRange-virtualmachine.json":         {diagnosis.Act, "", "maximum memory usage per Pod is 1Mi"},
		"RefusedInstances-quota-of-Pods-virtualmachine.json":      {diagnosis.Act, v1alpha1.ReasonQuotaExceeded, "exceeded quota: quota, requested: pods=1"},
		"RefusedInstances-quota-of-instances-virtualmachine.json": {diagnosis.Act, v1alpha1.ReasonQuotaExceeded, "exceeded quota: quota, requested: count/virtualmachineinstances.kubevirt.io=1"},
		"RootDiskBeyondQuota-datavolume.json":                     {diagnosis.Act, v1alpha1.ReasonQuotaExceeded, "CDI reports ErrExceededQuota: persistentvolumeclaims"},
		"RootDiskBeyondLimitRange-datavolume.json":                {diagnosis.Passing, "", ""},
		"RootDiskWithoutAccessModes-datavolume.json":              {diagnosis.Act, "", "no accessMode specified in StorageProfile"},
		"UnschedulableInstance-virtualmachine.json":               {diagnosis.ActIfLasting, "", "KubeVirt reports Unschedulable: "},
		"UnschedulableInstance-datavolume.json":                   {diagnosis.Routine, "", ""},
	}
	files, err := filepath.Glob("testdata/recorded/*.json")
	require.NoError(t, err)
	require.Len(t, files, len(tests))
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			tt := tests[filepath.Base(file)]
			u := &unstructured.Unstructured{}
			require.NoError(t, json.Unmarshal(text, &u.Object))
			var found diagnosis.Findings
			if u.GetKind() == "DataVolume" {
				dv := &cdiv1.DataVolume{}
				require.NoError(t, json.Unmarshal(text, dv))
				found = diagnosis.ForDisk(dv, nil)
			} else {
				found = diagnosis.ForMachine(u, nil)
			}
			assert.Equal(t, tt.urgency, found.Worst().Urgency)
			assert.Equal(t, tt.reason, found.Worst().MachineReason)
			assert.Contains(t, found.Describe(diagnosis.Unknown), tt.want)
			for _, f := range found {
				assert.NotEqual(t, diagnosis.Unknown, f.Urgency, "no rule knows %+v", f.Report)
			}
		})
	}
}
