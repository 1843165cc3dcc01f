package mailbox

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pageDelay is longer than it usually takes to write the root after a page.
const pageDelay = 250 * time.Millisecond

// SyncDelay is how long a sync waits for more events after one of this object, which may be
// metadata only. A page is followed by the root that lists it: one sync copies, or reads, both.
func SyncDelay(o client.Object) time.Duration {
	if name := o.GetName(); name == v1alpha1.MailboxName || name == v1alpha1.ActivityName {
		return 0
	}
	return pageDelay
}
