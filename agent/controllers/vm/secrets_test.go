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
	"k8s.io/apimachinery/pkg/util/validation/field"
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

func invalid(fields ...string) error {
	var causes field.ErrorList
	for _, name := range fields {
		causes = append(causes, field.Forbidden(field.NewPath(name), "field is immutable"))
	}
	return apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, "demo-cloudinit", causes)
}

func TestApplySecretReplacesOrCreatesWithoutReading(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "demo-cloudinit", Labels: map[string]string{v1alpha1.LabelMachineUID: "u"}}
	desired := &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"userdata": []byte("new")}}
	ofFormer := desired.DeepCopy()
	ofFormer.Labels[v1alpha1.LabelMachineUID] = "former"
	ofFormer.Data = map[string][]byte{"userdata": []byte("old"), "added": []byte("x")}
	for name, tt := range map[string]struct {
		stored *corev1.Secret
		// updates answers the updates in turn; nil is the API server's own answer.
		updates []error
		create  error
		isNew   bool
		want    string
		wantErr error
	}{
		"not there":                  {want: "new"},
		"as desired":                 {stored: desired, want: "new"},
		"of a former machine":        {stored: ofFormer, want: "new"},
		"of others":                  {stored: ofFormer, updates: []error{forbidden("ValidatingAdmissionPolicy 'ot-agent-own' with binding 'ot-agent-own' denied request: not ours")}, want: "old", wantErr: &nameTakenError{"Secret", "demo-cloudinit"}},
		"of others, of another type": {stored: ofFormer, updates: []error{invalid("type")}, want: "old", wantErr: &nameTakenError{"Secret", "demo-cloudinit"}},
		"another policy":             {stored: ofFormer, updates: []error{forbidden("ValidatingAdmissionPolicy 'other' denied request")}, want: "old", wantErr: forbidden("ValidatingAdmissionPolicy 'other' denied request")},
		"immutable, as desired":      {stored: desired, updates: []error{invalid("immutable"), nil}, want: "new"},
		"immutable, with other data": {stored: ofFormer, updates: []error{invalid("immutable", "data"), invalid("data")}, want: "old", wantErr: invalid("data")},
		"new":                        {isNew: true, want: "new"},
		"new, of a former machine":   {isNew: true, stored: ofFormer, want: "new"},
		"new, of others":             {isNew: true, stored: ofFormer, updates: []error{forbidden("ValidatingAdmissionPolicy 'ot-agent-own' denied request")}, want: "old", wantErr: &nameTakenError{"Secret", "demo-cloudinit"}},
		"new, beyond a quota":        {isNew: true, create: forbidden("exceeded quota"), wantErr: forbidden("exceeded quota")},
		"there, beyond a quota":      {isNew: true, stored: ofFormer, create: forbidden("exceeded quota"), want: "new"},
		"new, not answered":          {isNew: true, create: apierrors.NewTimeoutError("late", 1), wantErr: apierrors.NewTimeoutError("late", 1)},
		"created meanwhile":          {create: apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "demo-cloudinit"), wantErr: errObjectChanged},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			b := fake.NewClientBuilder().WithScheme(scheme)
			if tt.stored != nil {
				b.WithObjects(tt.stored.DeepCopy())
			}
			stored := b.Build()
			answers := tt.updates
			c := interceptor.NewClient(stored, interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return forbidden("cannot get resource")
				},
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return forbidden("cannot patch resource")
				},
				Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
					assert.Empty(t, o.GetResourceVersion(), "the update is unconditional")
					if len(answers) > 0 {
						answer := answers[0]
						answers = answers[1:]
						if answer != nil {
							return answer
						}
					}
					return c.Update(ctx, o, options...)
				},
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
					if tt.create != nil {
						return tt.create
					}
					return c.Create(ctx, o, options...)
				},
			})
			err := (&Reconciler{Client: c, Live: c}).applySecret(t.Context(), desired, tt.isNew)
			assert.Equal(t, tt.wantErr, err)
			assert.Empty(t, answers, "all answers were needed")
			if tt.want == "" {
				return
			}
			got := &corev1.Secret{}
			require.NoError(t, stored.Get(t.Context(), client.ObjectKeyFromObject(desired), got))
			assert.Equal(t, tt.want, string(got.Data["userdata"]))
			if tt.wantErr == nil {
				assert.Equal(t, desired.Data, got.Data)
				assert.Equal(t, desired.Labels, got.Labels)
			}
		})
	}
}

// A machine in a namespace of the cluster gets the refusal as its state, with what to do.
func TestRefusalOfProtectedNamespaceIsAState(t *testing.T) {
	err := forbidden("ValidatingAdmissionPolicy 'ot-agent-protected-namespaces' with binding 'ot-agent-protected-namespaces' denied request: namespace kube-system is one of the cluster's own: use another namespace")
	for child, want := range map[childObject]v1alpha1.Reason{childSecret: v1alpha1.ReasonMachineRefused, childDisk(""): v1alpha1.ReasonRootDiskRefused, childKubeVirtVM: v1alpha1.ReasonMachineRefused} {
		reason, refused := refusalReason(child, err)
		assert.True(t, refused)
		assert.Equal(t, want, reason)
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
	assert.Equal(t, "the agent may not read Secret ns/passwords. Allow it: kubectl create rolebinding secrets-for-ot-agent --namespace ns --clusterrole ot-agent-secrets --serviceaccount ot-agent:ot-agent", denied.Error())
}
