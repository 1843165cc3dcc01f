package vm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestLiveReadFindsClaimWithoutLabel: no cache has one, and it may hold a guest's data. One with the label
// may be newer than the cache, and be CDI's in place of the guest's.
func TestLiveReadFindsClaimWithoutLabel(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, cdiv1.AddToScheme(scheme))
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(image.DataVolumeGVK, meta.RESTScopeNamespace)
	kinds := apidiscovery.NewKindTracker(mapper)
	kinds.WhenServed(image.DataVolumeGVK, func(context.Context) error { return nil })
	require.NoError(t, kinds.Start(t.Context()))
	named := metav1.ObjectMeta{Namespace: "ns", Name: "vm-root"}
	key := diskKey{object: types.NamespacedName{Namespace: "ns", Name: "vm-root"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: named}
	pending, bound, labelled := claim.DeepCopy(), claim.DeepCopy(), claim.DeepCopy()
	labelled.Labels = map[string]string{v1alpha1.LabelMachineUID: "uid-of-vm"}
	pending.Status.Phase, bound.Status.Phase = corev1.ClaimPending, corev1.ClaimBound
	for name, tt := range map[string]struct {
		stored *corev1.PersistentVolumeClaim
		cached *corev1.PersistentVolumeClaim
		all    bool
		// wantFound: it is read live and found; otherwise wantCached is left.
		wantFound  bool
		wantCached *corev1.PersistentVolumeClaim
	}{
		"no claim":                         {all: true},
		"one without a label":              {stored: claim, all: true, wantFound: true},
		"one that is newer than the cache": {stored: labelled, all: true, wantFound: true},
		"one that the cache has":           {stored: claim, cached: claim, all: true, wantCached: claim},
		"images only":                      {stored: claim},
		"one that still is Pending":        {stored: pending, cached: pending, all: true, wantFound: true},
		"one that was bound since":         {stored: bound, cached: pending, all: true, wantFound: true},
		"one that was deleted since":       {cached: pending, all: true},
		"images only, with a Pending one":  {stored: pending, cached: pending, wantCached: pending},
	} {
		t.Run(name, func(t *testing.T) {
			b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&cdiv1.DataVolume{ObjectMeta: named})
			if tt.stored != nil {
				b.WithObjects(tt.stored)
			}
			c := b.Build()
			v, err := (&Reconciler{Client: c, Live: c, Kinds: kinds}).readDiskLive(t.Context(), key, vm.DiskView{Claim: tt.cached}, tt.all)
			require.NoError(t, err)
			if !tt.wantFound {
				assert.Nil(t, v.LiveClaim)
				assert.Equal(t, tt.wantCached, v.Claim)
				return
			}
			require.NotNil(t, v.LiveClaim)
			assert.Equal(t, tt.stored.Status.Phase, v.LiveClaim.Status.Phase)
			if tt.cached != nil {
				assert.Same(t, v.LiveClaim, v.Claim)
			}
		})
	}
}
