package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
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
	// trialRetryDelay is how long any other answer counts, and a missing one. It doubles with
	// each that follows, up to maxTrialRetryDelay.
	trialRetryDelay    = 30 * time.Second
	maxTrialRetryDelay = 4 * time.Minute
	// maxTrials bounds the memory of answers.
	maxTrials = 1024
	// maxTrialsPerMinute bounds the dry runs of all images, and maxTrialsOfNamespace those of
	// one namespace.
	maxTrialsPerMinute   = 120
	maxTrialsOfNamespace = 30
	// maxUnavailableWait bounds how long the dry runs of all namespaces wait in a minute for webhooks
	// that are unavailable, beside those that are in flight.
	maxUnavailableWait = 15 * time.Second
)

// trialAnswers are the API server's answers to DataVolumes that were created as dry runs.
type trialAnswers struct {
	mu      sync.Mutex
	answers map[trialKey]trialAnswer
	// asked counts the dry runs since minute, by namespace and, under "", all.
	asked  map[string]int
	minute time.Time
	// unavailable is how long dry runs have waited since minute for webhooks that were
	// unavailable, and lastUnavailable the last answer of one.
	unavailable     time.Duration
	lastUnavailable trialAnswer
}

// trialKey is what an answer counts for: all images of a kind, all attempts with one number of
// one spec, or, with a namespace alone, all images of the namespace.
type trialKey struct {
	namespace, sourceType, source, checksum, storageClass, secret, certificates string
	headers, headerSecrets, pullMethod                                          string

	spec    string
	attempt int32
}

// trialAnswer has neither accepted nor a blocker where the answer says nothing of the image.
type trialAnswer struct {
	accepted bool
	blocker  *image.Blocker
	// silent: no answer came.
	silent bool
	// took is how long the dry run took.
	took time.Duration
	// dataVolume is the name that was asked for, which the blocker quotes.
	dataVolume string
	until      time.Time
	delay      time.Duration
}

// blockerFor returns the blocker for an image whose DataVolume has another name.
func (a trialAnswer) blockerFor(dataVolume string) *image.Blocker {
	if a.blocker == nil || a.dataVolume == "" {
		return a.blocker
	}
	b := *a.blocker
	b.Message = strings.ReplaceAll(b.Message, a.dataVolume, dataVolume)
	return &b
}

// saysNothing: the answer, which came, says nothing of the image.
func (a trialAnswer) saysNothing() bool { return !a.accepted && a.blocker == nil }

func (t *trialAnswers) get(k trialKey, now time.Time) (trialAnswer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	answer, known := t.answers[k]
	return answer, known && now.Before(answer.until)
}

// record remembers an answer, an acceptance for longer than another. Where there are too many,
// all others are forgotten: each is one dry run away. One that came ends the silence of its
// namespace.
func (t *trialAnswers) record(k trialKey, a trialAnswer, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.until = now.Add(trialAcceptedFor)
	if !a.accepted {
		last := t.answers[k]
		if now.Sub(last.until) > maxTrialRetryDelay {
			last.delay = 0 // nothing is known of the time since
		}
		a.delay = min(max(2*last.delay, trialRetryDelay), maxTrialRetryDelay)
		a.until = now.Add(a.delay)
	}
	if t.answers == nil || len(t.answers) >= maxTrials {
		t.answers = map[trialKey]trialAnswer{}
	}
	if !a.silent {
		delete(t.answers, trialKey{namespace: k.namespace})
	}
	t.answers[k] = a
}

// recordWait counts how long a dry run waited for a webhook that is unavailable.
func (t *trialAnswers) recordWait(a trialAnswer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.blocker != nil && a.blocker.Reason == v1alpha1.ReasonCDIUnavailable {
		t.unavailable += a.took
		t.lastUnavailable = a
	}
}

// waitedTooLong reports whether dry runs have waited for unavailable webhooks for as long as
// they may in this minute, and returns the last answer.
//
// Invariant: unavailable webhooks leave most of the workers' time to other images, however many
// namespaces have images that wait.
func (t *trialAnswers) waitedTooLong(now time.Time) (trialAnswer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beginMinute(now)
	return t.lastUnavailable, t.unavailable >= maxUnavailableWait
}

func (t *trialAnswers) beginMinute(now time.Time) {
	if t.asked == nil || now.Sub(t.minute) >= time.Minute {
		t.asked, t.minute, t.unavailable = map[string]int{}, now, 0
	}
}

// spend reports whether another dry run is within the bounds of this minute, and counts it.
func (t *trialAnswers) spend(namespace string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beginMinute(now)
	if t.asked[""] >= maxTrialsPerMinute || t.asked[namespace] >= maxTrialsOfNamespace {
		return false
	}
	t.asked[""]++
	t.asked[namespace]++
	return true
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

// storedRefusal returns the refusal that an image's status has; nil for none.
func storedRefusal(img *v1alpha1.VMDiskImage) *image.Blocker {
	if c := meta.FindStatusCondition(img.Status.Conditions, v1alpha1.ConditionImported); c != nil && isRefusalOfOne(v1alpha1.Reason(c.Reason)) {
		return &image.Blocker{Reason: v1alpha1.Reason(c.Reason), Message: c.Message, NeedsPerson: true}
	}
	if rev := currentRevision(img); rev != nil && rev.Failure != nil && isRefusalOfOne(rev.Failure.Reason) {
		return &image.Blocker{Reason: rev.Failure.Reason, Message: rev.Failure.Message, NeedsPerson: true}
	}
	return nil
}

// findAdmissionBlocker returns why the API server would refuse an image's DataVolume, by a
// dry run of one that is no image's; nil where it would not or that is unknown.
//
// Invariant: a refusal of one image holds up no other, and an acceptance of others does not
// let in one that was refused.
func (r *Reconciler) findAdmissionBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) *image.Blocker {
	key, attempt := image.KeyOf(img), image.NextAttempt(img.Status.LastAttempt)
	dv := image.NewDataVolume(img, v1alpha1.Slot{Image: key, Revision: img.Spec.Revision(), Attempt: attempt, DataVolume: ledger.DataVolumeName(key, attempt)})
	dv.Labels = nil // a label would need a slot
	refusal := storedRefusal(img)
	kind, own, silence := trialKindOf(img), trialKey{namespace: img.Namespace, spec: trialSpecOf(dv), attempt: attempt}, trialKey{namespace: img.Namespace}
	now, knowsNothing := time.Now(), false
	for _, k := range []trialKey{own, kind} {
		answer, known := r.trials.get(k, now)
		if known && !answer.saysNothing() && (k != kind || !answer.accepted || refusal == nil) {
			return answer.blockerFor(dv.Name)
		}
		knowsNothing = knowsNothing || (known && answer.saysNothing())
	}
	answer, holdsUp := r.trials.get(silence, now)
	switch {
	case !holdsUp && knowsNothing:
		return nil
	case !holdsUp:
		answer, holdsUp = r.trials.waitedTooLong(now)
	}
	if holdsUp {
		return cmp.Or(refusal, answer.blockerFor(dv.Name))
	}
	if !r.trials.spend(img.Namespace, now) {
		return refusal
	}
	answer = r.tryCreate(ctx, dv)
	now = time.Now()
	r.trials.recordWait(answer)
	if answer.silent {
		// Each further one would hold a worker for as long.
		r.trials.record(silence, answer, now)
		return cmp.Or(refusal, answer.blocker)
	}
	r.trials.record(own, answer, now)
	if answer.blocker == nil || !isRefusalOfOne(answer.blocker.Reason) {
		r.trials.record(kind, answer, now)
	}
	return answer.blocker
}

// trialSpecOf returns a digest of a DataVolume's spec.
func trialSpecOf(dv *cdiv1.DataVolume) string {
	text, err := json.Marshal(dv.Spec)
	if err != nil {
		panic(err) // plain types
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// tryCreate creates a DataVolume as a dry run.
func (r *Reconciler) tryCreate(ctx context.Context, dv *cdiv1.DataVolume) trialAnswer {
	bounded, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	start := time.Now()
	err := r.Create(bounded, dv, client.DryRunAll)
	if err == nil {
		return trialAnswer{accepted: true}
	}
	answer := trialAnswer{dataVolume: dv.Name, took: time.Since(start)}
	cause := importcause.OfAnswer(err)
	if bounded.Err() != nil && ctx.Err() == nil {
		answer.silent, cause = true, importcause.OfSilence(trialTimeout)
	}
	if fields := apidiscovery.UnknownFields(err); len(fields) > 0 {
		answer.blocker = &image.Blocker{Reason: v1alpha1.ReasonCDITooOld, Message: image.UnknownFieldsMessage(fields), NeedsPerson: true}
	} else if cause != nil {
		answer.blocker = &image.Blocker{Reason: cause.Reason, Message: cause.Message, NeedsPerson: cause.NeedsPerson}
	}
	return answer
}
