package install

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/dial"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/helm"
	"github.com/pelotech/ot-fleet/hub/install"
)

// agentName is the chart's name, and that of its objects whatever its release is called.
const agentName = "ot-agent"

// agentKind is one that the agent's chart alone brings.
const agentKind = "vmdiskimages.pelotech.ot"

// What Helm writes on the objects of a release, and the chart on its own.
const (
	releaseName      = "meta.helm.sh/release-name"
	releaseNamespace = "meta.helm.sh/release-namespace"
	managedBy        = "app.kubernetes.io/managed-by"
	instanceOf       = "app.kubernetes.io/instance"
	versionOf        = "app.kubernetes.io/version"
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two types of one kind: a fault of the build
		}
	}
	return s
}()

var mapper = func() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	m.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
	m.Add(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), meta.RESTScopeRoot)
	m.Add(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), meta.RESTScopeRoot)
	m.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	return m
}()

// site is a member that is being looked at, and perhaps installed in.
type site struct {
	namespace string
	// client is not fenced: it reads, and writes the namespace and the Lease.
	client client.Client
	// helm is.
	helm  *helm.Member
	lease *lease
	// seen is the Lease as it was read last; nil for none.
	seen *coordinationv1.Lease
	// release is the name of the agent's.
	release string
	done    []func()
}

func (s *site) close() {
	for _, do := range s.done {
		do()
	}
}

// dial prepares connections, and sends nothing yet. All that is sent ends with ctx.
func (r *Reconciler) dial(ctx context.Context, cfg *rest.Config, member *v1alpha1.MemberCluster) (*site, error) {
	namespace := member.Spec.AgentNamespace
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = r.UserAgent
	c, done, err := dial.NewClient(cfg, r.timeout(), client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("making a client of the kubeconfig: %w", err)
	}
	s := &site{namespace: namespace, client: c, done: []func(){done}}
	s.lease = &lease{client: c, key: client.ObjectKey{Namespace: namespace, Name: install.LeaseName}, holder: r.Process + "/" + member.Name, duration: r.LeaseDuration}
	s.helm, err = helm.Dial(ctx, cfg, helm.Options{Namespace: namespace, RequestTimeout: r.timeout(), Fence: s.lease.Err})
	if err != nil {
		s.close()
		return nil, err
	}
	s.done = append(s.done, s.helm.Close)
	return s, nil
}

// look reads what the member has, live: what is decided upon it cannot be taken back.
func (r *Reconciler) look(ctx context.Context, s *site, member *v1alpha1.MemberCluster, seen *install.Seen) error {
	seen.Foreign, seen.Elsewhere, seen.Versions, seen.Kinds = "", "", []string{member.Status.AgentVersion}, ""
	if err := r.identify(ctx, s, member, seen); err != nil {
		return err
	}
	deployment := &appsv1.Deployment{}
	agent, err := s.get(ctx, client.ObjectKey{Namespace: s.namespace, Name: agentName}, deployment)
	if err != nil {
		return err
	}
	s.release = agentName
	if agent {
		s.release = cmp.Or(deployment.Annotations[releaseName], deployment.Labels[instanceOf], agentName)
	}
	if seen.Release, err = s.helm.Release(s.release); err != nil {
		return err
	}
	released := seen.Release != nil && seen.Release.Status != install.Uninstalled
	if released {
		seen.Release.Chart = r.stamped(seen.Release.Chart)
	}
	if agent && !released {
		seen.Foreign = fmt.Sprintf("Deployment %s/%s, and no release of it", s.namespace, agentName)
		seen.Versions = append(seen.Versions, imageVersion(deployment))
	}
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	kinds, err := s.get(ctx, client.ObjectKey{Name: agentKind}, kind)
	if err != nil {
		return err
	}
	if kinds {
		seen.Kinds = r.stamped(kind.Labels[versionOf]) // they stay when a chart is uninstalled
		if !released && !s.owns(kind) && seen.Foreign == "" {
			seen.Foreign = "CustomResourceDefinition " + agentKind
		}
	}
	binding := &rbacv1.ClusterRoleBinding{}
	bound, err := s.get(ctx, client.ObjectKey{Name: agentName}, binding)
	if err != nil {
		return err
	}
	if bound && len(binding.Subjects) > 0 && binding.Subjects[0].Namespace != s.namespace {
		seen.Elsewhere = binding.Subjects[0].Namespace
	}
	seen.Lease, err = r.leaseOf(ctx, s, member.Name)
	seen.Now = time.Now()
	return err
}

// identify tells whether the cluster that answers is the member, and the member's. What a
// member that has never reported is, nobody knows but who asks it.
func (r *Reconciler) identify(ctx context.Context, s *site, member *v1alpha1.MemberCluster, seen *install.Seen) (err error) {
	seen.Another, seen.Holder = "", ""
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := s.client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return fmt.Errorf("reading namespace %s in the member: %w", metav1.NamespaceSystem, err)
	}
	if cluster := fleet.ClusterUID(member, ns.UID); cluster != ns.UID {
		seen.Another = string(ns.UID)
	}
	seen.Holder, err = claim.Holder(ctx, r.Client, member, ns.UID)
	return err
}

// stamped is a chart's version, empty where that says nothing: a chart that is not
// installed as of a release names the one that its source does.
func (r *Reconciler) stamped(version string) string {
	if version == r.Chart.Unstamped() {
		return ""
	}
	return version
}

// imageVersion of the agent that a Deployment runs; empty where its image has no tag.
func imageVersion(d *appsv1.Deployment) string {
	for _, c := range d.Spec.Template.Spec.Containers {
		image, _, _ := strings.Cut(c.Image, "@")
		if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
			return image[colon+1:]
		}
	}
	return ""
}

// leaseOf another process; nil for none.
func (r *Reconciler) leaseOf(ctx context.Context, s *site, member string) (*install.Lease, error) {
	s.seen = &coordinationv1.Lease{}
	there, err := s.get(ctx, s.lease.key, s.seen)
	if err != nil {
		return nil, err
	}
	if !there {
		s.seen = nil
	}
	if there && s.seen.Spec.HolderIdentity != nil && *s.seen.Spec.HolderIdentity == s.lease.holder {
		return nil, nil
	}
	return r.leases.see(member, s.seen, time.Now()), nil
}

// owns tells that Helm takes an object for one of the release.
func (s *site) owns(o metav1.Object) bool {
	return o.GetLabels()[managedBy] == "Helm" && o.GetAnnotations()[releaseName] == s.release && o.GetAnnotations()[releaseNamespace] == s.namespace
}

func (s *site) get(ctx context.Context, key client.ObjectKey, o client.Object) (there bool, err error) {
	switch err := s.client.Get(ctx, key, o); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %T %s in the member: %w", o, key, err)
	}
	return true, nil
}

// settle makes the agent's namespace, where it is not there, for the Lease to be in.
func (s *site) settle(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace, Labels: map[string]string{managedBy: "ot-hub"}}}
	if there, err := s.get(ctx, client.ObjectKeyFromObject(ns), &corev1.Namespace{}); there || err != nil {
		return err
	}
	if err := s.client.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s in the member: %w", s.namespace, err)
	}
	return nil
}
