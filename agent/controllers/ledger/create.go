package ledger

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/admissionpolicy"
	"github.com/pelotech/ot-fleet/agent/apidiscovery"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// unlistedGrace is how long the policy that refuses DataVolumes without a slot may not know a slot.
// API servers see the ledger within a second, but for one that has restarted. After it the refusal is
// an error, which the image shows: the policy's binding may name another ledger.
const unlistedGrace = 15 * time.Second

// maxCreationErrorBytes bounds an error in the message of an image.
const maxCreationErrorBytes = 512

// attemptTimeout returns the failure of a slot that is older than attemptTimeout; nil for
// none. Its DataVolume is not created: the hub counts on that, and may have granted the
// slot to another member.
func (r *Reconciler) attemptTimeout(slot v1alpha1.Slot) *v1alpha1.Failure {
	p := r.PolicyInForce.Current()
	if p == nil || r.Ages.AgeOf(ledger.DataVolumeKey(slot), slot.StartedAt.Time) < p.AttemptTimeout {
		return nil
	}
	message := fmt.Sprintf("its DataVolume could not be created within attemptTimeout, %s", p.AttemptTimeout)
	if problem := r.CreationProblem(slot); problem != nil {
		message += ": " + problem.Message
	}
	return &v1alpha1.Failure{Reason: v1alpha1.ReasonTimeout, Message: message}
}

// createDataVolume creates the DataVolume of a slot. retryAfter is the wait before another try where
// the admission policy may not know the slot yet; 0 where it was created, or failed.
func (r *Reconciler) createDataVolume(ctx context.Context, img *v1alpha1.VMDiskImage, slot v1alpha1.Slot) (retryAfter time.Duration, err error) {
	if failure := r.attemptTimeout(slot); failure != nil {
		return 0, r.failAttempt(ctx, slot, *failure)
	}
	// Headers may have been added since the image got its slot.
	if problem := image.DescribeSourceProblem(&img.Spec); problem != "" {
		return 0, r.failAttempt(ctx, slot, v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused, Message: problem})
	}
	key := ledger.DataVolumeKey(slot)
	err = r.Create(ctx, image.NewDataVolume(img, slot))
	if !admissionpolicy.IsUnlistedRefusal(err) {
		delete(r.unlistedSince, key)
	} else if age := r.unlistedAge(key); age <= unlistedGrace {
		r.lastLedger.Store(nil) // this process may not know the latest ledger
		return min(max(age, admissionRetryDelay), maxAdmissionRetryDelay), nil
	}
	r.recordCreation(slot, err)
	switch {
	case err == nil:
		r.createdAt[key] = time.Now()
		return 0, nil
	case apierrors.IsAlreadyExists(err):
		return 0, r.checkExistingDataVolume(ctx, slot)
	case admissionpolicy.IsUnlistedRefusal(err):
		return 0, fmt.Errorf("creating DataVolume %s of image %s, which has a slot: %w", key, slot.Image.Name, err)
	}
	if failure := newRefusalFailure(err); failure != nil {
		return 0, r.failAttempt(ctx, slot, *failure)
	}
	return 0, fmt.Errorf("creating DataVolume %s of image %s: %w", key, slot.Image.Name, err)
}

// unlistedAge returns for how long a DataVolume has been refused as one without a slot.
func (r *Reconciler) unlistedAge(key string) time.Duration {
	since, refused := r.unlistedSince[key]
	if !refused {
		r.unlistedSince[key] = time.Now()
		return 0
	}
	return time.Since(since)
}

// checkExistingDataVolume reads the DataVolume that exists under the name of a slot's. It
// was created by an earlier leader, or by a request whose response was lost. One that is
// not the agent's fails the attempt, which would hold its slot forever otherwise.
func (r *Reconciler) checkExistingDataVolume(ctx context.Context, slot v1alpha1.Slot) error {
	dv := &cdiv1.DataVolume{}
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.DataVolume}
	if err := r.Live.Get(ctx, key, dv); err != nil {
		return fmt.Errorf("reading DataVolume %s: %w", key, err)
	}
	if dv.Labels[v1alpha1.LabelImageUID] == string(slot.Image.UID) {
		r.createdAt[ledger.DataVolumeKey(slot)] = time.Now()
		return nil
	}
	return r.failAttempt(ctx, slot, v1alpha1.Failure{
		Reason: v1alpha1.ReasonDataVolumeRefused, Message: fmt.Sprintf("DataVolume %s exists and is not the agent's: delete it", key),
	})
}

// failAttempt records the failure of an attempt whose DataVolume is not created. It reads
// the image live, since the failure is based on what is stored.
func (r *Reconciler) failAttempt(ctx context.Context, slot v1alpha1.Slot, failure v1alpha1.Failure) error {
	img := &v1alpha1.VMDiskImage{}
	key := types.NamespacedName{Namespace: slot.Image.Namespace, Name: slot.Image.Name}
	if err := r.Live.Get(ctx, key, img); err != nil {
		return client.IgnoreNotFound(err)
	}
	if img.UID != slot.Image.UID || !image.RecordRefusal(img, slot, failure, r.PolicyInForce.Current(), metav1.Now()) {
		return nil
	}
	if err := r.Status().Update(ctx, img); err != nil {
		return fmt.Errorf("recording in VMDiskImage %s that DataVolume %s is not created (%s): %w", key, slot.DataVolume, failure.Message, err)
	}
	r.Metrics.RecordFailure(failure.Reason, v1alpha1.SourceOther, 0)
	r.Events.Eventf(img, nil, corev1.EventTypeWarning, string(failure.Reason), "Import", "attempt %d: %s", slot.Attempt, failure.Message)
	return nil
}

// newRefusalFailure returns the failure of an attempt whose DataVolume was refused because
// of the image; nil where another try may be accepted.
func newRefusalFailure(err error) *v1alpha1.Failure {
	if fields := apidiscovery.UnknownFields(err); len(fields) > 0 {
		return &v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused, Message: image.UnknownFieldsMessage(fields)}
	}
	if cause := importcause.OfAnswer(err); cause != nil && cause.NeedsPerson {
		return &v1alpha1.Failure{Reason: cause.Reason, Message: cause.Message}
	}
	return nil
}

// creationProblems are why DataVolumes of slots could not be created yet.
type creationProblems struct {
	mu    sync.Mutex
	byKey map[string]creationProblem
}

// creationProblem of a slot. waits: it was not tried, since another one of its namespace fails.
type creationProblem struct {
	importcause.Cause
	waits bool
}

// CreationProblem returns why the DataVolume of a slot could not be created yet; nil where
// it could, or was not tried for no cause of its namespace.
func (r *Reconciler) CreationProblem(slot v1alpha1.Slot) *importcause.Cause {
	if problem := r.creationProblem(slot); problem != nil {
		return &problem.Cause
	}
	return nil
}

func (r *Reconciler) creationProblem(slot v1alpha1.Slot) *creationProblem {
	r.problems.mu.Lock()
	defer r.problems.mu.Unlock()
	if problem, known := r.problems.byKey[ledger.DataVolumeKey(slot)]; known {
		return &problem
	}
	return nil
}

// recordCreation remembers why a DataVolume could not be created.
func (r *Reconciler) recordCreation(slot v1alpha1.Slot, err error) {
	if err == nil || apierrors.IsAlreadyExists(err) {
		r.setCreationProblem(slot, nil)
		return
	}
	cause := importcause.OfAnswer(err)
	if cause == nil {
		cause = &importcause.Cause{Reason: v1alpha1.ReasonImporting, Message: "its DataVolume cannot be created: " + v1alpha1.SanitizeText(err.Error(), maxCreationErrorBytes)}
	}
	r.setCreationProblem(slot, &creationProblem{Cause: *cause})
}

// recordWait has a slot whose DataVolume is not tried name the image of its namespace whose DataVolume cannot
// be created; empty for none. What its own try said stays.
func (r *Reconciler) recordWait(slot v1alpha1.Slot, failing string) {
	switch own := r.creationProblem(slot); {
	case own != nil && !own.waits:
	case failing == "":
		r.setCreationProblem(slot, nil)
	default:
		r.setCreationProblem(slot, &creationProblem{waits: true, Cause: importcause.Cause{
			Reason: v1alpha1.ReasonImporting, Message: fmt.Sprintf("its DataVolume waits for that of VMDiskImage %s, which cannot be created: see that image", failing),
		}})
	}
}

// failingImages returns, by namespace, the first image whose DataVolume could not be created.
func (r *Reconciler) failingImages(slots []v1alpha1.Slot) map[string]string {
	failing := map[string]string{}
	for _, slot := range slots {
		if problem := r.creationProblem(slot); problem != nil && !problem.waits && failing[slot.Image.Namespace] == "" {
			failing[slot.Image.Namespace] = slot.Image.Name
		}
	}
	return failing
}

// setCreationProblem requeues the image of a slot where its problem changes; nil for none.
func (r *Reconciler) setCreationProblem(slot v1alpha1.Slot, problem *creationProblem) {
	before := r.creationProblem(slot)
	switch {
	case before == nil && problem == nil, before != nil && problem != nil && *before == *problem:
		return
	case problem == nil:
		r.forgetCreationProblem(ledger.DataVolumeKey(slot))
	default:
		r.problems.mu.Lock()
		if r.problems.byKey == nil {
			r.problems.byKey = map[string]creationProblem{}
		}
		r.problems.byKey[ledger.DataVolumeKey(slot)] = *problem
		r.problems.mu.Unlock()
	}
	r.EnqueueImages(slot.Image)
}

func (r *Reconciler) forgetCreationProblem(key string) {
	r.problems.mu.Lock()
	defer r.problems.mu.Unlock()
	delete(r.problems.byKey, key)
}
