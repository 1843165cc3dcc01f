package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
)

// AppliedSecret is a cloud-init Secret that a process has applied.
type AppliedSecret struct {
	// Digest is that of the whole Secret; empty for none.
	Digest string
	At     time.Time
}

// DigestSecret returns the digest of a Secret as it is applied: its labels and owner have the UID
// of the machine.
func DigestSecret(secret *corev1.Secret) string {
	text, err := json.Marshal(secret)
	if err != nil {
		panic(fmt.Sprintf("a Secret cannot be marshaled: %v", err)) // it has maps of strings and bytes only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// secretReapplyDelay is how long a Secret is not applied again. The agent cannot see what becomes of
// a Secret: it may neither read nor watch them.
const secretReapplyDelay = 30 * time.Second

// reconcileCloudInitSecret applies the Secret, whatever has become of it. Invariant: a decision that
// trusts in what this process has applied is followed by one that does not. So a Secret that
// somebody has changed or deleted is as desired again at most secretReapplyDelay later than if
// each decision applied it. A KubeVirt VirtualMachine is never created on trust.
func (d *decider) reconcileCloudInitSecret() {
	if d.deployIgnored() || d.MissingSecret != "" || d.specError != nil || !d.allDisksRequested() {
		return
	}
	d.guestConfigStored = true
	secret := kubevirt.BuildCloudInitSecret(d.VM, d.guestConfig)
	age := d.Now.Sub(d.AppliedSecret.At)
	if d.KubeVirtVM != nil && age >= 0 && age < secretReapplyDelay && d.AppliedSecret.Digest == DigestSecret(secret) {
		d.requeueWithin(secretReapplyDelay - age)
		return
	}
	d.decision.ApplySecret = secret
}
