package vm

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestRefusalReason(t *testing.T) {
	of := schema.GroupResource{Resource: "things"}
	terminating := apierrors.NewForbidden(of, "x", errors.New("it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	quota := apierrors.NewForbidden(of, "x", errors.New("exceeded quota: compute"))
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Message: "denied the request"}}
	for name, tt := range map[string]struct {
		what childObject
		err  error
		want v1alpha1.Reason
	}{
		"nothing":                         {childKubeVirtVM, nil, ""},
		"quota":                           {childRootDisk, quota, v1alpha1.ReasonRootDiskRefused},
		"wrapped":                         {childSecret, fmt.Errorf("applying: %w", quota), v1alpha1.ReasonMachineRefused},
		"a webhook that gives no reason":  {childKubeVirtVM, webhook, v1alpha1.ReasonMachineRefused},
		"an image that does not validate": {childImage, apierrors.NewInvalid(schema.GroupKind{Kind: "VMDiskImage"}, "x", nil), v1alpha1.ReasonImageRefused},
		"no namespace for the image":      {childImage, apierrors.NewNotFound(of, "ns"), v1alpha1.ReasonImageNamespaceMissing},
		"its namespace goes":              {childImage, terminating, v1alpha1.ReasonImageNamespaceMissing},
		"a name that is taken":            {childKubeVirtVM, &nameTakenError{"DataVolume", "x"}, v1alpha1.ReasonNameTaken},
		"a webhook that does not answer":  {childKubeVirtVM, apierrors.NewInternalError(errors.New("failed calling webhook")), ""},
		"a conflict":                      {childKubeVirtVM, apierrors.NewConflict(of, "x", nil), ""},
		"a timeout":                       {childRootDisk, apierrors.NewTimeoutError("late", 1), ""},
		"too many requests":               {childRootDisk, apierrors.NewTooManyRequests("slow down", 1), ""},
		"no answer at all":                {childRootDisk, errors.New("connection refused"), ""},
		"gone meanwhile":                  {childKubeVirtVM, apierrors.NewNotFound(of, "x"), ""},
		"changed meanwhile":               {childRootDisk, errObjectChanged, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reason, refused := refusalReason(tt.what, tt.err)
			assert.Equal(t, tt.want, reason)
			assert.Equal(t, tt.want != "", refused)
		})
	}
}

func TestRecordEvents(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	r := &Reconciler{Events: recorder}
	told := func(before, after v1alpha1.VirtualMachineStatus) []string {
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
	failed := status(v1alpha1.MachineFailed, v1alpha1.ReasonImageFailed, strings.Repeat("é", 3000))

	assert.Equal(t, []string{"Normal WaitingForImage Provisioning: waits"}, told(v1alpha1.VirtualMachineStatus{}, waiting))
	assert.Empty(t, told(waiting, status(v1alpha1.MachineProvisioning, v1alpha1.ReasonCloningRootDisk, "clones")), "not each step")
	got := told(waiting, failed)
	require.Len(t, got, 1)
	note := strings.TrimPrefix(got[0], "Warning ImageFailed ")
	assert.LessOrEqual(t, len(note), 1024, "the API server refuses longer ones")
	assert.Greater(t, len(note), 1000)
	assert.Len(t, told(failed, status(v1alpha1.MachineFailed, v1alpha1.ReasonSecretMissing, "no Secret")), 1)
	assert.Empty(t, told(failed, status(v1alpha1.MachineFailed, v1alpha1.ReasonImageFailed, "in other words")))

	adjusted := waiting
	adjusted.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSpecAdjusted, Status: metav1.ConditionTrue, Message: "grown"}}
	assert.Equal(t, []string{"Warning SpecAdjusted grown"}, told(waiting, adjusted))
	assert.Empty(t, told(adjusted, adjusted))
	assert.Empty(t, told(adjusted, waiting))
}
