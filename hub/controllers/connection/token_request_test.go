package connection

import (
	"encoding/json"
	"encoding/pem"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/credential"
)

// fakeIssuer is a member's API server that issues tokens.
type fakeIssuer struct {
	// maxLife is what its policy allows; withoutAnchor: it has no Secret to bind tokens to.
	maxLife       time.Duration
	withoutAnchor bool
	// policy is the answer to a request for its policy, which refuses unbound tokens if bindsAll.
	policy   int
	bindsAll bool
	// user is whom it takes the bearer of a new token for; empty: it refuses the token.
	user string
	// says is the life that it says the token has; nil for the one that was requested.
	says *int64
	// requests are those that it got.
	requests []authenticationv1.TokenRequestSpec
}

func (f *fakeIssuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object)
	}
	refuse := func(err *apierrors.StatusError) {
		err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer(int(err.ErrStatus.Code), err.ErrStatus)
	}
	group := metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1"}
	if strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") {
		if r.Header.Get("Authorization") != "Bearer new" || f.user == "" {
			refuse(apierrors.NewUnauthorized("no"))
			return
		}
		group.Kind = "SelfSubjectReview"
		answer(http.StatusCreated, authenticationv1.SelfSubjectReview{TypeMeta: group, Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: f.user}}})
		return
	}
	policies := schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}
	if strings.HasSuffix(r.URL.Path, policies.Resource+"/"+tokenPolicy) {
		switch f.policy {
		case http.StatusOK:
			answer(http.StatusOK, admissionregistrationv1.ValidatingAdmissionPolicy{
				TypeMeta:   metav1.TypeMeta{APIVersion: policies.Group + "/v1", Kind: "ValidatingAdmissionPolicy"},
				ObjectMeta: metav1.ObjectMeta{Name: tokenPolicy, ResourceVersion: "1"},
			})
		case http.StatusForbidden:
			refuse(apierrors.NewForbidden(policies, tokenPolicy, nil))
		case http.StatusNotFound:
			refuse(apierrors.NewNotFound(policies, tokenPolicy))
		default:
			refuse(apierrors.NewServiceUnavailable("later"))
		}
		return
	}
	request := authenticationv1.TokenRequest{}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		refuse(apierrors.NewBadRequest(err.Error()))
		return
	}
	f.requests = append(f.requests, request.Spec)
	switch life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second; {
	case f.withoutAnchor && request.Spec.BoundObjectRef != nil:
		refuse(apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, credential.AnchorSecret))
	case life > f.maxLife, f.bindsAll && request.Spec.BoundObjectRef == nil:
		refuse(apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, HubAccount, &policyRefusal{}))
	default:
		group.Kind = "TokenRequest"
		request.TypeMeta, request.Status.Token = group, "new"
		if f.says != nil {
			request.Spec.ExpirationSeconds = f.says
		}
		answer(http.StatusCreated, request)
	}
}

type policyRefusal struct{}

func (*policyRefusal) Error() string {
	return "ValidatingAdmissionPolicy '" + tokenPolicy + "' denied request"
}

func TestIssueTokenWith(t *testing.T) {
	const week, hub = 7 * 24 * time.Hour, "system:serviceaccount:ot-agent:ot-hub"
	const missing = "the member has no Secret ot-agent/ot-hub-access"
	for name, tt := range map[string]struct {
		issuer       fakeIssuer
		wantLife     time.Duration
		wantRequests int
		wantError    string
	}{
		"a week":                   {fakeIssuer{maxLife: week, user: hub}, week, 1, ""},
		"a life in between":        {fakeIssuer{maxLife: week, user: hub, says: ptr.To[int64](3600)}, time.Hour, 1, ""},
		"a life of nothing":        {fakeIssuer{maxLife: week, user: hub, says: ptr.To[int64](0)}, 10 * time.Minute, 1, ""},
		"a negative life":          {fakeIssuer{maxLife: week, user: hub, says: ptr.To[int64](math.MinInt64)}, 10 * time.Minute, 1, ""},
		"a life beyond numbers":    {fakeIssuer{maxLife: week, user: hub, says: ptr.To[int64](10_000_000_000)}, week, 1, ""},
		"a life beyond the policy": {fakeIssuer{maxLife: time.Hour, user: hub, says: ptr.To[int64](7200)}, time.Hour, 3, ""},
		"the policy allows a day":  {fakeIssuer{maxLife: 36 * time.Hour, user: hub}, 24 * time.Hour, 2, ""},
		"an hour":                  {fakeIssuer{maxLife: time.Hour, user: hub}, time.Hour, 3, ""},
		"less":                     {fakeIssuer{maxLife: time.Minute, user: hub}, 0, 3, tokenPolicy},
		"an older chart":           {fakeIssuer{maxLife: week, user: hub, withoutAnchor: true, policy: http.StatusForbidden}, week, 2, ""},
		"that to an administrator": {fakeIssuer{maxLife: week, user: hub, withoutAnchor: true, policy: http.StatusNotFound}, week, 2, ""},
		"its Secret is missing":    {fakeIssuer{maxLife: week, user: hub, withoutAnchor: true, policy: http.StatusForbidden, bindsAll: true}, 0, 2, missing},
		"that to an administrator, whom its policy does not bind": {fakeIssuer{maxLife: week, user: hub, withoutAnchor: true, policy: http.StatusOK}, 0, 1, missing},
		"its policy is unknown":                                   {fakeIssuer{maxLife: week, user: hub, withoutAnchor: true}, 0, 1, "reading ValidatingAdmissionPolicy"},
		"a token that is refused":                                 {fakeIssuer{maxLife: week}, 0, 1, "trying the new token"},
		"a token of another user":                                 {fakeIssuer{maxLife: week, user: "system:serviceaccount:ot-agent:another"}, 0, 1, "another user"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(&tt.issuer)
			defer server.Close()
			config := clientcmdapi.NewConfig()
			config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
			config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "old"}
			config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
			config.CurrentContext = "x"
			kubeconfig, err := clientcmd.Write(*config)
			require.NoError(t, err)
			member := &v1alpha1.MemberCluster{Spec: v1alpha1.MemberClusterSpec{AgentNamespace: "ot-agent"}}

			k := &credentialReconciler{Options: Options{RequestTimeout: time.Minute}}
			got, err := k.issueTokenWith(t.Context(), member, kubeconfig, week)
			require.Len(t, tt.issuer.requests, tt.wantRequests)
			if tt.wantError != "" {
				require.ErrorContains(t, err, tt.wantError)
				message, prerequisite := MissingPrerequisite(err)
				require.Equal(t, tt.wantError == missing, prerequisite, message)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "new", got.value)
			require.Equal(t, tt.wantLife, got.expires.Sub(got.issued))
			last := tt.issuer.requests[tt.wantRequests-1]
			require.Empty(t, last.Audiences)
			require.Equal(t, tt.issuer.withoutAnchor, last.BoundObjectRef == nil)
		})
	}
}
