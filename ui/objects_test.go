package ui

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var testPolicy = types.NamespacedName{Namespace: "sync-operator", Name: "sync-operator-policy"}

func TestClosedListOfObjects(t *testing.T) {
	const own, policy = "/k8s/apis/pelotech.ot/v1alpha1/", "/k8s/api/v1/namespaces/sync-operator/configmaps"
	for name, tt := range map[string]struct {
		method, path, body string
		headers            map[string]string
		want               int
		wantPath           string
		wantQuery          string
	}{
		"an image":               {method: "GET", path: testImage, want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/fleetdiskimages/win-11"},
		"an approval":            {method: "PATCH", path: testImage, body: "[]", headers: map[string]string{"Content-Type": jsonPatchType}, want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/fleetdiskimages/win-11", wantQuery: "fieldManager=kubectl-ot"},
		"tried first":            {method: "PATCH", path: testImage + "?dryRun=All&fieldManager=me", body: "{}", want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/fleetdiskimages/win-11", wantQuery: "dryRun=All&fieldManager=me"},
		"a report":               {method: "POST", path: own + "prunereports", body: "{}", want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/prunereports", wantQuery: "fieldManager=kubectl-ot"},
		"a prune":                {method: "POST", path: own + "imageprunes", body: "{}", want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/imageprunes", wantQuery: "fieldManager=kubectl-ot"},
		"prunes":                 {method: "GET", path: own + "imageprunes", want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/imageprunes", wantQuery: "limit=100"},
		"more prunes":            {method: "GET", path: own + "imageprunes?limit=500&continue=eyJ2IjoibWV0YSJ9", want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/imageprunes", wantQuery: "continue=eyJ2IjoibWV0YSJ9&limit=500"},
		"an undo":                {method: "PATCH", path: own + "imageprunes/spring", body: `{"spec":{"undo":true}}`, want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/imageprunes/spring", wantQuery: "fieldManager=kubectl-ot"},
		"a prune that goes":      {method: "DELETE", path: own + "imageprunes/spring", headers: map[string]string{"Content-Type": ""}, want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/imageprunes/spring"},
		"a quarantine":           {method: "PATCH", path: own + "memberclusters/bergen", body: "{}", want: 200, wantPath: "/apis/pelotech.ot/v1alpha1/memberclusters/bergen", wantQuery: "fieldManager=kubectl-ot"},
		"the policy":             {method: "GET", path: policy + "/sync-operator-policy", want: 200, wantPath: "/api/v1/namespaces/sync-operator/configmaps/sync-operator-policy"},
		"a change of the policy": {method: "PATCH", path: policy + "/sync-operator-policy", body: "{}", want: 200, wantPath: "/api/v1/namespaces/sync-operator/configmaps/sync-operator-policy", wantQuery: "fieldManager=kubectl-ot"},
		"the policy, for the first time": {
			method: "POST", path: policy, body: `{"metadata":{"name":"sync-operator-policy"}}`, want: 200, wantPath: "/api/v1/namespaces/sync-operator/configmaps", wantQuery: "fieldManager=kubectl-ot",
		},

		"another ConfigMap":                {method: "GET", path: policy + "/kube-root-ca.crt", want: 404},
		"all ConfigMaps":                   {method: "GET", path: policy, want: 405},
		"a ConfigMap of another namespace": {method: "GET", path: "/k8s/api/v1/namespaces/kube-system/configmaps/sync-operator-policy", want: 404},
		"to create another ConfigMap":      {method: "POST", path: policy, body: `{"metadata":{"name":"evil"}}`, want: 403},
		"by another spelling":              {method: "POST", path: policy, body: `{"metadata":{"name":"evil"},"Metadata":{"name":"sync-operator-policy"}}`, want: 403},
		"by a generated name":              {method: "POST", path: policy, body: `{"metadata":{"name":"sync-operator-policy","generateName":"x"}}`, want: 403},
		"in another namespace":             {method: "POST", path: policy, body: `{"metadata":{"name":"sync-operator-policy","namespace":"kube-system"}}`, want: 403},
		"no name at all":                   {method: "POST", path: policy, body: `{}`, want: 403},
		"Secrets":                          {method: "GET", path: "/k8s/api/v1/namespaces/ot-hub/secrets/a", want: 404},
		"another group":                    {method: "GET", path: "/k8s/apis/apps/v1/deployments/a", want: 404},
		"another version":                  {method: "GET", path: "/k8s/apis/pelotech.ot/v1/fleetdiskimages/a", want: 404},
		"another kind of ours":             {method: "GET", path: own + "clusterjoins/a", want: 404},
		"a status":                         {method: "PATCH", path: testImage + "/status", body: "{}", want: 404},
		"a scale":                          {method: "GET", path: testImage + "/scale", want: 404},
		"all images":                       {method: "GET", path: own + "fleetdiskimages", want: 404},
		"a group":                          {method: "GET", path: own, want: 404},
		"nothing":                          {method: "GET", path: "/k8s/", want: 404},
		"another root":                     {method: "GET", path: "/k8s/metrics", want: 404},
		"a token":                          {method: "POST", path: "/k8s/api/v1/namespaces/ot-hub/serviceaccounts/ot-hub/token", body: "{}", want: 404},
		"to create an image":               {method: "POST", path: own + "fleetdiskimages", body: "{}", want: 404},
		"to replace an image":              {method: "PUT", path: testImage, body: "{}", want: 405},
		"to delete an image":               {method: "DELETE", path: testImage, headers: map[string]string{"Content-Type": ""}, want: 405},
		"to delete all prunes":             {method: "DELETE", path: own + "imageprunes", headers: map[string]string{"Content-Type": ""}, want: 405},
		"to delete a member":               {method: "DELETE", path: own + "memberclusters/bergen", headers: map[string]string{"Content-Type": ""}, want: 405},
		"HEAD":                             {method: "HEAD", path: testImage, want: 405},

		"a path upwards":           {method: "GET", path: own + "fleetdiskimages/../clusterjoins/a", want: 404},
		"a path upwards, escaped":  {method: "GET", path: own + "fleetdiskimages/%2e%2e/clusterjoins", want: 400},
		"an escaped slash":         {method: "GET", path: own + "fleetdiskimages/a%2fstatus", want: 400},
		"an escaped letter":        {method: "GET", path: own + "fleetdiskimages/%61", want: 400},
		"an escaped question mark": {method: "GET", path: testImage + "%3fwatch=1", want: 400},
		"two slashes":              {method: "GET", path: own + "/fleetdiskimages/a", want: 404},
		"a slash at the end":       {method: "GET", path: testImage + "/", want: 404},
		"a dot":                    {method: "GET", path: own + "fleetdiskimages/.", want: 404},
		"an upper case name":       {method: "GET", path: own + "fleetdiskimages/A", want: 404},
		"a long name":              {method: "GET", path: own + "fleetdiskimages/" + strings.Repeat("a", 254), want: 404},
		"a parameter of the path":  {method: "GET", path: testImage + ";watch=1", want: 404},
		"a watch":                  {method: "GET", path: testImage + "?watch=true", want: 400},
		"a watch of prunes":        {method: "GET", path: own + "imageprunes?watch=1", want: 400},
		"prunes without an end":    {method: "GET", path: own + "imageprunes?limit=0", want: 400},
		"too many prunes":          {method: "GET", path: own + "imageprunes?limit=501", want: 400},
		"a selector":               {method: "GET", path: own + "imageprunes?labelSelector=a", want: 400},
		"forced":                   {method: "PATCH", path: testImage + "?force=true&fieldManager=me", body: "{}", want: 400},
		"an apply":                 {method: "PATCH", path: testImage, body: "{}", headers: map[string]string{"Content-Type": string(types.ApplyYAMLPatchType)}, want: 415},
		"dryRun twice":             {method: "PATCH", path: testImage + "?dryRun=All&dryRun=", body: "{}", want: 400},
		"dryRun of another value":  {method: "PATCH", path: testImage + "?dryRun=None", body: "{}", want: 400},
		"a strange field manager":  {method: "PATCH", path: testImage + "?fieldManager=a%0ab", body: "{}", want: 400},
		"a query that is none":     {method: "PATCH", path: testImage + "?%zz", body: "{}", want: 400},
		"a query of two kinds":     {method: "PATCH", path: testImage + "?dryRun=All;x=1", body: "{}", want: 400},
		"YAML":                     {method: "PATCH", path: testImage + "?fieldManager=me", body: "spec: {}", headers: map[string]string{"Content-Type": string(types.ApplyYAMLPatchType)}, want: 415},
		"two values":               {method: "PATCH", path: testImage, body: "{}{}", want: 400},
		"no body":                  {method: "PATCH", path: testImage, want: 400},
		"a body of no type":        {method: "DELETE", path: own + "imageprunes/spring", body: "{}", headers: map[string]string{"Content-Type": ""}, want: 415},
		"a patch that is none":     {method: "PATCH", path: testImage, body: "{}", headers: map[string]string{"Content-Type": "application/json"}, want: 415},
		"a strategic patch":        {method: "PATCH", path: testImage, body: "{}", headers: map[string]string{"Content-Type": "application/strategic-merge-patch+json"}, want: 415},
		"protobuf":                 {method: "POST", path: own + "imageprunes", body: "k8s\x00", headers: map[string]string{"Content-Type": "application/vnd.kubernetes.protobuf"}, want: 415},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			headers := map[string]string{"Authorization": "Bearer evil", "Impersonate-User": "root", "Impersonate-Group": "system:masters", "X-Remote-User": "root", "Cookie": "c=1", "X-HTTP-Method-Override": "DELETE", "Accept": "application/yaml"}
			for name, value := range tt.headers {
				headers[name] = value
			}
			answer := send(newTestHandler(t, api), tt.method, tt.path, tt.body, headers)
			require.Equal(t, tt.want, answer.Code, answer.Body.String())
			if tt.want != http.StatusOK {
				require.Zero(t, api.reached())
				return
			}
			require.Equal(t, 1, api.reached())
			sent := api.requests[0]
			assert.Equal(t, tt.method, sent.Method)
			assert.Equal(t, tt.wantPath, sent.URL.EscapedPath())
			assert.Equal(t, tt.wantQuery, sent.URL.RawQuery)
			assert.Equal(t, []string{"Bearer annas"}, sent.Header.Values("Authorization"), "the caller's own credential alone")
			for name := range sent.Header {
				assert.Contains(t, []string{"Authorization", "Accept", "Accept-Encoding", "User-Agent", "Content-Type", "Content-Length"}, name, "no other header is passed on")
			}
			assert.JSONEq(t, `{"kind":"FleetDiskImage"}`, answer.Body.String())
			assert.Equal(t, "application/json", answer.Header().Get("Content-Type"))
		})
	}
}

// Whatever is asked for, only closed kinds, the policy, and their methods are passed on.
func TestNothingElseIsPassedOn(t *testing.T) {
	segments := []string{"apis", "api", "v1", "pelotech.ot", "v1alpha1", "namespaces", "sync-operator", "configmaps", "sync-operator-policy", "kube-system", "secrets", "fleetdiskimages", "imageprunes", "memberclusters", "prunereports", "status", "win-11", "..", ".", "", "%2e", "watch"}
	paths := rapid.OneOf(
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom(segments), 0, 8), func(parts []string) string { return "/k8s/" + strings.Join(parts, "/") }),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom(segments), 1, 3), func(parts []string) string { return "/k8s/apis/pelotech.ot/v1alpha1/" + strings.Join(parts, "/") }),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom(segments), 1, 3), func(parts []string) string { return "/k8s/api/v1/namespaces/" + strings.Join(parts, "/") }),
		rapid.String(),
	)
	wanted := map[string][]string{
		"/apis/pelotech.ot/v1alpha1/prunereports": {"GET", "POST"}, "/apis/pelotech.ot/v1alpha1/imageprunes": {"GET", "POST"},
		"/api/v1/namespaces/sync-operator/configmaps":                      {"POST"},
		"/api/v1/namespaces/sync-operator/configmaps/sync-operator-policy": {"GET", "PATCH"},
	}
	objects := map[string][]string{
		"/apis/pelotech.ot/v1alpha1/prunereports/": {"GET"}, "/apis/pelotech.ot/v1alpha1/imageprunes/": {"GET", "PATCH", "DELETE"},
		"/apis/pelotech.ot/v1alpha1/fleetdiskimages/": {"GET", "PATCH"}, "/apis/pelotech.ot/v1alpha1/memberclusters/": {"GET", "PATCH"},
	}
	rapid.Check(t, func(t *rapid.T) {
		method := rapid.OneOf(rapid.SampledFrom([]string{"GET", "POST", "PATCH", "DELETE", "PUT", "HEAD"}), rapid.String()).Draw(t, "method")
		path := paths.Draw(t, "path")
		query := rapid.OneOf(rapid.SampledFrom([]string{"", "dryRun=All", "watch=1", "limit=5", "fieldManager=x", "force=true"}), rapid.String()).Draw(t, "query")
		contentType := rapid.SampledFrom([]string{"", jsonType, mergePatchType, jsonPatchType, string(types.ApplyYAMLPatchType), "text/plain"}).Draw(t, "type")
		r, err := parseObjectRequest(method, path, query, contentType, testPolicy)
		if err != nil {
			return
		}
		assert.Equal(t, method, r.method)
		assert.Equal(t, path, "/k8s"+r.path, "what was checked is what is sent")
		methods := wanted[r.path]
		for prefix, those := range objects {
			if name, found := strings.CutPrefix(r.path, prefix); found && !strings.ContainsAny(name, "/%?#\\ ") && name != "." && name != ".." {
				methods = those
			}
		}
		assert.Contains(t, methods, method, r.path)
		for name := range r.query {
			assert.Contains(t, []string{"dryRun", "fieldManager", "limit", "continue"}, name)
		}
		u, err := url.Parse("https://hub" + r.path)
		require.NoError(t, err)
		assert.Equal(t, r.path, u.Path)
	})
}

// A ConfigMap that was checked is the one that is sent, however its bytes can be read.
func TestPolicyBodyIsWrittenAnew(t *testing.T) {
	body, err := policyBody([]byte(`{"metadata":{"name":"evil","name":"sync-operator-policy"},"data":{"a":"1"},"x":12345678901234567890}`), testPolicy)
	require.NoError(t, err)
	assert.NotContains(t, string(body), "evil")
	assert.Contains(t, string(body), `"metadata":{"name":"sync-operator-policy"},"x":12345678901234567890`)
}

func TestAnswersOfTheAPIServer(t *testing.T) {
	answerWith := func(status int, contentType, body string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Retry-After", "3")
			w.Header().Set("Set-Cookie", "evil=1")
			w.Header().Set("Location", "https://evil.example")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, tt := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		want   int
		body   string
	}{
		"a refusal is verbatim":    {answerWith(403, "application/json", `{"kind":"Status","message":"user bob may not"}`), 403, `{"kind":"Status","message":"user bob may not"}`},
		"a conflict, too":          {answerWith(409, "application/json", `{"kind":"Status"}`), 409, `{"kind":"Status"}`},
		"a page of a proxy":        {answerWith(200, "text/html", "<script>"), 502, ""},
		"no JSON":                  {answerWith(200, "application/json", "<script>"), 502, ""},
		"a redirect":               {answerWith(302, "application/json", "{}"), 502, ""},
		"signed out":               {answerWith(401, "application/json", "{}"), 401, ""},
		"too large":                {answerWith(200, "application/json", `"`+strings.Repeat("x", maxAnswerBytes)+`"`), 502, ""},
		"a connection that breaks": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 502, ""},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			api.answer = tt.answer
			answer := send(newTestHandler(t, api), "GET", testImage, "", nil)
			require.Equal(t, tt.want, answer.Code, answer.Body.String())
			if tt.body != "" {
				assert.Equal(t, tt.body, answer.Body.String())
				assert.Equal(t, "3", answer.Header().Get("Retry-After"))
			}
			assert.Equal(t, "application/json", answer.Header().Get("Content-Type"))
			assert.Empty(t, answer.Header().Get("Set-Cookie"))
			assert.Empty(t, answer.Header().Get("Location"))
			assert.Equal(t, 1, api.reached(), "nobody is sent on")
		})
	}
}
