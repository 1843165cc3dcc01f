package apidiscovery_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestWithStrictCreates(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, cdiv1.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	var got string
	c := apidiscovery.WithStrictCreates(fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, _ client.Object, options ...client.CreateOption) error {
			all := &client.CreateOptions{}
			all.ApplyOptions(options)
			got = all.FieldValidation
			return nil
		},
	}).Build())
	require.NoError(t, c.Create(t.Context(), &cdiv1.DataVolume{}))
	assert.Equal(t, metav1.FieldValidationStrict, got, "of another project")
	require.NoError(t, c.Create(t.Context(), &v1alpha1.VMDiskImage{}))
	assert.Empty(t, got, "an older CRD of the agent's own ignores what a newer agent writes")
}

// Errors of creates end up in statuses, events and logs.
func TestErrorsOfCreatesHaveNoHeaders(t *testing.T) {
	const token = "s3cr3t-of-ours"
	scheme := runtime.NewScheme()
	require.NoError(t, cdiv1.AddToScheme(scheme))
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c := apidiscovery.WithStrictCreates(fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewBadRequest(`admission webhook "headers.example.com" denied the request: no header Authorization: Bearer ` + token)
		},
	}).Build())
	headers := []string{"Authorization: Bearer " + token}
	for _, obj := range []client.Object{
		&v1alpha1.VMDiskImage{Spec: v1alpha1.VMDiskImageSpec{ExtraHeaders: headers}},
		&cdiv1.DataVolume{Spec: cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{ExtraHeaders: headers}}}},
	} {
		err := c.Create(t.Context(), obj)
		require.ErrorContains(t, err, "denied the request: no header Authorization")
		assert.True(t, apierrors.IsBadRequest(err))
		assert.NotContains(t, err.Error(), token)
	}
}

func TestUnknownFields(t *testing.T) {
	const refused = `DataVolume in version "v1beta1" cannot be handled as a DataVolume: strict decoding error: unknown field "spec.source.http.checksum", unknown field "spec.storage.new"`
	for name, tt := range map[string]struct {
		err  error
		want []string
	}{
		"accepted":         {nil, nil},
		"unknown fields":   {apierrors.NewBadRequest(refused), []string{"spec.source.http.checksum", "spec.storage.new"}},
		"another refusal":  {apierrors.NewBadRequest("no"), nil},
		"a webhook's text": {apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New(refused)), nil},
		"no answer":        {errors.New(refused), nil},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, apidiscovery.UnknownFields(tt.err)) })
	}
}
