package gather

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/doctor"
	"github.com/pelotech/ot-fleet/cli/exit"
)

// newCluster connects to a server that answers everything but /version with a code.
func newCluster(t *testing.T, code int) *connect.Cluster {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/version" {
			_, _ = w.Write([]byte(`{"gitVersion":"v1.36.3"}`))
			return
		}
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: int32(code), Reason: map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound}[code], Message: "no \x1b[31m",
		})
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	c, err := client.NewWithWatch(config, client.Options{Scheme: connect.Scheme})
	require.NoError(t, err)
	return &connect.Cluster{Context: "frankfurt", Config: config, Client: c}
}

func options() Options {
	return Options{Cluster: "frankfurt", AgentNamespace: "ot-agent", Asked: doctor.Asked{ProbeURL: "https://user:password@images.example.com/a?signature=s"}, Now: time.Now}
}

// Whoever may read nothing learns which rights that takes.
func TestEverythingIsRefused(t *testing.T) {
	s, err := Member(t.Context(), newCluster(t, http.StatusForbidden), options())
	require.NoError(t, err)
	assert.Equal(t, "v1.36.3", s.Kubernetes)
	for _, source := range []doctor.Source{
		doctor.SourceKinds, doctor.SourceStorageClasses, doctor.SourceQuotas, doctor.SourceImages, doctor.SourceDeployment, doctor.SourceLedger,
		doctor.SourcePolicy, doctor.SourceWebhooks, doctor.SourceDataVolumePolicy, doctor.SourceOneDownload, doctor.SourceNamespaces,
	} {
		assert.Equal(t, "needs the right to "+string(source), s.Unread[source])
	}
	r := doctor.Examine(s)
	assert.Equal(t, exit.Unanswered, r.ExitCode())
	assert.Zero(t, r.Summary.Failed)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "password")
	assert.NotContains(t, string(text), "signature")
}

// A cluster without any of the kinds is judged, not unread.
func TestNothingIsServed(t *testing.T) {
	o := options()
	o.Asked.ProbeURL = ""
	s, err := Member(t.Context(), newCluster(t, http.StatusNotFound), o)
	require.NoError(t, err)
	assert.Empty(t, s.Unread)
	r := doctor.Examine(s)
	assert.Equal(t, exit.No, r.ExitCode())
	_, err = Hub(t.Context(), newCluster(t, http.StatusNotFound), o)
	require.Error(t, err)
}

// The hub's clock, not this machine's, says how old a condition is.
func TestHubViewHasTheHubsTime(t *testing.T) {
	serve := func(path, body string) *connect.Cluster {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Date", "Thu, 26 Nov 2026 12:00:00 GMT")
			switch r.URL.Path {
			case path:
				_, _ = w.Write([]byte(body))
			case "/apis/pelotech.ot/v1alpha1/memberclusters/frankfurt":
				_, _ = w.Write([]byte(`{"apiVersion":"pelotech.ot/v1alpha1","kind":"MemberCluster","metadata":{"name":"frankfurt"}}`))
			case "/apis/pelotech.ot/v1alpha1/namespaces/ot-member-frankfurt/clusterreports":
				_, _ = w.Write([]byte(`{"apiVersion":"pelotech.ot/v1alpha1","kind":"ClusterReportList","items":[
					{"metadata":{"name":"default"},"root":{"heartbeatSeconds":40,"pages":[{"name":"p1"},{"name":"p2"}]}},
					{"metadata":{"name":"p1"},"sequence":1,"page":{"images":[{"namespace":"farm","name":"moved","uid":"1","phase":"Queued","reason":"CDIMissing"}]}},
					{"metadata":{"name":"p2"},"sequence":2,"page":{"images":[{"namespace":"farm","name":"moved","uid":"1","phase":"Succeeded","reason":"Ready"},
						{"namespace":"farm","name":"held","uid":"2","phase":"Queued","reason":"SecretMissing"}]}},
					{"metadata":{"name":"unlisted"},"sequence":9,"page":{"images":[{"namespace":"farm","name":"unlisted","uid":"3","phase":"Queued","reason":"CDIMissing"}]}}]}`))
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		}))
		t.Cleanup(server.Close)
		config := &rest.Config{Host: server.URL, QPS: -1}
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(v1alpha1.GroupVersion.WithKind("MemberCluster"), meta.RESTScopeRoot)
		mapper.Add(v1alpha1.GroupVersion.WithKind("ClusterReport"), meta.RESTScopeNamespace)
		c, err := client.NewWithWatch(config, client.Options{Scheme: connect.Scheme, Mapper: mapper})
		require.NoError(t, err)
		return &connect.Cluster{Context: "hub", Config: config, Client: c}
	}
	s, err := Hub(t.Context(), serve("/version", `{"gitVersion":"v1.36.3"}`), options())
	require.NoError(t, err)
	assert.Equal(t, "2026-11-26T12:00:00Z", s.ServerTime.UTC().Format(time.RFC3339))
	assert.Equal(t, int32(40), s.Hub.HeartbeatSeconds)
	assert.Equal(t, []doctor.ImageProblem{{Namespace: "farm", Name: "held", Reason: v1alpha1.ReasonSecretMissing}}, s.Hub.ReportedImage, "by the newest of the pages that the root lists")
	s, err = Hub(t.Context(), serve("/version", `<html>`), options())
	require.NoError(t, err, "the hub's time is not all that it knows")
	assert.Zero(t, s.ServerTime)
}

// Nobody reads the password of a proxy.
func TestProxyIsRedacted(t *testing.T) {
	for proxy, want := range map[string]string{
		"http://user:secret@proxy.example:3128": "http://proxy.example:3128",
		"user:secret@proxy.example:3128":        "proxy.example:3128",
		"proxy.example:3128":                    "proxy.example:3128",
		"":                                      "",
	} {
		assert.Equal(t, want, redactProxy(proxy), proxy)
	}
}

func TestNoAnswerAtAll(t *testing.T) {
	c := newCluster(t, http.StatusNotFound)
	c.Config.Host = "http://127.0.0.1:1"
	_, err := Member(t.Context(), c, options())
	require.ErrorContains(t, err, "does not answer")
}

func TestWebhooksOfWhatIsCreated(t *testing.T) {
	rule := func(operation admissionv1.OperationType, group, resource string) admissionv1.RuleWithOperations {
		return admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{operation}, Rule: admissionv1.Rule{APIGroups: []string{group}, Resources: []string{resource}},
		}
	}
	for name, test := range map[string]struct {
		rule admissionv1.RuleWithOperations
		want []string
	}{
		"DataVolumes":       {rule(admissionv1.Create, "cdi.kubevirt.io", "datavolumes"), []string{"datavolumes.cdi.kubevirt.io"}},
		"updates":           {rule(admissionv1.Update, "cdi.kubevirt.io", "datavolumes"), nil},
		"everything of CDI": {rule(admissionv1.OperationAll, "cdi.kubevirt.io", "*"), []string{"datavolumes.cdi.kubevirt.io"}},
		"Pods":              {rule(admissionv1.Create, "", "pods"), []string{"pods"}},
		"Pods of a group":   {rule(admissionv1.Create, "metrics.k8s.io", "pods"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReader(&connect.Cluster{}, options(), doctor.ViewMember)
			r.addWebhook(doctor.Webhook{Name: "w"}, nil, nil, []admissionv1.RuleWithOperations{test.rule}, &admissionv1.ServiceReference{Namespace: "cdi", Name: "api"})
			if test.want == nil {
				assert.Empty(t, r.snapshot.Webhooks)
				return
			}
			w := r.snapshot.Webhooks[0]
			assert.Equal(t, test.want, w.Resources)
			assert.True(t, w.Blocking, "the API server's default")
			assert.Equal(t, int32(defaultWebhookTimeout), w.TimeoutSeconds)
			assert.Equal(t, "cdi/api", w.Service)
		})
	}
}
