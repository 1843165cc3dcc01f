//go:build linux

package connect

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/chart"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
)

// resource is one of an API server, or a part of one.
type resource struct {
	gv schema.GroupVersion
	metav1.APIResource
}

func (r resource) parts() (name, sub string) {
	name, sub, _ = strings.Cut(r.Name, "/")
	return name, sub
}

// resources are all that an API server serves.
func resources(t *testing.T, p plane) (all []resource) {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(p.Config())
	require.NoError(t, err)
	_, lists, err := d.ServerGroupsAndResources()
	require.NoError(t, err)
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, r := range list.APIResources {
			all = append(all, resource{gv, r})
		}
	}
	return all
}

// What a request may be, beyond what a resource says it serves: RBAC's own verbs
// too.
var verbs = []string{
	"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
	"impersonate", "bind", "escalate", "approve", "sign", "attest", "use", "proxy", "*",
}

// mayHub is everything that the hub may do in a member.
func mayHub(verb, group, name, namespace, object string) bool {
	in := func(all ...string) bool { return slices.Contains(all, verb) }
	switch group + "/" + name {
	case "pelotech.ot/clusterplans", "pelotech.ot/transfergrants":
		return namespace == "agent-of-watched" && in("get", "list", "watch", "create", "update", "delete")
	case "pelotech.ot/clusterreports":
		return namespace == "agent-of-watched" && in("get", "list", "watch")
	case "/serviceaccounts/token":
		return namespace == "agent-of-watched" && in("create") && object == connection.Account
	}
	return false
}

// mayAll is what Kubernetes lets everybody do who has a name: to ask what they
// may, and who they are.
func mayAll(verb, group, name string) bool {
	return verb == "create" && (group == "authorization.k8s.io" && (name == "selfsubjectaccessreviews" || name == "selfsubjectrulesreviews") ||
		group == "authentication.k8s.io" && name == "selfsubjectreviews")
}

// TestRightsInMember tries the hub's credential in a member that Cluster API
// made on everything that there is: as the API server says that it would answer,
// and as it does.
func TestRightsInMember(t *testing.T) {
	clusterSecret(t, "watched", steady.Config())
	makeNamespace(t, steady, "agent-of-watched")
	joinByCluster(t, "watched")
	connected(t, "watched")
	cfg, _ := tokenOf(t, "watched")
	cfg.QPS, cfg.Burst = 2000, 4000
	all := resources(t, steady)
	require.Greater(t, len(all), 100)

	t.Run("as told", func(t *testing.T) { rightsAsTold(t, cfg, all) })
	t.Run("as answered", func(t *testing.T) { rightsAsAnswered(t, cfg, all) })
	t.Run("as the chart's", rightsOfChart)
	t.Run("what it needs", func(t *testing.T) { rightsNeeded(t, cfg) })
}

func rightsAsTold(t *testing.T, cfg *rest.Config, all []resource) {
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	require.NoError(t, err)
	var asked, refused atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	// Groups and users are no resources of an API server, and can be impersonated.
	for _, name := range []string{"users", "groups", "uids", "userextras/scopes"} {
		all = append(all, resource{schema.GroupVersion{}, metav1.APIResource{Name: name}})
	}
	for _, r := range all {
		name, sub := r.parts()
		for _, verb := range verbs {
			for _, namespace := range []string{"agent-of-watched", agentNamespace, ""} {
				for _, object := range []string{"", connection.Account} {
					group.Go(func() error {
						review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
							ResourceAttributes: &authorizationv1.ResourceAttributes{
								Namespace: namespace, Verb: verb, Group: r.gv.Group, Version: r.gv.Version, Resource: name, Subresource: sub, Name: object,
							},
						}}
						if err := c.Create(ctx, review); err != nil {
							return err
						}
						asked.Add(1)
						if !review.Status.Allowed {
							refused.Add(1)
						}
						assert.Equal(t, mayHub(verb, r.gv.Group, r.Name, namespace, object) || mayAll(verb, r.gv.Group, r.Name), review.Status.Allowed,
							"%s %s %s %q in %q", verb, r.gv, r.Name, object, namespace)
						return nil
					})
				}
			}
		}
	}
	require.NoError(t, group.Wait())
	t.Logf("of %d questions about %d resources and their parts, %d were answered with no", asked.Load(), len(all), refused.Load())
}

// rightsAsAnswered sends the requests. They have no content that could do harm:
// what is allowed is asked for before it is read.
func rightsAsAnswered(t *testing.T, cfg *rest.Config, all []resource) {
	httpClient, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	var sent, refused atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	for _, r := range all {
		namespaces := []string{""}
		if r.Namespaced {
			namespaces = []string{"agent-of-watched", agentNamespace, "kube-system"}
		}
		for _, namespace := range namespaces {
			for _, verb := range r.Verbs {
				if mayHub(verb, r.gv.Group, r.Name, namespace, "none") || mayAll(verb, r.gv.Group, r.Name) {
					continue
				}
				group.Go(func() error {
					code, text, err := send(ctx, httpClient, cfg.Host, r, verb, namespace)
					if err != nil {
						return fmt.Errorf("%s %s in %q: %w", verb, r.Name, namespace, err)
					}
					sent.Add(1)
					if code == http.StatusForbidden {
						refused.Add(1)
					}
					assert.Equal(t, http.StatusForbidden, code, "%s %s %s in %q: %s", verb, r.gv, r.Name, namespace, text)
					return nil
				})
			}
		}
	}
	require.NoError(t, group.Wait())
	t.Logf("of %d requests, %d were refused", sent.Load(), refused.Load())
}

// send makes the request that RBAC knows as a verb.
func send(ctx context.Context, c *http.Client, host string, r resource, verb, namespace string) (int, string, error) {
	path := host + "/apis/" + r.gv.String()
	if r.gv.Group == "" {
		path = host + "/api/" + r.gv.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	name, sub := r.parts()
	path += "/" + name
	if sub != "" || !slices.Contains([]string{"list", "watch", "create", "deletecollection"}, verb) {
		path += "/none"
	}
	if sub != "" {
		path += "/" + sub
	}
	method := map[string]string{
		"get": http.MethodGet, "list": http.MethodGet, "watch": http.MethodGet, "create": http.MethodPost,
		"update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete, "deletecollection": http.MethodDelete,
	}[verb]
	if verb == "watch" {
		path += "?watch=true&timeoutSeconds=1"
	}
	if method == "" {
		return 0, "", fmt.Errorf("no request is known for verb %s", verb)
	}
	request, err := http.NewRequestWithContext(ctx, method, path, bytes.NewReader([]byte("{}")))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := c.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 512))
	return response.StatusCode, string(text), err
}

// rightsNeeded are those that the hub has.
func rightsNeeded(t *testing.T, cfg *rest.Config) {
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	require.NoError(t, err)
	const namespace = "agent-of-watched"
	meta := metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.MailboxName}
	for _, obj := range []client.Object{
		&v1alpha1.TransferGrant{ObjectMeta: meta, Spec: v1alpha1.TransferGrantSpec{ClusterUID: "uid", Unlimited: true}},
		&v1alpha1.ClusterPlan{ObjectMeta: meta, Spec: v1alpha1.ClusterPlanSpec{ClusterUID: "uid"}},
	} {
		require.NoError(t, c.Create(t.Context(), obj))
		require.NoError(t, c.Update(t.Context(), obj))
		require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
		require.NoError(t, c.Delete(t.Context(), obj))
	}
	require.NoError(t, c.List(t.Context(), &v1alpha1.ClusterReportList{}, client.InNamespace(namespace)))

	request := func(namespace, name string) error {
		return c.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, &authenticationv1.TokenRequest{})
	}
	require.NoError(t, request(namespace, connection.Account))
	require.True(t, apierrors.IsForbidden(request(namespace, "default")), "no token but its own")
	require.True(t, apierrors.IsForbidden(request(agentNamespace, connection.Account)), "nor that of one of its name")

	other := rest.CopyConfig(cfg)
	other.Impersonate = rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}}
	c, err = client.New(other, client.Options{Scheme: scheme})
	require.NoError(t, err)
	require.True(t, apierrors.IsForbidden(c.List(t.Context(), &corev1.SecretList{})), "it is nobody else")
}

// rightsOfChart wants the hub to make for itself what ot-agent's chart makes for
// a hub that has no kubeconfig with more rights.
func rightsOfChart(t *testing.T) {
	const namespace = "agent-of-watched"
	objects, err := chart.Render(t.Context(), "charts/ot-agent", "ot-agent", namespace, map[string]any{"hub": map[string]any{"serviceAccount": map[string]any{"create": true}}})
	require.NoError(t, err)
	compared := 0
	for _, object := range objects {
		made := &unstructured.Unstructured{}
		made.SetGroupVersionKind(object.GroupVersionKind())
		if object.GetName() != connection.Account || steady.Get(t.Context(), client.ObjectKeyFromObject(object), made) != nil {
			continue
		}
		compared++
		for _, field := range []string{"rules", "roleRef", "subjects", "automountServiceAccountToken"} {
			require.Equal(t, object.Object[field], made.Object[field], "%s of %s", field, object.GetKind())
		}
	}
	require.Equal(t, 3, compared, "ServiceAccount, Role and RoleBinding")
}
