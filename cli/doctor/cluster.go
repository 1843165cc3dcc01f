package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/compatibility"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Kinds that are asked for, as Kind.version.group.
const (
	KindValidatingPolicy = "ValidatingAdmissionPolicy.v1.admissionregistration.k8s.io"
	KindDataVolume       = "DataVolume.v1beta1.cdi.kubevirt.io"
	KindSnapshot         = "VolumeSnapshot.v1.snapshot.storage.k8s.io"
	KindKubeVirtMachine  = "VirtualMachine.v1.kubevirt.io"
	KindImage            = "VMDiskImage.v1alpha1.pelotech.ot"
)

// MutatingPolicyVersions of MutatingAdmissionPolicy, the newest first.
var MutatingPolicyVersions = []string{"v1", "v1beta1", "v1alpha1"}

// KindMutatingPolicy returns the kind of a version of MutatingAdmissionPolicy.
func KindMutatingPolicy(version string) string {
	return "MutatingAdmissionPolicy." + version + ".admissionregistration.k8s.io"
}

func (e *examiner) kubernetesVersion() {
	oldest, newest := compatibility.KubernetesMinors[0], compatibility.KubernetesMinors[len(compatibility.KubernetesMinors)-1]
	wanted := fmt.Sprintf("%s to %s", oldest, newest)
	switch minor := compatibility.MinorOf(e.Kubernetes); {
	case minor == "":
		e.addWarn("", fmt.Sprintf("version %q, which is no release", e.Kubernetes), wanted, "")
	case compatibility.IsOlder(minor, compatibility.MinKubernetes):
		e.addFail("", "Kubernetes "+e.Kubernetes, "at least "+compatibility.MinKubernetes+": the charts install into no older one", "")
	case !slices.Contains(compatibility.KubernetesMinors, minor):
		e.addWarn("", "Kubernetes "+e.Kubernetes+", with which nothing was run", wanted, "")
	default:
		e.addPass("", "Kubernetes %s", e.Kubernetes)
	}
}

func (e *examiner) admissionPolicies() {
	if e.Serves(KindValidatingPolicy) {
		e.addPass("", "ValidatingAdmissionPolicy v1 is served")
		return
	}
	e.addFail("", "ValidatingAdmissionPolicy v1 is not served", "served, as by default from Kubernetes "+compatibility.MinKubernetes+" on", "")
}

func (e *examiner) mutatingPolicies() {
	for _, version := range MutatingPolicyVersions {
		if e.Serves(KindMutatingPolicy(version)) {
			e.addPass("", "MutatingAdmissionPolicy %s is served", version)
			return
		}
	}
	e.addWarn("", "no version of MutatingAdmissionPolicy is served", "served, as by default from Kubernetes "+compatibility.MutatingPolicyKubernetes+" on", "")
}

// Differences of clocks from which on doctor warns, and from which on it fails: tokens are
// refused that were issued in the future.
const (
	clockSkewWarn = 30 * time.Second
	clockSkewFail = 5 * time.Minute
	// serverTimeResolution: the API server tells whole seconds.
	serverTimeResolution = time.Second
)

// clocks compares the clocks of the API server with this machine's, and with the agent's as
// its Lease shows it: a Lease cannot be renewed in the future.
func (e *examiner) clocks() {
	if e.ServerTime.IsZero() {
		e.add(Finding{Status: Skip, Found: "the API server's answer has no Date", Unread: true})
		return
	}
	server := e.ServerTime.Add(serverTimeResolution / 2)
	e.judgeClock("this machine", e.ClientTime.Sub(server), e.RoundTrip/2+serverTimeResolution)
	if ahead := e.Agent.RenewedAt.Sub(e.ServerTime); !e.Agent.RenewedAt.IsZero() && ahead > 0 {
		e.judgeClock("the agent's node", ahead, serverTimeResolution)
	}
}

// judgeClock counts a difference as far as it is beyond what cannot be known.
func (e *examiner) judgeClock(whose string, ahead, unknown time.Duration) {
	skew := max(ahead, -ahead) - unknown
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	found := fmt.Sprintf("at least %s %s the API server's", skew.Round(time.Second), direction)
	wanted := "less than " + clockSkewWarn.String() + " apart"
	switch {
	case skew >= clockSkewFail:
		e.addFail("clock of "+whose, found, wanted, "")
	case skew >= clockSkewWarn:
		e.addWarn("clock of "+whose, found, wanted, "")
	default:
		e.addPass("clock of "+whose, "%s", wanted+" from the API server's")
	}
}

// webhooks judges what the API server asks before it stores what the agent creates.
func (e *examiner) webhooks() {
	total := map[string]time.Duration{}   // of mutating webhooks, which are asked one after another
	longest := map[string]time.Duration{} // of the others, which are asked together
	worst := len(e.findings)
	servicesRead := e.Unread[SourceServices] == ""
	for i := range e.Webhooks {
		w := &e.Webhooks[i]
		timeout := time.Duration(w.TimeoutSeconds) * time.Second
		for _, resource := range w.Resources {
			if w.isOfComponents() {
				continue
			}
			if w.Mutating {
				total[resource] += timeout
			} else {
				longest[resource] = max(longest[resource], timeout)
			}
		}
		if servicesRead && w.ServiceMissing {
			e.judgeMissingService(w)
		}
	}
	for _, resource := range slices.Sorted(slices.Values(AgentResources)) {
		if sum := total[resource] + longest[resource]; sum >= transport.RequestTimeout {
			e.addWarn("webhooks of "+resource, fmt.Sprintf("beside CDI's and KubeVirt's they may take %s together: %s", sum, e.webhookNames(resource)),
				fmt.Sprintf("less than %s, after which the agent gives its request up", transport.RequestTimeout), "")
		}
	}
	if !servicesRead {
		e.hasRead(SourceServices)
	}
	if len(e.findings) == worst {
		e.addPass("", "%d webhooks for what the agent and imports create; beside CDI's and KubeVirt's they take less than %s together", len(e.Webhooks), transport.RequestTimeout)
	}
}

// AgentResources are those that the agent creates, beside its own kinds.
var AgentResources = []string{
	"datavolumes.cdi.kubevirt.io", "secrets", "virtualmachines.kubevirt.io", "volumesnapshots.snapshot.storage.k8s.io", "vmdiskimages.pelotech.ot",
}

// ImportResources are those that others create for it.
var ImportResources = []string{"persistentvolumeclaims", "pods"}

// isOfComponents: CDI and KubeVirt allow their own webhooks 30 seconds each, and answer at once
// while they run. What they and the agent cannot know is what others add.
func (w *Webhook) isOfComponents() bool { return strings.HasSuffix(w.Name, ".kubevirt.io") }

func (e *examiner) judgeMissingService(w *Webhook) {
	subject := "webhook " + w.Name + " of " + w.Configuration
	found := fmt.Sprintf("Service %s, which it is asked through, does not exist", w.Service)
	if w.Blocking {
		e.addFail(subject, found+": "+strings.Join(w.Resources, ", ")+" cannot be created", "a webhook that answers", "")
		return
	}
	e.addWarn(subject, found+"; it is ignored", "a webhook that answers", "")
}

const maxNamedObjects = 5

func (e *examiner) webhookNames(resource string) string {
	var names []string
	for i := range e.Webhooks {
		if slices.Contains(e.Webhooks[i].Resources, resource) && !e.Webhooks[i].isOfComponents() {
			names = append(names, fmt.Sprintf("%s (%ds)", e.Webhooks[i].Name, e.Webhooks[i].TimeoutSeconds))
		}
	}
	return joinFirst(names)
}

// joinFirst names the first of many.
func joinFirst(names []string) string {
	return v1alpha1.JoinFirst(names, maxNamedObjects, len(names))
}

func (e *examiner) namespaces() {
	if len(e.Namespaces) == 0 {
		e.addSkip("nothing needs a namespace yet")
	}
	for _, n := range e.Namespaces {
		switch subject := "Namespace " + n.Name; {
		case n.Missing:
			e.addFail(subject, "does not exist, and is needed by "+n.NeededBy, "it exists", shellword.FormatCommand("kubectl create namespace %s", n.Name))
		case n.Terminating:
			e.addFail(subject, "is being deleted, and is needed by "+n.NeededBy, "it exists", "")
		default:
			e.addPass(subject, "exists")
		}
	}
}

func (e *examiner) kubeVirtVersion() {
	wanted := strings.Join(compatibility.KubeVirtMinors, " or ")
	switch {
	case !e.Serves(KindKubeVirtMachine) && e.Machines > 0:
		e.addFail("", fmt.Sprintf("KubeVirt is not installed, and %d machines need it", e.Machines), "KubeVirt "+wanted, "")
		return
	case !e.Serves(KindKubeVirtMachine):
		e.addSkip("KubeVirt is not installed; only machines need it")
		return
	case len(e.KubeVirt) == 0:
		e.addWarn("", "KubeVirt's kinds are served, and there is no KubeVirt object", "one that is Deployed", "")
		return
	}
	for _, k := range e.KubeVirt {
		e.judgeComponent("KubeVirt", k, compatibility.KubeVirtMinors)
	}
}

// deployed is the phase of CDI and of KubeVirt that run.
const deployed = "Deployed"

// judgeComponent judges version and phase of CDI or KubeVirt.
func (e *examiner) judgeComponent(title string, c Component, minors []string) {
	subject, wanted := title+" "+c.Name, strings.Join(minors, " or ")
	switch minor := compatibility.MinorOf(c.Version); {
	case c.Phase != "" && c.Phase != deployed:
		e.addFail(subject, "its phase is "+c.Phase, deployed, "")
	case minor == "":
		e.addWarn(subject, fmt.Sprintf("version %q, which is no release", c.Version), wanted, "")
	case !slices.Contains(minors, minor):
		e.addWarn(subject, "version "+c.Version+", with which nothing was run", wanted, "")
	default:
		e.addPass(subject, "version %s", c.Version)
	}
}
