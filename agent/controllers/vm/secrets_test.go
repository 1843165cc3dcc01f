package vm

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func forbidden(why string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "demo-cloudinit", errors.New(why))
}

func TestCloudInitSecretIsReadWithoutTheRightToRead(t *testing.T) {
	stored := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-cloudinit", Labels: map[string]string{v1alpha1.LabelMachineUID: "u"}},
		Data:       map[string][]byte{"userdata": []byte("x")},
	}
	for name, tt := range map[string]struct {
		stored  []client.Object
		answer  error
		want    map[string]string // labels
		wantNil bool
		wantErr string
	}{
		"there":             {stored: []client.Object{stored}, want: stored.Labels},
		"not there":         {wantNil: true},
		"of others":         {stored: []client.Object{stored}, answer: forbidden("ValidatingAdmissionPolicy 'ot-agent-own' with binding 'ot-agent-own' denied request: not ours")},
		"no right to write": {answer: forbidden("cannot patch resource"), wantErr: "reading the cloud-init Secret of VirtualMachine ns/demo"},
		"another policy":    {answer: forbidden("ValidatingAdmissionPolicy 'other' denied request"), wantErr: "denied request"},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.stored...).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return forbidden("cannot get resource")
				},
				// As the API server: the client of the tests answers no dry run.
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, _ client.Patch, options ...client.PatchOption) error {
					applied := (&client.PatchOptions{}).ApplyOptions(options)
					assert.Equal(t, []string{metav1.DryRunAll}, applied.DryRun)
					if tt.answer != nil {
						return tt.answer
					}
					return c.Get(ctx, client.ObjectKeyFromObject(o), o)
				},
			}).Build()
			got, err := (&Reconciler{Client: c, Live: c}).readCloudInitSecret(t.Context(), apitest.VirtualMachine("ns", "demo").Obj())
			if tt.wantErr != "" {
				require.ErrorContains(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			if tt.wantNil {
				assert.Nil(t, got)
				return
			}
			assert.Equal(t, tt.want, got.Labels)
		})
	}
}

func TestForbiddenSecretNamesTheBinding(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return forbidden("cannot get resource")
		},
	}).Build()
	vm := apitest.VirtualMachine("ns", "demo").Obj()
	vm.Spec.Users = []v1alpha1.User{{Name: "a", PasswordSecretRef: &v1alpha1.SecretKey{Name: "passwords", Key: "a"}}}
	_, _, err := (&Reconciler{Client: c, Live: c, Namespace: "ot-agent"}).readInputs(t.Context(), vm, cloudinit.Inputs{})
	var denied *secretForbiddenError
	require.ErrorAs(t, err, &denied)
	assert.Equal(t, "the agent may not read Secret ns/passwords. Allow it: kubectl create rolebinding ot-agent-secrets --namespace ns --clusterrole ot-agent-secrets --serviceaccount ot-agent:ot-agent", denied.Error())
}
