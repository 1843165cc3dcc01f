package prunereport

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestAnswerToTheCreationOfAPageDoesNotChangeOtherPages(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			return utiljson.Unmarshal([]byte(`{"clusters":[{"cluster":"b","plan":{"epoch":9,"sequence":9}}]}`), o)
		},
	}).Build()
	judged := v1alpha1.ReportedCluster{Cluster: "a", Plan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 2}}
	part := []v1alpha1.ReportedCluster{judged}
	require.NoError(t, (&Reconciler{Client: c}).writePage(t.Context(), &v1alpha1.PruneReport{}, "page", part))
	assert.Equal(t, v1alpha1.PlanVersion{Epoch: 1, Sequence: 2}, *judged.Plan)
}
