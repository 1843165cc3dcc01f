package doctor

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/api/compatibility"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func (e *examiner) hasAgent() bool {
	if !e.Agent.Installed {
		e.addSkip("no agent is installed in namespace %s", e.Agent.Namespace)
	}
	return e.Agent.Installed
}

// leaseGrace is how long after its Lease has expired an agent may still be taking over.
const leaseGrace = 30 * time.Second

// agentSilentFor is since when nobody has renewed the agent's Lease, beyond what an agent that
// runs needs; 0 where it runs.
func (e *examiner) agentSilentFor() time.Duration {
	age := e.ServerTime.Sub(e.Agent.RenewedAt)
	if e.Agent.RenewedAt.IsZero() || age < time.Duration(e.Agent.LeaseSeconds)*time.Second+leaseGrace {
		return 0
	}
	return age
}

func (e *examiner) agentRunning() {
	if !e.hasAgent() {
		return
	}
	switch silent := e.agentSilentFor(); {
	case e.Agent.RenewedAt.IsZero():
		e.addFail("agent", "no agent has ever led: there is no Lease in namespace "+e.Agent.Namespace, "a running agent", "")
	case silent > 0:
		e.addFail("agent", fmt.Sprintf("nobody has renewed the agent's Lease for %s", silent.Round(time.Second)), "a running agent", "")
	default:
		e.addPass("agent", "it runs and leads")
	}
}

func (e *examiner) agentVersion() {
	if !e.hasAgent() {
		return
	}
	other, title := e.CLIVersion, "kubectl-ot"
	if e.Hub != nil && e.Hub.Version != "" {
		other, title = e.Hub.Version, "the hub"
	}
	e.judgeSkew(e.Agent.Version, other, title)
}

func (e *examiner) judgeSkew(agent, other, title string) {
	found := fmt.Sprintf("agent %s, and %s is %s", agent, title, other)
	wanted := fmt.Sprintf("at most %d minor version apart", compatibility.MaxMinorSkew)
	switch compatibility.DistanceOf(agent, other) {
	case compatibility.Supported:
		e.addPass("agent", "%s", found)
	case compatibility.TooOld:
		e.addFail("agent", found, wanted, "upgrade the agent with chart ot-agent, one minor version at a time")
	case compatibility.TooNew:
		e.addFail("agent", found, wanted, "upgrade "+title)
	default:
		e.addSkip("agent %q and %s %q: compatibility is known for releases only", agent, title, other)
	}
}

// judgeCondition takes over a condition of the agent. bad is the status of one that is not
// True.
func (e *examiner) judgeCondition(conditions []metav1.Condition, kind string, bad Status) {
	c := meta.FindStatusCondition(conditions, kind)
	switch {
	case c == nil:
		e.addSkip("the agent has not written condition %s yet", kind)
	case e.View == ViewMember && e.agentSilentFor() > 0:
		e.addSkip("the agent that wrote condition %s does not run: see agent-running", kind)
	case c.Status == metav1.ConditionTrue:
		e.addPass("condition "+kind, "%s", cmp.Or(c.Message, c.Reason))
	case c.Status == metav1.ConditionFalse:
		e.add(Finding{Status: bad, Subject: "condition " + kind, Found: c.Reason + ": " + c.Message, Wanted: "True"})
	default:
		e.addSkip("condition %s is Unknown: %s", kind, c.Message)
	}
}

func (e *examiner) agentRights() {
	if e.hasAgent() {
		e.judgeCondition(e.Agent.Conditions, v1alpha1.ConditionRightsComplete, Fail)
	}
}

// budgetGuard reads policy and binding rather than the agent's condition, which is up to a
// minute old.
func (e *examiner) budgetGuard() {
	if !e.hasAgent() {
		return
	}
	subject := "ValidatingAdmissionPolicy " + admissionpolicy.DataVolumePolicy
	const wanted = "the policy, and a binding that denies"
	switch p := e.DataVolumePolicy; {
	case !e.Serves(KindValidatingPolicy):
		e.addFail(subject, "this API server does not serve its kind", wanted, "")
	case !p.Exists:
		e.addFail(subject, "does not exist", wanted, "")
	case !p.Bound:
		e.addFail(subject, "its binding does not exist", wanted, "")
	case !p.Denying:
		e.addFail(subject, "its binding does not deny", wanted, "")
	default:
		e.hasTriedGuard(subject)
	}
}

// hasTriedGuard lets the agent have the last word: it has tried the policy.
func (e *examiner) hasTriedGuard(subject string) {
	c := meta.FindStatusCondition(e.Agent.Conditions, v1alpha1.ConditionBudgetGuarded)
	if c != nil && c.Status == metav1.ConditionFalse && e.agentSilentFor() == 0 {
		e.addFail("condition "+c.Type, c.Reason+": "+c.Message, "True", "")
		return
	}
	e.addPass(subject, "it is bound and denies")
}

func (e *examiner) oneDownload() {
	if !e.hasAgent() || e.OneDownload == nil {
		if e.Agent.Installed {
			e.addSkip("the policies were not read")
		}
		return
	}
	c := admissionpolicy.OneDownloadCondition(*e.OneDownload)
	if c.Status == metav1.ConditionTrue {
		e.addPass("MutatingAdmissionPolicy "+admissionpolicy.OneDownloadPolicy, "%s", c.Message)
		return
	}
	e.addWarn("MutatingAdmissionPolicy "+admissionpolicy.OneDownloadPolicy, c.Reason+": "+c.Message, "policy and binding, applied to importer Pods", "")
}

// policyAccepted parses the cluster's own ConfigMap as the agent does, and takes the agent's
// word for the rest.
func (e *examiner) policyAccepted() {
	_, unknown, errs := policy.ParseConfigMap(e.PolicyData)
	errs = append(errs, e.PolicyUnreadable...)
	const wanted = "values that the agent can use"
	for _, problem := range errs {
		e.addFail("policy key "+problem.Key, problem.Message, wanted, "")
	}
	if len(unknown) > 0 {
		e.addWarn("policy keys", "ignored, since a cluster's own policy has none of this name: "+joinFirst(unknown), "one of "+strings.Join(policy.ConfigMapKeys(), ", "), "")
	}
	if len(errs) > 0 || len(unknown) > 0 {
		return
	}
	for _, kind := range []string{v1alpha1.ConditionPolicyAccepted, v1alpha1.ConditionPlanAccepted} {
		c := meta.FindStatusCondition(e.Agent.Conditions, kind)
		if c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonNoPlan && e.agentSilentFor() == 0 {
			e.addFail("condition "+kind, c.Reason+": "+c.Message, "True", "")
			return
		}
	}
	if e.PolicyData == nil {
		e.addPass("policy", "there is no ConfigMap: defaults, or the hub's plan, hold")
		return
	}
	e.addPass("policy", "every key can be used")
}
