package mailbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestBrokenConnectionsAreRecorded(t *testing.T) {
	connected := ConnectionState{Attempted: true, Connected: true, Outcome: Outcome{v1alpha1.ReasonConnected, "connected"}}
	for name, tt := range map[string]struct {
		err       error
		want      string // reason of the state
		wantDelay time.Duration
	}{
		"no connection":              {err: context.DeadlineExceeded, want: v1alpha1.ReasonUnreachable},
		"a refused credential":       {err: apierrors.NewUnauthorized("expired"), want: v1alpha1.ReasonUnauthorized, wantDelay: unauthorizedRetryDelay},
		"no mailbox in this cluster": {err: fmt.Errorf("ClusterPlan: %w", errMailboxNotServed), want: v1alpha1.ReasonMailboxNotServed, wantDelay: 10 * time.Second},
		"no mailbox on the hub":      {err: hubclient.ErrNotServed, want: v1alpha1.ReasonMailboxNotServed, wantDelay: 10 * time.Second},
		"stale watches":              {err: hubclient.ErrWatchStale, want: v1alpha1.ReasonConnected},
		"another agent leads":        {err: errNotLeading, want: v1alpha1.ReasonConnecting},
	} {
		t.Run(name, func(t *testing.T) {
			session := &hubSession{}
			s := &Syncer{Options: hubclient.Options{ProbeInterval: 10 * time.Second}, OnStateChange: func() {}, session: session, state: connected}
			assert.Equal(t, tt.wantDelay, s.recordBroken(t.Context(), session, tt.err))
			assert.Equal(t, tt.want, s.State().Reason)
		})
	}
}
