package image

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// trialAcceptedFor and trialRefusedFor are how long an answer counts for all specs of
	// its kind. A refusal is tried again before the image is reconciled again.
	trialAcceptedFor = 10 * time.Minute
	trialRefusedFor  = 30 * time.Second
	// maxTrials bounds the memory of answers.
	maxTrials = 1024
)

// trialAnswers are the API server's answers to DataVolumes that were created as dry runs.
type trialAnswers struct {
	mu      sync.Mutex
	answers map[trialKind]trialAnswer
}

// trialKind is what webhooks and policies can judge a DataVolume by.
type trialKind struct {
	namespace, sourceType, source, checksum, storageClass, secret, certificates string
}

type trialAnswer struct {
	blocker *image.Blocker // nil for accepted
	until   time.Time
}

func (t *trialAnswers) get(k trialKind, now time.Time) (trialAnswer, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	answer, known := t.answers[k]
	return answer, known && now.Before(answer.until)
}

// record remembers an answer. Where there are too many, all others are forgotten: each is
// one dry run away.
func (t *trialAnswers) record(k trialKind, a trialAnswer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers == nil || len(t.answers) >= maxTrials {
		t.answers = map[trialKind]trialAnswer{}
	}
	t.answers[k] = a
}

// plainURL is a URL of which a path more or less decides nothing.
var plainURL = regexp.MustCompile(`^([a-z-]+://[a-zA-Z0-9.-]+(?::[0-9]{1,5})?/)[a-zA-Z0-9._~/@+=,-]*$`)

// trialKindOf returns the kind of an image's DataVolume. Ordinary images of one host are of
// one kind, which costs them one dry run in all. An image whose DataVolume was refused is
// of a kind of its own.
func trialKindOf(img *v1alpha1.VMDiskImage) trialKind {
	k := trialKind{
		namespace: img.Namespace, sourceType: string(img.Spec.SourceType), source: img.Spec.URL, checksum: img.Spec.Checksum,
		storageClass: img.Spec.StorageClass, secret: img.Spec.SecretRef, certificates: img.Spec.CertConfigMap,
	}
	if rev := currentRevision(img); rev != nil && rev.Failure != nil {
		switch rev.Failure.Reason {
		case v1alpha1.ReasonDataVolumeRefused, v1alpha1.ReasonQuotaExceeded:
			return k
		}
	}
	k.checksum, _, _ = strings.Cut(img.Spec.Checksum, ":")
	if match := plainURL.FindStringSubmatch(img.Spec.URL); match != nil {
		k.source = match[1]
	}
	return k
}

// findAdmissionBlocker returns why the API server would refuse an image's DataVolume, by a
// dry run of one that is no image's; nil where it would not or that is unknown.
func (r *Reconciler) findAdmissionBlocker(ctx context.Context, img *v1alpha1.VMDiskImage) *image.Blocker {
	kind := trialKindOf(img)
	if answer, known := r.trials.get(kind, time.Now()); known {
		return answer.blocker
	}
	key, attempt := image.KeyOf(img), img.Status.LastAttempt+1
	dv := image.NewDataVolume(img, v1alpha1.Slot{Image: key, Revision: img.Spec.Revision(), Attempt: attempt, DataVolume: ledger.DataVolumeName(key, attempt)})
	dv.Labels = nil // a label would need a slot
	err := r.Create(ctx, dv, client.DryRunAll)
	if err == nil {
		r.trials.record(kind, trialAnswer{until: time.Now().Add(trialAcceptedFor)})
		return nil
	}
	var b *image.Blocker
	if fields := apidiscovery.UnknownFields(err); len(fields) > 0 {
		b = &image.Blocker{Reason: v1alpha1.ReasonCDITooOld, Message: image.UnknownFieldsMessage(fields), NeedsPerson: true}
	} else if cause := importcause.OfAnswer(err); cause != nil {
		b = &image.Blocker{Reason: cause.Reason, Message: cause.Message, NeedsPerson: cause.NeedsPerson}
	} else {
		return nil
	}
	r.trials.record(kind, trialAnswer{blocker: b, until: time.Now().Add(trialRefusedFor)})
	return b
}
