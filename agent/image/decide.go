package image

import (
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// PreflightResult is the source's answer to a request for the image's headers.
type PreflightResult struct {
	// Known: the source was asked, or need not be.
	Known bool
	// Waiting: the agent asks other sources first.
	Waiting bool
	// Refused: the source definitely does not give the image.
	Refused *v1alpha1.Failure
	// Size of the download in bytes; 0 for unknown.
	Size int64
}

// Blocker is something that an image needs and the cluster lacks.
type Blocker struct {
	Reason  v1alpha1.Reason
	Message string
	// NeedsPerson: it does not end by itself, although its reason may.
	NeedsPerson bool
}

// View is the input of Decide.
type View struct {
	Now    time.Time
	Image  *v1alpha1.VMDiskImage
	Policy *policy.Policy // nil where there has never been a valid one
	// Slots of the image in the SyncLedger.
	Slots []v1alpha1.Slot
	// SlotAges by DataVolume. They do not shrink when the wall clock is set back; a
	// slot without an entry has the age that its StartedAt tells.
	SlotAges map[string]time.Duration
	// ObjectsByAttempt are the objects that exist of the image.
	ObjectsByAttempt map[int32]*AttemptObjects
	// Holders reference the image.
	Holders []Holder
	// NamespaceTerminating: the image's namespace is being deleted, so the image is
	// deleted despite its holders. Set only where that matters.
	NamespaceTerminating bool
	// Plan is what the plan in force says about the image. Not set for an image that
	// is being deleted and has no holders, unless it is released.
	Plan PlannedState
	// Publishing is what is known about the DataSources of the namespace; nil for an image
	// that neither is nor was published.
	Publishing *PublishingView
	// CreationProblem is why the DataVolume of a slot could not be created yet; nil where
	// that is unknown, and for a slot without a problem.
	CreationProblem func(v1alpha1.Slot) *importcause.Cause
	// ChildRefusal is a sentence about why the API server refuses the last requests to delete objects of
	// the image, or to create its snapshot; empty for nothing.
	ChildRefusal string
	// FinalizerRefusal and DeletionRefusal are of the last request to change the image's own finalizer, and
	// to delete the image.
	FinalizerRefusal, DeletionRefusal string
	// Blocker keeps the next attempt from starting; nil for none.
	Blocker *Blocker
	// DataSource is what the image's DataSource leads to; set for sourceType dataSource.
	DataSource FollowedDataSource
	// FormerSourceExists: what a former DataSource led to, and status.serving still names, can
	// be cloned.
	FormerSourceExists bool
	Preflight          PreflightResult
	// QueuePosition is nil for an image without one.
	QueuePosition *int32
	// WithheldReason is why the image waits although the policy has a free slot, or will
	// have one at Opening; empty for none.
	WithheldReason v1alpha1.Reason
	// Opening is when a window of the policy lets more imports run; nil for never, or where
	// that is unknown.
	Opening *policy.Opening
	// ArrivalKey orders the current revision by when it was first seen,
	// EndOfQueueKey orders it behind all others.
	ArrivalKey, EndOfQueueKey v1alpha1.OrderingKey
	// ClockAhead is how far the agent's clock was last found ahead of the API server's; 0 where it is
	// not known to be.
	ClockAhead time.Duration
	// Live: all of this was read from the API server after Image was stored as it
	// is, and not from a cache.
	Live bool
}

// ObjectKind is the kind of an object that belongs to an image.
type ObjectKind string

// Kinds of objects that belong to an image.
const (
	KindDataVolume            ObjectKind = "DataVolume"
	KindPersistentVolumeClaim ObjectKind = "PersistentVolumeClaim"
	KindVolumeSnapshot        ObjectKind = "VolumeSnapshot"
)

// DeleteTarget is an object to delete, with its UID as precondition.
type DeleteTarget struct {
	Kind ObjectKind
	Name string
	UID  types.UID
	// Foreground deletes its dependents first.
	Foreground bool
}

// EndedAttempt is an attempt whose outcome this decision is the first to store.
type EndedAttempt struct {
	Slot    v1alpha1.Slot
	Outcome v1alpha1.Outcome
	Failure *v1alpha1.Failure
	// DownloadedBytes is an estimate.
	DownloadedBytes int64
}

// Decision is what to do with an image. The caller acts in the order of the fields: CreateSnapshot,
// DataSources and Delete only after Status is stored, nothing else with RemoveFinalizer, nothing after
// AddFinalizer. Where one of these is refused, Status says so, and is stored.
type Decision struct {
	// NeedsLiveRead: decide again with a live View. Nothing else is decided.
	NeedsLiveRead bool

	// AskPruneConfirmed: ask the hub whether the plan's prunes are still requested.
	AskPruneConfirmed bool
	// ProbeSource: ask the source for the image's headers.
	ProbeSource    bool
	AddFinalizer   bool
	Status         v1alpha1.VMDiskImageStatus
	CreateSnapshot *snapshotv1.VolumeSnapshot
	DataSources    []DataSourceChange
	Delete         []DeleteTarget
	// RemoveFinalizer: no object of the image is left. Status is stored then only where it says that this
	// is refused.
	RemoveFinalizer bool
	// DeleteImage: the image was unreferenced for as long as its spec, or, with
	// ExpiredByPlan, the plan says; or, with Pruned, the undo window of its prune has
	// ended. Delete it with UID and resourceVersion as preconditions.
	DeleteImage, ExpiredByPlan, Pruned bool
	// DeleteNotBefore is when that is: the API server's clock has to agree.
	DeleteNotBefore time.Time
	// AwaitsServerClock: DeleteNotBefore has come by the agent's clock only.
	AwaitsServerClock bool

	// RequeueAfter is when to decide again without an event; 0 for never.
	RequeueAfter time.Duration

	EndedAttempts []EndedAttempt
}

// decider computes one Decision.
type decider struct {
	View
	decision       Decision
	status         *v1alpha1.VMDiskImageStatus // of decision
	policy         policy.Policy
	targetRevision string
	now            metav1.Time // in full seconds, as the status stores it
	// tearDown: the objects of the image may be deleted (see reconcileDelete).
	tearDown bool
	// activity is what the current revision does or waits for.
	activity statusReason
	// importing: an attempt of the current revision runs.
	importing bool
}

// statusReason is a reason and a message of the status.
type statusReason struct {
	Reason  v1alpha1.Reason
	Message string
	// NeedsPerson: it does not end by itself, although its reason may.
	NeedsPerson bool
}

// Decide decides what happens to an image.
func Decide(v View) Decision {
	d := &decider{View: v, policy: policy.Default(), targetRevision: v.Image.Spec.Revision(), now: storedtime.Truncate(v.Now)}
	if v.Policy != nil {
		d.policy = *v.Policy
	}
	v.Image.Status.DeepCopyInto(&d.decision.Status)
	d.status = &d.decision.Status

	d.redactStored()
	d.dropIgnoredHolders()
	d.countReferences()
	if IsReleased(v.Image) {
		d.describeReleased()
		if d.decision.NeedsLiveRead {
			return Decision{NeedsLiveRead: true}
		}
		d.redactHeaders()
		return d.decision
	}
	d.ensureFinalizer()
	d.ensureQueued()
	d.reconcileDelete()
	d.syncAttempts()
	d.resetProgress()
	d.awaitEvents()
	if d.status.Phase != v1alpha1.PhaseDeleting {
		d.reconcileCurrent()
	}
	d.reconcilePublication()
	d.deleteUnused()
	d.removeFinalizer()
	d.expireUnreferenced()
	d.reconcilePrune()
	if d.decision.NeedsLiveRead && !v.Live {
		return Decision{NeedsLiveRead: true}
	}
	d.summarizeStatus()
	d.redactHeaders()
	return d.decision
}

// minRequeueDelay bounds how soon a decision is repeated.
const minRequeueDelay = 10 * time.Millisecond

// requeueWithin requests another decision after delay at the latest.
func (d *decider) requeueWithin(delay time.Duration) {
	delay = max(delay, minRequeueDelay)
	if d.decision.RequeueAfter == 0 || delay < d.decision.RequeueAfter {
		d.decision.RequeueAfter = delay
	}
}

// requireLive reports whether the View is live, and asks for a live one if not.
func (d *decider) requireLive() bool {
	if !d.Live {
		d.decision.NeedsLiveRead = true
	}
	return d.Live
}

func (d *decider) isServing(revision string) bool {
	return d.status.Serving != nil && d.status.Serving.Revision == revision
}

func (d *decider) hasSlot(revision string) bool {
	for i := range d.Slots {
		if d.Slots[i].Revision == revision {
			return true
		}
	}
	return false
}
