//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const mostPreload = 1.1

// preload is a rollout over light members, each of which imports one image at a
// time.
type preload struct {
	members int
	atOnce  int           // spec.rollout.maxConcurrency
	takes   time.Duration // an import, which is played
}

var wholeFleet = preload{members: 100, atOnce: 10, takes: 10 * time.Second}

// ideal is how long the budgets alone have it take: atOnce members at a time, none
// of which waits for anything but its import.
func (p preload) ideal() time.Duration {
	return time.Duration((p.members+p.atOnce-1)/p.atOnce) * p.takes
}

// preloaded is what the rollout of one version has cost.
type preloaded struct {
	version string
	took    time.Duration
	cpu     time.Duration
	asked   requests
}

func (p preloaded) planWrites() int {
	return len(p.asked.of("create clusterplans")) + len(p.asked.of("update clusterplans")) + len(p.asked.of("patch clusterplans"))
}

func (p preloaded) statusWrites() int {
	return len(p.asked.of("update fleetdiskimages/status")) + len(p.asked.of("patch fleetdiskimages/status"))
}

// measure rolls out an image and then its next version, each from the write of the
// FleetDiskImage until its status says Succeeded.
func (p preload) measure(ctx context.Context) (versions []preloaded, err error) {
	s, err := newHubStage(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if _, err := s.join(ctx, "preload", p.members); err != nil {
		return nil, err
	}
	s.light[0].PlayImports(p.takes)
	atOnce := intstr.FromInt32(int32(p.atOnce))
	img := &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: "ubuntu"},
		Spec: v1alpha1.FleetDiskImageSpec{
			Version: "1.0.0", TargetNamespace: namespace,
			Template: v1alpha1.VMDiskImageSpec{
				Name: "ubuntu", SourceType: v1alpha1.SourceHTTP, URL: "https://images.example.com/ubuntu/1.0.0.qcow2", DiskSize: resource.MustParse("24Gi"),
			},
			Placement: v1alpha1.Placement{ClusterSelector: &metav1.LabelSelector{}},
			Rollout:   v1alpha1.Rollout{MaxConcurrency: &atOnce},
		},
	}
	for _, write := range []func() error{
		func() error { return s.client.Create(ctx, img) },
		func() error {
			before := client.MergeFrom(img.DeepCopy())
			img.Spec.Version, img.Spec.Template.URL = "2.0.0", "https://images.example.com/ubuntu/2.0.0.qcow2"
			return s.client.Patch(ctx, img, before)
		},
	} {
		one, err := s.rollOut(ctx, write, img)
		if err != nil {
			return nil, err
		}
		versions = append(versions, one)
	}
	return versions, nil
}

// rollOut writes a FleetDiskImage and waits until what it asks for is there.
func (s *hubStage) rollOut(ctx context.Context, write func() error, img *v1alpha1.FleetDiskImage) (p preloaded, err error) {
	if err := s.settle(ctx); err != nil {
		return p, err
	}
	offset := s.audit.size()
	before, err := cpuTime(s.hub.Pid())
	if err != nil {
		return p, err
	}
	watching, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := s.client.Watch(watching, &v1alpha1.FleetDiskImageList{})
	if err != nil {
		return p, err
	}
	defer w.Stop()
	start := time.Now()
	if err := write(); err != nil {
		return p, err
	}
	for done := false; !done; {
		e, open := <-w.ResultChan()
		if !open {
			return p, fmt.Errorf("waiting until version %s is rolled out: %w; it was %s, %s: %s", img.Spec.Version, context.DeadlineExceeded,
				img.Status.Phase, img.Status.Reason, img.Status.Message)
		}
		if now, is := e.Object.(*v1alpha1.FleetDiskImage); is && now.Status.ObservedGeneration >= img.Generation {
			now.DeepCopyInto(img)
			done = now.Status.Phase == v1alpha1.RolloutSucceeded
		}
	}
	p.version, p.took = img.Spec.Version, time.Since(start)
	if err := s.settle(ctx); err != nil {
		return p, err
	}
	after, err := cpuTime(s.hub.Pid())
	if err != nil {
		return p, err
	}
	p.cpu = after - before
	p.asked, err = s.audit.since(offset)
	return p, err
}

func preloadFigures(ctx context.Context) ([]figure, []string, error) {
	run := wholeFleet
	versions, err := run.measure(ctx)
	if err != nil {
		return nil, nil, err
	}
	var figures []figure
	notes := []string{fmt.Sprintf("preload: an import takes %s and is played (e2e/light); ideal is that %d of %d members import at any time.", run.takes, run.atOnce, run.members)}
	for i, p := range versions {
		what := []string{"one image", "its next version"}[i]
		ratio := p.took.Seconds() / run.ideal().Seconds()
		each := float64(run.members)
		figures = append(figures,
			atMost(fmt.Sprintf("%s preloaded in %d light members, %d at a time: time / ideal", what, run.members, run.atOnce), ratio, mostPreload,
				fmt.Sprintf("%.3f (%.1f s / %.0f s)", ratio, p.took.Seconds(), run.ideal().Seconds())),
			told(what+": plan writes per cluster", fmt.Sprintf("%.2f", float64(p.planWrites())/each)),
			told(what+": status writes of the FleetDiskImage", fmt.Sprint(p.statusWrites())),
			told(what+": CPU of the hub per cluster", fmt.Sprintf("%.0f ms", p.cpu.Seconds()*1000/each)))
		notes = append(notes, fmt.Sprintf("Requests of the hub to its own API server per cluster, %s:", what))
		notes = append(notes, indent(p.asked.breakdown(run.members))...)
	}
	return figures, notes, nil
}
