//go:build linux

package dashboard_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/retry"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// What is approved is the version that was shown: a newer one is said, and cannot be approved
// from this dialog.
func TestApprovalIsOfTheVersionShown(t *testing.T) {
	testenv.RunInTurn(t, 0)
	f := openHub(t)
	img := f.createWaiting(t, "republished")
	p := f.openSignedIn(t, anna, "/rollouts/republished?do=approve")
	p.AwaitElement(t, "dialog", "Approve republished 1.0.0 for wave production")
	p.AwaitTrue(t, "document.querySelector('.dialog-actions .button-primary')?.getAttribute('aria-disabled') === 'false'")
	p.AwaitTrue(t, "/2 clusters|1 cluster/.test(document.querySelector('dialog').innerText)")
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		got := &v1alpha1.FleetDiskImage{}
		if err := f.Get(t.Context(), keyOf(img), got); err != nil {
			return err
		}
		got.Spec.Version = "1.1.0"
		return f.Update(t.Context(), got)
	}))
	p.AwaitTrue(t, "/has changed since it was shown, and is at version 1.1.0/.test(document.querySelector('dialog').innerText)")
	p.AwaitTrue(t, "(document.querySelector('.dialog-actions .button-primary').click(), true)")
	require.NoError(t, p.AwaitQuiet())
	p.AwaitTrue(t, "document.querySelector('.dialog-actions .button-primary').innerText === 'Approve'")
	got := f.awaitImage(t, img, "at the newer version", func(img *v1alpha1.FleetDiskImage) bool { return img.Spec.Version == "1.1.0" })
	assert.Empty(t, got.Spec.Approvals)
}
