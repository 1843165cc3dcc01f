package mailbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterplans;transfergrants,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=pelotech.ot,namespace=agent-namespace,resources=clusterreports,verbs=get;list;watch

// errMailboxNotServed: this cluster does not serve all kinds of the mailbox.
var errMailboxNotServed = errors.New("this cluster does not serve the kinds of the mailbox")

var mailboxKinds = map[schema.GroupVersionKind]client.Object{
	v1alpha1.GroupVersion.WithKind("ClusterPlan"):   &v1alpha1.ClusterPlan{},
	v1alpha1.GroupVersion.WithKind("TransferGrant"): &v1alpha1.TransferGrant{},
	v1alpha1.GroupVersion.WithKind("ClusterReport"): &v1alpha1.ClusterReport{},
}

// WatchMailbox returns a Member.Watch that reads from a cache. It has to be called before
// kinds starts.
func WatchMailbox(mailbox cache.Cache, kinds *apidiscovery.KindTracker) func(context.Context, func()) error {
	for kind := range mailboxKinds {
		kinds.WhenServed(kind, func(context.Context) error { return nil })
	}
	var mu sync.Mutex
	watched := map[schema.GroupVersionKind]bool{}
	return func(ctx context.Context, onEvent func()) error {
		mu.Lock()
		defer mu.Unlock()
		for kind, object := range mailboxKinds {
			switch {
			case !kinds.IsServed(kind):
				return fmt.Errorf("%s: %w", kind.Kind, errMailboxNotServed)
			case watched[kind]:
				continue
			}
			if err := apidiscovery.NotifyOnEvents(ctx, mailbox, object, onEvent); err != nil {
				return err
			}
			watched[kind] = true
		}
		return nil
	}
}

// Setup adds the syncer to a manager.
func (s *Syncer) Setup(mgr ctrl.Manager) error {
	s.Options.SetDefaults()
	return mgr.Add(s)
}
