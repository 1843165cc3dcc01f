//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

const (
	// vmRounds is how often a single VM is measured.
	vmRounds = 5
	vmBurst  = 50
	// The agent's own number of workers and limit of requests per second.
	vmWorkers = 8
	vmQPS     = 200
	// minWritesPerVM are root disk, Secret and KubeVirt VirtualMachine.
	minWritesPerVM = 3
	// bareSuffix ends the names of the bare client's VMs.
	bareSuffix = "-bare"
	// maxBurstRatio and maxRequestsPerVM are what the agent may take of time and requests.
	maxBurstRatio    = 3.0
	maxRequestsPerVM = 10
)

// watchers observe ready images and KubeVirt VMs.
type watchers struct {
	images, kubeVirtVMs watch.Interface
}

func (s *memberSetup) watchVMs(ctx context.Context) (*watchers, error) {
	c, err := client.NewWithWatch(s.ControlPlane.Config(), client.Options{Scheme: s.Client().Scheme()})
	if err != nil {
		return nil, err
	}
	seen := &watchers{}
	if seen.images, err = c.Watch(ctx, &v1alpha1.VMDiskImageList{}, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	if seen.kubeVirtVMs, err = c.Watch(ctx, &kubevirtv1.VirtualMachineList{}, client.InNamespace(namespace)); err != nil {
		seen.images.Stop()
		return nil, err
	}
	return seen, nil
}

func (s *watchers) stop() {
	s.images.Stop()
	s.kubeVirtVMs.Stop()
}

// awaitReady returns when the watch showed that an image is ready.
func (s *watchers) awaitReady(ctx context.Context, name string) (time.Time, error) {
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case e, open := <-s.images.ResultChan():
			if !open {
				return time.Time{}, fmt.Errorf("waiting for image %s: the watch ended", name)
			}
			img, ok := e.Object.(*v1alpha1.VMDiskImage)
			if ok && img.Name == name && meta.IsStatusConditionTrue(img.Status.Conditions, v1alpha1.ConditionReady) {
				return time.Now(), nil
			}
		}
	}
}

// awaitCreated waits for the next n KubeVirt VMs and returns when the watch showed them.
func (s *watchers) awaitCreated(ctx context.Context, n int) ([]time.Time, error) {
	var at []time.Time
	for len(at) < n {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %d KubeVirt VMs, got %d: %w", n, len(at), ctx.Err())
		case e, open := <-s.kubeVirtVMs.ResultChan():
			if !open {
				return nil, fmt.Errorf("waiting for %d machines: the watch ended after %d", n, len(at))
			}
			if e.Type == watch.Added {
				at = append(at, time.Now())
			}
		}
	}
	return at, nil
}

func durationsSince(start time.Time, at []time.Time) latencies {
	took := make(latencies, len(at))
	for i := range at {
		took[i] = at[i].Sub(start)
	}
	return took
}

// measureVMs measures the time from an image that becomes ready to the KubeVirt VMs that wait for
// it. The baseline is a client that only writes the same objects.
func measureVMs(ctx context.Context) (_ []figureRow, _ []string, err error) {
	s, err := startMemberSetup(ctx, member.Options{Name: "machines", InstantImporter: true, InstantSnapshots: true, KubeVirt: true}, 1)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	bare, err := s.newBaselineClient()
	if err != nil {
		return nil, nil, err
	}
	var one, oneBare latencies
	for range vmRounds {
		took, img, _, _, err := s.measureWaitingVMs(ctx, 1)
		if err != nil {
			return nil, nil, err
		}
		one = append(one, took...)
		if took, _, err = s.writeBaselineVMs(ctx, bare, img, 1); err != nil {
			return nil, nil, err
		}
		oneBare = append(oneBare, took...)
	}
	many, img, asked, cpu, err := s.measureWaitingVMs(ctx, vmBurst)
	if err != nil {
		return nil, nil, err
	}
	manyBare, bareCPU, err := s.writeBaselineVMs(ctx, bare, img, vmBurst)
	if err != nil {
		return nil, nil, err
	}
	each, writes := float64(len(asked))/vmBurst, float64(asked.countWrites())/vmBurst
	figures := []figureRow{
		figureInfo("image ready -> KubeVirt VM, 1 machine: agent / bare client", formatRatio(one, oneBare)),
		figureAtMost(fmt.Sprintf("image ready -> KubeVirt VM, %d machines, p50: agent / bare client", vmBurst),
			many.percentile(0.5).Seconds()/manyBare.percentile(0.5).Seconds(), maxBurstRatio, formatRatio(many, manyBare)).withGoal("2.00"),
		figureAtMost("requests per machine until it runs", each, maxRequestsPerVM, fmt.Sprintf("%.1f, %.1f of them writes (bare client: %d)", each, writes, minWritesPerVM)).withGoal("9.00"),
		figureInfo("API server and etcd, CPU per machine until it runs: agent / bare client", fmt.Sprintf("%.2f (%.0f ms / %.0f ms)",
			cpu.Seconds()/bareCPU.Seconds(), cpu.Seconds()*1000/vmBurst, bareCPU.Seconds()*1000/vmBurst)),
	}
	notes := []string{
		"machines: CDI played, snapshots and clones included (simulator.Instant), virt-controller real, virt-handler played.",
		fmt.Sprintf("The bare client creates DataVolume, Secret and KubeVirt VirtualMachine, %d machines at a time, %d requests a second at the most, as the agent may.", vmWorkers, vmQPS),
		fmt.Sprintf("Requests of the agent per machine, %d of one image, from the end of its import until all run; the image's own are among them:", vmBurst),
	}
	return figures, append(notes, indentLines(asked.breakdown(vmBurst))...), nil
}

func formatRatio(a, b latencies) string {
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return fmt.Sprintf("p50 %.2f (%.0f ms / %.0f ms), max %.2f (%.0f ms / %.0f ms)",
		ms(a.percentile(0.5))/ms(b.percentile(0.5)), ms(a.percentile(0.5)), ms(b.percentile(0.5)), ms(a.percentile(1))/ms(b.percentile(1)), ms(a.percentile(1)), ms(b.percentile(1)))
}

// measureWaitingVMs has n VMs wait for an import and lets it end. It returns when the KubeVirt VMs
// were created, the agent's requests until it was idle, and the control plane's CPU time until then.
func (s *memberSetup) measureWaitingVMs(ctx context.Context, n int) (latencies, *v1alpha1.VMDiskImage, requestList, time.Duration, error) {
	img := s.newHTTPImage("/")
	img.Spec.SnapshotClass = simulator.SnapshotClass
	if err := s.Client().Create(ctx, img); err != nil {
		return nil, nil, nil, 0, fmt.Errorf("creating an image: %w", err)
	}
	for i := range n {
		if err := s.Client().Create(ctx, newVMFor(img, i, "")); err != nil {
			return nil, nil, nil, 0, fmt.Errorf("creating a machine: %w", err)
		}
	}
	if err := s.awaitVMsOf(ctx, img, n, "wait for their image", func(vm *v1alpha1.VirtualMachine) bool {
		return vm.Status.Image != nil && vm.Status.Image.Phase == v1alpha1.PhaseSyncing
	}); err != nil {
		return nil, nil, nil, 0, err
	}
	if err := s.awaitIdle(ctx); err != nil {
		return nil, nil, nil, 0, err
	}
	seen, err := s.watchVMs(ctx)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	defer seen.stop()
	if err := s.drainWatches(ctx, seen); err != nil {
		return nil, nil, nil, 0, err
	}
	cpu, err := readPlaneCPUTime(s.ControlPlane)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	offset := s.audit.size()
	s.InstantImporter().AllowFinishes(1)
	ready, err := seen.awaitReady(ctx, img.Name)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	at, err := seen.awaitCreated(ctx, n)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	if err := s.awaitVMsOf(ctx, img, n, "run", func(vm *v1alpha1.VirtualMachine) bool { return vm.Status.Phase == v1alpha1.MachineReady }); err != nil {
		return nil, nil, nil, 0, err
	}
	if err := s.awaitIdle(ctx); err != nil {
		return nil, nil, nil, 0, err
	}
	spent, err := readPlaneCPUTime(s.ControlPlane)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	asked, err := s.audit.requestsSince(offset)
	return durationsSince(ready, at), img, asked, spent - cpu, err
}

// drainWatches consumes the events of existing VMs.
func (s *memberSetup) drainWatches(ctx context.Context, seen *watchers) error {
	var existing kubevirtv1.VirtualMachineList
	if err := s.Client().List(ctx, &existing, client.InNamespace(namespace)); err != nil {
		return err
	}
	_, err := seen.awaitCreated(ctx, len(existing.Items))
	return err
}

func newVMFor(img *v1alpha1.VMDiskImage, n int, suffix string) *v1alpha1.VirtualMachine {
	return &v1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%02d%s", img.Name, n, suffix)},
		Spec: v1alpha1.VirtualMachineSpec{
			Resources:      &v1alpha1.MachineResources{Memory: ptr.To(resource.MustParse("64Mi"))},
			VMDiskImageRef: v1alpha1.ImageReference{Name: img.Name},
		},
	}
}

// awaitVMsOf waits until all n VMs of an image match.
func (s *memberSetup) awaitVMsOf(ctx context.Context, img *v1alpha1.VMDiskImage, n int, what string, holds func(*v1alpha1.VirtualMachine) bool) error {
	return s.awaitEvery(ctx, scrapeInterval/4, fmt.Sprintf("%d machines %s", n, what), func(ctx context.Context) (bool, error) {
		var list v1alpha1.VirtualMachineList
		if err := s.Client().List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		found := 0
		for i := range list.Items {
			if vm := &list.Items[i]; vm.Spec.VMDiskImageRef.Name == img.Name && holds(vm) {
				found++
			}
		}
		return found == n, nil
	})
}

func (s *memberSetup) newBaselineClient() (client.Client, error) {
	cfg := rest.CopyConfig(s.ControlPlane.Config())
	cfg.QPS, cfg.Burst = vmQPS, 2*vmQPS
	return client.New(cfg, client.Options{Scheme: s.Client().Scheme()})
}

// writeBaselineVMs is the baseline: a client writes what n VMs of an image need without reading
// anything.
func (s *memberSetup) writeBaselineVMs(ctx context.Context, bare client.Client, img *v1alpha1.VMDiskImage, n int) (latencies, time.Duration, error) {
	if err := s.Client().Get(ctx, client.ObjectKeyFromObject(img), img); err != nil {
		return nil, 0, err
	}
	var objects [][]client.Object
	for i := range n {
		some, err := newMinimalObjects(img, i)
		if err != nil {
			return nil, 0, err
		}
		objects = append(objects, some)
	}
	seen, err := s.watchVMs(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer seen.stop()
	if err := s.drainWatches(ctx, seen); err != nil {
		return nil, 0, err
	}
	cpu, err := readPlaneCPUTime(s.ControlPlane)
	if err != nil {
		return nil, 0, err
	}
	var at []time.Time
	start := time.Now()
	group, writing := errgroup.WithContext(ctx)
	waiting := writing
	group.Go(func() (err error) {
		at, err = seen.awaitCreated(waiting, n)
		return err
	})
	writers, writing := errgroup.WithContext(writing)
	writers.SetLimit(vmWorkers)
	group.Go(func() error {
		for _, some := range objects {
			writers.Go(func() error {
				for _, o := range some {
					if err := bare.Create(writing, o); err != nil {
						return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
					}
				}
				return nil
			})
		}
		return writers.Wait()
	})
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	if err := s.awaitBaselineVMsRun(ctx, img, n); err != nil {
		return nil, 0, err
	}
	spent, err := readPlaneCPUTime(s.ControlPlane)
	return durationsSince(start, at), spent - cpu, err
}

// awaitBaselineVMsRun waits until the n VMs that the baseline made of an image run, and for the end
// of what follows, as it is waited for with the agent's.
func (s *memberSetup) awaitBaselineVMsRun(ctx context.Context, img *v1alpha1.VMDiskImage, n int) error {
	err := s.awaitEvery(ctx, scrapeInterval/4, fmt.Sprintf("%d machines of the bare client run", n), func(ctx context.Context) (bool, error) {
		var list kubevirtv1.VirtualMachineList
		if err := s.Client().List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		found := 0
		for i := range list.Items {
			if vm := &list.Items[i]; vm.Status.Ready && strings.HasPrefix(vm.Name, img.Name+"-") && strings.HasSuffix(vm.Name, bareSuffix) {
				found++
			}
		}
		return found == n, nil
	})
	if err != nil {
		return err
	}
	return s.awaitIdle(ctx)
}

// newMinimalObjects returns what KubeVirt needs for a VM, without the agent's labels.
func newMinimalObjects(img *v1alpha1.VMDiskImage, n int) ([]client.Object, error) {
	vm := newVMFor(img, n, bareSuffix)
	cfg, err := cloudinit.Render(vm, cloudinit.Inputs{ClusterUID: "bench"})
	if err != nil {
		return nil, err
	}
	kubeVirtVM, err := kubevirt.BuildVirtualMachine(vm, cfg)
	if err != nil {
		return nil, err
	}
	spec, _ := kubeVirtVM.Object["spec"].(map[string]any)
	spec["runStrategy"] = "Always"
	serving := img.Status.Serving
	pin := v1alpha1.PinnedImage{
		ImageKey: v1alpha1.ImageKey{Namespace: img.Namespace, Name: img.Name, UID: img.UID}, Revision: serving.Revision, Attempt: serving.Attempt,
		PersistentVolumeClaim: serving.PersistentVolumeClaim, VolumeSnapshot: serving.VolumeSnapshot, DiskSize: serving.DiskSize, RestoreSize: serving.RestoreSize,
	}
	size, _ := kubevirt.RootDiskSize(vm, img)
	objects := []client.Object{kubevirt.BuildRootDisk(vm, img, pin, size), kubevirt.BuildCloudInitSecret(vm, cfg), kubeVirtVM}
	for _, o := range objects {
		o.SetLabels(nil)
		o.SetOwnerReferences(nil)
	}
	return objects, nil
}
