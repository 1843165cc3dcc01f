//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestUnknownFieldsAreRefused gives the cluster the CRD of an older CDI, which drops the
// checksum in silence: an image with one waits, and goes on once CDI is upgraded.
func TestUnknownFieldsAreRefused(t *testing.T) {
	testenv.RunInTurn(t, 1)
	// An attempt that is refused backs off for longer than the agent takes the field for known.
	history := observeUnderPolicy(t, "retryBackoffDuration", "15s")
	ns := env.CreateHomeNamespace(t)
	const known = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/source/properties/http/properties/checksum"
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName("datavolumes.cdi.kubevirt.io")
	patch := func(operation string, value any) {
		text, err := json.Marshal([]map[string]any{{"op": operation, "path": known, "value": value}})
		require.NoError(t, err)
		require.NoError(t, env.Client().Patch(context.Background(), crd, client.RawPatch(types.JSONPatchType, text)))
	}
	probe := func() []string {
		dv := newDataVolume("probe")
		dv.Namespace = ns
		require.NoError(t, json.Unmarshal([]byte(`{"source": {"http": {"url": "http://h/a", "checksum": "md5:0"}}, "storage": {}}`), &dv.Spec))
		return apidiscovery.UnknownFields(env.Client().Create(context.Background(), dv, client.DryRunAll, client.FieldValidation("Strict")))
	}
	newChecked := func(name string) *v1alpha1.VMDiskImage {
		img := env.NewImage(ns, name, "/ok/100ms/a")
		img.Spec.Checksum = "sha256:" + strings.Repeat("0", 64)
		return img
	}
	if fields := probe(); len(fields) == 0 { // the agent also gets to know that the field is known
		first := newChecked("first")
		env.Create(t, first)
		env.AwaitSucceeded(t, first)
		patch("remove", nil)
	}
	restore := func() { patch("add", map[string]any{"type": "string"}) }
	t.Cleanup(restore)
	require.True(t, testenv.AwaitCondition(t, func() bool { return len(probe()) == 1 }))

	checked, plain := newChecked("checked"), env.NewImage(ns, "plain", "/ok/100ms/a")
	env.Create(t, checked, plain)
	env.AwaitSucceeded(t, plain)
	waits := env.AwaitImage(t, checked, testenv.HasReason(v1alpha1.ReasonCDITooOld))
	assert.Equal(t, v1alpha1.PhaseQueued, waits.Status.Phase)
	assert.Contains(t, waits.Status.Message, "upgrade CDI, or remove checksum")
	assert.Zero(t, history().Attempts(checked.UID), "not even while the agent still takes the field for known")

	restore() // CDI is upgraded
	env.AwaitSucceeded(t, checked)
}
