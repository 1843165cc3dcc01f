package vm_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestTransientErrorKeepsMessageStable(t *testing.T) {
	webhookError := func(cause string) error {
		return fmt.Errorf("creating: %w", apierrors.NewInternalError(errors.New(`failed calling webhook "datavolume-validate.cdi.kubevirt.io": failed to call webhook: Post "https://cdi-api.cdi.svc:443/validate?timeout=30s": `+cause)))
	}
	w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), true)
	failWith := func(err error) v1alpha1.VirtualMachineStatus {
		d := w.decide()
		require.NotEmpty(t, d.CreateDisks)
		d.SetRequestFailed(w.VM.Generation, w.Now, "the root disk", err)
		w.lastDecision, w.VM.Status = d, d.Status
		w.Now = w.Now.Add(time.Minute)
		return d.Status
	}
	st := failWith(webhookError("dial tcp 10.0.0.1:443: connect: connection refused"))
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonRequestFailed, "the root disk", `webhook "datavolume-validate.cdi.kubevirt.io"`)
	assert.NotContains(t, st.Message, "10.0.0.1")
	assert.Nil(t, st.RootDisk)
	assert.False(t, meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionRootDiskReady))
	assert.NotNil(t, st.Pinned, "the pin stays")
	assert.Equal(t, st, failWith(webhookError("context deadline exceeded")), "the same problem in other words causes no write")

	st = failWith(apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("version 17 has changed")))
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonRequestFailed, "resourcequotas")
	assert.Equal(t, st, failWith(apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("version 2b8 has changed"))))
	st = failWith(&apierrors.StatusError{ErrStatus: metav1.Status{Code: 504, Reason: metav1.StatusReasonTimeout}})
	assert.Contains(t, st.Message, "Timeout")
	failWith(errors.New("read tcp 10.0.0.1:4711->10.0.0.2:443: connection reset by peer"))
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonRequestFailed, "did not answer")

	w.reconcile()
	w.requireState(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk)
}

func TestYoungMachineWaitsForMissingObjects(t *testing.T) {
	for name, tt := range map[string]struct {
		setup  func(*world)
		reason v1alpha1.Reason
		after  time.Duration
	}{
		"no image":  {func(*world) {}, v1alpha1.ReasonImageMissing, 0},
		"no Secret": {func(w *world) { w.Image, w.MissingSecret = goldenImage(1), "Secret ns/s does not exist" }, v1alpha1.ReasonSecretMissing, 30 * time.Second},
		"no network": {func(w *world) {
			w.withRootDisk(goldenImage(1), cdiv1.Succeeded).withKubeVirtVM("Starting", nil)
			w.MissingNetwork = "ns/net"
		}, v1alpha1.ReasonNetworkMissing, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm"))
			w.VM.CreationTimestamp = metav1.NewTime(w.Now)
			tt.setup(w)
			for _, at := range []struct {
				age   time.Duration
				phase v1alpha1.MachinePhase
				after time.Duration
			}{
				{0, v1alpha1.MachineProvisioning, 3 * time.Second},
				{14 * time.Second, v1alpha1.MachineProvisioning, time.Second},
				{15 * time.Second, v1alpha1.MachineFailed, tt.after},
			} {
				v := w.View
				v.Now = v.Now.Add(at.age)
				d := vm.Decide(v)
				assert.Equal(t, []any{at.phase, tt.reason, at.after}, []any{d.Status.Phase, d.Status.Reason, d.RequeueAfter}, "%s old", at.age)
			}
		})
	}
}

func TestMissingImageNamespaceFailsAfterSettling(t *testing.T) {
	w := newWorld(t, apitest.VirtualMachine("ns", "vm").WithTemplate(apitest.Image("ns/golden").Obj().Spec))
	w.VM.CreationTimestamp = metav1.NewTime(w.Now)
	refuse := func() vm.Decision {
		d := w.decide()
		require.NotNil(t, d.CreateImage)
		d.SetNamespaceMissing(w.VM, w.Now, v1alpha1.ReasonImageNamespaceMissing, "the VMDiskImage", errors.New(`namespaces "farm" not found`))
		w.VM.Status = d.Status
		return d
	}
	d := refuse()
	assert.Equal(t, []any{v1alpha1.MachineProvisioning, v1alpha1.ReasonImageNamespaceMissing}, []any{d.Status.Phase, d.Status.Reason})
	assert.Contains(t, d.Status.Message, "farm")
	assert.True(t, meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionReconciling))
	assert.Equal(t, 3*time.Second, d.RequeueAfter)
	w.Now = w.Now.Add(15 * time.Second)
	d = refuse()
	assert.Equal(t, []any{v1alpha1.MachineFailed, v1alpha1.ReasonImageNamespaceMissing}, []any{d.Status.Phase, d.Status.Reason})
	assert.Equal(t, 30*time.Second, d.RequeueAfter)
}
