package web

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/policy"
)

func TestPolicyAnswer(t *testing.T) {
	inForce, _, errs := policy.ParsePolicy(map[string]string{"concurrency": "3", "overrides": "- {cluster: bergen, concurrency: 4}", "windows": `[{cron: "@daily", duration: 24h, concurrency: 7}]`})
	require.Empty(t, errs)
	written := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "policy", Labels: map[string]string{
		"kustomize.toolkit.fluxcd.io/name": "images", "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
	}, ManagedFields: []metav1.ManagedFieldsEntry{{
		Manager: "kustomize-controller", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{"f:concurrency":{}}}`)},
	}}}, Data: map[string]string{"concurrency": "three"}}
	byHand := written.DeepCopy()
	byHand.ManagedFields[0].Manager = "kubectl-edit"
	for name, tt := range map[string]struct {
		stored *corev1.ConfigMap
		fail   error
		want   readapi.PolicyConfigMap
	}{
		"of Flux":     {written, nil, readapi.PolicyConfigMap{Data: written.Data, Owner: &readapi.PolicyOwner{Controller: "Flux", Manager: "kustomize-controller", Source: "Kustomization flux-system/images"}}},
		"of a person": {byHand, nil, readapi.PolicyConfigMap{Data: written.Data}},
		"none":        {nil, nil, readapi.PolicyConfigMap{}},
		"unreadable":  {written, errors.New("no rights"), readapi.PolicyConfigMap{Unreadable: "reading the ConfigMap: no rights"}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			require.NoError(t, v1alpha1.AddToScheme(scheme))
			builder := fake.NewClientBuilder().WithScheme(scheme).WithReturnManagedFields().WithObjects(&v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "bergen"}})
			if tt.stored != nil {
				builder = builder.WithObjects(tt.stored.DeepCopy())
			}
			c := builder.WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
				if tt.fail != nil {
					return tt.fail
				}
				return c.Get(ctx, key, into, options...)
			}}).Build()
			api := newTestAPI(true)
			api.Members, api.Live, api.PolicyKey = c, c, types.NamespacedName{Namespace: "sync-operator", Name: "policy"}
			api.Policy = func() answers.PolicyInForce {
				return answers.PolicyInForce{Policy: inForce, Refused: true, Message: "ConfigMap is not used"}
			}
			var got readapi.FleetPolicy
			require.Equal(t, http.StatusOK, getJSON(t, api, http.MethodGet, "/fleet/v1/policy", &got))
			assert.Equal(t, tt.want.Data != nil, got.ConfigMap.ResourceVersion != "")
			tt.want.Namespace, tt.want.Name, tt.want.ResourceVersion = "sync-operator", "policy", got.ConfigMap.ResourceVersion
			assert.Equal(t, tt.want, got.ConfigMap)
			assert.Equal(t, inForce.Written(), got.InForce, "what is refused is not in force")
			require.NotNil(t, got.Windows)
			assert.Equal(t, int32(7), got.Windows.Now.Concurrency, "of what is in force, at any time")
			assert.False(t, got.Accepted)
			assert.Equal(t, "ConfigMap is not used", got.Message)
			require.Len(t, got.Overrides, 1)
			assert.Equal(t, 1, got.Overrides[0].Members)
			assert.Equal(t, 1, got.Members)
			assert.Equal(t, policy.Keys(), got.Keys)
		})
	}
}
