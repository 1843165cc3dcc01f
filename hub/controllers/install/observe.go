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

	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/claim"
	"github.com/pelotech/ot-fleet/hub/helm"
	"github.com/pelotech/ot-fleet/hub/install"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// agentName is the name of the chart, and of its objects under any release name.
const agentName = "ot-agent"

// agentKind is a CRD that only the agent's chart installs.
const agentKind = "vmdiskimages.pelotech.ot"

// Annotations and labels that Helm and the chart set on the objects of a release.
const (
	annotationReleaseName      = "meta.helm.sh/release-name"
	annotationReleaseNamespace = "meta.helm.sh/release-namespace"
	labelManagedBy             = "app.kubernetes.io/managed-by"
	labelInstance              = "app.kubernetes.io/instance"
	labelVersion               = "app.kubernetes.io/version"
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

// memberSession is the connection to a member for one reconcile.
type memberSession struct {
	namespace string
	// client is not fenced: it reads, and writes the namespace and the Lease.
	client client.Client
	// helm is fenced by the Lease.
	helm  *helm.Member
	lease *lease
	// observedLease is the Lease as it was last read; nil for none.
	observedLease *coordinationv1.Lease
	// release is the name of the agent's release.
	release string
	hasSlot bool
	closers []func()
}

func (s *memberSession) close() {
	for _, do := range s.closers {
		do()
	}
}

// openSession prepares connections without sending anything. All requests end with ctx.
func (r *Reconciler) openSession(ctx context.Context, cfg *rest.Config, member *v1alpha1.MemberCluster) (*memberSession, error) {
	namespace := member.Spec.AgentNamespace
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent = r.UserAgent
	c, done, err := hubclient.NewClient(cfg, r.requestTimeout(), client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("making a client of the kubeconfig: %w", err)
	}
	s := &memberSession{namespace: namespace, client: c, closers: []func(){done}}
	s.lease = &lease{client: c, key: client.ObjectKey{Namespace: namespace, Name: install.LeaseName}, holder: r.Process + "/" + member.Name, duration: r.LeaseDuration}
	s.helm, err = helm.NewMember(ctx, cfg, helm.Options{Namespace: namespace, RequestTimeout: r.requestTimeout(), Fence: s.lease.Err})
	if err != nil {
		s.close()
		return nil, err
	}
	s.closers = append(s.closers, s.helm.Close)
	return s, nil
}

// observeMember reads the state of the member live: a decision based on it is
// irreversible.
func (r *Reconciler) observeMember(ctx context.Context, s *memberSession, member *v1alpha1.MemberCluster, snapshot *install.Snapshot) error {
	snapshot.ForeignAgent, snapshot.OtherNamespace, snapshot.AgentVersions, snapshot.KindsVersion = "", "", []string{member.Status.AgentVersion}, ""
	if err := r.identifyCluster(ctx, s, member, snapshot); err != nil {
		return err
	}
	deployment := &appsv1.Deployment{}
	agentFound, err := s.getObject(ctx, client.ObjectKey{Namespace: s.namespace, Name: agentName}, deployment)
	if err != nil {
		return err
	}
	s.release = agentName
	if agentFound {
		s.release = cmp.Or(deployment.Annotations[annotationReleaseName], deployment.Labels[labelInstance], agentName)
	}
	if snapshot.Release, err = s.helm.GetRelease(s.release); err != nil {
		return err
	}
	released := snapshot.Release != nil && snapshot.Release.Status != install.StatusUninstalled
	if released {
		snapshot.Release.Chart = r.releasedVersion(snapshot.Release.Chart)
	}
	if agentFound && !released {
		snapshot.ForeignAgent = fmt.Sprintf("Deployment %s/%s, and no release of it", s.namespace, agentName)
		snapshot.AgentVersions = append(snapshot.AgentVersions, imageVersion(deployment))
	}
	kind := &metav1.PartialObjectMetadata{}
	kind.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	kinds, err := s.getObject(ctx, client.ObjectKey{Name: agentKind}, kind)
	if err != nil {
		return err
	}
	if kinds {
		snapshot.KindsVersion = r.releasedVersion(kind.Labels[labelVersion]) // CRDs stay when a chart is uninstalled
		if !released && !s.ownsObject(kind) && snapshot.ForeignAgent == "" {
			snapshot.ForeignAgent = "CustomResourceDefinition " + agentKind
		}
	}
	binding := &rbacv1.ClusterRoleBinding{}
	bound, err := s.getObject(ctx, client.ObjectKey{Name: agentName}, binding)
	if err != nil {
		return err
	}
	if bound && len(binding.Subjects) > 0 && binding.Subjects[0].Namespace != s.namespace {
		snapshot.OtherNamespace = binding.Subjects[0].Namespace
	}
	snapshot.Lease, err = r.getForeignLease(ctx, s, member.Name)
	snapshot.Now = time.Now()
	return err
}

// identifyCluster checks that the cluster which answers is the member's, and that it
// belongs to no other member. For a member that has never reported only the cluster
// itself knows.
func (r *Reconciler) identifyCluster(ctx context.Context, s *memberSession, member *v1alpha1.MemberCluster, snapshot *install.Snapshot) (err error) {
	snapshot.OtherClusterUID, snapshot.ClusterHolder = "", ""
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := s.client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return fmt.Errorf("reading namespace %s in the member: %w", metav1.NamespaceSystem, err)
	}
	if cluster := memberstatus.ResolveClusterUID(member, ns.UID); cluster != ns.UID {
		snapshot.OtherClusterUID = string(ns.UID)
	}
	snapshot.ClusterHolder, err = claim.FindHolder(ctx, r.Client, member, ns.UID)
	return err
}

// releasedVersion returns a chart's version; empty if it is the one in the chart's
// source, which a chart that was installed from the source has.
func (r *Reconciler) releasedVersion(version string) string {
	if version == r.Chart.SourceVersion() {
		return ""
	}
	return version
}

// imageVersion returns the image tag of the agent that a Deployment runs; empty for none.
func imageVersion(d *appsv1.Deployment) string {
	for _, c := range d.Spec.Template.Spec.Containers {
		image, _, _ := strings.Cut(c.Image, "@")
		if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
			return image[colon+1:]
		}
	}
	return ""
}

// getForeignLease returns the Lease of another process; nil for none.
func (r *Reconciler) getForeignLease(ctx context.Context, s *memberSession, member string) (*install.Lease, error) {
	s.observedLease = &coordinationv1.Lease{}
	found, err := s.getObject(ctx, s.lease.key, s.observedLease)
	if err != nil {
		return nil, err
	}
	if !found {
		s.observedLease = nil
	}
	if found && s.observedLease.Spec.HolderIdentity != nil && *s.observedLease.Spec.HolderIdentity == s.lease.holder {
		return nil, nil
	}
	return r.foreignLeases.observe(member, s.observedLease, time.Now()), nil
}

// ownsObject reports whether Helm counts an object to the release.
func (s *memberSession) ownsObject(o metav1.Object) bool {
	return o.GetLabels()[labelManagedBy] == "Helm" && o.GetAnnotations()[annotationReleaseName] == s.release && o.GetAnnotations()[annotationReleaseNamespace] == s.namespace
}

func (s *memberSession) getObject(ctx context.Context, key client.ObjectKey, o client.Object) (found bool, err error) {
	switch err := s.client.Get(ctx, key, o); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %T %s in the member: %w", o, key, err)
	}
	return true, nil
}

// takeLease takes the Lease as it was last observed.
func (s *memberSession) takeLease(ctx context.Context) error {
	if err := s.ensureNamespace(ctx); err != nil {
		return err
	}
	return s.lease.acquire(ctx, s.observedLease)
}

// ensureNamespace creates the agent's namespace, which the Lease is in.
func (s *memberSession) ensureNamespace(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace, Labels: map[string]string{labelManagedBy: "ot-hub"}}}
	if found, err := s.getObject(ctx, client.ObjectKeyFromObject(ns), &corev1.Namespace{}); found || err != nil {
		return err
	}
	if err := s.client.Create(ctx, ns); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s in the member: %w", s.namespace, err)
	}
	return nil
}
