package election

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// observation is the Lease as a candidate last saw it.
type observation struct {
	uid             types.UID
	resourceVersion string
	holder          string
	duration        time.Duration
	// since is when this version was first received, by the own clock. Not when it was
	// requested: the holder may have renewed the Lease in between.
	since time.Time
}

// record takes up the Lease as it was received now.
func (o *observation) record(lease *coordinationv1.Lease, now time.Time) {
	if o.uid == lease.UID && o.resourceVersion == lease.ResourceVersion {
		return
	}
	*o = observation{
		uid: lease.UID, resourceVersion: lease.ResourceVersion, since: now,
		holder:   ptr.Deref(lease.Spec.HolderIdentity, ""),
		duration: time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second,
	}
}

// remaining returns how long the Lease is valid; 0 where it can be taken.
func (o *observation) remaining(now time.Time) time.Duration {
	if o.holder == "" {
		return 0
	}
	return max(0, o.duration-now.Sub(o.since))
}
