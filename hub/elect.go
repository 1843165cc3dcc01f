package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
)

// leaseName is the Lease that the elected replica holds.
const leaseName = "ot-hub"

// newProcess is the identity of this process, new for each.
func newProcess() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("naming this process: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// newLock makes the lock of the election. The manager's own would give the process
// an identity that nobody else gets to know: the Leases of the replicas tell it.
func newLock(cfg *rest.Config, o options, events resourcelock.EventRecorder) (resourcelock.Interface, error) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.namespace, leaseName,
		resourcelock.ResourceLockConfig{Identity: o.process, EventRecorder: events},
		rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election"), o.renewDeadline)
	if err != nil {
		return nil, fmt.Errorf("making the lock of the election: %w", err)
	}
	return lock, nil
}

// elections are the events of the lock, which is there before the manager that
// records them.
type elections struct{ mgr ctrl.Manager }

// Eventf implements resourcelock.EventRecorder.
func (e *elections) Eventf(about runtime.Object, kind, reason, message string, args ...any) {
	e.mgr.GetEventRecorder("ot-hub").Eventf(about, nil, kind, reason, "Elect", message, args...)
}
