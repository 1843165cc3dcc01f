package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// failCreationsOf has each creation of the DataVolume of *img fail, unless that is empty.
func (m *fleetMember) failCreationsOf(img *string) {
	m.interceptCreations(func(dv *cdiv1.DataVolume) error {
		if dv.Annotations[v1alpha1.AnnotationImageName] == *img {
			return errors.New("failed calling a webhook")
		}
		return nil
	})
}

// slotOf returns the slot of an image.
func (m *fleetMember) slotOf(img string) v1alpha1.Slot {
	for _, slot := range m.storedStatus().Slots {
		if slot.Image.Name == img {
			return slot
		}
	}
	require.Fail(m.t, "no slot", img)
	return v1alpha1.Slot{}
}

// slowBackoff has a creation that fails keep the others of its namespace waiting for longer than a test takes.
func slowBackoff() (b trigger.NamespaceBackoff) {
	past := time.Now().Add(-10 * time.Minute)
	for range 12 {
		b.Record("ns", "former", errors.New("failed"), past, past)
	}
	return b
}

// newWaitingMember returns a member where img-1 waits for the DataVolume of *failing, which is img-0.
func newWaitingMember(t *testing.T) (m *fleetMember, failing *string) {
	m = newFleetMember(t, 2, queuedImages(2)...)
	m.creations = slowBackoff()
	failing = new("img-0")
	m.failCreationsOf(failing)
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "webhook")
	require.Equal(t, []string{"img-0", "img-1"}, m.namesWithSlots())
	return m, failing
}

// A slot whose DataVolume is not tried names the image that it waits for.
func TestWaitForFailingSiblingIsNamed(t *testing.T) {
	m, failing := newWaitingMember(t)
	requeued := map[string]int{}
	m.EnqueueImages = func(images ...v1alpha1.ImageKey) {
		for _, img := range images {
			requeued[img.Name]++
		}
	}
	const wait = "its DataVolume waits for that of VMDiskImage img-0, which cannot be created: see that image"
	apitest.RequireFinding(t, m.CreationProblem(m.slotOf("img-0")), v1alpha1.ReasonImporting, "failed calling a webhook")
	apitest.RequireFinding(t, m.CreationProblem(m.slotOf("img-1")), v1alpha1.ReasonImporting, wait)
	m.creations = slowBackoff()
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.Error(t, err)
	apitest.RequireFinding(t, m.CreationProblem(m.slotOf("img-1")), v1alpha1.ReasonImporting, wait)
	assert.Empty(t, requeued, "no problem has changed")

	*failing, m.creations = "", slowBackoff()
	m.mustReconcile()
	assert.Nil(t, m.CreationProblem(m.slotOf("img-0")))
	assert.Nil(t, m.CreationProblem(m.slotOf("img-1")))
	assert.Equal(t, map[string]int{"img-0": 1, "img-1": 1}, requeued)
}

// Nothing is waited for any longer once the failing image is gone, also where the namespace is not asked yet.
func TestWaitForGoneSiblingEnds(t *testing.T) {
	m, _ := newWaitingMember(t)
	img := &v1alpha1.VMDiskImage{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "img-0"}, img))
	img.Finalizers = nil
	require.NoError(t, m.Client.Update(t.Context(), img))
	require.NoError(t, m.Client.Delete(t.Context(), img))
	m.creations = trigger.NamespaceBackoff{}
	m.creations.Record("ns", "former", errors.New("failed"), time.Now(), time.Now().Add(time.Minute))
	m.mustReconcile()
	require.Equal(t, []string{"img-1"}, m.namesWithSlots())
	assert.Nil(t, m.CreationProblem(m.slotOf("img-1")))
}

// Only what is not created yet is waited for.
func TestWaitNamesWhatIsNotCreated(t *testing.T) {
	for name, tt := range map[string]struct {
		isStored bool // the DataVolume of img-0, and the answer is lost
		recovers bool // it is created next
		url      string
	}{
		"the answer was lost":   {true, false, "https://images.example.com/a"},
		"it is created now":     {false, true, "https://images.example.com/a"},
		"the image has changed": {false, false, "https://images.example.com/b"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFleetMember(t, 3, queuedImages(3)...)
			recovered := false
			m.Client = interceptor.NewClient(m.Client.(client.WithWatch), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
					_, isDataVolume := obj.(*cdiv1.DataVolume)
					isFirst := obj.GetAnnotations()[v1alpha1.AnnotationImageName] == "img-0"
					if !isDataVolume || isFirst && recovered {
						return c.Create(ctx, obj, opts...)
					}
					if isFirst && tt.isStored {
						require.NoError(t, c.Create(ctx, obj, opts...))
					}
					m.creations = slowBackoff() // also after a success
					return errors.New("connection reset")
				},
			})
			const wait = "its DataVolume waits for that of VMDiskImage %s, which cannot be created: see that image"
			_, err := m.Reconcile(t.Context(), ctrl.Request{})
			require.ErrorContains(t, err, "connection reset")
			apitest.RequireFinding(t, m.CreationProblem(m.slotOf("img-2")), v1alpha1.ReasonImporting, fmt.Sprintf(wait, "img-0"))

			img := &v1alpha1.VMDiskImage{}
			require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "img-0"}, img))
			img.Spec.URL = tt.url
			require.NoError(t, m.Client.Update(t.Context(), img))
			recovered, m.creations = tt.recovers, trigger.NamespaceBackoff{}
			_, err = m.Reconcile(t.Context(), ctrl.Request{})
			require.ErrorContains(t, err, "connection reset")
			assert.Nil(t, m.CreationProblem(m.slotOf("img-0")))
			apitest.RequireFinding(t, m.CreationProblem(m.slotOf("img-1")), v1alpha1.ReasonImporting, "connection reset")
			apitest.RequireFinding(t, m.CreationProblem(m.slotOf("img-2")), v1alpha1.ReasonImporting, fmt.Sprintf(wait, "img-1"))
		})
	}
}

// While the admission policy does not know a slot yet, neither it nor a later one names an image that imports.
func TestWaitEndsWhileSlotIsUnlisted(t *testing.T) {
	m := newFleetMember(t, 3, queuedImages(3)...)
	m.creations = slowBackoff()
	unlisted := apierrors.NewForbidden(cdiv1.Resource("datavolumes"), "", errors.New("ValidatingAdmissionPolicy 'ot-agent-datavolumes' with binding 'ot-agent-datavolumes' denied request: no slot"))
	answers := map[string]error{"img-0": errors.New("failed calling a webhook")}
	m.interceptCreations(func(dv *cdiv1.DataVolume) error { return answers[dv.Annotations[v1alpha1.AnnotationImageName]] })
	_, err := m.Reconcile(t.Context(), ctrl.Request{})
	require.ErrorContains(t, err, "webhook")
	for _, img := range []string{"img-1", "img-2"} {
		apitest.RequireFinding(t, m.CreationProblem(m.slotOf(img)), v1alpha1.ReasonImporting, "waits for that of VMDiskImage img-0")
	}

	answers, m.creations = map[string]error{"img-1": unlisted}, slowBackoff()
	require.Positive(t, m.mustReconcile().RequeueAfter)
	for _, img := range []string{"img-0", "img-1", "img-2"} {
		assert.Nil(t, m.CreationProblem(m.slotOf(img)), img)
	}
}

// An attempt that ends by attemptTimeout before it was tried says what it waited for.
func TestTimeoutOfUntriedSlotNamesItsCause(t *testing.T) {
	m, _ := newWaitingMember(t)
	m.elapsed += 2 * time.Hour
	m.creations = slowBackoff()
	m.mustReconcile()
	for name, want := range map[string]string{"img-0": "failed calling a webhook", "img-1": "waits for that of VMDiskImage img-0"} {
		img := &v1alpha1.VMDiskImage{}
		require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, img))
		require.NotNil(t, img.Status.Revisions[0].Failure, name)
		assert.Equal(t, v1alpha1.ReasonTimeout, img.Status.Revisions[0].Failure.Reason)
		assert.Contains(t, img.Status.Revisions[0].Failure.Message, "could not be created within attemptTimeout, 1h0m0s: its DataVolume")
		assert.Contains(t, img.Status.Revisions[0].Failure.Message, want)
	}
}

// Where an attempt has little time, a DataVolume that fails keeps the later ones of its namespace waiting for a
// part of it.
func TestKeepOrderFor(t *testing.T) {
	assert.Equal(t, time.Minute, keepOrderFor(nil))
	for timeout, want := range map[time.Duration]time.Duration{time.Second: time.Second / 4, 2 * time.Minute: 30 * time.Second, 6 * time.Hour: time.Minute} {
		p := policy.Default()
		p.AttemptTimeout = timeout
		assert.Equal(t, want, keepOrderFor(&p))
	}
	m := newFleetMember(t, 2, queuedImages(2)...)
	plan := &v1alpha1.ClusterPlan{}
	require.NoError(t, m.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: v1alpha1.MailboxName}, plan))
	plan.Spec.Policy["stallTimeout"], plan.Spec.Policy["attemptTimeout"] = "1m", "2m"
	require.NoError(t, m.Client.Update(t.Context(), plan))
	m.mustReconcile()
	assert.Equal(t, 30*time.Second, m.creations.KeepOrderFor)
}
