package report_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/report"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var rateKey = report.Key{Namespace: "farm", Name: "image"}

// rateImage is an image whose attempt was started at second 0.
func rateImage(done int64, second int) *v1alpha1.VMDiskImage {
	img := newActivityMember().addImport("farm", "image", "images.example.com", done, 1000)
	img.Status.Revisions[0].StartedAt, img.Status.Revisions[0].ProgressedAt = activityTime(0), activityTime(second)
	return img
}

func finished(img *v1alpha1.VMDiskImage, second int) *v1alpha1.VMDiskImage {
	img = img.DeepCopy()
	img.Status.BytesDone = img.Status.BytesTotal
	rev := &img.Status.Revisions[0]
	rev.AttemptEnded, rev.Outcome, rev.ImportedAt = rev.Attempt, v1alpha1.OutcomeSucceeded, activityTime(second)
	return img
}

func failed(img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	img = img.DeepCopy()
	img.Status.BytesDone = 0
	img.Status.Revisions[0].AttemptEnded, img.Status.Revisions[0].Outcome = img.Status.Revisions[0].Attempt, v1alpha1.OutcomeFailed
	return img
}

func TestRateOfRunningImport(t *testing.T) {
	at := func(second int) time.Time { return activityTime(second).Time }
	tracker := report.NewRateTracker(activityNow)
	assert.Zero(t, tracker.RateOf(rateKey, at(0)), "unknown")
	tracker.ObserveImage(rateImage(0, 0), "eu")
	assert.Zero(t, tracker.RateOf(rateKey, at(20)), "no progress yet")
	tracker.ObserveImage(rateImage(100, 20), "eu")
	assert.EqualValues(t, 5, tracker.RateOf(rateKey, at(20)), "since it was started")
	tracker.ObserveImage(rateImage(300, 40), "eu")
	assert.EqualValues(t, 10, tracker.RateOf(rateKey, at(40)), "between two points")
	tracker.ObserveImage(rateImage(300, 40), "eu")
	assert.EqualValues(t, 10, tracker.RateOf(rateKey, at(40)), "nothing new")
	tracker.ObserveImage(rateImage(700, 60), "eu")
	rate := tracker.RateOf(rateKey, at(60))
	assert.Greater(t, rate, int64(10))
	assert.Less(t, rate, int64(20), "weighted")
	assert.Equal(t, rate, tracker.RateOf(rateKey, at(100)), "the next point is not due")
	assert.Less(t, tracker.RateOf(rateKey, at(180)), rate, "it is overdue")
	assert.Zero(t, tracker.RateOf(rateKey, at(3600)))
	tracker.ObserveImage(finished(rateImage(700, 60), 90), "eu")
	assert.Zero(t, tracker.RateOf(rateKey, at(90)), "ended")
}

// TestRateStaysWithinWhatWasMeasured: a weighted mean is between the slowest and the fastest
// progress, and exact where progress is even.
func TestRateStaysWithinWhatWasMeasured(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := report.NewRateTracker(activityNow)
		even := rapid.Bool().Draw(t, "even")
		speed := rapid.Int64Range(1, 1000).Draw(t, "speed")
		second, done, slowest, fastest := 0, int64(0), int64(1<<62), int64(0)
		for range rapid.IntRange(1, 10).Draw(t, "points") {
			elapsed := rapid.IntRange(1, 50).Draw(t, "elapsed")
			if !even {
				speed = rapid.Int64Range(1, 1000).Draw(t, "speed")
			}
			slowest, fastest = min(slowest, speed), max(fastest, speed)
			second, done = second+elapsed, done+speed*int64(elapsed)
			img := rateImage(done, second)
			img.Status.BytesTotal = 1 << 40
			tracker.ObserveImage(img, "eu")
		}
		rate := tracker.RateOf(rateKey, activityTime(second).Time)
		require.GreaterOrEqual(t, rate, slowest-1)
		require.LessOrEqual(t, rate, fastest)
	})
}

// finishedImports are n imports of 1000 bytes, of which import i took 10 + i seconds.
func finishedImports(n int) (images []*v1alpha1.VMDiskImage) {
	for i := range n {
		img := rateImage(0, 0)
		img.Name, img.UID = fmt.Sprintf("image-%d", i), types.UID(fmt.Sprint(i))
		rev := &img.Status.Revisions[0]
		rev.StartedAt = activityTime(i)
		images = append(images, finished(img, 10+2*i))
	}
	return images
}

func TestRatesOfFinishedImports(t *testing.T) {
	tracker := report.NewRateTracker(activityNow.Add(time.Hour)) // another process imported them
	for _, img := range finishedImports(11) {
		tracker.ObserveImage(img, "eu")
	}
	assert.Equal(t, []v1alpha1.SourceRate{{Name: "eu", P20: 1000 / 18, P50: 1000 / 15, P80: 1000 / 12, Samples: 11, Since: activityTime(10)}}, tracker.Rates())
}

func TestImportOfUnknownSizeIsNoSample(t *testing.T) {
	tracker := report.NewRateTracker(activityNow)
	img := finishedImports(1)[0]
	img.Status.BytesTotal = img.Spec.DiskSize.Value()
	tracker.ObserveImage(img, "eu")
	img = finishedImports(2)[1]
	img.Status.Revisions[0].StartedAt = nil // of an agent that did not store it
	tracker.ObserveImage(img, "eu")
	for _, rate := range tracker.Rates() {
		assert.Zero(t, rate.Samples)
	}
}

func TestFailedImportIsNoSample(t *testing.T) {
	tracker := report.NewRateTracker(activityNow)
	tracker.ObserveImage(rateImage(400, 40), "eu")
	tracker.ObserveImage(failed(rateImage(400, 40)), "eu")
	assert.Equal(t, []v1alpha1.SourceRate{{Name: "eu", TransferredBytes: 400}}, tracker.Rates(), "but it was downloaded")
}

// TestOverheadIsTheTimeBesideTheDownload: 1000 bytes at 10 per second, within 130 seconds.
func TestOverheadIsTheTimeBesideTheDownload(t *testing.T) {
	tracker := report.NewRateTracker(activityNow)
	for i := range 3 {
		for _, point := range [][2]int{{0, 10}, {100, 30}, {400, 60}, {900, 110}} {
			img := rateImage(int64(point[0]), point[1])
			img.Name, img.UID = fmt.Sprint("image-", i), types.UID(fmt.Sprint(i))
			tracker.ObserveImage(img, "eu")
			if point[0] == 900 {
				tracker.ObserveImage(finished(img, 130), "eu")
			}
		}
	}
	// Imports that were not observed do not count beside these.
	for _, img := range finishedImports(2) {
		img.UID += "-fast"
		tracker.ObserveImage(img, "eu")
	}
	got := tracker.Rates()[0]
	assert.EqualValues(t, 10, got.P50)
	assert.EqualValues(t, 30, got.OverheadSeconds)
	assert.EqualValues(t, 3, got.Samples)
}

// TestRatesAreOfTheNewestImports, in whatever order and however often they are observed.
func TestRatesAreOfTheNewestImports(t *testing.T) {
	images := finishedImports(100)
	want := report.NewRateTracker(activityNow.Add(time.Hour))
	for _, img := range images[100-64:] {
		want.ObserveImage(img, "eu")
	}
	rapid.Check(t, func(t *rapid.T) {
		tracker := report.NewRateTracker(activityNow.Add(time.Hour))
		for _, img := range rapid.Permutation(images).Draw(t, "order") {
			tracker.ObserveImage(img, "eu")
		}
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, 99), 0, 20).Draw(t, "again") {
			tracker.ObserveImage(images[i], "eu")
		}
		require.Equal(t, want.Rates(), tracker.Rates())
	})
}

func TestTransferredBytes(t *testing.T) {
	transferred := func(tracker *report.RateTracker) (bytes int64) {
		for _, rate := range tracker.Rates() {
			bytes += rate.TransferredBytes
		}
		return bytes
	}
	for name, tt := range map[string]struct {
		startedAt int
		observed  []*v1alpha1.VMDiskImage
		want      int64
	}{
		"a whole import":                   {0, []*v1alpha1.VMDiskImage{rateImage(0, 0), rateImage(400, 40), finished(rateImage(400, 40), 60)}, 1000},
		"only its end was seen":            {0, []*v1alpha1.VMDiskImage{finished(rateImage(0, 0), 60)}, 1000},
		"seen twice":                       {0, []*v1alpha1.VMDiskImage{finished(rateImage(0, 0), 60), finished(rateImage(0, 0), 60)}, 1000},
		"a failed attempt and another":     {0, []*v1alpha1.VMDiskImage{rateImage(400, 40), failed(rateImage(400, 40)), attempt(2, rateImage(300, 90))}, 700},
		"started by another process":       {50, []*v1alpha1.VMDiskImage{rateImage(400, 40), finished(rateImage(400, 40), 60)}, 600},
		"imported by another process":      {90, []*v1alpha1.VMDiskImage{finished(rateImage(400, 40), 60)}, 0},
		"another image under the old name": {0, []*v1alpha1.VMDiskImage{rateImage(400, 40), otherUID(rateImage(100, 80))}, 500},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := report.NewRateTracker(activityTime(tt.startedAt).Time)
			before := int64(0)
			for _, img := range tt.observed {
				tracker.ObserveImage(img, "eu")
				assert.GreaterOrEqual(t, transferred(tracker), before, "it only rises")
				before = transferred(tracker)
			}
			assert.Equal(t, tt.want, before)
			tracker.ForgetImage(rateKey)
			tracker.KeepImages(func(report.Key) bool { return false })
			assert.Equal(t, tt.want, transferred(tracker))
		})
	}
}

func attempt(n int32, img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	img.Status.Revisions[0].Attempt, img.Status.Revisions[0].AttemptEnded = n, n-1
	return img
}

func otherUID(img *v1alpha1.VMDiskImage) *v1alpha1.VMDiskImage {
	img.UID = "other"
	return img
}

// TestTransferredBytesOnlyRise whatever statuses say.
func TestTransferredBytesOnlyRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := report.NewRateTracker(activityNow)
		before := map[string]int64{}
		for range rapid.IntRange(1, 30).Draw(t, "observations") {
			img := rateImage(rapid.Int64Range(0, 1000).Draw(t, "done"), rapid.IntRange(-50, 50).Draw(t, "progressed"))
			img.Name = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
			img.UID = types.UID(rapid.SampledFrom([]string{"1", "2"}).Draw(t, "uid"))
			rev := &img.Status.Revisions[0]
			rev.StartedAt = rapid.SampledFrom([]*metav1.Time{nil, activityTime(-9), activityTime(9)}).Draw(t, "started")
			rev.Attempt = rapid.Int32Range(0, 3).Draw(t, "attempt")
			switch rapid.IntRange(0, 2).Draw(t, "state") {
			case 0:
				img = finished(img, rapid.IntRange(-50, 50).Draw(t, "imported"))
			case 1:
				img = failed(img)
			}
			tracker.ObserveImage(img, rapid.SampledFrom([]string{"eu", "other"}).Draw(t, "source"))
			after := map[string]int64{}
			for _, rate := range tracker.Rates() {
				after[rate.Name] = rate.TransferredBytes
				require.LessOrEqual(t, rate.P20, rate.P50)
				require.LessOrEqual(t, rate.P50, rate.P80)
			}
			for name, bytes := range before {
				require.GreaterOrEqual(t, after[name], bytes)
			}
			before = after
		}
	})
}
