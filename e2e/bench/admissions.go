//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

const (
	admissionCount = 200

	maxRequestsPerImage             = 10
	maxRequestsPerImageWithSnapshot = 12
	maxPlaneCPURatio                = 3.5
)

// admissionRun is a queue whose imports take no time.
type admissionRun struct {
	name          string
	budget        int
	snapshotClass string
	// maxRequests per image; 0 for no limit.
	maxRequests float64
	// beside measures a bare client, too.
	beside bool
}

var admissionRuns = []admissionRun{
	{name: "4 slots", budget: 4, maxRequests: maxRequestsPerImage},
	{name: "64 slots", budget: 64, beside: true},
	{name: "4 slots, snapshots", budget: 4, snapshotClass: simulator.SnapshotClass, maxRequests: maxRequestsPerImageWithSnapshot},
}

// admissionResult is what a run has cost.
type admissionResult struct {
	rate float64 // DataVolumes created per second
	// arrival are the agent's requests until all images wait, processing those from slot to ready.
	arrival, processing requestList
	// planeCPU is the CPU time of API server and etcd per processed image, barePlaneCPU that of a
	// bare client's.
	planeCPU, barePlaneCPU time.Duration
}

// measureAdmissions measures what an image costs, and how fast freed slots are taken, when imports
// take no time.
func measureAdmissions(ctx context.Context) ([]figureRow, []string, error) {
	var figures []figureRow
	var notes []string
	for _, run := range admissionRuns {
		got, err := run.measure(ctx)
		if err != nil {
			return nil, nil, err
		}
		requests := float64(len(got.arrival)+len(got.processing)) / admissionCount
		text := fmt.Sprintf("%.2f (%.2f until it waits)", requests, float64(len(got.arrival))/admissionCount)
		name := "requests per image, " + run.name
		figures = append(figures, figureInfo("admissions per second, "+run.name, fmt.Sprintf("%.1f", got.rate)))
		if run.maxRequests > 0 {
			figures = append(figures, figureAtMost(name, requests, run.maxRequests, text))
		} else {
			figures = append(figures, figureInfo(name, text))
		}
		if run.beside {
			ratio := got.planeCPU.Seconds() / got.barePlaneCPU.Seconds()
			figures = append(figures, figureAtMost("API server and etcd, CPU per image / a bare client's, "+run.name, ratio, maxPlaneCPURatio,
				fmt.Sprintf("%.2f (%.1f ms / %.1f ms)", ratio, got.planeCPU.Seconds()*1000, got.barePlaneCPU.Seconds()*1000)))
		}
		notes = append(notes, fmt.Sprintf("admissions, %s: requests per image until it waits:", run.name))
		notes = append(notes, indentLines(got.arrival.breakdown(admissionCount))...)
		notes = append(notes, "and from slot to ready:")
		notes = append(notes, indentLines(got.processing.breakdown(admissionCount))...)
	}
	return figures, append(notes, "The bare client creates as many DataVolumes, as fast, and does nothing else."), nil
}

// measure processes blank images behind a queue that was filled before.
func (run admissionRun) measure(ctx context.Context) (got admissionResult, err error) {
	s, err := startMemberSetup(ctx, member.Options{Name: "admissions", InstantImporter: true, InstantSnapshots: run.snapshotClass != ""}, run.budget)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	newImage := func() *v1alpha1.VMDiskImage {
		img := s.newBlankImage()
		img.Spec.SnapshotClass = run.snapshotClass
		return img
	}
	// The first images fill the slots: afterwards each image replaces one.
	if err := s.enqueueImages(ctx, run.budget, 0, newImage); err != nil {
		return got, err
	}
	if _, got.arrival, err = s.measureSpent(admissionCount, func() error {
		return s.enqueueImages(ctx, admissionCount, admissionCount, newImage)
	}); err != nil {
		return got, err
	}
	if got.planeCPU, err = s.measurePlaneCPU(func() (err error) {
		_, got.processing, err = s.measureSpent(admissionCount, func() error { return s.processImages(ctx, admissionCount) })
		return err
	}); err != nil {
		return got, err
	}
	created := got.processing.withOperation("create datavolumes")
	if len(created) < admissionCount {
		return got, fmt.Errorf("%d DataVolumes were created for %d images", len(created), admissionCount)
	}
	got.rate = float64(len(created)-1) / created[len(created)-1].end.Sub(created[0].end).Seconds()
	if !run.beside {
		return got, nil
	}
	if err := s.agent.Stop(15 * time.Second); err != nil {
		return got, err
	}
	s.agent = nil
	if err := s.processImages(ctx, run.budget); err != nil { // what the agent has left
		return got, err
	}
	got.barePlaneCPU, err = s.measurePlaneCPU(func() error { return s.processBareDataVolumes(ctx, got.rate) })
	return got, err
}

// measurePlaneCPU returns the CPU time of API server and etcd per image while a function runs.
func (s *memberSetup) measurePlaneCPU(do func() error) (time.Duration, error) {
	before, err := readPlaneCPUTime(s.ControlPlane)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := readPlaneCPUTime(s.ControlPlane)
	return (after - before) / admissionCount, err
}

// processBareDataVolumes creates DataVolumes like those of blank images, at a rate, and waits until
// all are processed. They have no labels of an image, which would need a slot.
func (s *memberSetup) processBareDataVolumes(ctx context.Context, rate float64) error {
	pace := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer pace.Stop()
	for n := range admissionCount {
		dv := &cdiv1.DataVolume{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("bare-%05d", n)},
			Spec: cdiv1.DataVolumeSpec{
				Source:      &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
				ContentType: cdiv1.DataVolumeKubeVirt,
				Storage: &cdiv1.StorageSpec{
					StorageClassName: ptr.To(simulator.ClassCSI),
					Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			},
		}
		if err := s.Client().Create(ctx, dv); err != nil {
			return fmt.Errorf("creating DataVolume %s: %w", dv.Name, err)
		}
		<-pace.C
	}
	return s.processImages(ctx, admissionCount)
}
