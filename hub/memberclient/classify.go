package memberclient

import (
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ClassifyError returns the reason of condition Reachable for a connection error, and a
// message that says what to do. The message is always the same for the same cause,
// because it goes into a condition that is written when it changes.
func ClassifyError(err error) (reason, message string) {
	fault, why := hubclient.ClassifyError(err)
	switch fault {
	case hubclient.CertificateFailure:
		return v1alpha1.ReasonCertificateNotTrusted, why + ": put the CA that signed it into the kubeconfig, or correct the server's address there"
	case hubclient.UnauthorizedFailure:
		return v1alpha1.ReasonUnauthorized, why + ": put a kubeconfig with a valid credential into the Secret"
	case hubclient.ForbiddenFailure:
		return v1alpha1.ReasonUnauthorized, why + ": grant it the permissions of ServiceAccount ot-hub of chart ot-agent"
	case hubclient.LimitFailure:
		return v1alpha1.ReasonOverLimits, why + ". Check which server answers at the kubeconfig's address and what fills its objects; the hub connects again after some minutes"
	case hubclient.ServerFailure:
		return v1alpha1.ReasonUnreachable, why + ": check why it does not serve requests"
	}
	return v1alpha1.ReasonUnreachable, why + ": check that its API server runs and is reachable from the hub, and that the kubeconfig has the right address"
}
