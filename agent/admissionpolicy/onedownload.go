// Package admissionpolicy checks whether the admission policies of chart ot-agent are in
// force, and publishes that as conditions of the SyncLedger.
package admissionpolicy

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// OneDownloadPolicies names the MutatingAdmissionPolicies that make CDI end a failed
// download instead of restarting it (charts/ot-agent/templates/onedownload.yaml). Their
// bindings have the same names.
var OneDownloadPolicies = []string{"ot-agent-importers", "ot-agent-failed-imports"}

// Annotations of the policies.
const (
	annCDIVersions = "pelotech.ot/cdi-versions"
	annCDIAccount  = "pelotech.ot/cdi-service-account"
)

// OneDownloadState is what a cluster has of the policies and of CDI.
type OneDownloadState struct {
	// PoliciesServed: the API server serves MutatingAdmissionPolicy.
	PoliciesServed bool
	// MissingObjects are the policies and bindings that do not exist.
	MissingObjects []string
	// CDIVersions are the minor versions of CDI that the policies support.
	CDIVersions []string
	// CDIAccount is the ServiceAccount whose requests the policies match.
	CDIAccount string
	// CDIInstalled: an object of kind CDI exists.
	CDIInstalled bool
	// ObservedVersion of CDI is the installed one, TargetVersion the one that its
	// operator installs.
	ObservedVersion, TargetVersion string
	// RestartableImporter is an importer Pod that restarts on failure; empty for none.
	RestartableImporter string
}

// OneDownloadCondition returns condition OneDownloadPerAttempt: whether a failing attempt
// costs one download. While it is False, the agent ends an attempt at its first failure,
// and CDI may have started a second download by then.
func OneDownloadCondition(s OneDownloadState) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionOneDownload, Status: metav1.ConditionFalse}
	const consequence = ". The agent ends an attempt at its first failure; CDI may have started a second download by then"
	versions := "CDI " + strings.Join(s.CDIVersions, ", ")
	switch {
	case !s.PoliciesServed:
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server does not serve MutatingAdmissionPolicy of admissionregistration.k8s.io/v1 (served by default from Kubernetes 1.36)" + consequence
	case len(s.MissingObjects) > 0:
		c.Reason = "PoliciesMissing"
		c.Message = strings.Join(s.MissingObjects, ", ") + " not found: run `helm upgrade` of the agent's chart with oneDownload.policies other than Never" + consequence
	case !s.CDIInstalled:
		c.Reason = "CDIVersionUnknown"
		c.Message = "CDI is not installed, so its version is unknown"
	case s.ObservedVersion == "":
		c.Reason = "CDIVersionUnknown"
		c.Message = "CDI does not report its version (status.observedVersion of kind CDI), so the policies, which support " + versions + ", are inactive" + consequence
	case !isSupportedVersion(s.ObservedVersion, s.CDIVersions):
		c.Reason = "CDIVersionUnknown"
		c.Message = fmt.Sprintf("the policies support %s and are inactive with %s", versions, s.ObservedVersion) + consequence
	case s.TargetVersion != "" && !isSupportedVersion(s.TargetVersion, s.CDIVersions):
		c.Reason = "CDIVersionUnknown"
		c.Message = fmt.Sprintf("CDI is being upgraded from %s to %s; the policies support %s and are inactive", s.ObservedVersion, s.TargetVersion, versions) + consequence
	case s.RestartableImporter != "":
		c.Reason = "NotApplied"
		c.Message = fmt.Sprintf("importer Pod %s restarts on failure: it was created before the policies were in force, or by an account other than %s (chart value cdi.serviceAccount)", s.RestartableImporter, s.CDIAccount) + consequence
	default:
		c.Status, c.Reason = metav1.ConditionTrue, "InForce"
		c.Message = fmt.Sprintf("CDI %s does not restart a failed download", s.ObservedVersion)
	}
	return c
}

// isSupportedVersion matches versions as the policies do.
func isSupportedVersion(version string, supported []string) bool {
	return slices.ContainsFunc(supported, func(minor string) bool {
		return strings.HasPrefix(strings.TrimPrefix(version, "v"), minor+".")
	})
}
