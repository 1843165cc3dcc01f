package gather

import (
	"context"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/doctor"
)

func (r *reader) readStorageClasses(ctx context.Context) {
	var list storagev1.StorageClassList
	if r.list(ctx, doctor.SourceStorageClasses, &list) {
		for i := range list.Items {
			c := &list.Items[i]
			r.snapshot.StorageClasses = append(r.snapshot.StorageClasses, storagev1.StorageClass{
				ObjectMeta:  metav1.ObjectMeta{Name: c.Name, CreationTimestamp: c.CreationTimestamp, Annotations: c.Annotations},
				Provisioner: c.Provisioner,
			})
		}
	}
}

func (r *reader) readCSIDrivers(ctx context.Context) {
	var list storagev1.CSIDriverList
	if r.list(ctx, doctor.SourceCSIDrivers, &list) {
		for i := range list.Items {
			r.snapshot.CSIDrivers = append(r.snapshot.CSIDrivers, list.Items[i].Name)
		}
	}
}

func (r *reader) readCapacities(ctx context.Context) {
	var list storagev1.CSIStorageCapacityList
	if r.list(ctx, doctor.SourceCapacities, &list) {
		for i := range list.Items {
			c := &list.Items[i]
			r.snapshot.Capacities = append(r.snapshot.Capacities, storagev1.CSIStorageCapacity{
				StorageClassName: c.StorageClassName, NodeTopology: c.NodeTopology, Capacity: c.Capacity, MaximumVolumeSize: c.MaximumVolumeSize,
			})
		}
	}
}

func (r *reader) readQuotas(ctx context.Context) {
	var list corev1.ResourceQuotaList
	if r.list(ctx, doctor.SourceQuotas, &list) {
		for i := range list.Items {
			q := &list.Items[i]
			r.snapshot.Quotas = append(r.snapshot.Quotas, corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: q.Namespace, Name: q.Name}, Spec: q.Spec, Status: q.Status})
		}
	}
}

func (r *reader) readCDI(ctx context.Context) {
	var list cdiv1.CDIList
	if r.list(ctx, doctor.SourceCDI, &list) {
		for i := range list.Items {
			c := &list.Items[i]
			r.snapshot.CDI = append(r.snapshot.CDI, doctor.Component{Name: c.Name, Version: c.Status.ObservedVersion, Phase: string(c.Status.Phase)})
		}
	}
}

// redactProxy returns a proxy without its password. A proxy may have no scheme.
func redactProxy(proxy string) string {
	if strings.Contains(proxy, "://") {
		return v1alpha1.RedactURL(proxy)
	}
	return strings.TrimPrefix(v1alpha1.RedactURL("http://"+proxy), "http://")
}

func (r *reader) readCDIConfig(ctx context.Context) {
	config := &cdiv1.CDIConfig{}
	if !r.get(ctx, doctor.SourceCDIConfig, "", "config", config) {
		return
	}
	c := &doctor.CDIConfig{ScratchClass: config.Status.ScratchSpaceStorageClass}
	if p := config.Status.ImportProxy; p != nil {
		c.HTTPProxy, c.HTTPSProxy = redactProxy(ptr.Deref(p.HTTPProxy, "")), redactProxy(ptr.Deref(p.HTTPSProxy, ""))
		c.NoProxy, c.TrustedCA = ptr.Deref(p.NoProxy, ""), ptr.Deref(p.TrustedCAProxy, "")
		r.probeProxy = map[string]string{"HTTP_PROXY": ptr.Deref(p.HTTPProxy, ""), "HTTPS_PROXY": ptr.Deref(p.HTTPSProxy, ""), "NO_PROXY": c.NoProxy}
	}
	r.snapshot.CDIConfig = c
}

// readTrustedCA looks in CDI's namespace for the certificates of the proxy.
func (r *reader) readTrustedCA(ctx context.Context) {
	c := r.snapshot.CDIConfig
	if c == nil || c.TrustedCA == "" || r.cdiNamespace == "" {
		return
	}
	found := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.cdiNamespace, Name: c.TrustedCA}, found)
	c.TrustedCAMissing = apierrors.IsNotFound(err)
	r.unless(doctor.SourceCDIConfig, client.IgnoreNotFound(err))
}

func (r *reader) readProfiles(ctx context.Context) {
	var list cdiv1.StorageProfileList
	if r.list(ctx, doctor.SourceProfiles, &list) {
		for i := range list.Items {
			p := &list.Items[i]
			r.snapshot.Profiles = append(r.snapshot.Profiles, cdiv1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Status: cdiv1.StorageProfileStatus{
				CloneStrategy: p.Status.CloneStrategy, ClaimPropertySets: p.Status.ClaimPropertySets,
			}})
		}
	}
}

func (r *reader) readSnapshotClasses(ctx context.Context) {
	var list snapshotv1.VolumeSnapshotClassList
	if r.list(ctx, doctor.SourceSnapshotClasses, &list) {
		for i := range list.Items {
			c := &list.Items[i]
			r.snapshot.SnapshotClasses = append(r.snapshot.SnapshotClasses, snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Driver: c.Driver})
		}
	}
}

func (r *reader) readSnapshots(ctx context.Context) {
	var list snapshotv1.VolumeSnapshotList
	if r.list(ctx, doctor.SourceSnapshots, &list, client.HasLabels{v1alpha1.LabelImageUID}) {
		for i := range list.Items {
			if s := &list.Items[i]; s.Status == nil && s.DeletionTimestamp == nil {
				r.snapshot.Snapshots = append(r.snapshot.Snapshots, doctor.Snapshotting{Namespace: s.Namespace, Name: s.Name, CreatedAt: s.CreationTimestamp})
			}
		}
	}
}

func (r *reader) readKubeVirt(ctx context.Context) {
	var list kubevirtv1.KubeVirtList
	if r.list(ctx, doctor.SourceKubeVirt, &list) {
		for i := range list.Items {
			k := &list.Items[i]
			r.snapshot.KubeVirt = append(r.snapshot.KubeVirt, doctor.Component{
				Name: k.Namespace + "/" + k.Name, Version: k.Status.ObservedKubeVirtVersion, Phase: string(k.Status.Phase),
			})
		}
	}
}

// cdiGroup is the API group of CDI, whose webhooks show its namespace.
const cdiGroup = "cdi.kubevirt.io"

func (r *reader) readWebhooks(ctx context.Context) {
	var mutating admissionv1.MutatingWebhookConfigurationList
	var validating admissionv1.ValidatingWebhookConfigurationList
	if !r.list(ctx, doctor.SourceWebhooks, &mutating) || !r.list(ctx, doctor.SourceWebhooks, &validating) {
		return
	}
	for i := range mutating.Items {
		c := &mutating.Items[i]
		for _, w := range c.Webhooks {
			r.addWebhook(doctor.Webhook{Configuration: c.Name, Name: w.Name, Mutating: true}, w.FailurePolicy, w.TimeoutSeconds, w.Rules, w.ClientConfig.Service)
		}
	}
	for i := range validating.Items {
		c := &validating.Items[i]
		for _, w := range c.Webhooks {
			r.addWebhook(doctor.Webhook{Configuration: c.Name, Name: w.Name}, w.FailurePolicy, w.TimeoutSeconds, w.Rules, w.ClientConfig.Service)
		}
	}
}

// defaultWebhookTimeout is the API server's, in seconds.
const defaultWebhookTimeout = 10

func (r *reader) addWebhook(w doctor.Webhook, failurePolicy *admissionv1.FailurePolicyType, timeout *int32, rules []admissionv1.RuleWithOperations, service *admissionv1.ServiceReference) {
	w.Blocking = ptr.Deref(failurePolicy, admissionv1.Fail) == admissionv1.Fail
	w.TimeoutSeconds = ptr.Deref(timeout, defaultWebhookTimeout)
	if service != nil {
		w.Service = service.Namespace + "/" + service.Name
	}
	for _, resource := range slices.Concat(doctor.AgentResources, doctor.ImportResources) {
		if slices.ContainsFunc(rules, func(rule admissionv1.RuleWithOperations) bool { return matchesCreate(rule, resource) }) {
			w.Resources = append(w.Resources, resource)
		}
	}
	if len(w.Resources) == 0 {
		return
	}
	if service != nil && r.cdiNamespace == "" && slices.ContainsFunc(rules, func(rule admissionv1.RuleWithOperations) bool { return slices.Contains(rule.APIGroups, cdiGroup) }) {
		r.cdiNamespace = service.Namespace
	}
	r.snapshot.Webhooks = append(r.snapshot.Webhooks, w)
}

// matchesCreate reports whether a webhook is asked about the creation of a resource, as
// name.group.
func matchesCreate(rule admissionv1.RuleWithOperations, resource string) bool {
	name, group := splitResource(resource)
	return (slices.Contains(rule.Operations, admissionv1.Create) || slices.Contains(rule.Operations, admissionv1.OperationAll)) &&
		(slices.Contains(rule.APIGroups, group) || slices.Contains(rule.APIGroups, "*")) &&
		slices.ContainsFunc(rule.Resources, func(r string) bool { return r == name || r == "*" || r == "*/*" })
}

// readServices checks the Services of webhooks, each once.
func (r *reader) readServices(ctx context.Context) {
	missing := map[string]bool{}
	for i := range r.snapshot.Webhooks {
		w := &r.snapshot.Webhooks[i]
		if w.Service == "" {
			continue
		}
		if _, known := missing[w.Service]; !known {
			if len(missing) == maxNamedReads {
				return
			}
			namespace, name := splitKey(w.Service)
			found := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
			err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, found)
			if !apierrors.IsNotFound(err) && !r.unless(doctor.SourceServices, err) {
				return
			}
			missing[w.Service] = apierrors.IsNotFound(err)
		}
		w.ServiceMissing = missing[w.Service]
	}
}

// readNamespaces checks each namespace that something needs.
func (r *reader) readNamespaces(ctx context.Context) {
	needed := map[string]string{}
	need := func(namespace, by string) {
		if namespace != "" && needed[namespace] == "" && len(needed) < maxNamedReads {
			needed[namespace] = by
		}
	}
	need(r.options.Asked.Namespace, "-n")
	need(PolicyNamespace, "the policy ConfigMap")
	if r.snapshot.Agent.Installed {
		need(r.options.AgentNamespace, "the agent")
	}
	for i := range r.snapshot.Images {
		img := &r.snapshot.Images[i]
		need(img.Namespace, fmt.Sprintf("image %s", img.Name))
	}
	for namespace, by := range needed {
		found := &corev1.Namespace{}
		err := r.Client.Get(ctx, client.ObjectKey{Name: namespace}, found)
		if !apierrors.IsNotFound(err) && !r.unless(doctor.SourceNamespaces, err) {
			return
		}
		r.snapshot.Namespaces = append(r.snapshot.Namespaces, doctor.Namespace{
			Name: namespace, NeededBy: by, Missing: apierrors.IsNotFound(err), Terminating: err == nil && found.DeletionTimestamp != nil,
		})
	}
	slices.SortFunc(r.snapshot.Namespaces, func(a, b doctor.Namespace) int { return compare(a.Name, b.Name) })
}
