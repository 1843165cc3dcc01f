package image

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// trialTimeout bounds a dry run: a webhook may take 30 seconds, and images have few workers.
	trialTimeout = 3 * time.Second
	// trialAcceptedFor is how long an acceptance counts for all images of a kind.
	trialAcceptedFor = 10 * time.Minute
	// trialRetryDelay is how long any other answer counts, and a missing one. The image is
	// reconciled again after that.
	trialRetryDelay = 30 * time.Second
	// maxTrials bounds the memory of answers.
	maxTrials = 1024
)

// trialAnswers are the API server's answers to DataVolumes that were created as dry runs.
type trialAnswers struct {
	mu      sync.Mutex
	answers map[trialKey]trialAnswer
}

// trialKey is what an answer counts for: all images of a kind, or one attempt of an image.
type trialKey struct {
	namespace, sourceType, source, checksum, storageClass, secret, certificates string
	headers, headerSecrets, pullMethod                                          string

	uid      types.UID
	revision string
	attempt  int32
}

// trialAnswer has neither accepted nor a blocker where the answer says nothing of the image.
type trialAnswer struct {
	accepted bool
	blocker  *image.Blocker
	until    time.Time
}

func (t *trialAnswers) get(k trialKey, now time.Time) (trialAnswer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	answer, known := t.answers[k]
	return answer, known && now.Before(answer.until)
}

// record remembers an answer. Where there are too many, all others are forgotten: each is
// one dry run away.
func (t *trialAnswers) record(k trialKey, a trialAnswer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers == nil || len(t.answers) >= maxTrials {
		t.answers = map[trialKey]trialAnswer{}
	}
	t.answers[k] = a
}

// plainURL is a URL of which a path more or less decides nothing.
var plainURL = regexp.MustCompile(`^([a-z-]+://[a-zA-Z0-9.-]+(?::[0-9]{1,5})?/)[a-zA-Z0-9._~/@+=,-]*$`)

// trialKindOf returns the kind of an image's DataVolume. Ordinary images of one host are of
// one kind, which costs them one dry run in all.
func trialKindOf(img *v1alpha1.VMDiskImage) trialKey {
	k := trialKey{
		namespace: img.Namespace, sourceType: string(img.Spec.SourceType), source: img.Spec.URL,
		storageClass: img.Spec.StorageClass, secret: img.Spec.SecretRef, certificates: img.Spec.CertConfigMap,
		headers: strings.Join(img.Spec.ExtraHeaders, "\n"), headerSecrets: strings.Join(img.Spec.SecretExtraHeaders, "\n"), pullMethod: string(img.Spec.PullMethod),
	}
	k.checksum, _, _ = strings.Cut(img.Spec.Checksum, ":")
	if match := plainURL.FindStringSubmatch(img.Spec.URL); match != nil {
		k.source = match[1]
	}
	return k
}

// isRefusalOfOne reports whether an image was refused by what others of its kind may not
// share: its size, path or name, or a quota.
func isRefusalOfOne(reason v1alpha1.Reason) bool {
	return reason == v1alpha1.ReasonDataVolumeRefused || reason == v1alpha1.ReasonQuotaExceeded
}

// wasRefused reports whether an image waits for a refusal of its own to end, or its last
// attempt was refused.
func wasRefused(img *v1alpha1.VMDiskImage) bool {
	if rev := currentRevision(img); rev != nil && rev.Failure != nil && isRefusalOfOne(rev.Failure.Reason) {
		return true
	}
	c := meta.FindStatusCondition(img.Status.Conditions, v1alpha1.ConditionImported)
	return c != nil && isRefusalOfOne(v1alpha1.Reason(c.Reason))
}

// findAdmissionBlocker returns why the API server would refuse an image's DataVolume, by a
// dry run of one that is no image's; nil where it would not or that is unknown.
//
// Invariant: a refusal of one image holds up no other, and an acceptance of others does not
// let in one that was refused.
func (r *Reconciler) findAdmissionBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) *image.Blocker {
	key, attempt := image.KeyOf(img), img.Status.LastAttempt+1
	kind, own := trialKindOf(img), trialKey{uid: img.UID, revision: img.Spec.Revision(), attempt: attempt}
	if answer, known := r.trials.get(own, time.Now()); known {
		return answer.blocker
	}
	if answer, known := r.trials.get(kind, time.Now()); known && (!answer.accepted || !wasRefused(img)) {
		return answer.blocker
	}
	dv := image.NewDataVolume(img, v1alpha1.Slot{Image: key, Revision: img.Spec.Revision(), Attempt: attempt, DataVolume: ledger.DataVolumeName(key, attempt)})
	dv.Labels = nil // a label would need a slot
	answer := r.tryCreate(ctx, dv)
	r.trials.record(own, answer)
	if answer.blocker == nil || !isRefusalOfOne(answer.blocker.Reason) {
		r.trials.record(kind, answer)
	}
	return answer.blocker
}

// tryCreate creates a DataVolume as a dry run.
func (r *Reconciler) tryCreate(ctx context.Context, dv *cdiv1.DataVolume) trialAnswer {
	ctx, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	err := r.Create(ctx, dv, client.DryRunAll)
	if err == nil {
		return trialAnswer{accepted: true, until: time.Now().Add(trialAcceptedFor)}
	}
	answer := trialAnswer{until: time.Now().Add(trialRetryDelay)}
	if fields := apidiscovery.UnknownFields(err); len(fields) > 0 {
		answer.blocker = &image.Blocker{Reason: v1alpha1.ReasonCDITooOld, Message: image.UnknownFieldsMessage(fields), NeedsPerson: true}
	} else if cause := importcause.OfAnswer(err); cause != nil {
		answer.blocker = &image.Blocker{Reason: cause.Reason, Message: cause.Message, NeedsPerson: cause.NeedsPerson}
	}
	return answer
}
