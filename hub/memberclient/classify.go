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
		return v1alpha1.ReasonCertificateNotTrusted, why + ": put the CA that signs it into the kubeconfig, or correct the server's address there"
	case hubclient.UnauthorizedFailure:
		return v1alpha1.ReasonUnauthorized, why + ": put a kubeconfig with a valid one into the Secret"
	case hubclient.ForbiddenFailure:
		return v1alpha1.ReasonUnauthorized, why + ": give it the rights of ServiceAccount ot-hub of ot-agent's chart"
	case hubclient.ServerFailure:
		return v1alpha1.ReasonUnreachable, why + ": see why it does not serve requests"
	}
	return v1alpha1.ReasonUnreachable, why + ": see whether its API server runs and can be reached from the hub, and whether the kubeconfig has the right address"
}
