package admissionpolicy

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestOneDownloadCondition(t *testing.T) {
	for name, test := range map[string]struct {
		change     func(*OneDownloadState)
		wantReason string
		wantText   string
	}{
		"policy in force":      {func(*OneDownloadState) {}, "InForce", "CDI does not restart a failed download"},
		"policies not served":  {func(s *OneDownloadState) { *s = OneDownloadState{} }, "PoliciesNotServed", "from Kubernetes 1.36"},
		"binding missing":      {func(s *OneDownloadState) { s.MissingObjects = []string{"MutatingAdmissionPolicyBinding a"} }, "PoliciesMissing", "MutatingAdmissionPolicyBinding a not found"},
		"restartable importer": {func(s *OneDownloadState) { s.RestartableImporter = "ns/importer" }, "NotApplied", "by an account other than system:serviceaccount:cdi:cdi-sa"},
	} {
		t.Run(name, func(t *testing.T) {
			state := OneDownloadState{PoliciesServed: true, CDIAccount: "system:serviceaccount:cdi:cdi-sa"}
			test.change(&state)
			c := OneDownloadCondition(state)
			want := metav1.ConditionFalse
			if test.wantReason == "InForce" {
				want = metav1.ConditionTrue
			}
			assert.Equal(t, v1alpha1.ConditionOneDownload, c.Type)
			apitest.AssertCondition(t, &c, want, test.wantReason, test.wantText)
		})
	}
}

// The policy may be served and installed in any version; the first one that is served counts.
func TestReadOneDownloadState(t *testing.T) {
	both := []string{"MutatingAdmissionPolicy ot-agent-importers", "MutatingAdmissionPolicyBinding ot-agent-importers"}
	for name, test := range map[string]struct {
		served, installed []string // kinds of the policy, by version
		want              OneDownloadState
	}{
		"no version":              {nil, nil, OneDownloadState{}},
		"v1":                      {[]string{"v1"}, both, OneDownloadState{PoliciesServed: true, CDIAccount: "cdi"}},
		"v1beta1":                 {[]string{"v1beta1"}, both, OneDownloadState{PoliciesServed: true, CDIAccount: "cdi"}},
		"v1alpha1":                {[]string{"v1alpha1"}, both, OneDownloadState{PoliciesServed: true, CDIAccount: "cdi"}},
		"several":                 {[]string{"v1alpha1", "v1beta1", "v1"}, both, OneDownloadState{PoliciesServed: true, CDIAccount: "cdi"}},
		"served, and no objects":  {[]string{"v1beta1"}, nil, OneDownloadState{PoliciesServed: true, MissingObjects: both}},
		"served, and one missing": {[]string{"v1"}, both[:1], OneDownloadState{PoliciesServed: true, MissingObjects: both[1:], CDIAccount: "cdi"}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
					gvk := o.GetObjectKind().GroupVersionKind()
					served := false
					for _, version := range test.served {
						served = served || version == gvk.Version
					}
					if !served {
						return &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
					}
					for _, object := range test.installed {
						if object == gvk.Kind+" "+key.Name {
							o.SetAnnotations(map[string]string{annCDIAccount: "cdi"})
							return nil
						}
					}
					return apierrors.NewNotFound(schema.GroupResource{Resource: gvk.Kind}, key.Name)
				},
			}).Build()
			got, err := oneDownloadReader{live: c, cached: c}.readState(t.Context())
			require.NoError(t, err)
			assert.Equal(t, test.want, got)
		})
	}
}

// An importer of an image that restarts on failure shows that the policy is not applied.
func TestRestartableImporterIsFound(t *testing.T) {
	const restarts, never = corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	importer := map[string]string{"cdi.kubevirt.io": "importer"}
	ofImage := map[string]string{"cdi.kubevirt.io": "importer", v1alpha1.LabelImageUID: "uid"}
	for name, test := range map[string]struct {
		labels   map[string]string
		restarts corev1.RestartPolicy
		deleted  bool
		want     string
		disk     bool // the kubelet pulls it
	}{
		"starts once":               {ofImage, never, false, "", false},
		"restarts on failure":       {ofImage, restarts, false, "ns/importer", false},
		"restarts always":           {ofImage, corev1.RestartPolicyAlways, false, "ns/importer", false},
		"is being deleted":          {ofImage, restarts, true, "", false},
		"of an import of others":    {importer, restarts, false, "", false},
		"no importer, of an image":  {map[string]string{v1alpha1.LabelImageUID: "uid"}, restarts, false, "", false},
		"awaits the kubelet's pull": {ofImage, restarts, false, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "importer", Labels: test.labels, Finalizers: []string{"a/b"}}, Spec: corev1.PodSpec{RestartPolicy: test.restarts, Containers: []corev1.Container{{Name: "importer"}}}}
			if test.disk {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "server"})
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return nil
				},
			}).Build()
			if test.deleted {
				require.NoError(t, c.Delete(t.Context(), pod))
			}
			got, err := oneDownloadReader{live: c, cached: c}.readState(t.Context())
			require.NoError(t, err)
			assert.Equal(t, OneDownloadState{PoliciesServed: true, RestartableImporter: test.want}, got)
		})
	}
}
