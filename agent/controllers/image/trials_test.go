package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// webhook answers dry runs of DataVolumes.
type webhook struct {
	client.Client
	t       *testing.T
	answers map[string]error // by URL
	asked   int
	// answer, where it is set, is asked in place of answers.
	answer func(context.Context, *cdiv1.DataVolume) error
}

func (w *webhook) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	assert.Equal(w.t, []client.CreateOption{client.DryRunAll}, opts)
	assert.Empty(w.t, obj.GetLabels(), "a labelled one needs a slot")
	w.asked++
	if w.answer != nil {
		return w.answer(ctx, obj.(*cdiv1.DataVolume))
	}
	return w.answers[obj.(*cdiv1.DataVolume).Spec.Source.HTTP.URL]
}

// Whatever an image's DataVolume has of its spec may be why a webhook or policy refuses it. Of a
// plain URL the host counts; a size is in the key of one image.
func TestSpecsOfOneKindHaveOneDataVolume(t *testing.T) {
	ofOne := []string{"name", "priority", "deleteUnreferencedAfter", "snapshotClass", "diskSize", "url", "architecture", "dataSource", "publish", "defaults"}
	base := apitest.Image("ns/a").Obj()
	for field, spec := range apitest.SpecVariants(base.Spec) {
		other := base.DeepCopy()
		other.Spec = spec
		assert.Equal(t, slices.Contains(ofOne, field), trialKindOf(base) == trialKindOf(other), field)
	}
}

// Images of one kind cost one dry run, and those that are refused wait in the webhook's words.
func TestTrials(t *testing.T) {
	const base = "https://images.example.com/"
	refused := apierrors.NewBadRequest(`admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: Invalid source URL`)
	w := &webhook{t: t, answers: map[string]error{
		base + "%zz":   refused,
		base + "down?": apierrors.NewInternalError(errors.New(`failed calling webhook "datavolume-mutate.cdi.kubevirt.io": refused`)),
		base + "eof?":  errors.New("EOF"),
		base + "old?":  apierrors.NewBadRequest(`strict decoding error: unknown field "spec.source.http.checksum"`),
	}}
	r := &Reconciler{Client: w}
	find := func(url string, revisions ...v1alpha1.RevisionStatus) (reason v1alpha1.Reason, needsPerson bool) {
		img := apitest.Image("ns/a").WithURL(url).WithRevisions(revisions...).Obj()
		if b := r.findAdmissionBlocker(t.Context(), img); b != nil {
			assert.NotEmpty(t, b.Message)
			return b.Reason, b.NeedsPerson
		}
		return "", false
	}
	for i := range 300 {
		reason, _ := find(fmt.Sprintf("%s%d.qcow2", base, i))
		require.Empty(t, reason)
	}
	assert.Equal(t, 1, w.asked, "ordinary images of one host are of one kind")

	for range 2 {
		reason, needsPerson := find(base + "%zz")
		assert.Equal(t, v1alpha1.ReasonDataVolumeRefused, reason)
		assert.True(t, needsPerson)
	}
	assert.Equal(t, 2, w.asked, "a refusal is remembered")
	reason, needsPerson := find(base + "down?")
	assert.Equal(t, v1alpha1.ReasonCDIUnavailable, reason)
	assert.False(t, needsPerson, "it ends by itself")
	reason, _ = find(base + "eof?")
	assert.Empty(t, reason, "no answer is none")
	reason, needsPerson = find(base + "old?")
	assert.Equal(t, v1alpha1.ReasonCDITooOld, reason)
	assert.True(t, needsPerson)

	// A policy that judges by the path has refused the DataVolume of an attempt.
	img := apitest.Image("ns/a").WithURL(base + "secret.qcow2").Obj()
	w.answers[img.Spec.URL] = refused
	reason, _ = find(img.Spec.URL)
	assert.Empty(t, reason)
	reason, _ = find(img.Spec.URL, v1alpha1.RevisionStatus{Revision: img.Spec.Revision(), Failure: &v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused}})
	assert.Equal(t, v1alpha1.ReasonDataVolumeRefused, reason, "from then on it is asked by itself")

	// A quota of DataVolumes had room for some images of the kind.
	img = apitest.Image("ns/a").WithURL(base + "last.qcow2").Obj()
	w.answers[img.Spec.URL] = apierrors.NewForbidden(cdiv1.Resource("datavolumes"), "dv", errors.New("exceeded quota: q, requested: count/datavolumes.cdi.kubevirt.io=1"))
	reason, _ = find(img.Spec.URL)
	assert.Empty(t, reason)
	reason, needsPerson = find(img.Spec.URL, v1alpha1.RevisionStatus{Revision: img.Spec.Revision(), Failure: &v1alpha1.Failure{Reason: v1alpha1.ReasonQuotaExceeded}})
	assert.Equal(t, v1alpha1.ReasonQuotaExceeded, reason, "no retry is used for it")
	assert.True(t, needsPerson)
}

// A policy that judges by size refuses one image of a kind. The other does not wait for it,
// and the refused one is not let in with the other.
func TestRefusalOfOneImage(t *testing.T) {
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonDataVolumeRefused, v1alpha1.ReasonQuotaExceeded} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tooLarge := func(_ context.Context, dv *cdiv1.DataVolume) error {
					text := "exceeded quota: q"
					if reason == v1alpha1.ReasonDataVolumeRefused {
						text = "ValidatingAdmissionPolicy 'sizes' denied request"
					}
					if size := dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]; size.Value() > 2<<30 {
						return apierrors.NewForbidden(schema.GroupResource{Group: "cdi.kubevirt.io", Resource: "datavolumes"}, dv.Name, errors.New(text))
					}
					return nil
				}
				w := &webhook{t: t, answer: tooLarge}
				r := &Reconciler{Client: w}
				large, small := apitest.Image("ns/large").WithDiskSize("8Gi").Obj(), apitest.Image("ns/small").WithDiskSize("1Gi").Obj()
				for range 3 {
					b := r.findAdmissionBlocker(t.Context(), large)
					require.NotNil(t, b)
					assert.Equal(t, reason, b.Reason)
					assert.Contains(t, b.Message, ledger.DataVolumeName(image.KeyOf(large), 1), "its own DataVolume")
					meta.SetStatusCondition(&large.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionImported, Reason: string(b.Reason)})
					assert.Nil(t, r.findAdmissionBlocker(t.Context(), small), "others do not wait")
					apitest.AdvanceClock(maxTrialRetryDelay / 2)
				}
				assert.Equal(t, 4, w.asked, "the refused one is asked for again by itself")
			})
		})
	}
}

// A webhook that does not answer is asked once in a while for all images of a namespace, which
// wait without a slot; one that answers nothing about the image, once for all of a kind.
func TestUnknownTrialAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer     func(context.Context, *cdiv1.DataVolume) error
		wantReason v1alpha1.Reason // empty: unknown
	}{
		"no answer": {func(ctx context.Context, _ *cdiv1.DataVolume) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(30 * time.Second): // the client's own timeout
				return context.DeadlineExceeded
			}
		}, v1alpha1.ReasonCDIUnavailable},
		"no dry runs": {func(context.Context, *cdiv1.DataVolume) error {
			return apierrors.NewBadRequest(`admission webhook "x" does not support dry run`)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &webhook{t: t, answer: tt.answer}
				r := &Reconciler{Client: w}
				visit := func() {
					for i := range 20 {
						img := apitest.Image(fmt.Sprintf("ns/%d", i)).WithDiskSize(fmt.Sprintf("%dGi", i+1)).Obj()
						if tt.wantReason != "" {
							img.Spec.URL = fmt.Sprintf("https://%d.example.com/a", i) // of a kind of its own
						}
						b := r.findAdmissionBlocker(t.Context(), img)
						apitest.RequireFinding(t, b, tt.wantReason, "cdi-apiserver")
					}
				}
				start := time.Now()
				visit()
				assert.LessOrEqual(t, time.Since(start), trialTimeout, "a worker is held once")
				assert.Equal(t, 1, w.asked)
				apitest.AdvanceClock(trialRetryDelay)
				visit()
				assert.Equal(t, 2, w.asked)
			})
		})
	}
}

// newSilentWebhook never answers images of silent URLs, and accepts all others.
func newSilentWebhook(t *testing.T, silent func(*cdiv1.DataVolume) bool) *webhook {
	return &webhook{t: t, answer: func(ctx context.Context, dv *cdiv1.DataVolume) error {
		if silent(dv) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}}
}

// A dry run without an answer holds up neither images that are known to be accepted nor, once
// another one is answered, any.
func TestSilenceEnds(t *testing.T) {
	const slow = "https://slow.example.com/a"
	synctest.Test(t, func(t *testing.T) {
		silent := true
		w := newSilentWebhook(t, func(dv *cdiv1.DataVolume) bool { return silent && dv.Spec.Source.HTTP.URL == slow })
		r := &Reconciler{Client: w}
		find := func(url string) *image.Blocker {
			return r.findAdmissionBlocker(t.Context(), apitest.Image("ns/a").WithURL(url).Obj())
		}
		require.Nil(t, find("https://accepted.example.com/a"))
		require.NotNil(t, find(slow))
		assert.Nil(t, find("https://accepted.example.com/b"), "its kind is accepted")
		assert.NotNil(t, find("https://new.example.com/a"), "a worker is held once")
		assert.Equal(t, 2, w.asked)

		refused := apitest.Image("ns/b").WithURL("https://accepted.example.com/c").Obj()
		meta.SetStatusCondition(&refused.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionImported, Reason: string(v1alpha1.ReasonQuotaExceeded), Message: "exceeded quota"})
		b := r.findAdmissionBlocker(t.Context(), refused)
		require.NotNil(t, b)
		assert.Equal(t, v1alpha1.ReasonQuotaExceeded, b.Reason, "its refusal is not forgotten for the silence")

		// Each further silence after an answer, or long after, lasts as long as the first.
		for name, pass := range map[string]func(){
			"after an answer": func() { require.Nil(t, find("https://other.example.com/"+fmt.Sprint(w.asked))) },
			"long after":      func() { apitest.AdvanceClock(time.Hour) },
		} {
			apitest.AdvanceClock(2 * maxTrialRetryDelay)
			pass()
			require.NotNil(t, find(slow), name)
			apitest.AdvanceClock(trialRetryDelay)
			before := w.asked
			require.NotNil(t, find(slow), name)
			assert.Equal(t, before+1, w.asked, name)
		}
		apitest.AdvanceClock(2 * trialRetryDelay)
		silent = false
		require.Nil(t, find(slow))
		assert.Nil(t, find("https://newest.example.com/a"))
	})
}

// However many namespaces wait for webhooks that are unavailable, they take a bounded part of the
// workers' time, and no image is let in meanwhile. Few of them hold up no other namespace.
func TestWaitingForWebhooksIsBounded(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"no answer": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"slow failure": func(context.Context) error {
			apitest.AdvanceClock(2 * time.Second)
			return apierrors.NewInternalError(errors.New(`failed calling webhook "x": context deadline exceeded`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				down := true
				w := &webhook{t: t, answer: func(ctx context.Context, _ *cdiv1.DataVolume) error {
					if down {
						return fail(ctx)
					}
					return nil
				}}
				r := &Reconciler{Client: w}
				find := func(ns int) *image.Blocker {
					return r.findAdmissionBlocker(t.Context(), apitest.Image(fmt.Sprintf("ns-%d/a", ns)).Obj())
				}
				require.NotNil(t, find(0))
				down = false
				require.Nil(t, find(1), "others are asked for")
				down = true
				for range 3 {
					start, waited := time.Now(), time.Duration(0)
					for time.Since(start) < time.Minute {
						for ns := 2; ns < 102; ns++ {
							begin := time.Now()
							b := find(ns)
							require.NotNil(t, b)
							assert.Equal(t, v1alpha1.ReasonCDIUnavailable, b.Reason)
							waited += time.Since(begin)
						}
						apitest.AdvanceClock(time.Second)
					}
					assert.LessOrEqual(t, waited, 2*(maxUnavailableWait+trialTimeout), "this minute may begin within one of the agent's")
				}
				down = false
				apitest.AdvanceClock(maxTrialRetryDelay)
				for ns := 2; ns < 102; ns++ {
					assert.Nil(t, find(ns))
				}
			})
		})
	}
}

// Images that are refused cost few dry runs: one for all of a spec, and fewer in the long run.
func TestRefusedImagesAreAskedForLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &webhook{t: t, answer: func(_ context.Context, dv *cdiv1.DataVolume) error {
			return apierrors.NewBadRequest(fmt.Sprintf(`admission webhook "x" denied the request: %s is wrong`, dv.Name))
		}}
		r := &Reconciler{Client: w}
		const minutes = 60
		for range minutes {
			for i := range 50 {
				img := apitest.Image(fmt.Sprintf("ns/%d", i)).WithURL("https://example.com/%zz").Obj()
				b := r.findAdmissionBlocker(t.Context(), img)
				require.NotNil(t, b)
				assert.Contains(t, b.Message, ledger.DataVolumeName(image.KeyOf(img), 1)+" is wrong", "its own DataVolume")
			}
			apitest.AdvanceClock(time.Minute)
		}
		assert.Less(t, w.asked, minutes/2)
		assert.GreaterOrEqual(t, w.asked, int(minutes*time.Minute/maxTrialRetryDelay), "it is noticed when they are accepted")
	})
}

// However many specs are refused, dry runs are bounded, and one namespace leaves some to others.
// A refused image is not let in for want of an answer.
func TestTrialsPerMinuteAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &webhook{t: t, answer: func(_ context.Context, dv *cdiv1.DataVolume) error {
			return apierrors.NewBadRequest(`admission webhook "x" denied the request: ` + dv.Name)
		}}
		r := &Reconciler{Client: w}
		newImage := func(ns string, i int) *v1alpha1.VMDiskImage {
			return apitest.Image(fmt.Sprintf("%s/%d", ns, i)).WithURL(fmt.Sprintf("https://example.com/%%z%d", i)).Obj()
		}
		for minute := range 3 {
			before := w.asked
			for i := range 200 {
				r.findAdmissionBlocker(t.Context(), newImage("hostile", 1000*minute+i))
			}
			assert.Equal(t, before+maxTrialsOfNamespace, w.asked)
			assert.NotNil(t, r.findAdmissionBlocker(t.Context(), newImage("other", minute)), "others are asked for")
			for ns := range 20 {
				for i := range 100 {
					r.findAdmissionBlocker(t.Context(), newImage(fmt.Sprint(ns), 1000*minute+i))
				}
			}
			assert.Equal(t, before+maxTrialsPerMinute, w.asked)
			img := newImage("ns", 1000*minute)
			meta.SetStatusCondition(&img.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionImported, Reason: string(v1alpha1.ReasonDataVolumeRefused), Message: "was refused"})
			b := r.findAdmissionBlocker(t.Context(), img)
			require.NotNil(t, b, "it waits as before")
			assert.Equal(t, "was refused", b.Message)
			apitest.AdvanceClock(time.Minute)
		}
	})
}

func TestTrialAnswersAreBounded(t *testing.T) {
	var answers trialAnswers
	now := time.Now()
	for i := range 3 * maxTrials {
		answers.record(trialKey{source: fmt.Sprint(i)}, trialAnswer{}, now)
		assert.LessOrEqual(t, len(answers.answers), maxTrials)
	}
	_, known := answers.get(trialKey{source: fmt.Sprint(3*maxTrials - 1)}, now)
	assert.True(t, known)
	_, known = answers.get(trialKey{source: fmt.Sprint(3*maxTrials - 1)}, now.Add(trialRetryDelay))
	assert.False(t, known, "it is too old")
}

func TestSnapshotClassOfAnotherDriver(t *testing.T) {
	class := func(name, provisioner string) *storagev1.StorageClass {
		c := newStorageClass(name, 1)
		c.Provisioner = provisioner
		return c
	}
	standard := class("standard", "a.csi")
	standard.Annotations[capacity.AnnotationDefaultClass] = "true"
	r := &Reconciler{Client: newFakeClient(t, standard, class("other", "b.csi"), class("local", capacity.LocalProvisioner))}
	for name, tt := range map[string]struct {
		storageClass, driver string
		wantMismatch         bool
	}{
		"same driver":          {"standard", "a.csi", false},
		"another driver":       {"other", "a.csi", true},
		"of the default class": {"", "a.csi", false},
		"another, by default":  {"", "b.csi", true},
		"no provisioner":       {"local", "b.csi", false},
		"no such class":        {"none", "b.csi", false},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("ns/a").Obj()
			img.Spec.StorageClass = tt.storageClass
			got, err := r.findDriverMismatch(t.Context(), img.Spec.StorageClass, &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "snap"}, Driver: tt.driver})
			require.NoError(t, err)
			if !tt.wantMismatch {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, v1alpha1.ReasonSnapshotClassMismatch, got.Reason)
			assert.Contains(t, got.Message, tt.driver)
		})
	}
}
