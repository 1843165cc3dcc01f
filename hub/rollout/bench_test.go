package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

// One decision about 1,000 clusters in three waves.
func BenchmarkDecide(b *testing.B) {
	for name, fleet := range map[string]string{
		"starts":      "canary=" + strings.Repeat(".", 50) + " eu=" + strings.Repeat(".", 450) + " a=" + strings.Repeat(".", 500),
		"in progress": "canary=" + strings.Repeat("S", 50) + " eu=" + strings.Repeat("SSPPP.....", 45) + " a=" + strings.Repeat(".", 500),
		"succeeded":   "canary=" + strings.Repeat("S", 50) + " eu=" + strings.Repeat("S", 450) + " a=" + strings.Repeat("S", 500),
		"failing":     "canary=" + strings.Repeat("SF", 25) + " eu=" + strings.Repeat("SSFTD", 90) + " a=" + strings.Repeat("SF...", 100),
	} {
		b.Run(name, func(b *testing.B) {
			v := newView(newUbuntu().WithMaxConcurrency("10%").WithMinSuccessTime(time.Minute), fleet)
			v = advanceView(v, rollout.Decide(v), 0)
			b.ReportAllocs()
			for b.Loop() {
				rollout.Decide(v)
			}
		})
	}
}

// The desired images of one member with 200 FleetDiskImages.
func BenchmarkComputeDesiredImages(b *testing.B) {
	img := newUbuntu().WithVersion("3").WithFormer("3", "2", "1").WithRetention(2, time.Hour).Obj()
	current := rollout.ComputeDesiredImages(img, rollout.ClusterProgress{Placed: true, Started: true}, nil, now).Images[0]
	b.ReportAllocs()
	for b.Loop() {
		rollout.ComputeDesiredImages(img, rollout.ClusterProgress{Placed: true, Started: true}, &current, now)
	}
}

// Of 200 FleetDiskImages with five versions each.
func BenchmarkFindConflict(b *testing.B) {
	all := make([]v1alpha1.FleetDiskImage, 200)
	for i := range all {
		all[i] = *newUbuntu().WithImageName(fmt.Sprintf("ubuntu-%d", i)).WithVersion("5").WithFormer("5", "4", "3", "2", "1").
			Created(now.Add(time.Duration(i) * time.Second)).Obj()
	}
	b.ReportAllocs()
	for b.Loop() {
		rollout.FindConflict(&all[199], all)
	}
}
