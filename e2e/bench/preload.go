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

const maxPreloadRatio = 1.1

// preloadRun is a rollout over fake members, each of which imports one image at a time.
type preloadRun struct {
	members        int
	concurrency    int           // spec.rollout.maxConcurrency
	importDuration time.Duration // of a simulated import
}

var wholeFleetPreload = preloadRun{members: 100, concurrency: 10, importDuration: 20 * time.Second}

// idealDuration is the least duration under the budgets: concurrency members at a time, each of
// which only waits for its import.
func (p preloadRun) idealDuration() time.Duration {
	return time.Duration((p.members+p.concurrency-1)/p.concurrency) * p.importDuration
}

// versionCost is the cost of the rollout of one version.
type versionCost struct {
	version  string
	duration time.Duration
	cpu      time.Duration
	requests requestList
}

func (p versionCost) countPlanWrites() int {
	return len(p.requests.withOperation("create clusterplans")) + len(p.requests.withOperation("update clusterplans")) + len(p.requests.withOperation("patch clusterplans"))
}

func (p versionCost) countStatusWrites() int {
	return len(p.requests.withOperation("update fleetdiskimages/status")) + len(p.requests.withOperation("patch fleetdiskimages/status"))
}

// measureVersions rolls out an image and then its next version, each from the write of the
// FleetDiskImage until its status is Succeeded. Beside the first one, the baseline client does the
// same with as many members, on the same API server. The second one measures writes: its
// imports take a tenth of the time.
func (p preloadRun) measureVersions(ctx context.Context) (bare time.Duration, versions []versionCost, err error) {
	s, err := startSingleHub(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if _, err := s.joinMembers(ctx, "preload", p.members); err != nil {
		return 0, nil, err
	}
	s.lightMembers[0].PlayImports(p.importDuration)
	bareClient, err := p.newBaselineClient(ctx, s)
	if err != nil {
		return 0, nil, err
	}
	img := p.newFleetImage()
	planned := v1alpha1.PlannedImage{Namespace: namespace, Name: img.ImageNameForVersion(img.Spec.Version), Spec: *img.Spec.Template.DeepCopy()}
	var beside errgroup.Group
	beside.Go(func() (err error) {
		bare, err = bareClient.rollOutPlans(ctx, planned)
		return err
	})
	first, err := s.rollOut(ctx, func() error { return s.client.Create(ctx, img) }, img)
	if err := errors.Join(err, beside.Wait()); err != nil {
		return 0, nil, err
	}
	s.lightMembers[0].PlayImports(p.importDuration / 10)
	second, err := s.rollOut(ctx, func() error {
		before := client.MergeFrom(img.DeepCopy())
		img.Spec.Version, img.Spec.Template.URL = "2.0.0", "https://images.example.com/ubuntu/2.0.0.qcow2"
		return s.client.Patch(ctx, img, before)
	}, img)
	return bare, []versionCost{first, second}, err
}

// newFleetImage returns an image that is placed in all clusters.
func (p preloadRun) newFleetImage() *v1alpha1.FleetDiskImage {
	atOnce := intstr.FromInt32(int32(p.concurrency))
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

// rollOutPlans writes a FleetDiskImage and waits until its rollout has succeeded.
func (s *hubSetup) rollOut(ctx context.Context, write func() error, img *v1alpha1.FleetDiskImage) (p versionCost, err error) {
	if err := s.awaitIdle(ctx); err != nil {
		return p, err
	}
	w, err := s.measureDuring(func() error {
		if err := s.awaitRolledOut(ctx, write, img, &p); err != nil {
			return err
		}
		return s.awaitIdle(ctx)
	})
	p.cpu, p.requests = w.cpu, w.requests
	return p, err
}

func (s *hubSetup) awaitRolledOut(ctx context.Context, write func() error, img *v1alpha1.FleetDiskImage, p *versionCost) error {
	watching, cancel := context.WithTimeout(ctx, waitTimeout)
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
		if now, ok := e.Object.(*v1alpha1.FleetDiskImage); ok && now.Status.ObservedGeneration >= img.Generation {
			now.DeepCopyInto(img)
			done = now.Status.Phase == v1alpha1.RolloutSucceeded
		}
	}
	p.version, p.duration = img.Spec.Version, time.Since(start)
	return nil
}

func measurePreload(ctx context.Context) ([]figureRow, []string, error) {
	run := wholeFleetPreload
	bare, versions, err := run.measureVersions(ctx)
	if err != nil {
		return nil, nil, err
	}
	first, ideal := versions[0], run.idealDuration()
	ratio, ofBare := first.duration.Seconds()/ideal.Seconds(), bare.Seconds()/ideal.Seconds()
	figures := []figureRow{
		figureAtMost(fmt.Sprintf("one image preloaded in %d light members, %d at a time: time / ideal", run.members, run.concurrency), ratio, maxPreloadRatio,
			fmt.Sprintf("%.3f (%.1f s / %.0f s)", ratio, first.duration.Seconds(), ideal.Seconds())),
		figureInfo("the same by a bare client, at the same time: time / ideal", fmt.Sprintf("%.3f (%.1f s / %.0f s)", ofBare, bare.Seconds(), ideal.Seconds())),
	}
	notes := []string{fmt.Sprintf("preload: an import takes %s and is played (e2e/harness/fakemember); ideal is that %d of %d members import at any time.", run.importDuration, run.concurrency, run.members)}
	for i, p := range versions {
		what, each := []string{"one image", "its next version"}[i], float64(run.members)
		figures = append(figures,
			figureInfo(what+": plan writes per cluster", fmt.Sprintf("%.2f", float64(p.countPlanWrites())/each)),
			figureInfo(what+": status writes of the FleetDiskImage", fmt.Sprint(p.countStatusWrites())),
			figureInfo(what+": CPU of the hub per cluster", fmt.Sprintf("%.0f ms", p.cpu.Seconds()*1000/each)))
		notes = append(notes, fmt.Sprintf("Requests of the hub to its own API server per cluster, %s, heartbeats of members included:", what))
		notes = append(notes, indentLines(p.requests.breakdown(run.members))...)
	}
	return figures, notes, nil
}
