package members

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// deafAfter is how long a watch may take to tell what a request was answered with.
const deafAfter = 15 * time.Second

// errDeaf ends a connection whose watches do not tell what happens any more.
var errDeaf = errors.New("its watches do not tell what is there, as after a restore from a backup")

// hearing compares what the watches of one connection have told with what the
// probe is answered. After the member was restored from a backup its
// resourceVersions have gone back, and a watch that goes on from the one it knew
// is sent nothing until they have caught up with it, which may take as long as
// the backup is old. Only a connection that reads anew recovers from that.
type hearing struct {
	// heard is the root's resourceVersion in the cache, since when it has been
	// there beside another one in the member.
	heard string
	since time.Time
}

// cached is the resourceVersion of the report's root as the watch told it; empty
// for none.
func (l *link) cached(ctx context.Context) (string, error) {
	root := &v1alpha1.ClusterReport{}
	err := l.cluster.GetCache().Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: v1alpha1.MailboxName}, root)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return root.ResourceVersion, err
}

// deaf judges by the cached resourceVersion, read before the live one was; both
// are empty where there is no report.
func (h *hearing) deaf(cached, live string, now time.Time) bool {
	if cached == live {
		*h = hearing{}
		return false
	}
	if order, err := resourceversion.CompareResourceVersion(live, cached); err == nil && order < 0 {
		return true // what was answered later is older
	}
	if h.since.IsZero() || h.heard != cached {
		*h = hearing{heard: cached, since: now}
	}
	return now.Sub(h.since) >= deafAfter
}
