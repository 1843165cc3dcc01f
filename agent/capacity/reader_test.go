package capacity

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// countingClient counts lists, and fails those of CSIStorageCapacities with listError.
type countingClient struct {
	client.WithWatch
	listCalls int
	listError error
}

func newCountingClient(t *testing.T) *countingClient {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, cdiv1.AddToScheme(scheme))
	c := &countingClient{}
	c.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: "a"}, StorageClassName: "fast"},
		&storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "csi", Name: "b"}, StorageClassName: "slow"},
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "quota"}},
		&cdiv1.CDIConfig{ObjectMeta: metav1.ObjectMeta{Name: "config"}, Status: cdiv1.CDIConfigStatus{
			ScratchSpaceStorageClass: "slow", FilesystemOverhead: &cdiv1.FilesystemOverhead{Global: "0.06", StorageClass: map[string]cdiv1.Percent{"slow": "0"}},
		}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "fast.example.com"},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: "slow.example.com"},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "fast.example.com"}},
		&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "limits"}},
		&cdiv1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{annotationMinimumSize: "4Gi", "other": "dropped"}}},
	).WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, next client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		c.listCalls++
		if _, capacities := list.(*storagev1.CSIStorageCapacityList); capacities && c.listError != nil {
			return c.listError
		}
		return next.List(ctx, list, opts...)
	}}).Build()
	return c
}

func TestReadersShareOneRead(t *testing.T) {
	c := newCountingClient(t)
	r := NewReader(c)
	for range 50 {
		got := r.AvailabilityFor(t.Context(), "lab", "fast", MaxAgeWhileWaiting)
		require.Len(t, got.Capacities, 1)
		require.Len(t, got.Quotas, 1)
		require.Equal(t, "slow", got.ScratchClass)
		require.True(t, got.UsesPopulator)
		require.Len(t, got.LimitRanges, 1)
		require.NotNil(t, got.Profile)
		require.Equal(t, map[string]string{annotationMinimumSize: "4Gi"}, got.Profile.Annotations)
		require.InDelta(t, 0.06, got.FilesystemOverhead, 1e-9)
	}
	slow := r.AvailabilityFor(t.Context(), "farm", "slow", MaxAgeWhileWaiting)
	assert.Empty(t, slow.LimitRanges)
	assert.Nil(t, slow.Profile)
	assert.Zero(t, slow.FilesystemOverhead)
	assert.False(t, slow.UsesPopulator, "its provisioner is no CSI driver")
	assert.False(t, r.AvailabilityFor(t.Context(), "farm", "", MaxAgeWhileWaiting).UsesPopulator)
	assert.Empty(t, r.AvailabilityFor(t.Context(), "farm", "other", MaxAgeWhileWaiting).Capacities)
	assert.Empty(t, r.AvailabilityFor(t.Context(), "farm", "other", MaxAgeWhileWaiting).Quotas)
	assert.Equal(t, 6, c.listCalls, "one list of each kind")
}

func TestVersionChangesWithStorage(t *testing.T) {
	c := newCountingClient(t)
	r := NewReader(c)
	const now = time.Duration(0)
	first := r.Version(t.Context(), now)
	assert.Equal(t, first, r.Version(t.Context(), now), "nothing has changed")
	require.NoError(t, c.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "another"}}))
	assert.NotEqual(t, first, r.Version(t.Context(), now))
}

// Without a class in its configuration, CDI takes that of the disk; without a configuration that
// was read, nothing is known.
func TestScratchClassByDefault(t *testing.T) {
	c := newCountingClient(t)
	config := &cdiv1.CDIConfig{ObjectMeta: metav1.ObjectMeta{Name: "config"}}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(config), config))
	config.Status.ScratchSpaceStorageClass = ""
	require.NoError(t, c.Update(t.Context(), config))
	r := NewReader(c)
	assert.Equal(t, "fast", r.AvailabilityFor(t.Context(), "lab", "fast", 0).ScratchClass)
	assert.Equal(t, "slow", r.AvailabilityFor(t.Context(), "lab", "slow", 0).ScratchClass)
	assert.Empty(t, r.AvailabilityFor(t.Context(), "lab", "", 0).ScratchClass)
	require.NoError(t, c.Delete(t.Context(), config))
	assert.Empty(t, r.AvailabilityFor(t.Context(), "lab", "fast", 0).ScratchClass)
}

func TestUnreadableKindsAreUnknown(t *testing.T) {
	resource := schema.GroupResource{Group: "storage.k8s.io", Resource: "csistoragecapacities"}
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"a kind that is not served", &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "storage.k8s.io", Kind: "CSIStorageCapacity"}}, 0},
		{"a kind that is not found", apierrors.NewNotFound(resource, ""), 0},
		{"a forbidden kind", apierrors.NewForbidden(resource, "", errors.New("no")), 0},
		{"a timeout: the former answer stays", apierrors.NewTimeoutError("later", 1), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCountingClient(t)
			r := NewReader(c)
			const now = time.Duration(0)
			require.Len(t, r.AvailabilityFor(t.Context(), "lab", "fast", now).Capacities, 1)
			c.listError = tt.err
			got := r.AvailabilityFor(t.Context(), "lab", "fast", now)
			assert.Len(t, got.Capacities, tt.want)
			assert.Len(t, got.Quotas, 1, "the other kinds are read")

			before := c.listCalls
			r.AvailabilityFor(t.Context(), "lab", "fast", MaxAgeWhileWaiting)
			assert.Equal(t, before, c.listCalls, "a failed read is not repeated within maxAge")
		})
	}
}
