package image

import (
	"net/url"
	"strings"

	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// KeyOf names an image for good.
func KeyOf(img *v1alpha1.VMDiskImage) v1alpha1.ImageKey {
	return v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID}
}

func findRevision(revisions []v1alpha1.RevisionStatus, revision string) *v1alpha1.RevisionStatus {
	for i := range revisions {
		if revisions[i].Revision == revision {
			return &revisions[i]
		}
	}
	return nil
}

// OutcomeOf returns the outcome that the image's status holds for a slot's
// attempt, and whether it says that the attempt was begun.
//
// One that it has no record of although later ones were begun is over: its
// revision was forgotten since, and may be back by now.
func OutcomeOf(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) (outcome v1alpha1.Outcome, begun bool) {
	return attemptOutcome(&img.Status, slot)
}

func attemptOutcome(st *v1alpha1.VMDiskImageStatus, slot v1alpha1.Slot) (outcome v1alpha1.Outcome, begun bool) {
	e := findRevision(st.Revisions, slot.Revision)
	switch {
	case e != nil && e.AttemptEnded == slot.Attempt:
		return e.Outcome, true
	case e != nil && e.AttemptEnded > slot.Attempt:
		return v1alpha1.OutcomeFailed, true
	case e != nil && e.Attempt >= slot.Attempt:
		return "", true
	case slot.Attempt <= st.LastAttempt:
		return v1alpha1.OutcomeFailed, true
	default:
		return "", false
	}
}

// IsAdoptable tells, by the image as stored, whether an attempt that stands in no
// slot is one that the ledger has lost: it has no outcome, and it is not one of
// a revision that has been forgotten.
func IsAdoptable(img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) bool {
	outcome, begun := OutcomeOf(img, slot)
	return outcome == "" && (begun || slot.Attempt > img.Status.LastAttempt)
}

// QueueStateOf tells how an image takes part in the queue, by its status.
func QueueStateOf(img *v1alpha1.VMDiskImage) ledger.QueueState {
	st := &img.Status
	if st.TearDown || st.Phase == v1alpha1.PhaseDeleting || (img.DeletionTimestamp != nil && st.Phase != v1alpha1.PhaseTerminating) {
		return ledger.NotQueued
	}
	target := img.Spec.Revision()
	e := findRevision(st.Revisions, target)
	if e == nil || st.Revision != target {
		return ledger.Pending
	}
	if e.Outcome == v1alpha1.OutcomeSucceeded || e.Attempt > e.AttemptEnded || hasFailedPermanently(e) {
		return ledger.NotQueued
	}
	switch reason := storedWaitReason(st); {
	case waitsForAdmission(reason):
		return ledger.Admissible
	case reason == v1alpha1.ReasonChecking:
		return ledger.Pending
	default:
		return ledger.Skipped
	}
}

// AwaitsSnapshot tells that an image is imported and that its snapshot is still
// to come.
func AwaitsSnapshot(img *v1alpha1.VMDiskImage) bool {
	e := findRevision(img.Status.Revisions, img.Status.Revision)
	return e != nil && e.SnapshotSince != nil && (img.Status.Serving == nil || img.Status.Serving.VolumeSnapshot != e.VolumeSnapshot)
}

// waitsForAdmission tells the waits that are over when the image gets a slot: it lacks
// nothing of its own.
func waitsForAdmission(r v1alpha1.Reason) bool {
	return queued(r) || r == v1alpha1.ReasonPaused || r == v1alpha1.ReasonPolicyMissing
}

// queued tells the waits in which an image has a place in a queue that moves.
func queued(r v1alpha1.Reason) bool {
	return r == v1alpha1.ReasonWaitingForSlot || r == v1alpha1.ReasonWaitingForFleet || r == v1alpha1.ReasonWaitingForSource
}

// CandidateOf returns what would be admitted for an image that was read live.
func CandidateOf(img *v1alpha1.VMDiskImage) (ledger.Candidate, bool) {
	if QueueStateOf(img) != ledger.Admissible {
		return ledger.Candidate{}, false
	}
	return ledger.Candidate{
		Image:    KeyOf(img),
		Revision: img.Status.Revision,
		Attempt:  img.Status.LastAttempt + 1,
		Host:     HostOf(img.Spec),
	}, true
}

// maxHostLength is the longest name that there can be in the DNS.
const maxHostLength = 253

// HostOf is the host that an image is imported from, in lower case; empty for none.
func HostOf(spec v1alpha1.VMDiskImageSpec) string {
	if spec.SourceType == v1alpha1.SourceBlank {
		return ""
	}
	return parseHost(spec.URL)
}

func parseHost(from string) string {
	u, err := url.Parse(from)
	if err != nil || len(u.Hostname()) > maxHostLength {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

// DataVolumeHost is the host that a DataVolume of ours imports from.
func DataVolumeHost(dv *cdiv1.DataVolume) string {
	switch s := dv.Spec.Source; {
	case s == nil:
		return ""
	case s.HTTP != nil:
		return parseHost(s.HTTP.URL)
	case s.S3 != nil:
		return parseHost(s.S3.URL)
	case s.Registry != nil && s.Registry.URL != nil:
		return parseHost(*s.Registry.URL)
	default:
		return ""
	}
}

// storedWaitReason is the reason for which a revision waits; it outlives a phase,
// such as Terminating, that has a reason of its own.
func storedWaitReason(st *v1alpha1.VMDiskImageStatus) v1alpha1.Reason {
	for i := range st.Conditions {
		if st.Conditions[i].Type == v1alpha1.ConditionImported {
			return v1alpha1.Reason(st.Conditions[i].Reason)
		}
	}
	return ""
}

func hasFailedPermanently(e *v1alpha1.RevisionStatus) bool {
	return e.Outcome == v1alpha1.OutcomeFailed && e.NotBefore == nil && e.Attempt <= e.AttemptEnded
}

// PreflightURL returns the URL that can be asked for the image without
// credentials. One with a query is left alone: it may be signed for GET, and
// then HEAD is refused although the image is there.
func PreflightURL(spec v1alpha1.VMDiskImageSpec) (string, bool) {
	if spec.SourceType != v1alpha1.SourceHTTP || spec.SecretRef != "" || spec.CertConfigMap != "" {
		return "", false
	}
	u, err := url.Parse(spec.URL)
	if err != nil || u.RawQuery != "" || u.User != nil || u.Host == "" {
		return "", false
	}
	return spec.URL, true
}
