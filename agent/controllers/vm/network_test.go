package vm

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// KubeVirt takes any text for the name of a network. The client for metadata would put it into the
// path of a request as it is, and an answer must not keep the name from being corrected.
func TestFindMissingNetwork(t *testing.T) {
	resource := schema.GroupResource{Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions"}
	for name, tt := range map[string]struct {
		network     string
		answer      error
		wantMissing string
		wantUnknown bool
		wantAsked   bool
	}{
		"exists":                      {network: "net", wantAsked: true},
		"of another namespace":        {network: "other/net", wantAsked: true},
		"missing":                     {network: "other/net", answer: apierrors.NewNotFound(resource, "net"), wantMissing: "other/net", wantAsked: true},
		"may not be read":             {network: "net", answer: apierrors.NewForbidden(resource, "net", errors.New("no right")), wantUnknown: true, wantAsked: true},
		"no answer":                   {network: "net", answer: errors.New("connection refused"), wantUnknown: true, wantAsked: true},
		"a subresource":               {network: "a/b/c", wantMissing: "a/b/c"},
		"nothing after the namespace": {network: "a/", wantMissing: "a/"},
		"another resource":            {network: "x/../../../../../../api/v1/namespaces/kube-system/configmaps/c", wantMissing: "x/../../../../../../api/v1/namespaces/kube-system/configmaps/c"},
		"another namespace's path":    {network: "../b", wantMissing: "../b"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			r := &Reconciler{Live: interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					asked = true
					return tt.answer
				},
			})}
			missing, unknown := r.findMissingNetwork(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"metadata": map[string]any{"namespace": "ns", "name": "vm"},
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"networks": []any{
					map[string]any{"name": "extra", "multus": map[string]any{"networkName": tt.network}},
				}}}},
			}})
			assert.Equal(t, tt.wantMissing, missing)
			assert.Equal(t, tt.wantUnknown, unknown)
			assert.Equal(t, tt.wantAsked, asked)
		})
	}
}
