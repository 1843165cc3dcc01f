package image_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
)

// FuzzQuantities varies the numbers that sources, CDI and storage drivers report. storeStatus
// requires that each status passes the schema of the CRD.
func FuzzQuantities(f *testing.F) {
	f.Add("42.0%", int64(4711), "1Gi", "2Gi")
	f.Add("N/A", int64(-1), "", "0")
	f.Add("100.0%", int64(1<<63-1), "9223372036854775807", "-1")
	f.Add("NaN%", int64(1<<62), "1e30", "1e-30")
	f.Add("99.999999999999999999999%", int64(128<<40), "12345678901234567890Ei", "0.1m")
	f.Fuzz(func(t *testing.T, progress string, contentLength int64, capacity, restoreSize string) {
		w := newSimulation(t, apitest.Image("ns/a").WithSnapshotClass("snap"), apitest.Policy().Obj())
		check := func() {
			w.reconcile()
			st := w.status()
			if st.BytesDone < 0 || st.BytesTotal < 0 || (st.BytesTotal > 0 && st.BytesDone > st.BytesTotal) {
				t.Fatalf("%d of %d bytes at %q", st.BytesDone, st.BytesTotal, progress)
			}
			if st.BytesTotal > 128<<40 {
				t.Fatalf("a download of %d bytes is believed", st.BytesTotal)
			}
			w.stepLedger()
			w.createMissingDataVolumes()
		}
		check()
		check()
		w.answerProbe(image.PreflightResult{Size: max(0, contentLength)})
		check()
		check()
		require.NotNil(t, w.lastDataVolume())
		w.reportProgress(progress)
		w.advanceClock(time.Minute)
		check()
		w.completeImport()
		if quantity, err := resource.ParseQuantity(capacity); err == nil {
			w.findClaim(w.lastDataVolume().Name).Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: quantity}
		}
		check()
		check()
		if w.lastSnapshot() == nil {
			return
		}
		w.markSnapshotReady()
		if quantity, err := resource.ParseQuantity(restoreSize); err == nil {
			w.lastSnapshot().Status.RestoreSize = &quantity
		}
		check()
		if w.status().Serving == nil {
			t.Fatal("a ready snapshot does not serve")
		}
	})
}
