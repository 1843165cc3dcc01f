// Package rbaccheck tries a credential on everything that an API server serves, by its rules and by
// requests.
package rbaccheck

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// Resource is a resource or subresource of an API server.
type Resource struct {
	schema.GroupVersion
	metav1.APIResource
}

func (r Resource) splitName() (name, sub string) {
	name, sub, _ = strings.Cut(r.Name, "/")
	return name, sub
}

// Request is an attempted request. An empty Namespace means all namespaces, or a cluster-scoped
// resource; an empty Object means no name.
type Request struct {
	Verb              string
	Group, Resource   string
	Namespace, Object string
}

func (r Request) String() string {
	return fmt.Sprintf("%s %s.%s %q in %q", r.Verb, r.Resource, r.Group, r.Object, r.Namespace)
}

// Permits reports whether a request is permitted.
type Permits func(Request) bool

// PermittedToAll permits what every authenticated user may do: reviews of the own permissions and
// identity.
func PermittedToAll(r Request) bool {
	return r.Verb == "create" && (r.Group == "authorization.k8s.io" && (r.Resource == "selfsubjectaccessreviews" || r.Resource == "selfsubjectrulesreviews") ||
		r.Group == "authentication.k8s.io" && r.Resource == "selfsubjectreviews")
}

// checkedVerbs include RBAC's special verbs besides those that resources serve.
var checkedVerbs = []string{
	"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
	"impersonate", "bind", "escalate", "approve", "sign", "attest", "use", "proxy", "*",
}

// impersonationTargets are no resources of an API server, but can be impersonated.
var impersonationTargets = []string{"users", "groups", "uids", "userextras/scopes"}

// ServedResources lists all resources that an API server serves.
func ServedResources(cfg *rest.Config) (all []Resource, err error) {
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", cfg.Host, err)
	}
	_, lists, err := d.ServerGroupsAndResources()
	if err != nil {
		return nil, fmt.Errorf("discovering the resources of %s: %w", cfg.Host, err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("reading group version %q: %w", list.GroupVersion, err)
		}
		for _, r := range list.APIResources {
			all = append(all, Resource{gv, r})
		}
	}
	return all, nil
}

// Result counts attempts. Unexpected lists those that were answered otherwise than expected.
type Result struct {
	Attempts, Refusals int
	Unexpected         []string

	mu sync.Mutex
}

func (t *Result) record(refused, right bool, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Attempts++
	if refused {
		t.Refusals++
	}
	if !right {
		t.Unexpected = append(t.Unexpected, what)
	}
}

// elsewhere is a namespace without RoleBindings: what holds there holds in all namespaces.
const elsewhere = "rbaccheck-elsewhere"

// CheckRules has the API server list the credential's rules in each namespace, "" for all of them,
// and decides by them each verb on each resource, by each name and by none. What the rules mention
// is checked too, whether it is served or not: so is "*", which nothing permits.
func CheckRules(ctx context.Context, cfg *rest.Config, all []Resource, namespaces, objects []string, may Permits) (*Result, error) {
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", cfg.Host, err)
	}
	resources, names := map[schema.GroupResource]bool{}, map[string]bool{"": true}
	for _, r := range all {
		resources[schema.GroupResource{Group: r.GroupVersion.Group, Resource: r.Name}] = true
	}
	for _, name := range impersonationTargets {
		resources[schema.GroupResource{Resource: name}] = true
	}
	for _, name := range objects {
		names[name] = true
	}
	granted := map[Request]bool{}
	for _, namespace := range namespaces {
		review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: cmp.Or(namespace, elsewhere)}}
		answer, err := clients.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading the rules of %s in namespace %s: %w", cfg.Host, namespace, err)
		}
		if answer.Status.Incomplete {
			return nil, fmt.Errorf("reading the rules of %s in namespace %s: the answer is incomplete: %s", cfg.Host, namespace, answer.Status.EvaluationError)
		}
		for _, rule := range answer.Status.ResourceRules {
			for _, one := range validation.BreakdownRule(rbacv1.PolicyRule{Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames}) {
				r := Request{one.Verbs[0], one.APIGroups[0], one.Resources[0], namespace, strings.Join(one.ResourceNames, "")}
				granted[r], names[r.Object], resources[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = true, true, true
			}
		}
	}
	checked := &Result{}
	for _, namespace := range namespaces {
		for r := range resources {
			for _, verb := range checkedVerbs {
				for name := range names {
					asked := Request{verb, r.Group, r.Resource, namespace, name}
					allowed := granted[asked] || granted[Request{verb, r.Group, r.Resource, namespace, ""}]
					checked.record(!allowed, allowed == (may(asked) || PermittedToAll(asked)), fmt.Sprintf("%v: allowed is %t", asked, allowed))
				}
			}
		}
	}
	return checked, nil
}

// CheckByRequest sends the requests that must be refused. Their content is harmless: authorization
// comes before it is read.
func CheckByRequest(ctx context.Context, cfg *rest.Config, all []Resource, namespaces []string, may Permits) (*Result, error) {
	fast := rest.CopyConfig(cfg)
	fast.QPS, fast.Burst = 5000, 10000
	c, err := rest.HTTPClientFor(fast)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", cfg.Host, err)
	}
	tried := &Result{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, r := range all {
		in := []string{""}
		if r.Namespaced {
			in = namespaces
		}
		for _, namespace := range in {
			for _, verb := range r.Verbs {
				asked := Request{verb, r.GroupVersion.Group, r.Name, namespace, "none"}
				if may(asked) || PermittedToAll(asked) {
					continue
				}
				group.Go(func() error {
					code, text, err := sendRequest(ctx, c, cfg.Host, r, verb, namespace)
					if err != nil {
						return fmt.Errorf("%v: %w", asked, err)
					}
					refused := code == http.StatusForbidden
					tried.record(refused, refused, fmt.Sprintf("%v: %d %s", asked, code, text))
					return nil
				})
			}
		}
	}
	return tried, group.Wait()
}

// sendRequest sends the request of an RBAC verb.
func sendRequest(ctx context.Context, c *http.Client, host string, r Resource, verb, namespace string) (int, string, error) {
	path := host + "/apis/" + r.GroupVersion.String()
	if r.GroupVersion.Group == "" {
		path = host + "/api/" + r.GroupVersion.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	name, sub := r.splitName()
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
		return 0, "", fmt.Errorf("verb %s has no request", verb)
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
