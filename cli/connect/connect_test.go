package connect_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
)

// newReviewed returns a hub whose API server takes the caller for name, and allows or not.
func newReviewed(name string, allowed bool) *connect.Cluster {
	answer := func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
		switch review := object.(type) {
		case *authenticationv1.SelfSubjectReview:
			review.Status.UserInfo.Username = name
		case *authorizationv1.SelfSubjectAccessReview:
			attributes := review.Spec.ResourceAttributes
			review.Status.Allowed = allowed && attributes.Group == "pelotech.ot" && attributes.Verb == "approve" && attributes.Resource == "imageprunes" && attributes.Name == "spring"
		}
		return nil
	}
	c := fake.NewClientBuilder().WithScheme(connect.Scheme).WithInterceptorFuncs(interceptor.Funcs{Create: answer}).Build()
	return &connect.Cluster{Context: "hub", Config: &rest.Config{}, Client: c}
}

func TestCallerName(t *testing.T) {
	name, err := newReviewed("anna@example.com", false).CallerName(t.Context())
	require.NoError(t, err)
	require.Equal(t, "anna@example.com", name)
	_, err = newReviewed("", false).CallerName(t.Context())
	require.ErrorContains(t, err, "sign in again")
}

func TestCheckMay(t *testing.T) {
	require.NoError(t, newReviewed("", true).CheckMay(t.Context(), "approve", "imageprunes", "spring", "ot-fleet-pruner"))
	require.ErrorContains(t, newReviewed("", true).CheckMay(t.Context(), "approve", "imageprunes", "winter", "ot-fleet-pruner"), "ClusterRole ot-fleet-pruner")
	require.ErrorContains(t, newReviewed("", false).CheckMay(t.Context(), "approve", "imageprunes", "spring", "ot-fleet-pruner"), "you may not approve imageprunes.pelotech.ot")
}

// A selector in a spec selects what -l does.
func TestParseLabelSelector(t *testing.T) {
	sets := []labels.Set{{}, {"a": "1"}, {"a": "2"}, {"a": "1", "b": ""}, {"b": "x"}}
	for _, text := range []string{"", "a=1", "a==1", "a!=1", "a in (1,2)", "a notin (1)", "a", "!a", "a=1,b", "b!=x,!a"} {
		wanted, err := labels.Parse(text)
		require.NoError(t, err)
		parsed, err := connect.ParseLabelSelector(text)
		require.NoError(t, err)
		selector, err := metav1.LabelSelectorAsSelector(parsed)
		require.NoError(t, err)
		for _, set := range sets {
			require.Equal(t, wanted.Matches(set), selector.Matches(set), "%s: %v", text, set)
		}
	}
	_, err := connect.ParseLabelSelector("a>1")
	require.ErrorContains(t, err, "-l a>1")
	_, err = connect.ParseLabelSelector("a=b=c")
	require.ErrorContains(t, err, "-l a=b=c")
}

// Each page is its own: neither objects nor the continuation of the one before remain.
func TestListMembers(t *testing.T) {
	member := func(name, region string) *v1alpha1.MemberCluster {
		return &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"region": region}}}
	}
	full := &connect.Cluster{Client: fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(member("bergen", "nordics"), member("kiel", "dach")).Build()}
	empty := &connect.Cluster{Client: fake.NewClientBuilder().WithScheme(connect.Scheme).Build()}
	for name, test := range map[string]struct {
		hub      *connect.Cluster
		selector string
		want     []string
		wantErr  string
	}{
		"all":              {hub: full, want: []string{"bergen", "kiel"}},
		"some":             {hub: full, selector: "region=nordics", want: []string{"bergen"}},
		"none":             {hub: full, selector: "region=nordisc", wantErr: "-l region=nordisc: selects no cluster of the fleet"},
		"an empty fleet":   {hub: empty},
		"none of no fleet": {hub: empty, selector: "region=nordics", wantErr: "-l region=nordics: selects no cluster of the fleet"},
		"no such selector": {hub: full, selector: "region=", want: nil, wantErr: "-l region=: selects no cluster of the fleet"},
		"not a selector":   {hub: full, selector: "=", wantErr: "-l =: must be a label selector"},
	} {
		t.Run(name, func(t *testing.T) {
			members, err := test.hub.ListMembers(t.Context(), test.selector)
			if test.wantErr != "" {
				require.ErrorContains(t, err, test.wantErr)
				return
			}
			require.NoError(t, err)
			var names []string
			for i := range members {
				names = append(names, members[i].Name)
			}
			require.Equal(t, test.want, names)
		})
	}
}

func TestListKeepsPagesApart(t *testing.T) {
	const perPage, pages = 3, 3
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/pelotech.ot/v1alpha1/memberclusters":
			page, _ := strconv.Atoi(r.URL.Query().Get("continue"))
			next, items := "", []string{}
			if page+1 < pages {
				next = fmt.Sprintf(`"continue": "%d",`, page+1)
			}
			for n := range perPage {
				label := ""
				if page == 0 {
					label = `, "labels": {"of": "the first page"}`
				}
				items = append(items, fmt.Sprintf(`{"metadata": {"name": "c-%d-%d"%s}}`, page, n, label))
			}
			fmt.Fprintf(w, `{"apiVersion": "pelotech.ot/v1alpha1", "kind": "MemberClusterList", "metadata": {%s "resourceVersion": "1"}, "items": [%s]}`, next, strings.Join(items, ","))
		case "/apis/pelotech.ot/v1alpha1":
			fmt.Fprint(w, `{"kind": "APIResourceList", "groupVersion": "pelotech.ot/v1alpha1", "resources": [{"name": "memberclusters", "kind": "MemberCluster", "namespaced": false, "verbs": ["list"]}]}`)
		case "/apis":
			fmt.Fprint(w, `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "pelotech.ot", "versions": [{"groupVersion": "pelotech.ot/v1alpha1", "version": "v1alpha1"}], "preferredVersion": {"groupVersion": "pelotech.ot/v1alpha1", "version": "v1alpha1"}}]}`)
		case "/api":
			fmt.Fprint(w, `{"kind": "APIVersions", "versions": ["v1"]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	c, err := client.NewWithWatch(config, client.Options{Scheme: connect.Scheme})
	require.NoError(t, err)
	hub := &connect.Cluster{Context: "hub", Config: config, Client: c}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var list v1alpha1.MemberClusterList
	require.NoError(t, hub.List(ctx, &list))
	require.Len(t, list.Items, perPage*pages)
	for i := range list.Items {
		page, n := i/perPage, i%perPage
		require.Equal(t, fmt.Sprintf("c-%d-%d", page, n), list.Items[i].Name)
		require.Equal(t, page == 0, len(list.Items[i].Labels) > 0, list.Items[i].Name)
	}
}

// TestExpiredDeadlines: only a request that was sent and not answered is the API server's fault.
func TestExpiredDeadlines(t *testing.T) {
	hub := &connect.Cluster{Context: "hub", Config: &rest.Config{Host: "https://hub.example"}}
	limited := fmt.Errorf("client rate limiter Wait returned an error: %w", context.DeadlineExceeded)
	require.Equal(t, limited, hub.Explain(limited))
	sent := &url.Error{Op: "Get", URL: "https://hub.example/api", Err: context.DeadlineExceeded}
	require.ErrorContains(t, hub.Explain(sent), "context hub: the API server at https://hub.example does not answer: Get")
}

// TestAbsenceIsOfAContext: whatever is not there, the error says where, once, and what is.
func TestAbsenceIsOfAContext(t *testing.T) {
	hub := &connect.Cluster{Context: "hub", Config: &rest.Config{}, Client: fake.NewClientBuilder().WithScheme(connect.Scheme).Build()}
	other := &connect.Cluster{Context: "bergen", Config: &rest.Config{}}
	_, err := hub.GetMember(t.Context(), "nope")
	require.EqualError(t, err, `context hub: memberclusters.pelotech.ot "nope" not found: kubectl ot get clusters lists them`)
	require.Equal(t, err.Error(), hub.NoMember("nope").Error())
	require.True(t, apierrors.IsNotFound(err))
	require.Equal(t, err, other.Explain(err))
	require.ErrorContains(t, hub.Get(t.Context(), client.ObjectKey{Name: "nope"}, &v1alpha1.FleetDiskImage{}), "kubectl ot get rollouts lists them")
	require.EqualError(t, hub.Get(t.Context(), client.ObjectKey{Namespace: "farm", Name: "nope"}, &v1alpha1.VMDiskImage{}), `context hub: vmdiskimages.pelotech.ot "nope" not found`)

	away := hub.Explain(&url.Error{Op: "Get", URL: "https://hub.example", Err: errors.New("refused")})
	require.ErrorContains(t, away, "context hub: the API server")
	require.ErrorContains(t, away, "refused")
	around := fmt.Errorf("reading the report: %w", away)
	require.Equal(t, around, other.Explain(around))
}
