package image_test

import (
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// TestStatusCanBeStoredWhateverOthersSay lets everybody send hostile texts. storeStatus
// requires that each status passes the schema of the CRD.
func TestStatusCanBeStoredWhateverOthersSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawSimulation(t)
		w.setURL(apitest.HostileURL().Draw(t, "url"))
		everybody := w.allActions(t)
		for name, action := range w.hostileActions() {
			everybody[name] = func(t *rapid.T) {
				if w.img == nil {
					return
				}
				action(t)
				if w.reconcile().AddFinalizer { // nothing else is written then
					w.reconcile()
				}
			}
		}
		everybody[""] = func(t *rapid.T) {
			if w.img != nil {
				require.NotContains(t, asJSON(t, w.img.Status), apitest.Secret)
			}
			for _, ended := range w.lastDecision.EndedAttempts {
				require.NotContains(t, asJSON(t, ended), apitest.Secret)
			}
		}
		t.Repeat(everybody)
	})
}

func (w *simulation) hostileActions() map[string]func(*rapid.T) {
	text := apitest.HostileText()
	dataVolume := func(t *rapid.T) *cdiv1.DataVolume {
		w.stepLedger()
		w.createMissingDataVolumes()
		dv := w.lastDataVolume()
		if dv == nil || dv.Status.Phase == cdiv1.Succeeded {
			t.Skip("no import")
		}
		return dv
	}
	return map[string]func(*rapid.T){
		"hostile importer": func(t *rapid.T) {
			dataVolume(t)
			w.failImport(text.Draw(t, "message"))
		},
		"hostile condition": func(t *rapid.T) {
			dv := dataVolume(t)
			dv.Status.Conditions = []cdiv1.DataVolumeCondition{{
				Type:   rapid.SampledFrom([]cdiv1.DataVolumeConditionType{cdiv1.DataVolumeBound, cdiv1.DataVolumeRunning}).Draw(t, "type"),
				Status: corev1.ConditionFalse, Reason: rapid.SampledFrom([]string{"Error", "ErrExceededQuota", "ErrClaimNotValid", "ChecksumError", "x y"}).Draw(t, "reason"),
				Message: text.Draw(t, "message"),
			}}
		},
		"hostile progress": func(t *rapid.T) {
			dv := dataVolume(t)
			dv.Status.Phase, dv.Status.Progress = cdiv1.DataVolumePhase(text.Draw(t, "phase")), cdiv1.DataVolumeProgress(text.Draw(t, "progress"))
			w.advanceClock(time.Hour)
		},
		"hostile snapshot": func(t *rapid.T) {
			if snap := w.lastSnapshot(); snap != nil {
				snap.Status = &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To(text.Draw(t, "message"))}}
				w.advanceClock(time.Hour)
			}
		},
		"hostile source": func(t *rapid.T) {
			w.answerProbe(image.PreflightResult{
				Refused: &v1alpha1.Failure{Reason: v1alpha1.ReasonNotFound, Message: text.Draw(t, "message")}, Size: rapid.Int64().Draw(t, "size"),
			})
		},
		"hostile blocker": func(t *rapid.T) {
			w.blocker = &image.Blocker{Reason: v1alpha1.ReasonInsufficientStorage, Message: "needs " + text.Draw(t, "message")}
		},
		"hostile retry": func(t *rapid.T) {
			// The API server stores valid UTF-8 only.
			w.requestRetry(strings.ToValidUTF8(strings.ReplaceAll(text.Draw(t, "token"), apitest.Secret, ""), ""))
		},
		"hostile holders": func(t *rapid.T) {
			names := rapid.SliceOfNDistinct(rapid.StringN(1, 317, 317), 0, 8, rapid.ID).Draw(t, "holders")
			w.setHolders(names...)
		},
		"hostile plan": func(t *rapid.T) {
			if w.plan.Prune = w.drawPrune(t); w.plan.Prune != nil {
				w.plan.Prune.UID = types.UID("u" + rapid.StringN(0, 300, 300).Draw(t, "uid"))
			}
		},
		"stored by an earlier version": func(t *rapid.T) {
			for i := range w.img.Status.Revisions {
				rev := &w.img.Status.Revisions[i]
				rev.Source = w.img.Spec.URL
				rev.Failure = &v1alpha1.Failure{Reason: v1alpha1.ReasonImportFailed, Message: `Get "` + w.img.Spec.URL + `": EOF`, Time: metav1.NewTime(w.now)}
			}
		},
	}
}

// TestStoredStatusStaysStorable gives Decide statuses that the schema accepts and no agent
// writes.
func TestStoredStatusStaysStorable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawSimulation(t)
		t.Repeat(w.selectActions(t, "the agent, synced", "ledger and DataVolume", "CDI completes", "CDI fails", "a user edits the source"))
		w.img.Status = drawStatus(t, w)
		w.img.Status.Revisions = uniqueRevisions(w.img.Status.Revisions)
		for i := range w.img.Status.Revisions {
			rev := &w.img.Status.Revisions[i]
			rev.OrderingKey.Time = metav1.NewTime(w.now)
			if rev.Failure != nil {
				rev.Failure.Time = metav1.NewTime(w.now)
			}
		}
		for i := range w.img.Status.Conditions {
			if c := &w.img.Status.Conditions[i]; c.Reason == "" {
				c.Reason = "Other"
			}
		}
		if rapid.Bool().Draw(t, "deleted") {
			w.img.DeletionTimestamp = ptr.To(metav1.NewTime(w.now))
		}
		schemacheck.RequireStorable(t, "VMDiskImage", &w.img.Status)
		w.syncCaches()
		for _, live := range []bool{false, true} {
			if d := image.Decide(w.buildView(live)); !d.NeedsLiveRead && !d.RemoveFinalizer {
				schemacheck.RequireStorable(t, "VMDiskImage", &d.Status)
			}
		}
	})
}

func uniqueRevisions(revisions []v1alpha1.RevisionStatus) []v1alpha1.RevisionStatus {
	var unique []v1alpha1.RevisionStatus
	seen := map[string]bool{}
	for _, rev := range revisions {
		if !seen[rev.Revision] {
			unique, seen[rev.Revision] = append(unique, rev), true
		}
	}
	return unique
}
