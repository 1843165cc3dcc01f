package playedfleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/policy"
	"github.com/pelotech/ot-fleet/hub/prune"
)

// apiServer answers requests of the dashboard as the API server of the played hub. It checks
// nothing but rights: tests of what is refused need a real one.
type apiServer struct {
	fleet *Fleet
	user  string
	// mayWrite: the caller may do everything; otherwise read alone.
	mayWrite bool
}

// apiError is an error with its status.
type apiError struct {
	code    int
	reason  metav1.StatusReason
	message string
}

func (e *apiError) Error() string { return e.message }

// RoundTrip implements http.RoundTripper.
func (s *apiServer) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		var err error
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, err
		}
	}
	s.fleet.mu.Lock()
	answer, err := s.answerRequest(request, body)
	s.fleet.mu.Unlock()
	code := http.StatusOK
	if err != nil {
		var failure *apiError
		if !errors.As(err, &failure) {
			failure = &apiError{http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, err.Error()}
		}
		code = failure.code
		answer = &metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: int32(code), Reason: failure.reason, Message: failure.message,
		}
	} else if request.Method == http.MethodPost {
		code = http.StatusCreated
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: code, Status: strconv.Itoa(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)),
	}, nil
}

func (s *apiServer) answerRequest(request *http.Request, body []byte) (any, error) {
	switch path := request.URL.Path; {
	case strings.HasSuffix(path, "/selfsubjectreviews"):
		review := &authenticationv1.SelfSubjectReview{}
		review.Status.UserInfo = authenticationv1.UserInfo{Username: s.user, Groups: []string{"platform-leads", "system:authenticated"}}
		return review, nil
	case strings.HasSuffix(path, "/selfsubjectaccessreviews"):
		review := &authorizationv1.SelfSubjectAccessReview{}
		if err := json.Unmarshal(body, review); err != nil {
			return nil, err
		}
		review.Status.Allowed = s.mayWrite || review.Spec.NonResourceAttributes != nil || review.Spec.ResourceAttributes.Verb == "get"
		return review, nil
	}
	if request.Method != http.MethodGet && !s.mayWrite {
		return nil, &apiError{http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("%s is forbidden: User %q cannot do that", request.URL.Path, s.user)}
	}
	kind, name, found := parseKind(request.URL.Path)
	if !found {
		return nil, notFound(request.URL.Path)
	}
	dryRun := request.URL.Query().Get("dryRun") != ""
	switch {
	case request.Method == http.MethodGet && name == "":
		return s.fleet.store.listOf(kind), nil
	case request.Method == http.MethodPost:
		return s.createObject(kind, body, dryRun)
	}
	object := s.fleet.store.objectOf(kind, name)
	if object == nil {
		return nil, notFound(name)
	}
	switch request.Method {
	case http.MethodGet:
		return typed(object), nil
	case http.MethodDelete:
		if !dryRun {
			s.fleet.deleteObject(object)
		}
		return typed(object), nil
	default:
		changed, err := patchObject(object, request.Header.Get("Content-Type"), body)
		if err != nil {
			return nil, err
		}
		if !dryRun {
			if err := s.fleet.applyObject(changed); err != nil {
				return nil, err
			}
			changed = s.fleet.store.objectOf(kind, name)
		}
		return typed(changed), nil
	}
}

func notFound(name string) error {
	return &apiError{http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("%q not found", name)}
}

// kinds of objects, by resource.
var kinds = map[string]client.Object{
	"fleetdiskimages": &v1alpha1.FleetDiskImage{}, "memberclusters": &v1alpha1.MemberCluster{},
	"prunereports": &v1alpha1.PruneReport{}, "imageprunes": &v1alpha1.ImagePrune{}, "configmaps": &corev1.ConfigMap{},
}

// parseKind returns the kind and the name in a path; no name: all of the kind.
func parseKind(path string) (kind reflect.Type, name string, found bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts {
		if object := kinds[part]; object != nil {
			if i+1 < len(parts) {
				name = parts[i+1]
			}
			return reflect.TypeOf(object).Elem(), name, true
		}
	}
	return nil, "", false
}

// typed returns an object with its kind, as the API server sends it.
func typed(object client.Object) client.Object {
	object = object.DeepCopyObject().(client.Object)
	kind, group := reflect.TypeOf(object).Elem().Name(), v1alpha1.GroupVersion
	if kind == "ConfigMap" {
		group = corev1.SchemeGroupVersion
	}
	object.GetObjectKind().SetGroupVersionKind(group.WithKind(kind))
	return object
}

// listOf returns all objects of a kind.
func (s *store) listOf(kind reflect.Type) any {
	s.mu.RLock()
	defer s.mu.RUnlock()
	items := []client.Object{}
	for _, object := range s.objects[kind] {
		items = append(items, typed(object))
	}
	slices.SortFunc(items, func(a, b client.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	return map[string]any{"kind": kind.Name() + "List", "apiVersion": v1alpha1.GroupVersion.String(), "metadata": metav1.ListMeta{}, "items": items}
}

func (s *store) objectOf(kind reflect.Type, name string) client.Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, object := range s.objects[kind] {
		if key.Name == name {
			return object
		}
	}
	return nil
}

func (s *store) remove(object client.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects[reflect.TypeOf(object).Elem()], client.ObjectKeyFromObject(object))
}

// patchObject returns an object with a patch. An apply is taken for a merge.
func patchObject(object client.Object, contentType string, patch []byte) (client.Object, error) {
	before, err := json.Marshal(typed(object))
	if err != nil {
		return nil, err
	}
	var after []byte
	if contentType == string(types.JSONPatchType) {
		operations, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, &apiError{http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error()}
		}
		after, err = operations.Apply(before)
		if err != nil {
			return nil, err
		}
	} else {
		if patch, err = yaml.YAMLToJSON(patch); err != nil {
			return nil, &apiError{http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error()}
		}
		if after, err = jsonpatch.MergePatch(before, patch); err != nil {
			return nil, err
		}
	}
	changed := reflect.New(reflect.TypeOf(object).Elem()).Interface().(client.Object)
	if err := json.Unmarshal(after, changed); err != nil {
		return nil, err
	}
	if changed.GetResourceVersion() != object.GetResourceVersion() {
		return nil, &apiError{http.StatusConflict, metav1.StatusReasonConflict, fmt.Sprintf("the object %q has been modified; please apply your changes to the latest version and try again", object.GetName())}
	}
	return changed, nil
}

func (s *apiServer) createObject(kind reflect.Type, body []byte, dryRun bool) (any, error) {
	object := reflect.New(kind).Interface().(client.Object)
	if err := json.Unmarshal(body, object); err != nil {
		return nil, &apiError{http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error()}
	}
	if object.GetName() == "" {
		object.SetName(fmt.Sprintf("%s%05x", object.GetGenerateName(), s.fleet.random.IntN(1<<20)))
	}
	if s.fleet.store.objectOf(kind, object.GetName()) != nil {
		return nil, &apiError{http.StatusConflict, metav1.StatusReasonAlreadyExists, fmt.Sprintf("%q already exists", object.GetName())}
	}
	object.SetUID(types.UID(fmt.Sprintf("created-%s", object.GetName())))
	object.SetCreationTimestamp(metav1.NewTime(s.fleet.at))
	object.SetGeneration(1)
	if dryRun {
		return typed(object), nil
	}
	if err := s.fleet.applyObject(object); err != nil {
		return nil, err
	}
	return typed(s.fleet.store.objectOf(kind, object.GetName())), nil
}

// applyObject has the fleet act on a changed or new object.
func (f *Fleet) applyObject(object client.Object) error {
	object.SetGeneration(object.GetGeneration() + 1)
	object.SetResourceVersion(strconv.FormatUint(f.random.Uint64()>>20, 10))
	f.store.put(object)
	switch o := object.(type) {
	case *v1alpha1.FleetDiskImage:
		for _, img := range f.images {
			if img.object.Name == o.Name {
				img.object = o
				f.decide(img)
			}
		}
	case *v1alpha1.MemberCluster:
		m := f.findMember(o.Name)
		m.object = o
		f.setStatus(m, f.at)
		f.Changes.Mark(readapi.TopicMembers)
	case *v1alpha1.PruneReport:
		unreferencedFor := time.Duration(0)
		if o.Spec.UnreferencedFor != nil {
			unreferencedFor = o.Spec.UnreferencedFor.Duration
		}
		f.store.remove(o)
		if _, _, err := f.addReport(o.Name, 0, unreferencedFor); err != nil {
			return err
		}
		f.Changes.Mark(readapi.TopicPrunes)
	case *v1alpha1.ImagePrune:
		f.applyPrune(o)
	case *corev1.ConfigMap:
		return f.applyPolicy(o)
	}
	return nil
}

// applyPrune starts a prune, or undoes it.
func (f *Fleet) applyPrune(o *v1alpha1.ImagePrune) {
	defer f.Changes.Mark(readapi.TopicPrunes)
	for _, p := range f.prunes {
		if p.object.Name != o.Name {
			continue
		}
		p.object = o
		for key, state := range p.states {
			if o.Spec.Undo && state.State == v1alpha1.PrunePending {
				p.states[key] = v1alpha1.PruneStatus{UID: o.UID, State: v1alpha1.PruneUndone, Reason: v1alpha1.PruneUndoAsked, Message: "undone as asked"}
			}
		}
		f.decidePrune(p)
		return
	}
	p := &playedPrune{object: o, states: map[string]v1alpha1.PruneStatus{}}
	for _, r := range f.reports {
		if r.report.Name == o.Spec.ReportRef.Name {
			p.report, p.clusters = r.report, r.clusters
		}
	}
	p.targets = prune.SelectTargets(&o.Spec, p.clusters)
	until := metav1.NewTime(f.at.Add(o.Spec.UndoWindowOrDefault()))
	for i := range p.targets {
		p.states[targetKey(&p.targets[i])] = v1alpha1.PruneStatus{UID: o.UID, State: v1alpha1.PrunePending, Reason: string(v1alpha1.ReasonUndoWindowOpen), Message: "it serves until its undo window ends", Until: &until}
	}
	f.decidePrune(p)
	f.decidePrune(p)
	f.prunes = append(f.prunes, p)
}

func (f *Fleet) deleteObject(object client.Object) {
	f.store.remove(object)
	f.prunes = slices.DeleteFunc(f.prunes, func(p *playedPrune) bool { return p.object.Name == object.GetName() })
	f.Changes.Mark(readapi.TopicPrunes)
}

// Names of the policy's ConfigMap.
const (
	hubNamespace = "ot-hub"
	policyName   = "ot-hub-policy"
)

// putPolicy stores the policy's ConfigMap.
func (f *Fleet) putPolicy() {
	f.store.put(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: policyName, UID: "policy", ResourceVersion: "12", CreationTimestamp: metav1.NewTime(f.at.Add(-joinedFor))},
		Data:       f.data,
	})
}

// applyPolicy puts a policy in force.
func (f *Fleet) applyPolicy(o *corev1.ConfigMap) error {
	p, _, errs := policy.ParsePolicy(o.Data)
	if len(errs) > 0 {
		return errs[0]
	}
	f.policy, f.data = p, o.Data
	for _, m := range f.members {
		m.policy, m.source, _ = p.ForMember(m.name(), m.object.Labels)
		m.concurrency = int32(policy.ConcurrencyAt(m.policy, f.at))
		m.dirty = true
	}
	f.Changes.Mark(readapi.TopicPolicy)
	return nil
}
