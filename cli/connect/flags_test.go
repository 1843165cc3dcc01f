package connect_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/cli/connect"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: bergen
clusters:
- name: hub
  cluster: {server: "https://hub.example.com"}
- name: bergen
  cluster: {server: "https://bergen.example.com"}
contexts:
- name: hub
  context: {cluster: hub, user: anna, namespace: farm}
- name: bergen
  context:
    cluster: bergen
    user: anna
    extensions:
    - name: pelotech.ot/hub
      extension: hub
- name: alone
  context: {cluster: bergen, user: anna}
users:
- name: anna
  user: {token: t}
`

func TestHubContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	for name, test := range map[string]struct {
		hub, variable, current string
		wantContext            string
	}{
		"flag":                    {hub: "alone", variable: "hub", wantContext: "alone"},
		"variable":                {variable: "alone", wantContext: "alone"},
		"extension":               {wantContext: "hub"},
		"extension of --context":  {current: "alone", wantContext: "alone"},
		"the current one is used": {current: "hub", wantContext: "hub"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OT_HUB", test.variable)
			f := connect.NewFlags()
			*f.KubeConfig, *f.Context, f.Hub = path, test.current, test.hub
			context, err := f.HubContext()
			require.NoError(t, err)
			assert.Equal(t, test.wantContext, context)
			hub, err := f.ConnectHub()
			require.NoError(t, err)
			assert.Equal(t, test.wantContext, hub.Context)
		})
	}
}

func TestMemberContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	connectMember := func(given, cluster string) (string, string, error) {
		f := connect.NewFlags()
		*f.KubeConfig, f.Member = path, given
		m, err := f.ConnectMember(cluster)
		if err != nil {
			return "", "", err
		}
		return m.Context, m.Namespace, nil
	}
	context, namespace, err := connectMember("", "")
	require.NoError(t, err)
	assert.Equal(t, "bergen", context)
	assert.Equal(t, "default", namespace)
	context, namespace, err = connectMember("hub", "bergen")
	require.NoError(t, err)
	assert.Equal(t, "hub", context, "--member-context is more than the name of the cluster")
	assert.Equal(t, "farm", namespace)
	_, _, err = connectMember("", "kiel")
	require.EqualError(t, err, "the kubeconfig has no context kiel: name the cluster's with --member-context", "of commands that write, too")
	_, _, err = connectMember("kiel", "")
	require.ErrorContains(t, err, "the kubeconfig has no context kiel")
}

// clientcmd takes localhost:8080 for a server where nothing names one.
func TestWithoutKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	connectBy := func(text, server string) error {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		t.Setenv("KUBECONFIG", path)
		f := connect.NewFlags()
		*f.APIServer = server
		_, err := f.ConnectHub()
		return err
	}
	const empty = "apiVersion: v1\nkind: Config\n"
	require.EqualError(t, connectBy(empty, ""), "there is no kubeconfig: set KUBECONFIG or --kubeconfig")
	require.ErrorContains(t, connectBy(strings.Replace(kubeconfig, "current-context: bergen", "", 1), ""), "the kubeconfig has no current context: name one with --context")
	require.NoError(t, connectBy(empty, "http://localhost:8080"), "a proxy that is named")
	require.NoError(t, connectBy(kubeconfig, ""))

	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	_, err := connect.NewFlags().ConnectHub()
	require.EqualError(t, err, "there is no kubeconfig: set KUBECONFIG or --kubeconfig")
	_, err = connect.NewFlags().ConnectMember("")
	require.EqualError(t, err, "there is no kubeconfig: set KUBECONFIG or --kubeconfig")
}

func TestReadAPIKnowsNoImpersonation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfig), 0o600))
	f := connect.NewFlags()
	*f.KubeConfig, *f.Impersonate = path, "root"
	hub, err := f.ConnectHub()
	require.NoError(t, err)
	_, err = f.OpenReadAPI(t.Context(), hub)
	require.ErrorIs(t, err, connect.ErrNoReadAPI)
	require.ErrorContains(t, err, "--as")
}

// TestNamespacesWithoutAHub: where no hub runs, nothing is said of rights.
func TestNamespacesWithoutAHub(t *testing.T) {
	f := connect.NewFlags()
	f.HubNamespace = "nope"
	hub := &connect.Cluster{Context: "bergen", Config: &rest.Config{BearerToken: "token"}, Client: fake.NewClientBuilder().WithScheme(connect.Scheme).Build()}
	_, err := f.OpenReadAPI(t.Context(), hub)
	require.ErrorIs(t, err, connect.ErrNoReadAPI)
	require.ErrorContains(t, err, "context bergen, namespace nope: no replica of a hub has a Lease (ot-hub-replica-*): name the hub's context with --hub, its namespace with --hub-namespace")
	require.NotContains(t, err.Error(), "not open to you")

	hub.Client = fake.NewClientBuilder().WithScheme(connect.Scheme).WithInterceptorFuncs(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", nil)
	}}).Build()
	_, err = f.OpenReadAPI(t.Context(), hub)
	require.ErrorContains(t, err, "not open to you: context bergen:")
}

// TestReplicaOfThisMachineIsReachedDirectly: there no kubelet forwards ports, by whichever name the API
// server is reached.
func TestReplicaOfThisMachineIsReachedDirectly(t *testing.T) {
	for _, server := range []string{"https://127.0.0.1:1", "https://localhost:1", "https://[::1]:1"} {
		address := readapi.NewReplicaAddress("p", "127.0.0.1", "127.0.0.1:8081", "SHA256:x")
		replica := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: readapi.LeasePrefix + "a", Annotations: address.Annotations()}}
		election := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ot-hub", Name: readapi.ElectionLease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new("p")}}
		f := connect.NewFlags()
		f.HubNamespace = "ot-hub"
		c := fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(replica, election).Build()
		api, err := f.OpenReadAPI(t.Context(), &connect.Cluster{Config: &rest.Config{Host: server, BearerToken: "token"}, Client: c})
		require.NoError(t, err, server)
		require.Equal(t, "https://127.0.0.1:8081", api.URL)
		api.Close()
	}
}
