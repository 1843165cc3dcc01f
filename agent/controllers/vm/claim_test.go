package vm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestCreateRootDiskChecksExistingClaim: the cache shows no claim without the label, and
// CDI has a DataVolume wait for such a one for ever.
func TestCreateRootDiskChecksExistingClaim(t *testing.T) {
	obj := apitest.VirtualMachine("ns", "vm").Obj()
	meta := func(of types.UID) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "ns", Name: "vm-root"}
		if of != "" {
			m.Labels = map[string]string{v1alpha1.LabelMachineUID: string(of)}
		}
		return m
	}
	for name, tt := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		disk  *cdiv1.DataVolume
		says  string
		is    error
	}{
		"none":            {},
		"somebody else's": {claim: &corev1.PersistentVolumeClaim{ObjectMeta: meta("")}, says: "there is a PersistentVolumeClaim vm-root that was not made for this machine"},
		"somebody else's, with a DataVolume": {
			claim: &corev1.PersistentVolumeClaim{ObjectMeta: meta("")}, disk: &cdiv1.DataVolume{ObjectMeta: meta("")},
			says: "there is a DataVolume vm-root that was not made for this machine",
		},
		"a DataVolume without a claim": {disk: &cdiv1.DataVolume{ObjectMeta: meta("")}, says: "there is a DataVolume vm-root that was not made for this machine"},
		"a former one's":               {claim: &corev1.PersistentVolumeClaim{ObjectMeta: meta("uid-of-former")}, is: errObjectChanged},
		"its own":                      {claim: &corev1.PersistentVolumeClaim{ObjectMeta: meta(obj.UID)}, is: errObjectChanged},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			require.NoError(t, cdiv1.AddToScheme(scheme))
			b := fake.NewClientBuilder().WithScheme(scheme)
			if tt.claim != nil {
				b.WithObjects(tt.claim)
			}
			if tt.disk != nil {
				b.WithObjects(tt.disk)
			}
			c := b.Build()
			r := &Reconciler{Client: c, Live: c}
			dv := &cdiv1.DataVolume{ObjectMeta: meta(obj.UID)}
			err := r.createRootDisk(t.Context(), obj, dv)
			there := &cdiv1.DataVolume{}
			made := c.Get(t.Context(), client.ObjectKeyFromObject(dv), there) == nil && there.Labels[v1alpha1.LabelMachineUID] == string(obj.UID)
			assert.Equal(t, err == nil, made)
			switch {
			case tt.says != "":
				require.ErrorContains(t, err, tt.says)
				reason, refused := refusalReason(childRootDisk, err)
				assert.True(t, refused)
				assert.Equal(t, v1alpha1.ReasonNameTaken, reason)
			case tt.is != nil:
				require.ErrorIs(t, err, tt.is)
			default:
				require.NoError(t, err)
			}
		})
	}
}
