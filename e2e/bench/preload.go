//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
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

var wholeFleet = preload{members: 100, atOnce: 10, takes: 20 * time.Second}

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
// FleetDiskImage until its status says Succeeded. Beside the first a bare client
// does the same with as many members of its own, on the same API server. Of the
// next one the writes are of interest, so that its imports take a tenth.
func (p preload) measure(ctx context.Context) (bare time.Duration, versions []preloaded, err error) {
	s, err := newOneHub(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if _, err := s.join(ctx, "preload", p.members); err != nil {
		return 0, nil, err
	}
	s.light[0].PlayImports(p.takes)
	bareClient, err := p.bareClient(ctx, s)
	if err != nil {
		return 0, nil, err
	}
	img := p.image()
	planned := v1alpha1.PlannedImage{Namespace: namespace, Name: img.VMDiskImage(img.Spec.Version), Spec: *img.Spec.Template.DeepCopy()}
	var beside errgroup.Group
	beside.Go(func() (err error) {
		bare, err = bareClient.rollOut(ctx, planned)
		return err
	})
	first, err := s.rollOut(ctx, func() error { return s.client.Create(ctx, img) }, img)
	if err := errors.Join(err, beside.Wait()); err != nil {
		return 0, nil, err
	}
	s.light[0].PlayImports(p.takes / 10)
	second, err := s.rollOut(ctx, func() error {
		before := client.MergeFrom(img.DeepCopy())
		img.Spec.Version, img.Spec.Template.URL = "2.0.0", "https://images.example.com/ubuntu/2.0.0.qcow2"
		return s.client.Patch(ctx, img, before)
	}, img)
	return bare, []preloaded{first, second}, err
}

// image is placed in all clusters.
func (p preload) image() *v1alpha1.FleetDiskImage {
	atOnce := intstr.FromInt32(int32(p.atOnce))
	return &v1alpha1.FleetDiskImage{
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
}

// rollOut writes a FleetDiskImage and waits until what it asks for is there.
func (s *hubStage) rollOut(ctx context.Context, write func() error, img *v1alpha1.FleetDiskImage) (p preloaded, err error) {
	if err := s.settle(ctx); err != nil {
		return p, err
	}
	w, err := s.during(func() error {
		if err := s.rolledOut(ctx, write, img, &p); err != nil {
			return err
		}
		return s.settle(ctx)
	})
	p.cpu, p.asked = w.cpu, w.asked
	return p, err
}

func (s *hubStage) rolledOut(ctx context.Context, write func() error, img *v1alpha1.FleetDiskImage, p *preloaded) error {
	watching, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := s.client.Watch(watching, &v1alpha1.FleetDiskImageList{})
	if err != nil {
		return err
	}
	defer w.Stop()
	start := time.Now()
	if err := write(); err != nil {
		return err
	}
	for done := false; !done; {
		e, open := <-w.ResultChan()
		if !open {
			return fmt.Errorf("waiting until version %s is rolled out: %w; it was %s, %s: %s", img.Spec.Version, context.DeadlineExceeded,
				img.Status.Phase, img.Status.Reason, img.Status.Message)
		}
		if now, is := e.Object.(*v1alpha1.FleetDiskImage); is && now.Status.ObservedGeneration >= img.Generation {
			now.DeepCopyInto(img)
			done = now.Status.Phase == v1alpha1.RolloutSucceeded
		}
	}
	p.version, p.took = img.Spec.Version, time.Since(start)
	return nil
}

func preloadFigures(ctx context.Context) ([]figure, []string, error) {
	run := wholeFleet
	bare, versions, err := run.measure(ctx)
	if err != nil {
		return nil, nil, err
	}
	first, ideal := versions[0], run.ideal()
	ratio, ofBare := first.took.Seconds()/ideal.Seconds(), bare.Seconds()/ideal.Seconds()
	figures := []figure{
		atMost(fmt.Sprintf("one image preloaded in %d light members, %d at a time: time / ideal", run.members, run.atOnce), ratio, mostPreload,
			fmt.Sprintf("%.3f (%.1f s / %.0f s)", ratio, first.took.Seconds(), ideal.Seconds())),
		told("the same by a bare client, at the same time: time / ideal", fmt.Sprintf("%.3f (%.1f s / %.0f s)", ofBare, bare.Seconds(), ideal.Seconds())),
	}
	notes := []string{fmt.Sprintf("preload: an import takes %s and is played (e2e/light); ideal is that %d of %d members import at any time.", run.takes, run.atOnce, run.members)}
	for i, p := range versions {
		what, each := []string{"one image", "its next version"}[i], float64(run.members)
		figures = append(figures,
			told(what+": plan writes per cluster", fmt.Sprintf("%.2f", float64(p.planWrites())/each)),
			told(what+": status writes of the FleetDiskImage", fmt.Sprint(p.statusWrites())),
			told(what+": CPU of the hub per cluster", fmt.Sprintf("%.0f ms", p.cpu.Seconds()*1000/each)))
		notes = append(notes, fmt.Sprintf("Requests of the hub to its own API server per cluster, %s, heartbeats of members included:", what))
		notes = append(notes, indent(p.asked.breakdown(run.members))...)
	}
	return figures, notes, nil
}
