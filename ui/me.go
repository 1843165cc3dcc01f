package ui

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Mode is how a person is signed in.
type Mode string

// Modes.
const (
	// ModeLocal: kubectl ot dashboard, by the kubeconfig.
	ModeLocal Mode = "local"
	// ModeToken: by a bearer token that was pasted.
	ModeToken Mode = "token"
	// ModeProxy: by a token that a proxy in front puts into each request.
	ModeProxy Mode = "proxy"
)

// Me is who the caller is for the API server, and what they may do.
type Me struct {
	User   string   `json:"user"`
	Groups []string `json:"groups,omitempty"`
	Mode   Mode     `json:"mode"`
	// SignOut: signing out has an effect.
	SignOut bool         `json:"signOut,omitempty"`
	May     []Permission `json:"may"`
	// ExpiresAt is when the session ends; absent where that is not known.
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// Version is that of the program that serves the page, a hub or kubectl ot; HubVersion that
	// of the hub.
	Version      string `json:"version,omitempty"`
	HubVersion   string `json:"hubVersion,omitempty"`
	HubNamespace string `json:"hubNamespace,omitempty"`
	// PolicyNamespace and PolicyName are those of the ConfigMap of the fleet's policy.
	PolicyNamespace string `json:"policyNamespace,omitempty"`
	PolicyName      string `json:"policyName,omitempty"`
	// Context is the kubeconfig's context of the hub; empty where that is not known.
	Context string `json:"context,omitempty"`
	// Kubeconfig is the file that --kubeconfig named; empty for what every command reads.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Permission is a right, and whether the caller has it.
type Permission struct {
	Verb string `json:"verb"`
	// Resource in its plural, as fleetdiskimages; "fleet" is the read API.
	Resource string `json:"resource"`
	Allowed  bool   `json:"allowed"`
	// Role is the ClusterRole of chart ot-hub that has it; empty where none of them does.
	Role string `json:"role,omitempty"`
}

// readAPIResource stands for the read API in a Permission.
const readAPIResource = "fleet"

// right is a Permission that is asked about.
type right struct {
	Permission
	// verbs that the API server asks for: all of them are needed.
	verbs []string
}

// rights are all that the app's pages ask about. A patch needs verb patch; people know it as
// an update.
var rights = []right{
	{Permission{Verb: "get", Resource: readAPIResource, Role: "ot-hub-reader"}, []string{"get"}},
	{Permission{Verb: "approve", Resource: "fleetdiskimages", Role: "ot-fleet-approver"}, []string{"approve", "patch"}},
	{Permission{Verb: "update", Resource: "fleetdiskimages", Role: "ot-fleet-author"}, []string{"patch"}},
	{Permission{Verb: "create", Resource: "prunereports", Role: "ot-fleet-author"}, []string{"create"}},
	{Permission{Verb: "approve", Resource: "imageprunes", Role: "ot-fleet-pruner"}, []string{"approve", "create"}},
	{Permission{Verb: "update", Resource: "imageprunes", Role: "ot-fleet-approver"}, []string{"patch"}},
	{Permission{Verb: "delete", Resource: "imageprunes", Role: "ot-fleet-pruner"}, []string{"delete"}},
	{Permission{Verb: "update", Resource: "memberclusters"}, []string{"patch"}},
	{Permission{Verb: "update", Resource: "configmaps"}, []string{"patch"}},
	{Permission{Verb: "create", Resource: "configmaps"}, []string{"create"}},
}

const (
	identityValidity = 30 * time.Second
	// maxIdentities bounds how many callers are remembered.
	maxIdentities = 1024
	// maxReviewsAtOnce bounds how many reviews of a caller run together.
	maxReviewsAtOnce = 4
	// maxShownGroups bounds the groups of an answer.
	maxShownGroups = 256
)

// identity is what the API server said about a credential.
type identity struct {
	user      string
	groups    []string
	may       []Permission
	expiresAt time.Time
}

// identityCache remembers identities by Caller.Key. Its zero value is ready for use.
type identityCache struct {
	mu   sync.Mutex
	kept map[string]*identity
}

func (c *identityCache) get(key string, now time.Time) *identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.kept[key]; known != nil && now.Before(known.expiresAt) {
		return known
	}
	return nil
}

// add remembers an identity. Where there are too many, all are forgotten: they are asked for
// again.
func (c *identityCache) add(key string, i *identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) >= maxIdentities {
		c.kept = map[string]*identity{}
	}
	c.kept[key] = i
}

func (h *Handler) serveMe(w http.ResponseWriter, request *http.Request, caller *Caller) error {
	if !isRead(request.Method) {
		return newRefusal(http.StatusMethodNotAllowed, "who you are is read: use GET")
	}
	who := h.identities.get(caller.Key, time.Now())
	if who == nil {
		var err error
		if who, err = h.identify(request.Context(), caller); err != nil {
			return err
		}
		who.expiresAt = time.Now().Add(identityValidity)
		h.identities.add(caller.Key, who)
	}
	mode := h.Mode(request)
	w.Header().Set("Content-Type", jsonType)
	_ = json.NewEncoder(w).Encode(&Me{ // the caller is gone
		User: who.user, Groups: who.groups, May: who.may, Mode: mode, SignOut: mode == ModeToken, ExpiresAt: caller.ExpiresAt,
		Version: h.Version, HubVersion: h.HubVersion, HubNamespace: h.HubNamespace, PolicyNamespace: h.Policy.Namespace, PolicyName: h.Policy.Name, Context: h.Context, Kubeconfig: h.Kubeconfig,
	})
	return nil
}

// identify asks the API server who the caller is, and what they may do.
func (h *Handler) identify(ctx context.Context, caller *Caller) (*identity, error) {
	self := &authenticationv1.SelfSubjectReview{}
	self.APIVersion, self.Kind = "authentication.k8s.io/v1", "SelfSubjectReview"
	if err := caller.review(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", self, self); err != nil {
		return nil, err
	}
	info := self.Status.UserInfo
	if info.Username == "" {
		return nil, newRefusal(http.StatusUnauthorized, "the API server does not say who you are: sign in again")
	}
	who := &identity{user: v1alpha1.SanitizeUserName(info.Username, maxErrorBytes), groups: []string{}, may: make([]Permission, len(rights))}
	for _, group := range info.Groups[:min(len(info.Groups), maxShownGroups)] {
		who.groups = append(who.groups, v1alpha1.SanitizeUserName(group, maxErrorBytes))
	}
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(maxReviewsAtOnce)
	for i, r := range rights {
		asking.Go(func() (err error) {
			who.may[i] = r.Permission
			who.may[i].Allowed, err = h.isAllowed(ctx, caller, r)
			return err
		})
	}
	return who, asking.Wait()
}

func (h *Handler) isAllowed(ctx context.Context, caller *Caller, r right) (bool, error) {
	if r.Resource == readAPIResource && h.MayRead != nil {
		return h.MayRead(ctx, caller)
	}
	for _, verb := range r.verbs {
		review := &authorizationv1.SelfSubjectAccessReview{}
		review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
		switch r.Resource {
		case readAPIResource:
			review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: readapi.Root + "summary", Verb: verb}
		case "configmaps":
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Version: "v1", Resource: r.Resource, Verb: verb, Namespace: h.Policy.Namespace, Name: h.Policy.Name}
		default:
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: r.Resource, Verb: verb}
		}
		if verb == "create" && review.Spec.ResourceAttributes != nil {
			review.Spec.ResourceAttributes.Name = "" // the API server knows no name yet
		}
		if err := caller.review(ctx, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, review); err != nil {
			return false, err
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}
