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

// ObjectName names an object with a namespace.
type ObjectName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Settings are what the app has to know of where it runs.
type Settings struct {
	// HubVersion of the hub or of kubectl ot.
	HubVersion string
	// HubNamespace is where the hub runs, with all that it keeps.
	HubNamespace string
	// Policy is the ConfigMap of the fleet's policy.
	Policy ObjectName
	// Mode of callers; ModeOf says it of a request where there are several.
	Mode   Mode
	ModeOf func(*http.Request) Mode
	// Context is the kubeconfig's context of the hub, for commands that the app prints.
	Context string
}

// Me is who the caller is for the API server, and what they may do.
type Me struct {
	User   string   `json:"user"`
	Groups []string `json:"groups"`
	Mode   Mode     `json:"mode"`
	// CanSignOut: the dashboard holds the credential, and can forget it.
	CanSignOut bool         `json:"canSignOut"`
	May        []Permission `json:"may"`
	// HubVersion is the version of the program that serves the dashboard.
	HubVersion   string `json:"hubVersion"`
	HubNamespace string `json:"hubNamespace"`
	// Policy is the ConfigMap of the fleet's policy.
	Policy ObjectName `json:"policy"`
	// Context is the kubeconfig's context of the hub; empty where that is not known.
	Context string `json:"context,omitempty"`
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
	meFreshFor = 30 * time.Second
	// maxKeptMes bounds how many callers are remembered.
	maxKeptMes = 1024
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

// meCache remembers identities by Caller.Key. Its zero value is ready for use.
type meCache struct {
	mu   sync.Mutex
	kept map[string]*identity
}

func (c *meCache) get(key string, now time.Time) *identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.kept[key]; known != nil && now.Before(known.expiresAt) {
		return known
	}
	return nil
}

// keep remembers an identity. Where there are too many, all are forgotten: they are asked for
// again.
func (c *meCache) keep(key string, i *identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) >= maxKeptMes {
		c.kept = map[string]*identity{}
	}
	c.kept[key] = i
}

func (d *Door) serveMe(w http.ResponseWriter, request *http.Request, caller *Caller) error {
	if !isRead(request.Method) {
		return refuse(http.StatusMethodNotAllowed, "who you are is read: use GET")
	}
	who := d.mes.get(caller.Key, time.Now())
	if who == nil {
		var err error
		if who, err = d.identify(request.Context(), caller); err != nil {
			return err
		}
		who.expiresAt = time.Now().Add(meFreshFor)
		d.mes.keep(caller.Key, who)
	}
	mode := d.Settings.Mode
	if d.Settings.ModeOf != nil {
		mode = d.Settings.ModeOf(request)
	}
	w.Header().Set("Content-Type", jsonType)
	_ = json.NewEncoder(w).Encode(&Me{ // the caller is gone
		User: who.user, Groups: who.groups, May: who.may, Mode: mode, CanSignOut: mode == ModeToken,
		HubVersion: d.Settings.HubVersion, HubNamespace: d.Settings.HubNamespace, Policy: d.Settings.Policy, Context: d.Settings.Context,
	})
	return nil
}

// identify asks the API server who the caller is, and what they may do.
func (d *Door) identify(ctx context.Context, caller *Caller) (*identity, error) {
	self := &authenticationv1.SelfSubjectReview{}
	self.APIVersion, self.Kind = "authentication.k8s.io/v1", "SelfSubjectReview"
	if err := caller.review(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", self, self); err != nil {
		return nil, err
	}
	info := self.Status.UserInfo
	if info.Username == "" {
		return nil, refuse(http.StatusUnauthorized, "the API server does not say who you are: sign in again")
	}
	who := &identity{user: v1alpha1.SanitizeText(info.Username, maxErrorBytes), groups: []string{}, may: make([]Permission, len(rights))}
	for _, group := range info.Groups[:min(len(info.Groups), maxShownGroups)] {
		who.groups = append(who.groups, v1alpha1.SanitizeText(group, maxErrorBytes))
	}
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(maxReviewsAtOnce)
	for i, r := range rights {
		asking.Go(func() (err error) {
			who.may[i] = r.Permission
			who.may[i].Allowed, err = d.isAllowed(ctx, caller, r)
			return err
		})
	}
	return who, asking.Wait()
}

func (d *Door) isAllowed(ctx context.Context, caller *Caller, r right) (bool, error) {
	if r.Resource == readAPIResource && d.MayRead != nil {
		return d.MayRead(ctx, caller)
	}
	for _, verb := range r.verbs {
		review := &authorizationv1.SelfSubjectAccessReview{}
		review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
		switch r.Resource {
		case readAPIResource:
			review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: readapi.Root + "summary", Verb: verb}
		case "configmaps":
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Version: "v1", Resource: r.Resource, Verb: verb, Namespace: d.Settings.Policy.Namespace, Name: d.Settings.Policy.Name}
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
