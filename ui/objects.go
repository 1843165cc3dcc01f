package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// FieldManager is the name under which the dashboard writes: that of kubectl ot, so that what
// one of them sets does not look like another's to the other.
const FieldManager = "kubectl-ot"

const (
	defaultListLimit = 100
	maxListLimit     = 500
	// maxContinueBytes bounds a continue token.
	maxContinueBytes = 4096
)

// methods are what is passed on, of a kind and of one of its objects.
type methods struct{ collection, object []string }

// kinds are all objects of OT Fleet that requests are passed on to; subresources are none.
var kinds = map[string]methods{
	"fleetdiskimages": {object: []string{http.MethodGet, http.MethodPatch}},
	"memberclusters":  {object: []string{http.MethodGet, http.MethodPatch}},
	"prunereports":    {[]string{http.MethodGet, http.MethodPost}, []string{http.MethodGet}},
	"imageprunes":     {[]string{http.MethodGet, http.MethodPost}, []string{http.MethodGet, http.MethodPatch, http.MethodDelete}},
}

// policyMethods are those of the policy's ConfigMap, and of its creation.
var policyMethods = methods{[]string{http.MethodPost}, []string{http.MethodGet, http.MethodPatch}}

var (
	namePattern         = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	fieldManagerPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	continuePattern     = regexp.MustCompile(`^[A-Za-z0-9_=-]+$`)
)

const (
	jsonType       = "application/json"
	jsonPatchType  = string(types.JSONPatchType)
	mergePatchType = string(types.MergePatchType)
)

// objectRequest is a request to the API server. It is built from closed parts: nothing of the
// caller's request is copied but names that were checked.
type objectRequest struct {
	method, path string
	query        url.Values
	contentType  string // empty without a body
	// createsPolicy: the body has to be the policy's ConfigMap.
	createsPolicy bool
}

// parseObjectRequest decides whether and how a request below /k8s/ is passed on.
func parseObjectRequest(method, path, rawQuery, contentType string, policy types.NamespacedName) (*objectRequest, error) {
	r, allowed := findObject(path, policy)
	if r == nil {
		return nil, newRefusal(http.StatusNotFound, "the dashboard passes on no requests to this path: use kubectl")
	}
	if !slices.Contains(allowed, method) {
		return nil, newRefusal(http.StatusMethodNotAllowed, fmt.Sprintf("the dashboard passes on %s here, not this method: use kubectl", strings.Join(allowed, ", ")))
	}
	r.method = method
	r.createsPolicy = r.createsPolicy && method == http.MethodPost
	if err := r.parseContentType(contentType); err != nil {
		return nil, err
	}
	return r, r.parseQuery(rawQuery)
}

// findObject returns the object or kind that a path names, and the methods for it.
func findObject(path string, policy types.NamespacedName) (r *objectRequest, allowed []string) {
	rest, found := strings.CutPrefix(path, "/k8s/")
	if !found {
		return nil, nil
	}
	of := func(prefix string, parts []string, is methods) (*objectRequest, []string) {
		switch {
		case len(parts) == 1 && len(is.collection) > 0:
			return &objectRequest{path: prefix + parts[0]}, is.collection
		case len(parts) == 2 && len(is.object) > 0 && namePattern.MatchString(parts[1]):
			return &objectRequest{path: prefix + parts[0] + "/" + parts[1]}, is.object
		}
		return nil, nil
	}
	own := "apis/" + v1alpha1.GroupVersion.String() + "/"
	if name, found := strings.CutPrefix(rest, own); found {
		parts := strings.Split(name, "/")
		return of("/"+own, parts, kinds[parts[0]])
	}
	if !namePattern.MatchString(policy.Namespace) || !namePattern.MatchString(policy.Name) {
		return nil, nil
	}
	configMaps := "api/v1/namespaces/" + policy.Namespace + "/"
	name, found := strings.CutPrefix(rest, configMaps)
	parts := strings.Split(name, "/")
	if !found || parts[0] != "configmaps" || len(parts) == 2 && parts[1] != policy.Name {
		return nil, nil
	}
	if r, allowed = of("/"+configMaps, parts, policyMethods); r != nil {
		r.createsPolicy = len(parts) == 1
	}
	return r, allowed
}

func (r *objectRequest) parseContentType(contentType string) error {
	if r.method == http.MethodGet {
		return nil
	}
	if contentType == "" && r.method == http.MethodDelete {
		return nil
	}
	allowed := []string{jsonType}
	if r.method == http.MethodPatch {
		allowed = []string{mergePatchType, jsonPatchType}
	}
	given, _, err := mime.ParseMediaType(contentType)
	if err != nil || !slices.Contains(allowed, given) {
		return newRefusal(http.StatusUnsupportedMediaType, "Content-Type must be "+strings.Join(allowed, " or "))
	}
	r.contentType = given
	return nil
}

func (r *objectRequest) parseQuery(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return newRefusal(http.StatusBadRequest, "the query cannot be read")
	}
	checks := map[string]func(string) bool{
		"dryRun":       func(v string) bool { return v == "All" },
		"fieldManager": fieldManagerPattern.MatchString,
	}
	r.query = url.Values{}
	switch {
	case r.method == http.MethodGet && r.isList():
		checks = map[string]func(string) bool{
			"limit": func(v string) bool {
				n, err := strconv.Atoi(v)
				return err == nil && 0 < n && n <= maxListLimit
			},
			"continue": func(v string) bool { return len(v) <= maxContinueBytes && continuePattern.MatchString(v) },
		}
		r.query.Set("limit", strconv.Itoa(defaultListLimit))
	case r.method == http.MethodGet:
		checks = nil
	case r.method == http.MethodDelete:
		delete(checks, "fieldManager")
	default:
		r.query.Set("fieldManager", FieldManager)
	}
	for name, values := range query {
		check, known := checks[name]
		if !known || len(values) != 1 || !check(values[0]) {
			return newRefusal(http.StatusBadRequest, fmt.Sprintf("the dashboard does not pass on %s in this query: use kubectl", v1alpha1.Truncate(name, 64)))
		}
		r.query.Set(name, values[0])
	}
	return nil
}

// isList reports whether the path is that of a kind.
func (r *objectRequest) isList() bool {
	_, isKind := kinds[r.path[strings.LastIndex(r.path, "/")+1:]]
	return isKind && strings.Count(r.path, "/") == 4
}

// checkBody returns the body to send: one JSON value.
func (r *objectRequest) checkBody(body []byte, policy types.NamespacedName) ([]byte, error) {
	if r.contentType == "" {
		if len(body) > 0 {
			return nil, newRefusal(http.StatusUnsupportedMediaType, "a body needs a Content-Type")
		}
		return nil, nil
	}
	if !json.Valid(body) {
		return nil, newRefusal(http.StatusBadRequest, "the body is not JSON")
	}
	if !r.createsPolicy {
		return body, nil
	}
	return policyBody(body, policy)
}

// policyBody refuses other ConfigMaps than the policy's. Invariant: what is sent was written
// from what was checked, so that no other reading of the same bytes names another object.
func policyBody(body []byte, policy types.NamespacedName) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return nil, newRefusal(http.StatusBadRequest, "the body is not a ConfigMap: "+err.Error())
	}
	metadata, _ := object["metadata"].(map[string]any)
	namespace, hasNamespace := metadata["namespace"]
	_, generated := metadata["generateName"]
	if metadata["name"] != policy.Name || hasNamespace && namespace != policy.Namespace || generated {
		return nil, newRefusal(http.StatusForbidden, fmt.Sprintf("the dashboard creates ConfigMap %s alone", policy))
	}
	return json.Marshal(object)
}

// serveObject passes a request on to the API server.
func (h *Handler) serveObject(w http.ResponseWriter, request *http.Request, caller *Caller) error {
	contentTypes := request.Header.Values("Content-Type")
	if len(contentTypes) > 1 {
		return newRefusal(http.StatusUnsupportedMediaType, "a request has one Content-Type")
	}
	r, err := parseObjectRequest(request.Method, request.URL.Path, request.URL.RawQuery, strings.Join(contentTypes, ""), h.Policy)
	if err != nil {
		return err
	}
	var body []byte
	if r.method != http.MethodGet {
		if body, err = readBody(request); err != nil {
			return err
		}
		if body, err = r.checkBody(body, h.Policy); err != nil {
			return err
		}
	}
	release, err := h.requests.acquire(request.Context(), caller.Key)
	if err != nil {
		return err
	}
	defer release()
	answer, err := caller.send(request.Context(), r, body)
	if err != nil {
		return err
	}
	if answer.retryAfter != "" {
		w.Header().Set("Retry-After", answer.retryAfter)
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body) // the caller is gone
	return nil
}

func readBody(request *http.Request) ([]byte, error) {
	body, err := io.ReadAll(request.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge()
	case err != nil:
		return nil, newRefusal(http.StatusBadRequest, "the body did not arrive")
	}
	return body, nil
}
