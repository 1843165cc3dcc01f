package connect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Scheme has the kinds that verbs read and write.
var Scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1alpha1.AddToScheme, cdiv1.AddToScheme, kubevirtv1.AddToScheme, snapshotv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // two kinds of one name: a mistake of this program
		}
	}
	return s
}()

// Cluster is a connection to a hub or a member.
type Cluster struct {
	// Context is its name in the kubeconfig.
	Context string
	Config  *rest.Config
	Client  client.WithWatch
	// Namespace of the flags, else of the context.
	Namespace string
}

// ConnectHub connects to the hub.
func (f *Flags) ConnectHub() (*Cluster, error) {
	name, err := f.HubContext()
	if err != nil {
		return nil, err
	}
	hub, err := f.connect(name, true)
	if err == nil {
		f.hubConnected.Store(true)
	}
	return hub, err
}

// ConnectMember connects to a member: by --member-context, else the context named as the
// cluster, else the current one. hubFlags are not for it, and are refused where the hub is not asked
// as well: the member would be asked with another credential than the one that was given.
func (f *Flags) ConnectMember(cluster string) (*Cluster, error) {
	name := f.Member
	if name == "" {
		config, current, err := f.currentContext()
		if err != nil {
			return nil, err
		}
		switch {
		case cluster == "":
			name = current
		case config.Contexts[cluster] != nil:
			name = cluster
		default:
			return nil, fmt.Errorf("the kubeconfig has no context %s: name the cluster's with --member-context", cluster)
		}
	}
	given := f.hubFlags()
	isHub := len(given) == 0 // and then it makes no difference
	if !isHub {
		hub, err := f.HubContext()
		if err != nil {
			return nil, err
		}
		if isHub = name == hub; !isHub && !f.hubConnected.Load() {
			return nil, fmt.Errorf("%s applies to the hub (context %s), and this command reads context %s: set the credential in the kubeconfig, or add --hub %s", strings.Join(given, ", "), orCurrent(hub), orCurrent(name), orCurrent(name))
		}
	}
	f.memberConnected.Store(&name)
	return f.connect(name, isHub)
}

func (f *Flags) connect(name string, isHub bool) (*Cluster, error) {
	config, err := f.configOf(name, isHub)
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: Scheme})
	if err != nil {
		return nil, fmt.Errorf("context %s: %w", orCurrent(name), err)
	}
	namespace := value(f.Namespace)
	if namespace == "" {
		namespace, err = f.defaultNamespace(name)
		if err != nil {
			return nil, err
		}
	}
	return &Cluster{Context: name, Config: config, Client: c, Namespace: namespace}, nil
}

func (f *Flags) defaultNamespace(name string) (string, error) {
	config, _, err := f.currentContext()
	if err != nil {
		return "", err
	}
	if context := config.Contexts[name]; context != nil && context.Namespace != "" {
		return context.Namespace, nil
	}
	return "default", nil
}

// explainedError says already of which cluster it is, and what to do.
type explainedError struct{ error }

func (e explainedError) Unwrap() error { return e.error }

// Explain returns an error of a request with what to do about it.
func (c *Cluster) Explain(err error) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[explainedError](err); done {
		return err
	}
	context := orCurrent(c.Context)
	explain := func(format string, args ...any) error { return explainedError{fmt.Errorf(format, args...)} }
	switch {
	case meta.IsNoMatchError(err):
		return explain("the cluster of context %s does not have the kinds of OT Fleet that this asks for: name the hub's context with --hub, or a member's with --member-context (%w)", context, err)
	case apierrors.IsForbidden(err):
		return explain("context %s: %w", context, err)
	case apierrors.IsUnauthorized(err):
		return explain("context %s: the API server does not accept your credential: sign in again", context)
	case isConnection(err):
		return explain("context %s: the API server at %s does not answer: %w", context, c.Config.Host, err)
	case isForeign(err):
		return explain("context %s: what answers at %s is no API server, as a page to sign in or a proxy is not: check the server's address in the kubeconfig: %w", context, c.Config.Host, err)
	case apierrors.IsInternalError(err):
		return explain("context %s: the API server at %s fails: %w", context, c.Config.Host, err)
	default:
		return err
	}
}

// isConnection reports whether a request was not answered. A deadline that ended what came before the
// request, as the client's own limit of requests, is a net.Error by itself, and says nothing of the
// API server.
func isConnection(err error) bool {
	var network net.Error
	return !errors.Is(err, context.Canceled) && errors.As(err, &network) &&
		error(network) != context.DeadlineExceeded //nolint:errorlint // what wraps it is of a request that was sent
}

// isForeign reports whether an answer cannot be decoded.
func isForeign(err error) bool {
	_, isSyntax := errors.AsType[*json.SyntaxError](err)
	return isSyntax
}

// Get reads an object.
func (c *Cluster) Get(ctx context.Context, key client.ObjectKey, into client.Object) error {
	err := c.Client.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		return c.explainAbsence(err, into)
	}
	return c.Explain(err)
}

func (c *Cluster) explainAbsence(err error, of client.Object) error {
	hint := ""
	switch of.(type) {
	case *v1alpha1.MemberCluster:
		hint = ": kubectl ot get clusters lists them"
	case *v1alpha1.FleetDiskImage:
		hint = ": kubectl ot get rollouts lists them"
	}
	return explainedError{fmt.Errorf("context %s: %w%s", orCurrent(c.Context), err, hint)}
}

// GetMember reads a MemberCluster of a hub.
func (c *Cluster) GetMember(ctx context.Context, name string) (*v1alpha1.MemberCluster, error) {
	member := &v1alpha1.MemberCluster{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, member); err != nil {
		return nil, err
	}
	return member, nil
}

// NoMember is the error of GetMember for one that is not there.
func (c *Cluster) NoMember(name string) error {
	resource := v1alpha1.GroupVersion.WithResource("memberclusters").GroupResource()
	return c.explainAbsence(apierrors.NewNotFound(resource, name), &v1alpha1.MemberCluster{})
}

// List lists objects page by page, so that no answer is larger than a page, and keeps all
// of them in list.
func (c *Cluster) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var all []runtime.Object
	err := c.EachPage(ctx, list, func() error {
		page, err := meta.ExtractList(list)
		all = append(all, page...)
		return err
	}, options...)
	if err != nil {
		return err
	}
	return meta.SetList(list, all)
}

// Serves reports whether the cluster is known to serve a kind of OT Fleet.
func (c *Cluster) Serves(kind string) bool {
	_, err := c.Client.RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind(kind).GroupKind(), v1alpha1.GroupVersion.Version)
	return err == nil
}

// EachPage lists objects page by page and calls do when list has the next one.
func (c *Cluster) EachPage(ctx context.Context, list client.ObjectList, do func() error, options ...client.ListOption) error {
	const pageSize = 500
	for next := ""; ; {
		if err := c.Client.List(ctx, list, append(slices.Clip(options), client.Limit(pageSize), client.Continue(next))...); err != nil {
			return c.Explain(err)
		}
		if err := do(); err != nil {
			return err
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// ParseSelector parses -l; empty selects all.
func ParseSelector(text string) (client.MatchingLabelsSelector, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return client.MatchingLabelsSelector{}, fmt.Errorf("-l %s: must be a label selector, as in region=nordics,edge!=true: %w", text, err)
	}
	return client.MatchingLabelsSelector{Selector: selector}, nil
}

// EachSelected is EachPage of the objects that -l selects; empty selects all. A selector that selects none is
// an error: what is said of the fleet would be said of nothing. noun is what it selects.
func (c *Cluster) EachSelected(ctx context.Context, selector, noun string, list client.ObjectList, do func() error, options ...client.ListOption) error {
	selected, err := ParseSelector(selector)
	if err != nil {
		return err
	}
	found := false
	err = c.EachPage(ctx, list, func() error {
		found = found || meta.LenList(list) > 0
		return do()
	}, append(slices.Clip(options), selected)...)
	if err == nil && !found && selector != "" {
		return fmt.Errorf("-l %s: selects no %s", selector, noun)
	}
	return err
}

// EachMember calls do for the MemberClusters that -l selects.
func (c *Cluster) EachMember(ctx context.Context, selector string, do func(*v1alpha1.MemberCluster)) error {
	var members v1alpha1.MemberClusterList
	return c.EachSelected(ctx, selector, "cluster of the fleet", &members, func() error {
		for i := range members.Items {
			do(&members.Items[i])
		}
		return nil
	})
}

// ListMembers lists the MemberClusters that -l selects.
func (c *Cluster) ListMembers(ctx context.Context, selector string) (all []v1alpha1.MemberCluster, err error) {
	err = c.EachMember(ctx, selector, func(m *v1alpha1.MemberCluster) { all = append(all, *m) })
	return all, err
}

// ParseLabelSelector parses -l for a field of a spec; empty selects all.
func ParseLabelSelector(text string) (*metav1.LabelSelector, error) {
	selector, err := ParseSelector(text)
	if err != nil {
		return nil, err
	}
	operators := map[selection.Operator]metav1.LabelSelectorOperator{
		selection.In: metav1.LabelSelectorOpIn, selection.Equals: metav1.LabelSelectorOpIn, selection.DoubleEquals: metav1.LabelSelectorOpIn,
		selection.NotIn: metav1.LabelSelectorOpNotIn, selection.NotEquals: metav1.LabelSelectorOpNotIn,
		selection.Exists: metav1.LabelSelectorOpExists, selection.DoesNotExist: metav1.LabelSelectorOpDoesNotExist,
	}
	parsed := &metav1.LabelSelector{}
	requirements, _ := selector.Requirements()
	for _, r := range requirements {
		operator, ok := operators[r.Operator()]
		if !ok {
			return nil, fmt.Errorf("-l %s: a spec knows no %s: use =, !=, in, notin, KEY and !KEY", text, r.Operator())
		}
		parsed.MatchExpressions = append(parsed.MatchExpressions, metav1.LabelSelectorRequirement{Key: r.Key(), Operator: operator, Values: r.Values().List()})
	}
	return parsed, nil
}
