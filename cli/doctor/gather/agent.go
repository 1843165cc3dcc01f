package gather

import (
	"cmp"
	"context"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/doctor"
)

// agentName is the name of the agent's Deployment, container account and Lease.
const agentName = "ot-agent"

func compare(a, b string) int { return cmp.Compare(a, b) }

func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

func splitResource(resource string) (name, group string) {
	name, group, _ = strings.Cut(resource, ".")
	return name, group
}

func (r *reader) readDeployment(ctx context.Context) {
	d := &appsv1.Deployment{}
	if !r.get(ctx, doctor.SourceDeployment, r.options.AgentNamespace, agentName, d) {
		return
	}
	a := &r.snapshot.Agent
	a.Installed, a.Version = true, d.Labels["app.kubernetes.io/version"]
	if containers := d.Spec.Template.Spec.Containers; len(containers) > 0 {
		a.Image = containers[0].Image
	}
	r.agentPod = &d.Spec.Template.Spec
}

func (r *reader) readLedger(ctx context.Context) {
	ledger := &v1alpha1.SyncLedger{}
	if r.get(ctx, doctor.SourceLedger, r.options.AgentNamespace, v1alpha1.LedgerName, ledger) && ledger.Status != nil {
		r.snapshot.Agent.Conditions = ledger.Status.Conditions
	}
}

func (r *reader) readLease(ctx context.Context) {
	lease := &coordinationv1.Lease{}
	if r.get(ctx, doctor.SourceLease, r.options.AgentNamespace, agentName, lease) && lease.Spec.RenewTime != nil {
		r.snapshot.Agent.RenewedAt = lease.Spec.RenewTime.UTC()
		r.snapshot.Agent.LeaseSeconds = ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)
	}
}

// readReport takes the version that the agent itself reports, where it does.
func (r *reader) readReport(ctx context.Context) {
	report := &v1alpha1.ClusterReport{}
	if r.get(ctx, doctor.SourceReport, r.options.AgentNamespace, v1alpha1.MailboxName, report) && report.Root != nil {
		r.snapshot.Agent.Version = cmp.Or(report.Root.AgentVersion, r.snapshot.Agent.Version)
	}
}

func (r *reader) readPolicy(ctx context.Context) {
	policy := &corev1.ConfigMap{}
	if r.get(ctx, doctor.SourcePolicy, PolicyNamespace, PolicyName, policy) {
		r.snapshot.PolicyData = map[string]string{}
		for key, value := range policy.Data {
			r.snapshot.PolicyData[key] = value
		}
		r.snapshot.PolicyUnreadable = apipolicy.BinaryErrors(policy.BinaryData)
	}
}

func (r *reader) readDataVolumePolicy(ctx context.Context) {
	p := &r.snapshot.DataVolumePolicy
	p.Exists = r.get(ctx, doctor.SourceDataVolumePolicy, "", admissionpolicy.DataVolumePolicy, &admissionv1.ValidatingAdmissionPolicy{})
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
	if p.Bound = r.get(ctx, doctor.SourceDataVolumePolicy, "", admissionpolicy.DataVolumePolicy, binding); p.Bound {
		p.Denying = slices.Contains(binding.Spec.ValidationActions, admissionv1.Deny)
	}
}

func (r *reader) readOneDownload(ctx context.Context) {
	state, err := admissionpolicy.ReadOneDownloadState(ctx, r.Client, r.Client)
	if r.unless(doctor.SourceOneDownload, err) {
		r.snapshot.OneDownload = &state
	}
}
