package memberclient

import (
	"github.com/pelotech/ot-fleet/api/hubclient"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ClassifyError tells why a member is not reached and what to do about it. The
// message of one cause is always the same: it goes into a condition that is
// written when it changes.
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
