package startup

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/api/election"
)

// NewProcessID returns an identity of this process; every start has a new one.
func NewProcessID() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Election is the leader election of a process. It ends the process once another one is
// elected. It is created before the manager, which runs it.
type Election struct {
	program string
	mgr     ctrl.Manager
	lock    *election.Lock
}

// NewElection makes managerOptions elect by the Lease that they name, with process as the
// identity of this one. Clients that are made of s later send no write that package
// election refuses.
func NewElection(s *APIServer, managerOptions *ctrl.Options, program, process string) (*Election, error) {
	client, err := coordinationclient.NewForConfig(rest.AddUserAgent(rest.CopyConfig(s.Config), "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("making the client of the election: %w", err)
	}
	e := &Election{program: program}
	e.lock = election.NewLock(client, election.Options{
		Namespace: managerOptions.LeaderElectionNamespace, Name: managerOptions.LeaderElectionID, Identity: process,
		Duration: *managerOptions.LeaseDuration, RenewDeadline: *managerOptions.RenewDeadline, RetryPeriod: *managerOptions.RetryPeriod,
		Events: e,
	})
	managerOptions.LeaderElectionResourceLockInterface = e.lock
	s.Config.Wrap(e.lock.WrapTransport)
	s.Bounded.Wrap(e.lock.WrapTransport)
	return e, nil
}

// AddTo adds the election to the manager that was created with its lock.
func (e *Election) AddTo(mgr ctrl.Manager) error {
	e.mgr = mgr
	return mgr.Add(e)
}

// Eventf implements resourcelock.EventRecorder.
func (e *Election) Eventf(about runtime.Object, kind, reason, message string, args ...any) {
	NewEventRecorder(e.mgr, e.program).Eventf(about, nil, kind, reason, "Elect", message, args...)
}

// errSuperseded ends a process when another one is elected.
var errSuperseded = errors.New("another replica was elected while this one was, as it may be after a pause")

// Start implements manager.Runnable. It returns errSuperseded once another process is
// elected, which ends this one.
func (e *Election) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.lock.Lost():
		return errSuperseded
	}
}
