package image

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// An API server whose CRD lacks a field refuses it in strict requests only.
func TestFindUnknownFieldBlocker(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, cdiv1.AddToScheme(scheme))
	requests, knowsChecksum := 0, false
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, options ...client.CreateOption) error {
			requests++
			all := &client.CreateOptions{}
			all.ApplyOptions(options)
			require.NotEmpty(t, all.DryRun, "nothing may be created")
			if http := o.(*cdiv1.DataVolume).Spec.Source.HTTP; http != nil && http.Checksum != "" && !knowsChecksum && all.FieldValidation == "Strict" {
				return apierrors.NewBadRequest(`strict decoding error: unknown field "spec.source.http.checksum"`)
			}
			return nil
		},
	}).Build()}
	sum := "sha256:" + strings.Repeat("0", 64)
	plain, checked := apitest.Image("ns/plain").WithURL("https://h/a").Obj(), apitest.Image("ns/checked").WithURL("https://h/a").WithChecksum(sum).Obj()

	assert.Nil(t, r.findUnknownFieldBlocker(t.Context(), plain))
	for range 2 {
		b := r.findUnknownFieldBlocker(t.Context(), checked)
		require.NotNil(t, b)
		assert.Equal(t, v1alpha1.ReasonCDITooOld, b.Reason)
		assert.Contains(t, b.Message, "spec.source.http.checksum of DataVolumes")
		assert.Contains(t, b.Message, "upgrade CDI, or remove checksum from the image's spec")
	}
	assert.Equal(t, 2, requests, "one for each set of fields")
	other := checked.DeepCopy()
	other.Name, other.UID, other.Spec.URL = "other", "other", "https://h/b"
	assert.NotNil(t, r.findUnknownFieldBlocker(t.Context(), other))
	assert.Equal(t, 2, requests, "the values do not matter")

	knowsChecksum = true // CDI is upgraded
	for set, answer := range r.fieldAnswers.bySet {
		answer.at = answer.at.Add(-fieldAnswerMaxAge)
		r.fieldAnswers.bySet[set] = answer
	}
	assert.Nil(t, r.findUnknownFieldBlocker(t.Context(), checked))
}
