package mailbox

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pageDelay is longer than it takes to write the root after a page.
const pageDelay = 250 * time.Millisecond

// SyncDelay is how long a sync may wait for further events after that of an object of a
// mailbox, or of its metadata. A page is followed by the root that lists it: one sync copies,
// or reads, both.
func SyncDelay(o client.Object) time.Duration {
	if name := o.GetName(); name == v1alpha1.MailboxName || name == v1alpha1.ActivityName {
		return 0
	}
	return pageDelay
}
