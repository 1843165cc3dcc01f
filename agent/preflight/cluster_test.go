package preflight

import (
	"context"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func newFakeCluster(t *testing.T, objects ...client.Object) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, networkingv1.AddToScheme(scheme))
	require.NoError(t, cdiv1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)
}

func newCDIConfig(p *cdiv1.ImportProxy) *cdiv1.CDIConfig {
	return &cdiv1.CDIConfig{ObjectMeta: metav1.ObjectMeta{Name: cdiConfigName}, Status: cdiv1.CDIConfigStatus{ImportProxy: p}}
}

// proxyURL returns the proxy for a URL; empty for none.
func proxyURL(t *testing.T, n network, text string) string {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	proxy, err := n.proxy(u)
	require.NoError(t, err)
	if proxy == nil {
		return ""
	}
	return proxy.String()
}

func TestProxyOfTheClusterAndOfTheEnvironment(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://env:1")
	t.Setenv("HTTPS_PROXY", "http://env:2")
	t.Setenv("NO_PROXY", "direct.example.com,10.0.0.0/8")
	for name, tt := range map[string]struct {
		objects []client.Object
		want    map[string]string
	}{
		"without CDI": {nil, map[string]string{
			"http://a.example.com": "http://env:1", "https://a.example.com": "http://env:2", "http://direct.example.com": "", "http://10.0.0.1": "",
		}},
		"CDI has none": {[]client.Object{newCDIConfig(nil)}, map[string]string{"http://a.example.com": "http://env:1"}},
		"CDI has an empty one": {[]client.Object{newCDIConfig(&cdiv1.ImportProxy{HTTPProxy: ptr.To(""), HTTPSProxy: ptr.To(""), NoProxy: ptr.To("")})},
			map[string]string{"http://a.example.com": "http://env:1"}},
		"CDI's": {[]client.Object{newCDIConfig(&cdiv1.ImportProxy{HTTPProxy: ptr.To("http://u:p@cdi:3"), NoProxy: ptr.To("mirror.example.com")})}, map[string]string{
			"http://a.example.com": "http://u:p@cdi:3", "http://mirror.example.com": "", "https://a.example.com": "", "http://direct.example.com": "http://u:p@cdi:3",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := NewClusterReader(newFakeCluster(t, tt.objects...).Build()).read(t.Context())
			for source, want := range tt.want {
				assert.Equal(t, want, proxyURL(t, n, source), source)
			}
		})
	}
}

func TestNetworksOfServicesAreInternal(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "34.118.240.1")
	services := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"34.118.224.0/20", "2600:2d00::/108", "nonsense"}}}
	fails, reads := false, 0
	c := newFakeCluster(t, services, newCDIConfig(&cdiv1.ImportProxy{HTTPProxy: ptr.To("http://cdi:3")})).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if reads++; fails {
				return assert.AnError
			}
			return c.List(ctx, list, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if fails {
				return assert.AnError
			}
			return c.Get(ctx, key, obj, opts...)
		},
	}).Build()
	r := NewClusterReader(c)
	requireInternal := func() {
		t.Helper()
		n := r.read(t.Context())
		for _, text := range []string{"34.118.224.7", "2600:2d00::7", "34.118.240.1", "127.0.0.1"} {
			assert.False(t, addressJudge{clusterNetworks: n.internal}.permits("a.example.com", netip.MustParseAddr(text)), text)
		}
		assert.True(t, addressJudge{clusterNetworks: n.internal}.permits("a.example.com", netip.MustParseAddr("34.118.241.1")))
		assert.Equal(t, "http://cdi:3", proxyURL(t, n, "http://a.example.com"))
	}
	requireInternal()
	requireInternal()
	assert.Equal(t, 1, reads, "it is not read for each image")

	fails = true
	size := len(r.current.internal)
	for range 3 { // what was known stays, and does not grow
		r.readAt = time.Now().Add(-2 * clusterReadInterval)
		requireInternal()
	}
	assert.Equal(t, 4, reads)
	assert.Len(t, r.current.internal, size)
}

func TestNamesAreAbsolute(t *testing.T) {
	h := &headRequest{judge: addressJudge{allow: []string{"registry", "*.corp.example.com"}}}
	for host, want := range map[string]string{
		"a.example.com": "a.example.com.", "a.example.com.": "a.example.com.", "10.0.0.1": "10.0.0.1", "fd00::1": "fd00::1",
		"registry": "registry", "a.corp.example.com": "a.corp.example.com", // the search path of the Pod may be needed
	} {
		assert.Equal(t, want, h.absoluteName(host))
	}
}
