//go:build linux

package testenv

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// MutatingAdmissionAPI returns the newest apiVersion in which an API server serves
// MutatingAdmissionPolicy; empty for none.
func MutatingAdmissionAPI(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(cfg)
	require.NoError(t, err)
	for _, apiVersion := range []string{"admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1beta1", "admissionregistration.k8s.io/v1alpha1"} {
		served, err := c.ServerResourcesForGroupVersion(apiVersion)
		if apierrors.IsNotFound(err) {
			continue
		}
		require.NoError(t, err)
		for i := range served.APIResources {
			if served.APIResources[i].Kind == "MutatingAdmissionPolicy" {
				return apiVersion
			}
		}
	}
	return ""
}

// RequireMutatingAdmission skips a test where the API server serves no MutatingAdmissionPolicy.
func RequireMutatingAdmission(t *testing.T, cfg *rest.Config) {
	t.Helper()
	if MutatingAdmissionAPI(t, cfg) == "" {
		t.Skipf("this API server serves no MutatingAdmissionPolicy; set %s=v1beta1 from Kubernetes 1.34 on", controlplane.MutatingAdmissionVariable)
	}
}
