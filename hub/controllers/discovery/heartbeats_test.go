package discovery

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// watchedMembers is a cache that hands the handlers of MemberClusters to the test.
type watchedMembers struct {
	informertest.FakeInformers
	handlers chan toolscache.ResourceEventHandler
}

func (w *watchedMembers) GetInformer(_ context.Context, like client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	informer := controllertest.NewFakeInformer(controllertest.Synced)
	if _, ok := like.(*v1alpha1.MemberCluster); ok {
		return memberInformer{informer, w.handlers}, nil
	}
	return informer, nil
}

type memberInformer struct {
	*controllertest.FakeInformer
	handlers chan toolscache.ResourceEventHandler
}

func (i memberInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	i.handlers <- handler
	return i.FakeInformer.AddEventHandlerWithOptions(handler, o)
}

// Of a thousand members, some ten report each second that they are as before.
func TestHeartbeatsOfMembersAreNotReconciled(t *testing.T) {
	reconciled, watched := make(chan string, 10), &watchedMembers{handlers: make(chan toolscache.ResourceEventHandler, 10)}
	api := interceptor.NewClient(newAPI(t), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			reconciled <- key.Name
			return api.Get(ctx, key, o, options...)
		},
	})
	mgr, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{
		Scheme: api.Scheme(), Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return watched, nil },
		NewClient:      func(*rest.Config, client.Options) (client.Client, error) { return api, nil },
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return api.RESTMapper(), nil },
	})
	require.NoError(t, err)
	require.NoError(t, Setup(mgr, Options{}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		stop()
		assert.NoError(t, <-ended)
	}()

	members := <-watched.handlers
	update := func(name string, change func(*v1alpha1.MemberCluster)) {
		before := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
		after := before.DeepCopy()
		after.ResourceVersion = "2"
		change(after)
		members.OnUpdate(before, after)
	}
	update("reports", func(m *v1alpha1.MemberCluster) { m.Status.LastReport = &metav1.Time{Time: time.Now()} })
	update("changes", func(m *v1alpha1.MemberCluster) { m.Labels = map[string]string{"site": "north"} })
	assert.Equal(t, "changes", <-reconciled) // one at a time, in their order
}
