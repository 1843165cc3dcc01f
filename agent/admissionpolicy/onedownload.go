// Package admissionpolicy checks whether the admission policies of chart ot-agent are in
// force, and publishes that as conditions of the SyncLedger.
package admissionpolicy

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// OneDownloadPolicy names the MutatingAdmissionPolicy that keeps CDI from restarting a failed
// download (charts/ot-agent/templates/onedownload.yaml). Its binding has the same name.
const OneDownloadPolicy = "ot-agent-importers"

// annCDIAccount is an annotation of the policy.
const annCDIAccount = "pelotech.ot/cdi-service-account"

// OneDownloadState is what a cluster has of the policy.
type OneDownloadState struct {
	// PoliciesServed: the API server serves MutatingAdmissionPolicy in any version.
	PoliciesServed bool
	// MissingObjects are the policy and its binding, as far as they do not exist.
	MissingObjects []string
	// CDIAccount is the ServiceAccount whose requests the policy matches.
	CDIAccount string
	// RestartableImporter is an importer Pod that restarts on failure; empty for none.
	RestartableImporter string
}

// OneDownloadCondition returns condition OneDownloadPerAttempt: whether a failing attempt
// costs one download. While it is False, the agent ends an attempt at its first failure,
// and CDI may have started a second download by then.
func OneDownloadCondition(s OneDownloadState) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionOneDownload, Status: metav1.ConditionFalse}
	const consequence = ". The agent ends an attempt at its first failure; CDI may have started a second download by then"
	switch {
	case !s.PoliciesServed:
		c.Reason = v1alpha1.ReasonPoliciesNotServed
		c.Message = "this API server serves no version of MutatingAdmissionPolicy (admissionregistration.k8s.io/v1 is served by default from Kubernetes 1.36)" + consequence
	case len(s.MissingObjects) > 0:
		c.Reason = v1alpha1.ReasonPoliciesMissing
		c.Message = strings.Join(s.MissingObjects, ", ") + " not found: run `helm upgrade` of the agent's chart with oneDownload.policies other than Never" + consequence
	case s.RestartableImporter != "":
		c.Reason = v1alpha1.ReasonNotApplied
		c.Message = fmt.Sprintf("importer Pod %s restarts on failure: it was created before the policy was in force, or by an account other than %s (chart value cdi.serviceAccount)", s.RestartableImporter, s.CDIAccount) + consequence
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonInForce
		c.Message = "CDI does not restart a failed download: no importer Pod of an image restarts on failure"
	}
	return c
}
