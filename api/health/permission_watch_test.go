package health

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// accessReviewServer is an API server that serves access reviews, and rules if it has some.
type accessReviewServer struct {
	*httptest.Server
	rules        func(namespace string) []authorizationv1.ResourceRule
	lacks, asked atomic.Int32
	fails        atomic.Bool
	delay        atomic.Int64
}

func newAccessReviewServer(t *testing.T) *accessReviewServer {
	r := &accessReviewServer{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method == http.MethodGet {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if strings.HasSuffix(request.URL.Path, "/selfsubjectrulesreviews") {
			review := authorizationv1.SelfSubjectRulesReview{}
			_ = json.NewDecoder(request.Body).Decode(&review)
			if r.rules == nil {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			review.Status.ResourceRules = r.rules(review.Spec.Namespace)
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(review)
			return
		}
		r.asked.Add(1)
		<-time.After(time.Duration(r.delay.Load()))
		if r.fails.Load() {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		review := authorizationv1.SelfSubjectAccessReview{}
		_ = json.NewDecoder(request.Body).Decode(&review)
		review.Status.Allowed = r.lacks.Load() == 0
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *accessReviewServer) restConfig() *rest.Config {
	return &rest.Config{Host: r.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

var requiredPermissions = []Permission{{Group: "g.io", Resource: "a", Verb: "list"}}

func TestWaitForPermissions(t *testing.T) {
	r := newAccessReviewServer(t)
	require.NoError(t, WaitForPermissions(t.Context(), r.restConfig(), requiredPermissions, "ot-agent"))
	r.fails.Store(true)
	require.NoError(t, WaitForPermissions(t.Context(), r.restConfig(), requiredPermissions, "ot-agent"), "where nobody may ask, nothing is known")
	r.fails.Store(false)
	r.lacks.Store(1)
	// The last review ends after the timeout.
	r.delay.Store(int64(100 * time.Millisecond))
	require.ErrorContains(t, waitForPermissions(t.Context(), r.restConfig(), requiredPermissions, "ot-agent", 20*time.Millisecond), "its account lacks permissions: list a.g.io")
}

// What the rules of the account grant is not reviewed one by one. What they do not grant is: another
// authorizer may.
func TestRulesSpareReviews(t *testing.T) {
	needed := []Permission{
		{Group: "g.io", Resource: "a", Verb: "list"}, {Group: "g.io", Resource: "a", Subresource: "status", Verb: "update"},
		{Namespace: "ours", Resource: "secrets", Name: "one", Verb: "get"},
	}
	everywhere := []authorizationv1.ResourceRule{
		{Verbs: []string{"list", "get"}, APIGroups: []string{"g.io"}, Resources: []string{"a", "b"}},
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*/status"}},
	}
	for name, tc := range map[string]struct {
		ours      []authorizationv1.ResourceRule
		elsewhere []authorizationv1.ResourceRule
		wantAsked int32
	}{
		"all by rules":         {ours: []authorizationv1.ResourceRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"one"}}}, elsewhere: everywhere},
		"another name":         {ours: []authorizationv1.ResourceRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"two"}}}, elsewhere: everywhere, wantAsked: 1},
		"in its own namespace": {ours: everywhere, wantAsked: 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newAccessReviewServer(t)
			r.rules = func(namespace string) []authorizationv1.ResourceRule {
				if namespace == "ours" {
					return tc.ours
				}
				assert.Equal(t, "-", namespace)
				return tc.elsewhere
			}
			require.NoError(t, WaitForPermissions(t.Context(), r.restConfig(), needed, "ot-agent"))
			assert.Equal(t, tc.wantAsked, r.asked.Load())
		})
	}
}

// An API server that does not answer is not waited for twice.
func TestSilentServerIsNotReviewed(t *testing.T) {
	r := newAccessReviewServer(t)
	r.Close()
	require.NoError(t, WaitForPermissions(t.Context(), r.restConfig(), requiredPermissions, "ot-agent"))
	assert.Zero(t, r.asked.Load())
}

// A removed permission is reported after the first refused request, and no review is sent
// before.
func TestPermissionWatch(t *testing.T) {
	r := newAccessReviewServer(t)
	w := NewPermissionWatch(r.restConfig(), requiredPermissions, "ot-agent")
	changed := make(chan struct{}, 1)
	w.OnChange = func() { changed <- struct{}{} }
	go func() { _ = w.Start(t.Context()) }()
	require.NoError(t, w.Check(nil))
	assert.Zero(t, r.asked.Load())

	r.lacks.Store(1)
	c := http.Client{Transport: w.WrapTransport(http.DefaultTransport)}
	response, err := c.Get(r.URL)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	select {
	case <-changed:
	case <-time.After(time.Minute):
		require.Fail(t, "nobody was told")
	}
	require.ErrorContains(t, w.Check(nil), "lacks permissions: list a.g.io")
}

// TestAdmissionRefusalIsNoMissingPermission shows that what an admission policy refuses starts no
// review, that anything else does, and that whoever sent the request reads the whole answer.
func TestAdmissionRefusalIsNoMissingPermission(t *testing.T) {
	const rbac = `leases.coordination.k8s.io "a" is forbidden: User "system:serviceaccount:ot-agent:ot-agent" cannot get resource "leases"`
	for name, tc := range map[string]struct {
		body       string
		wantReview bool
	}{
		"admission policy": {body: `secrets "a" is forbidden: ValidatingAdmissionPolicy 'ot-agent-own' with binding 'ot-agent-own' denied request: not ours`},
		"long answer":      {body: `secrets "a" is forbidden: ValidatingAdmissionPolicy 'sizes' ` + strings.Repeat("x", 3*maxPeekedBytes)},
		"no permission":    {body: rbac, wantReview: true},
		"webhook":          {body: `admission webhook "a.b" denied the request: no`, wantReview: true},
		"named so":         {body: `secrets "ValidatingAdmissionPolicy 'a'" is forbidden: User "b" cannot get resource "secrets"`, wantReview: true},
		"no text":          {wantReview: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusForbidden)
				_, _ = io.WriteString(w, tc.body)
			}))
			t.Cleanup(server.Close)
			w := NewPermissionWatch(&rest.Config{Host: server.URL}, requiredPermissions, "ot-agent")
			c := http.Client{Transport: w.WrapTransport(http.DefaultTransport)}
			response, err := c.Get(server.URL)
			require.NoError(t, err)
			read, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			assert.Equal(t, tc.body, string(read))
			assert.Equal(t, tc.wantReview, len(w.refused) == 1)
		})
	}
}
