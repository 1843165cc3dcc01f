package memberclient

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/pelotech/ot-fleet/api/hubclient"
)

// errNoInformers: informers, with their buffers and goroutines, would cost most of what a
// hub keeps of an idle member.
var errNoInformers = errors.New("the cache of a member has its mailbox only, without informers and indexes: use Provider.OnMailboxEvent")

// Member is a connected member whose mailbox is watched. GetCache reads the latest
// observed state; GetClient reads and writes live, and each of its requests is bounded.
//
// It is a cluster of multicluster-runtime without informers.
type Member struct {
	connection *hubclient.Connection
	config     *rest.Config
	// Namespace of the agent.
	Namespace string
}

var _ cluster.Cluster = &Member{}

// GetCache implements cluster.Cluster.
func (m *Member) GetCache() cache.Cache { return mailboxCache{m.connection.GetCache()} }

// GetClient implements cluster.Cluster.
func (m *Member) GetClient() client.Client { return m.connection.GetClient() }

// GetAPIReader implements cluster.Cluster.
func (m *Member) GetAPIReader() client.Reader { return m.connection.GetClient() }

// GetHTTPClient implements cluster.Cluster.
func (m *Member) GetHTTPClient() *http.Client { return m.connection.GetHTTPClient() }

// GetConfig implements cluster.Cluster. The configuration is without a token.
func (m *Member) GetConfig() *rest.Config { return m.config }

// GetScheme implements cluster.Cluster.
func (*Member) GetScheme() *runtime.Scheme { return hubclient.Scheme }

// GetRESTMapper implements cluster.Cluster.
func (*Member) GetRESTMapper() meta.RESTMapper { return hubclient.Mapper }

// GetFieldIndexer implements cluster.Cluster.
func (m *Member) GetFieldIndexer() client.FieldIndexer { return m.GetCache() }

// GetEventRecorderFor implements cluster.Cluster. The hub's credential may not write Events.
func (*Member) GetEventRecorderFor(string) record.EventRecorder { return &record.FakeRecorder{} }

// GetEventRecorder implements cluster.Cluster. The hub's credential may not write Events.
func (*Member) GetEventRecorder(string) events.EventRecorder { return &events.FakeRecorder{} }

// Start implements cluster.Cluster. The Provider has started the connection.
func (*Member) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// mailboxCache is a cache.Cache without informers.
type mailboxCache struct{ client.Reader }

// GetInformer implements cache.Informers.
func (mailboxCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, errNoInformers
}

// GetInformerForKind implements cache.Informers.
func (mailboxCache) GetInformerForKind(context.Context, schema.GroupVersionKind, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, errNoInformers
}

// RemoveInformer implements cache.Informers.
func (mailboxCache) RemoveInformer(context.Context, client.Object) error { return errNoInformers }

// IndexField implements client.FieldIndexer.
func (mailboxCache) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return errNoInformers
}

// Start implements cache.Informers.
func (mailboxCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// WaitForCacheSync implements cache.Informers: the Provider engages synced members only.
func (mailboxCache) WaitForCacheSync(context.Context) bool { return true }
