package vm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestUnusableSecretIsReadAgain: no event announces that a Secret was corrected.
func TestUnusableSecretIsReadAgain(t *testing.T) {
	key := &v1alpha1.SecretKey{Name: "s", Key: "k"}
	for name, tt := range map[string]struct {
		name           func(*v1alpha1.VirtualMachine)
		spoil, mend    func(*world)
		wantMessage    string
		wantRequeueing time.Duration
	}{
		"empty password": {
			name: func(m *v1alpha1.VirtualMachine) {
				m.Spec.Users = []v1alpha1.User{{Name: "plain"}, {Name: "ann", PasswordSecretRef: key}}
			},
			spoil:          func(w *world) { w.Inputs.Passwords = map[string]string{"ann": ""} },
			mend:           func(w *world) { w.Inputs.Passwords = map[string]string{"ann": apitest.Secret} },
			wantMessage:    "is empty: set one",
			wantRequeueing: 30 * time.Second,
		},
		"broken gzip": {
			name:           func(m *v1alpha1.VirtualMachine) { m.Spec.CloudInit = &v1alpha1.CloudInit{UserDataSecretRef: key} },
			spoil:          func(w *world) { w.Inputs.UserData = []byte("\x1f\x8bno") },
			mend:           func(w *world) { w.Inputs.UserData = []byte("#!/bin/sh\n") },
			wantMessage:    "is not valid gzip",
			wantRequeueing: 30 * time.Second,
		},
		"no Secret": {
			name:        func(m *v1alpha1.VirtualMachine) { m.Spec.CloudInit = &v1alpha1.CloudInit{UserData: "\x1f\x8bno"} },
			spoil:       func(*world) {},
			mend:        func(w *world) { w.VM.Spec.CloudInit.UserData = "#!/bin/sh\n" },
			wantMessage: "is not valid gzip",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, apitest.VirtualMachine("ns", "vm")).withRootDisk(goldenImage(1), cdiv1.Succeeded)
			tt.name(w.VM)
			tt.spoil(w)
			w.reconcile()
			w.requireState(v1alpha1.MachineFailed, v1alpha1.ReasonSpecInvalid, tt.wantMessage)
			assert.Equal(t, tt.wantRequeueing, w.lastDecision.RequeueAfter)
			tt.mend(w)
			require.NotNil(t, w.reconcile().ApplyKubeVirtVM)
		})
	}
}
