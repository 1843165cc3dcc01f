package importcause_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestAwaitsClaimEvents(t *testing.T) {
	for name, tt := range map[string]struct {
		change     func(*corev1.PersistentVolumeClaim)
		age        time.Duration
		wantIn     time.Duration
		wantAwaits bool
	}{
		"just created":          {age: 10 * time.Second, wantIn: 20 * time.Second, wantAwaits: true},
		"still without a prime": {age: time.Hour, wantAwaits: true},
		"filled": {age: time.Hour, change: func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{importcause.AnnotationPrimeClaim: "prime-1"}
		}},
		"bound":                   {age: time.Hour, change: func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound }},
		"being deleted":           {age: time.Hour, change: func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }},
		"filled itself":           {age: time.Hour, change: func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSourceRef = nil }},
		"filled by another's way": {age: time.Hour, change: func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSourceRef.Kind = "VolumeSnapshot" }},
	} {
		t.Run(name, func(t *testing.T) {
			claim := apitest.PersistentVolumeClaim("ns/dv").Obj()
			claim.CreationTimestamp = atSecond(0)
			claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: cdiv1.VolumeImportSourceRef}
			if tt.change != nil {
				tt.change(claim)
			}
			in, awaits := importcause.AwaitsClaimEvents(claim, atSecond(0).Add(tt.age))
			assert.Equal(t, tt.wantIn, in)
			assert.Equal(t, tt.wantAwaits, awaits)
		})
	}
}

// CDI's words are those of the API server's answer.
func TestRefusedPrimeClaim(t *testing.T) {
	for name, tt := range map[string]struct {
		message    string
		wantReason v1alpha1.Reason
		wantPerson bool
	}{
		"a quota":                   {`persistentvolumeclaims "prime-0d4f" is forbidden: exceeded quota: q, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=2, limited: persistentvolumeclaims=2`, v1alpha1.ReasonQuotaExceeded, true},
		"a webhook":                 {`admission webhook "storage.example.com" denied the request: no team label`, v1alpha1.ReasonVolumePending, true},
		"a webhook without answers": {`Internal error occurred: failed calling webhook "storage.example.com": connection refused`, v1alpha1.ReasonVolumePending, false},
	} {
		t.Run(name, func(t *testing.T) {
			refusal := importcause.LatestRefusal([]corev1.Event{
				warning("ErrCreatingPVCPrime", "another", 1, 2), warning("ErrCreatingPVCPrime", tt.message, 1, 3), warning("ProvisioningFailed", "others", 1, 4),
			})
			require.NotNil(t, refusal)
			claim := apitest.PersistentVolumeClaim("ns/dv").Obj()
			claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: importcause.ConditionClaimEvents, Status: corev1.ConditionTrue, Message: refusal.Message}}
			got := importcause.OfImport(bound("Pending", "PVC dv Pending").Obj(), []corev1.PersistentVolumeClaim{*claim}, nil)
			require.NotNil(t, got)
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Equal(t, tt.wantPerson, got.NeedsPerson)
			assert.Contains(t, got.Message, tt.message)
		})
	}
	assert.Nil(t, importcause.LatestRefusal([]corev1.Event{warning("ProvisioningFailed", "others", 1, 4)}))
}
