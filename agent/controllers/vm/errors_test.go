package vm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestRefusalReason(t *testing.T) {
	things := schema.GroupResource{Resource: "things"}
	terminating := apierrors.NewForbidden(things, "x", errors.New("it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	quota := apierrors.NewForbidden(things, "x", errors.New("exceeded quota: compute"))
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: "denied the request"}}
	for name, tt := range map[string]struct {
		child childObject
		err   error
		want  v1alpha1.Reason
	}{
		"no error":                    {childKubeVirtVM, nil, ""},
		"quota":                       {childDisk(""), quota, v1alpha1.ReasonRootDiskRefused},
		"wrapped quota":               {childSecret, fmt.Errorf("applying: %w", quota), v1alpha1.ReasonMachineRefused},
		"webhook without a reason":    {childKubeVirtVM, webhook, v1alpha1.ReasonMachineRefused},
		"invalid image":               {childImage, apierrors.NewInvalid(schema.GroupKind{Kind: "VMDiskImage"}, "x", nil), v1alpha1.ReasonImageRefused},
		"image namespace missing":     {childImage, apierrors.NewNotFound(things, "ns"), v1alpha1.ReasonImageNamespaceMissing},
		"image namespace terminating": {childImage, terminating, v1alpha1.ReasonImageNamespaceMissing},
		"name taken":                  {childKubeVirtVM, &nameTakenError{"DataVolume", "x"}, v1alpha1.ReasonNameTaken},
		"webhook without an answer":   {childKubeVirtVM, apierrors.NewInternalError(errors.New("failed calling webhook")), ""},
		"conflict":                    {childKubeVirtVM, apierrors.NewConflict(things, "x", nil), ""},
		"timeout":                     {childDisk(""), apierrors.NewTimeoutError("late", 1), ""},
		"too many requests":           {childDisk(""), apierrors.NewTooManyRequests("slow down", 1), ""},
		"no connection":               {childDisk(""), errors.New("connection refused"), ""},
		"object deleted":              {childKubeVirtVM, apierrors.NewNotFound(things, "x"), ""},
		"object changed":              {childDisk(""), errObjectChanged, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reason, refused := refusalReason(tt.child, tt.err)
			assert.Equal(t, tt.want, reason)
			assert.Equal(t, tt.want != "", refused)
		})
	}
}

func TestRecordEvents(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	r := &Reconciler{Events: recorder}
	recorded := func(before, after v1alpha1.VirtualMachineStatus) []string {
		r.recordEvents(apitest.VirtualMachine("ns", "vm").WithStatus(after).Obj(), &before)
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		return got
	}
	status := func(phase v1alpha1.MachinePhase, reason v1alpha1.Reason, message string) v1alpha1.VirtualMachineStatus {
		return v1alpha1.VirtualMachineStatus{Phase: phase, Reason: reason, Message: message}
	}
	waiting := status(v1alpha1.MachineProvisioning, v1alpha1.ReasonWaitingForImage, "waits")
	failed := status(v1alpha1.MachineFailed, v1alpha1.ReasonImageFailed, "no image")
	ready := status(v1alpha1.MachineReady, v1alpha1.ReasonRunning, "runs")
	assert.Empty(t, recorded(v1alpha1.VirtualMachineStatus{}, waiting), "its conditions say so")
	assert.Empty(t, recorded(waiting, ready), "its conditions say so, and since when")
	assert.Equal(t, []string{"Normal WaitingForImage Provisioning: waits"}, recorded(ready, waiting))
	assert.Equal(t, []string{"Normal WaitingForImage Provisioning: waits"}, recorded(failed, waiting))
	assert.Equal(t, []string{"Normal Running Ready: runs"}, recorded(failed, ready))
	assert.Empty(t, recorded(waiting, status(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "clones")), "the phase is the same")
	assert.Equal(t, []string{"Warning ImageFailed Failed: no image"}, recorded(waiting, failed))
	assert.Len(t, recorded(failed, status(v1alpha1.MachineFailed, v1alpha1.ReasonSecretMissing, "no Secret")), 1)
	assert.Empty(t, recorded(failed, status(v1alpha1.MachineFailed, v1alpha1.ReasonImageFailed, "in other words")))

	adjusted := waiting
	adjusted.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSpecAdjusted, Status: metav1.ConditionTrue, Message: "grown"}}
	assert.Equal(t, []string{"Warning SpecAdjusted grown"}, recorded(waiting, adjusted))
	assert.Empty(t, recorded(adjusted, adjusted))
	assert.Empty(t, recorded(adjusted, waiting))
}
