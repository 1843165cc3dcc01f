package hubclient

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// opensConnections are the functions and types that make a client from a configuration, or
// send a request without one. A name that ends in * stands for all that begin so.
var opensConnections = map[string][]string{
	"crypto/tls":                                         {"Dial*"},
	"helm.sh/helm/v4/pkg/kube":                           {"New*"},
	"k8s.io/cli-runtime/pkg/genericclioptions":           {"NewConfigFlags"},
	"k8s.io/client-go/discovery":                         {"New*"},
	"k8s.io/client-go/dynamic":                           {"New*"},
	"k8s.io/client-go/kubernetes":                        {"New*"},
	"k8s.io/client-go/metadata":                          {"New*"},
	"k8s.io/client-go/rest":                              {"HTTPClientFor*", "InClusterConfig", "NewRESTClient", "RESTClientFor*", "TransportFor*", "UnversionedRESTClientFor*"},
	"k8s.io/client-go/tools/clientcmd":                   {"BuildConfig*", "Load*", "NewClientConfig*", "NewDefaultClientConfig", "NewNonInteractive*", "RESTConfig*"},
	"k8s.io/client-go/tools/leaderelection/resourcelock": {"NewFromKubeconfig"},
	"k8s.io/client-go/tools/portforward":                 {"New*"},
	"k8s.io/client-go/tools/remotecommand":               {"New*"},
	"k8s.io/client-go/transport":                         {"HTTPWrappersForConfig", "New*"},
	"net":                                                {"Dial*"},
	"net/http":                                           {"Client", "DefaultClient", "DefaultTransport", "Get", "Head", "Post*", "Transport"},
	"sigs.k8s.io/controller-runtime":                     {"GetConfig*", "NewManager"},
	"sigs.k8s.io/controller-runtime/pkg/cache":           {"New"},
	"sigs.k8s.io/controller-runtime/pkg/client":          {"New", "NewWithWatch"},
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil":  {"NewDynamic*", "RESTClientForGVK"},
	"sigs.k8s.io/controller-runtime/pkg/client/config":   {"Get*"},
	"sigs.k8s.io/controller-runtime/pkg/cluster":         {"New"},
	"sigs.k8s.io/controller-runtime/pkg/manager":         {"New"},
	"sigs.k8s.io/multicluster-runtime/pkg/manager":       {"New"},
}

const (
	throughLimits = "between hub and member, through newTransport"
	ownAPIServer  = "the program's own API server"
	ownReplica    = "another replica of the hub"
	ownPort       = "this process"
	source        = "the source of an image, with limits of its own"
	noConnection  = "makes no connection"
)

// connections are all places that open connections, and to what.
var connections = map[string]string{
	"agent/controllers.go discovery.NewDiscoveryClientForConfigAndClient":     ownAPIServer,
	"agent/liveread/reader.go rest.UnversionedRESTClientFor":                  ownAPIServer,
	"agent/apidiscovery/imagefields.go discovery.NewDiscoveryClientForConfig": ownAPIServer,
	"agent/manager.go controller-runtime.NewManager":                          ownAPIServer,
	"agent/manager.go cache.New":                                              ownAPIServer,
	"agent/preflight/head.go net.Dialer":                                      source,
	"agent/preflight/head.go http.Transport":                                  source,
	"agent/pullmode.go client.New":                                            ownAPIServer,
	"api/health/check_url.go http.Client":                                     ownPort,
	"api/health/head.go http.Client":                                          "the source of an image, asked by doctor",
	"api/health/head.go http.Transport":                                       "the source of an image, asked by doctor",
	"api/readapi/client.go http.Client":                                       "a hub, by people; its answers are bounded",
	"api/health/check_url.go http.Transport":                                  ownPort,
	"api/hubclient/connection.go http.Client":                                 throughLimits,
	"api/hubclient/connection.go client.New":                                  throughLimits,
	"api/hubclient/connection.go rest.RESTClientForConfigAndClient":           throughLimits,
	"api/hubclient/kubeconfig.go clientcmd.NewDefaultClientConfig":            noConnection,
	"api/hubclient/load_kubeconfig.go clientcmd.Load":                         noConnection,
	"api/hubclient/transport.go net.Dialer":                                   throughLimits,
	"api/hubclient/transport.go http.Client":                                  throughLimits,
	"api/hubclient/transport.go http.Transport":                               throughLimits,
	"api/hubclient/transport.go client.New":                                   throughLimits,
	"api/mailbox/schema_wait.go discovery.NewDiscoveryClientForConfig":        ownAPIServer,
	"api/startup/manager.go controller-runtime.GetConfig":                     ownAPIServer,
	"api/startup/manager.go cache.New":                                        ownAPIServer,
	"hub/controllers/discovery/discovery.go cache.New":                        ownAPIServer,
	"api/startup/election.go v1.NewForConfig":                                 ownAPIServer,
	"hub/helm/member.go discovery.NewDiscoveryClientForConfig":                throughLimits,
	"hub/helm/member.go v1.NewForConfig":                                      throughLimits,
	"hub/helm/member.go clientcmd.NewDefaultClientConfig":                     noConnection,
	"hub/dashboard/access.go kubernetes.NewForConfig":                         ownAPIServer,
	"hub/memberclient/member.go http.Client":                                  noConnection,
	"hub/prometheus/reader.go http.Transport":                                 "a Prometheus that an administrator names; its answers are bounded",
	"hub/setup.go client.NewWithWatch":                                        ownAPIServer,
	"hub/setup.go manager.New":                                                ownAPIServer,
	"api/health/permission_review.go v1.NewForConfig":                         ownAPIServer,
	"hub/web/credential.go http.Client":                                       noConnection,
	"hub/web/forward.go net.Dialer":                                           ownReplica,
	"hub/web/forward.go http.Transport":                                       ownReplica,
}

// Every connection between hub and member goes through newTransport, which bounds it. A new
// connection has to be listed with what it connects to.
func TestNoConnectionBypassesTheLimits(t *testing.T) {
	root := filepath.Join("..", "..")
	found := map[string]bool{}
	for _, folder := range []string{"agent", "api", "hub"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(filepath.ToSlash(name), "api/apitest/") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			for _, use := range connectionsIn(file) {
				found[filepath.ToSlash(relative)+" "+use] = true
			}
			return nil
		}))
	}
	for use := range found {
		assert.Contains(t, connections, use, "make clients of other clusters with package hubclient; list others here")
	}
	for use := range connections {
		assert.True(t, found[use], "%s is gone", use)
	}
}

// connectionsIn returns what a file uses of opensConnections.
func connectionsIn(file *ast.File) (uses []string) {
	imports := map[string]string{}
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		local := path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		} else if imported == "sigs.k8s.io/controller-runtime" {
			local = "controllerruntime"
		}
		imports[local] = imported
	}
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		local, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		imported := imports[local.Name]
		patterns := opensConnections[imported]
		if strings.HasPrefix(imported, "k8s.io/client-go/kubernetes/typed/") {
			patterns = []string{"New*"}
		}
		for _, pattern := range patterns {
			prefix, all := strings.CutSuffix(pattern, "*")
			if selector.Sel.Name == pattern || all && strings.HasPrefix(selector.Sel.Name, prefix) {
				uses = append(uses, path.Base(imported)+"."+selector.Sel.Name)
			}
		}
		return true
	})
	return uses
}
