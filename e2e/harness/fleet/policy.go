//go:build linux

package fleet

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// UpdatePolicy changes the data of the fleet's policy ConfigMap, also while a test is being
// cleaned up.
func (f *Fleet) UpdatePolicy(t *testing.T, change func(data map[string]string)) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := f.Get(ctx, client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
			return err
		}
		if cm.Data == nil {
			cm.Data = map[string]string{}
		}
		change(cm.Data)
		return f.Update(ctx, cm)
	}))
}

// SetPolicy sets keys of the fleet's policy; an empty value removes a key.
func (f *Fleet) SetPolicy(t *testing.T, change map[string]string) {
	t.Helper()
	f.UpdatePolicy(t, func(data map[string]string) {
		for key, value := range change {
			if data[key] = value; value == "" {
				delete(data, key)
			}
		}
	})
}

// SetPolicyForTest is SetPolicy until the test ends: then the fleet's first policy returns.
func (f *Fleet) SetPolicyForTest(t *testing.T, change map[string]string) {
	t.Helper()
	f.SetPolicy(t, change)
	t.Cleanup(func() { f.ResetPolicy(t) })
}

// ResetPolicy stores the policy that the fleet started with.
func (f *Fleet) ResetPolicy(t *testing.T) {
	t.Helper()
	f.ReplacePolicy(t, f.options.Policy)
}

// ReplacePolicy stores a policy as a whole.
func (f *Fleet) ReplacePolicy(t *testing.T, data map[string]string) {
	t.Helper()
	f.UpdatePolicy(t, func(stored map[string]string) {
		clear(stored)
		for key, value := range data {
			stored[key] = value
		}
	})
}
