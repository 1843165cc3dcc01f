package vm

import (
	"fmt"
	"time"

	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// extendedTokenAnnotation is what CDI 1.65 sets before it clones from another namespace, in place
// of a token that its webhook gives a DataVolume at its creation only.
const extendedTokenAnnotation = "cdi.kubevirt.io/storage.extended.clone.token"

// cloneTokenLifetime is how long CDI 1.65 accepts the webhook's token. Afterwards it never clones
// the DataVolume, and says so in its log only.
const cloneTokenLifetime = 5*time.Minute + 10*time.Second

// hasExpiredToken reports whether CDI has not begun to clone the disk while it could. Invariant: a
// clone that CDI has begun, or that has a claim, is not replaced, nor is one that a backup restores:
// its claim may follow. While CDI or the agent knows what a person has to mend, another DataVolume
// would wait for that, too.
//
// It counts from when this process found the DataVolume first: by the creation, an agent whose clock
// is ahead would replace each before CDI sees it.
func (d *diskDecider) hasExpiredToken(dv *cdiv1.DataVolume) bool {
	if !isCrossNamespaceClone(dv) || dv.Annotations[extendedTokenAnnotation] != "" || d.Claim != nil || d.LiveClaim != nil || d.Pinned == nil || d.wasReady() {
		return false
	}
	_, prePopulated := dv.Annotations[cdiv1.AnnPrePopulated]
	_, static := dv.Annotations[cdiv1.AnnCheckStaticVolume]
	if prePopulated || static || d.cloningState(dv).phase == v1alpha1.MachineFailed {
		return false
	}
	if left := cloneTokenLifetime - d.SeenFor; left > 0 {
		d.requeueWithin(left)
		return false
	}
	return true
}

// renewToken replaces the clone after a live read of it, its claim and its source.
func (d *diskDecider) renewToken(dv *cdiv1.DataVolume) {
	switch {
	case !d.Live:
		d.decision.NeedsLive = true
	case !d.SourceExists:
		d.setRequested(dv)
	default:
		d.deleteIncompleteDisk()
		d.setBlocker(provisioningState(d.reasons.preparing, fmt.Sprintf("CDI has not begun to clone DataVolume %s, and no longer may: it is replaced", dv.Name)))
	}
}

func isCrossNamespaceClone(dv *cdiv1.DataVolume) bool {
	namespace, source := "", dv.Spec.Source
	switch {
	case source != nil && source.PVC != nil:
		namespace = source.PVC.Namespace
	case source != nil && source.Snapshot != nil:
		namespace = source.Snapshot.Namespace
	}
	return namespace != "" && namespace != dv.Namespace
}
