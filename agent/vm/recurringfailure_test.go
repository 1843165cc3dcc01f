package vm_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// denials never repeat a word, as those of a webhook that says what it pleases.
func denials(code int32) func() error {
	n := 0
	return func() error {
		n++
		word := make([]byte, 0, 8)
		for i := n; i > 0; i /= 26 {
			word = append(word, byte('a'+i%26))
		}
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: fmt.Sprintf("denied, since %s", word)}}
	}
}

// TestRecurringFailureIsStoredNowAndThen: each status write triggers a reconcile, which repeats the
// request.
func TestRecurringFailureIsStoredNowAndThen(t *testing.T) {
	claims := corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
	adoptions := func(w *world, d *vm.Decision, next func() error) {
		for _, name := range []string{"vm-root", "vm-root-scratch"} {
			d.SetAdoptionRefused(w.VM.Generation, w.Now, vm.AdoptTarget{Kind: claims, Name: name, UID: types.UID(name)}, next())
		}
	}
	for name, tt := range map[string]struct {
		code int32
		fail func(w *world, d *vm.Decision, next func() error)
	}{
		"refused": {403, func(w *world, d *vm.Decision, next func() error) {
			d.SetRefused(w.VM.Generation, w.Now, v1alpha1.ReasonRootDiskRefused, "the root disk", next())
		}},
		"namespace missing": {404, func(w *world, d *vm.Decision, next func() error) {
			d.SetNamespaceMissing(w.VM, w.Now, v1alpha1.ReasonImageNamespaceMissing, "the VMDiskImage", next())
		}},
		"request failed": {500, func(w *world, d *vm.Decision, next func() error) {
			d.SetRequestFailed(w.VM.Generation, w.Now, "the root disk", next())
		}},
		"adoptions refused": {403, adoptions},
		"a refused disk beside refused adoptions": {403, func(w *world, d *vm.Decision, next func() error) {
			adoptions(w, d, next)
			d.SetRefused(w.VM.Generation, w.Now, v1alpha1.ReasonRootDiskRefused, "the root disk", next())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			next := denials(tt.code)
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withPin(goldenImage(1), true)
			began, writes := w.Now, 0
			for w.Now.Sub(began) < 5*time.Minute {
				d := w.decide()
				tt.fail(w, &d, next)
				if equality.Semantic.DeepEqual(w.VM.Status, d.Status) {
					w.Now = w.Now.Add(5 * time.Second) // another event
					continue
				}
				writes++
				require.LessOrEqual(t, writes, 11)
				w.VM.Status, w.MessageStoredAt = d.Status, w.Now
				w.Now = w.Now.Add(10 * time.Millisecond)
			}
			assert.GreaterOrEqual(t, writes, 9, "the message is refreshed")
		})
	}
}

func TestRecurringFailureIsStoredAnew(t *testing.T) {
	for name, change := range map[string]func(w *world, reason *v1alpha1.Reason){
		"of another reason":          func(_ *world, reason *v1alpha1.Reason) { *reason = v1alpha1.ReasonMachineRefused },
		"after the spec has changed": func(w *world, _ *v1alpha1.Reason) { w.VM.Generation++ },
		"after a while":              func(w *world, _ *v1alpha1.Reason) { w.Now = w.Now.Add(30 * time.Second) },
		"by an agent that is new":    func(w *world, _ *v1alpha1.Reason) { w.MessageStoredAt = time.Time{} },
		"after the clock was set":    func(w *world, _ *v1alpha1.Reason) { w.Now = w.Now.Add(-time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Pending)
			reason := v1alpha1.ReasonRootDiskRefused
			refuse := func(text string) string {
				d := w.decide()
				d.SetRefused(w.VM.Generation, w.Now, reason, "the root disk", errors.New(text))
				w.VM.Status, w.MessageStoredAt = d.Status, w.Now
				return d.Status.Message
			}
			refuse("too large")
			require.Contains(t, refuse("too small"), "too large")
			change(w, &reason)
			assert.Contains(t, refuse("too blue"), "too blue")
		})
	}
}
