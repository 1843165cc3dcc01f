package vm

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// errObjectChanged: an object differs from what the decision was based on. The event of the
// change triggers a reconcile.
var errObjectChanged = errors.New("the object has changed since it was read")

// reportedError is an error that the status reports already. It is retried with backoff.
type reportedError struct{ error }

func (e *reportedError) Unwrap() error { return e.error }

// isConflict reports whether an object differs from what the decision was based on. A
// conflict over a ResourceQuota does not count: no event of the machine follows it.
func isConflict(err error) bool {
	return trigger.IsObjectConflict(err) || errors.Is(err, errObjectChanged)
}

// refusalReason returns the reason of an error that recurs until a person or another object
// changes something.
func refusalReason(child childObject, err error) (reason v1alpha1.Reason, refused bool) {
	var nameTaken *nameTakenError
	switch {
	case err == nil:
		return "", false
	case errors.As(err, &nameTaken):
		return v1alpha1.ReasonNameTaken, true
	case child == childImage && (apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err)):
		return v1alpha1.ReasonImageNamespaceMissing, true
	case !vm.IsRefused(err):
		return "", false
	}
	return child.reason, true
}

// childFailure is a request for a child that failed.
type childFailure struct {
	child childObject
	err   error
}

func appendFailure(failures []childFailure, child childObject, err error) []childFailure {
	if err == nil {
		return failures
	}
	return append(failures, childFailure{child, err})
}

// selectFailure returns the failure that decides how the visit goes on, and leaves what else the status
// reports in v.
func (r *Reconciler) selectFailure(v *visit, failures []childFailure) (childObject, error) {
	first := slices.MinFunc(failures, func(a, b childFailure) int { return r.rankFailure(v.obj, a) - r.rankFailure(v.obj, b) })
	v.furtherRefusals, v.retried = nil, nil
	for _, failure := range failures {
		switch _, refused := refusalReason(failure.child, failure.err); {
		case failure.child == first.child:
		case refused:
			v.furtherRefusals = append(v.furtherRefusals, vm.Refusal{Object: failure.child.title, Err: failure.err})
		case failure.child.retried != "":
			v.furtherRefusals = append(v.furtherRefusals, vm.Refusal{Object: failure.child.retried, Err: failure.err})
			v.retried = errors.Join(v.retried, fmt.Errorf("%s: %w", failure.child.retried, failure.err))
		}
	}
	return first.child, first.err
}

// isPassingConflict reports whether another read of an object solves a conflict.
func (r *Reconciler) isPassingConflict(obj *v1alpha1.VirtualMachine, err error) bool {
	return isConflict(err) && !r.isLastingConflict(obj, err)
}

// rankFailure orders failures of one visit. A conflict that another read solves comes first: it is
// retried at once, and then the others are decided again. What needs a person comes before what may
// pass by itself.
func (r *Reconciler) rankFailure(obj *v1alpha1.VirtualMachine, f childFailure) int {
	_, refused := refusalReason(f.child, f.err)
	switch {
	case r.isPassingConflict(obj, f.err):
		return 0
	case refused:
		return 1
	default:
		return 2
	}
}
