// Package admissionpolicy tells whether a failing attempt costs one download. CDIInstalled starts a failed
// download over by itself; two admission policies of the chart have it stop instead
// (charts/ot-agent/templates/onedownload.yaml). Where they are not in force, the agent
// ends an attempt at its first failure, which CDIInstalled may have answered by then.
package admissionpolicy

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// OneDownloadPolicies of the policies, and of their bindings.
var OneDownloadPolicies = []string{"ot-agent-importers", "ot-agent-failed-imports"}

// Annotations of the policies say what they go by.
const (
	annCDIVersions = "pelotech.ot/cdi-versions"
	annCDIAccount  = "pelotech.ot/cdi-service-account"
)

// OneDownloadState is what a cluster has of it.
type OneDownloadState struct {
	// Served: the API server serves such policies.
	PoliciesServed bool
	// MissingObjects are policies and bindings that are not there.
	MissingObjects []string
	// CDIVersions are the versions of CDIInstalled that the policies are for, and Account is CDIInstalled's.
	CDIVersions []string
	CDIAccount  string
	// CDIInstalled is there, and tells these versions: the one that it has, and the one that it
	// is being brought to.
	CDIInstalled                   bool
	ObservedVersion, TargetVersion string
	// RestartableImporter is an importer that starts over when it fails.
	RestartableImporter string
}

// OneDownloadCondition says whether an attempt costs one download.
func OneDownloadCondition(s OneDownloadState) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionOneDownload, Status: metav1.ConditionFalse}
	const meanwhile = ". The agent ends an attempt at its first failure, when CDI may have begun a second download"
	versions := "CDI " + strings.Join(s.CDIVersions, ", ")
	switch {
	case !s.PoliciesServed:
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server does not serve MutatingAdmissionPolicy of admissionregistration.k8s.io/v1 (it does by default from Kubernetes 1.36 on)" + meanwhile
	case len(s.MissingObjects) > 0:
		c.Reason = "PoliciesMissing"
		c.Message = strings.Join(s.MissingObjects, ", ") + " not found: `helm upgrade` of the agent makes them, unless its value oneDownload.policies is Never" + meanwhile
	case !s.CDIInstalled:
		c.Reason = "CDIVersionUnknown"
		c.Message = "there is no CDI to tell its version"
	case s.ObservedVersion == "":
		c.Reason = "CDIVersionUnknown"
		c.Message = "CDI does not tell its version (status.observedVersion of kind CDI), so the policies, which are for " + versions + ", do nothing" + meanwhile
	case !isSupportedVersion(s.ObservedVersion, s.CDIVersions):
		c.Reason = "CDIVersionUnknown"
		c.Message = fmt.Sprintf("the policies are for %s and do nothing with %s", versions, s.ObservedVersion) + meanwhile
	case s.TargetVersion != "" && !isSupportedVersion(s.TargetVersion, s.CDIVersions):
		c.Reason = "CDIVersionUnknown"
		c.Message = fmt.Sprintf("CDI is being brought from %s to %s; the policies are for %s and do nothing", s.ObservedVersion, s.TargetVersion, versions) + meanwhile
	case s.RestartableImporter != "":
		c.Reason = "NotApplied"
		c.Message = fmt.Sprintf("importer Pod %s starts over when it fails: it was made before the policies were in force, or by another account than %s (value cdi.serviceAccount of the chart)", s.RestartableImporter, s.CDIAccount) + meanwhile
	default:
		c.Status, c.Reason = metav1.ConditionTrue, "InForce"
		c.Message = fmt.Sprintf("CDI %s does not start a failed download over", s.ObservedVersion)
	}
	return c
}

// isSupportedVersion is what the policies ask of a version.
func isSupportedVersion(version string, all []string) bool {
	return slices.ContainsFunc(all, func(minor string) bool {
		return strings.HasPrefix(strings.TrimPrefix(version, "v"), minor+".")
	})
}
