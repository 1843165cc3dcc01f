package admissionpolicy

import (
	"context"
	"errors"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A request that another of the policies refuses, as in a protected namespace default, is
// refused, and no error that leaves the condition Unknown.
func TestForbiddenWritesRefusedByOthers(t *testing.T) {
	const protected = "ot-agent-protected-namespaces"
	for name, tt := range map[string]struct {
		// refusedBy is the policy that refuses in namespace default; empty: none does.
		refusedBy  string
		want       metav1.ConditionStatus
		wantReason string
		wantText   string
		wantErr    string
	}{
		"default is protected": {refusedBy: protected, want: metav1.ConditionTrue, wantReason: v1alpha1.ReasonGuarded, wantText: "policy ot-agent-data-sources, ot-agent-disks, ot-agent-own, ot-agent-snapshots cannot be tried by itself while value protectedNamespaces has default"},
		"nobody refuses":       {want: metav1.ConditionFalse, wantReason: v1alpha1.ReasonPolicyNotInForce, wantText: "policy ot-agent-data-sources, ot-agent-disks, ot-agent-own, ot-agent-snapshots or its binding is missing"},
		"a policy of others":   {refusedBy: "no-defaults", wantErr: "has to refuse otherwise"},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			mapper := meta.NewDefaultRESTMapper(nil)
			mapper.Add(admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"), meta.RESTScopeRoot)
			for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme, snapshotv1.AddToScheme} {
				require.NoError(t, add(scheme))
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					policy := tt.refusedBy
					if o.GetNamespace() == metav1.NamespaceSystem {
						policy = protected
					}
					if policy == "" {
						return nil
					}
					return apierrors.NewForbidden(schema.GroupResource{}, o.GetName(), errors.New("ValidatingAdmissionPolicy '"+policy+"' with binding '"+policy+"' denied request: no"))
				},
			}).Build()
			got, err := tryForbiddenWrites(t.Context(), c)
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			apitest.AssertCondition(t, &got, tt.want, tt.wantReason, tt.wantText)
		})
	}
}
