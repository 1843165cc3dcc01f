// Package statuscheck keeps statuses that the pure packages decide, and checks what all of
// them have in common for a client that waits.
package statuscheck

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var rewrite = flag.Bool("rewrite-statuses", false, "write api/kstatus/testdata as the tree decides now")

// Directory of the golden files in the repository: one for each kind, by name of the case.
const Directory = "api/kstatus/testdata"

// Object is an object of which only what a waiting client reads is kept.
type Object struct {
	// Generation of the spec. Default: 7.
	Generation int64
	// Deleted is the deletionTimestamp; nil for none.
	Deleted *metav1.Time
	Status  any
}

// summaryConditions are those that waiting clients read.
var summaryConditions = []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled}

// RequireOneTrue requires that exactly one of Ready, Reconciling and Stalled is True.
func RequireOneTrue(t require.TestingT, conditions []metav1.Condition) {
	var holding []string
	for _, name := range summaryConditions {
		if meta.IsStatusConditionTrue(conditions, name) {
			holding = append(holding, name)
		}
	}
	require.Len(t, holding, 1, "exactly one of Ready, Reconciling and Stalled has to be True: %v", conditions)
}

// CompareGolden compares the objects of a kind with its golden file. Where the change is
// meant, write the file with
//
//	go test ./hub/rollout ./hub/prune ./hub/memberstatus ./agent/image ./agent/vm -run Golden -rewrite-statuses
func CompareGolden(t *testing.T, kind string, objects map[string]Object) {
	t.Helper()
	root, err := schemacheck.FindRoot()
	require.NoError(t, err)
	path := filepath.Join(root, Directory, kind+".yaml")
	all := map[string]any{}
	for name, object := range objects {
		schemacheck.RequireStorable(t, kind, object.Status)
		all[name] = render(t, kind, object)
	}
	text, err := yaml.Marshal(all)
	require.NoError(t, err)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, text, 0o600))
		return
	}
	golden, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(golden), string(text), "%s of the decided statuses", path)
}

func render(t *testing.T, kind string, object Object) map[string]any {
	t.Helper()
	full, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object.Status)
	require.NoError(t, err)
	status := map[string]any{}
	for _, name := range []string{"observedGeneration", "phase", "reason", "message"} {
		if value, exists := full[name]; exists {
			status[name] = value
		}
	}
	var conditions []any
	all, _ := full["conditions"].([]any)
	for _, condition := range all {
		if fields, ok := condition.(map[string]any); ok && slices.Contains(summaryConditions, fields["type"].(string)) {
			conditions = append(conditions, condition)
		}
	}
	status["conditions"] = conditions
	metadata := map[string]any{"name": "example", "generation": object.Generation}
	if object.Generation == 0 {
		metadata["generation"] = int64(7)
	}
	if object.Deleted != nil {
		metadata["deletionTimestamp"] = object.Deleted.UTC().Format(time.RFC3339)
	}
	return map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": metadata, "status": status}
}
