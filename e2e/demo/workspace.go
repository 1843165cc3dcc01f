//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// The workspace: three VMs of two images, in bergen.
const (
	workspaceNamespace    = "workspace-7"
	desktop, router       = "ubuntu-24", "router-2"
	desk1, desk2, gateway = "desk-1", "desk-2", "gateway"
	workspaceVMs          = 3
)

// workspaceState is what the demo has seen of the workspace.
type workspaceState struct {
	machines []v1alpha1.VirtualMachine
	// references of the two images in the hub's read API.
	references map[string]int64
	// waited are the VMs that have shown reason WaitingForImage.
	waited map[string]bool
	// ran is how many VMs were ready in KubeVirt at the same time.
	ran int
	// runningReferences are the references in the hub's read API while all VMs ran.
	runningReferences map[string]int64
	// kept is true if the deleted desktop image had its storage while one VM held it.
	kept bool
	uid  string // of the desktops' image
}

func newVM(name, image string) *v1alpha1.VirtualMachine {
	return &v1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: workspaceNamespace, Name: name},
		Spec: v1alpha1.VirtualMachineSpec{
			Resources:      &v1alpha1.MachineResources{CPU: ptr.To(resource.MustParse("2")), Memory: ptr.To(resource.MustParse("2Gi"))},
			VMDiskImageRef: v1alpha1.ImageReference{Namespace: namespace, Name: image},
		},
	}
}

func (s *demoStory) sourceURL(image string) string {
	return s.source.URL + "/ok/" + downloadDuration + "/" + image + ".qcow2"
}

// openWorkspace creates the VMs with templates of their images, which do not exist.
func (s *demoStory) openWorkspace(ctx context.Context) error {
	c := s.demoFleet.members[bergen].Client()
	s.waited = map[string]bool{}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspaceNamespace}}); err != nil {
		return err
	}
	for _, vm := range []*v1alpha1.VirtualMachine{newVM(desk1, desktop), newVM(desk2, desktop), newVM(gateway, router)} {
		image := vm.Spec.VMDiskImageRef.Name
		vm.Spec.VMDiskImageTemplate = &v1alpha1.VMDiskImageSpec{
			Name: image, SourceType: v1alpha1.SourceHTTP, URL: s.sourceURL(image),
			DiskSize: resource.MustParse("24Gi"), StorageClass: simulator.ClassCSI,
		}
		if err := c.Create(ctx, vm); err != nil {
			return fmt.Errorf("creating VirtualMachine %s in %s: %w", vm.Name, bergen, err)
		}
	}
	s.screen.printNote("workspace of 3 VirtualMachines applied in %s; neither of their 2 images exists", bergen)
	return nil
}

// workspaceActs delete the desktop image and then the VMs.
func (s *demoStory) workspaceActs() []storyAct {
	return []storyAct{
		{func() bool { return s.waited[desk1] && s.desktopImage() != nil }, func(ctx context.Context) error {
			return s.screen.runPlugin(ctx, answered, "why", "machine", desk1, "--namespace", workspaceNamespace, "--cluster", bergen, "--live")
		}},
		{func() bool {
			return s.countRunning() == workspaceVMs && s.references[desktop] == 2 && s.references[router] == 1
		}, s.deleteDesktopImage},
		{func() bool { return s.areDesktopsHeldBy(desk1, desk2) }, func(ctx context.Context) error {
			if err := s.screen.runPlugin(ctx, answered, "tree", "image", desktop, "--namespace", namespace, "--cluster", bergen, "--live"); err != nil {
				return err
			}
			return s.deleteVMs(ctx, desk1)
		}},
		// The PruneReport has to see the image with its last holder.
		{func() bool { return s.isOneDesktopLeft() && s.isReportReady() }, func(ctx context.Context) (err error) {
			if s.kept, err = s.isStoragePresent(ctx); err != nil {
				return err
			}
			s.screen.printNote("%s is deleted; %s still holds %s", desk1, desk2, desktop)
			return s.deleteVMs(ctx, desk2, gateway)
		}},
		{func() bool {
			_, listed := s.references[desktop]
			return s.desktopImage() == nil && !listed && s.references[router] == 0
		}, func(context.Context) error {
			s.screen.printNote("the other two are deleted, and %s with the last; %s stays, unreferenced", desktop, router)
			return nil
		}},
	}
}

// areDesktopsHeldBy reports whether the desktop image is Terminating and held by exactly these VMs.
func (s *demoStory) areDesktopsHeldBy(names ...string) bool {
	img := s.desktopImage()
	if img == nil || img.Status.Phase != v1alpha1.PhaseTerminating || len(img.Status.References.Holders) != len(names) {
		return false
	}
	return !slices.ContainsFunc(names, func(name string) bool {
		return !slices.Contains(img.Status.References.Holders, workspaceNamespace+"/"+name)
	})
}

func (s *demoStory) isOneDesktopLeft() bool { return s.areDesktopsHeldBy(desk2) }

func (s *demoStory) deleteDesktopImage(ctx context.Context) error {
	c := s.demoFleet.members[bergen].Client()
	var kubeVirtVMs kubevirtv1.VirtualMachineList
	if err := c.List(ctx, &kubeVirtVMs, client.InNamespace(workspaceNamespace)); err != nil {
		return fmt.Errorf("listing KubeVirt VirtualMachines: %w", err)
	}
	for i := range kubeVirtVMs.Items {
		if kubeVirtVMs.Items[i].Status.Ready {
			s.ran++
		}
	}
	s.runningReferences, s.uid = s.references, string(s.desktopImage().UID)
	s.screen.printNote("all VirtualMachines run; the hub's read API: %s is referenced by %d, %s by %d", desktop, s.runningReferences[desktop], router, s.runningReferences[router])
	if err := c.Delete(ctx, s.desktopImage()); err != nil {
		return fmt.Errorf("deleting VMDiskImage %s: %w", desktop, err)
	}
	s.screen.printNote("kubectl delete vmdi %s", desktop)
	return nil
}

func (s *demoStory) deleteVMs(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := s.demoFleet.members[bergen].Client().Delete(ctx, newVM(name, "")); err != nil {
			return fmt.Errorf("deleting VirtualMachine %s: %w", name, err)
		}
	}
	return nil
}

// readWorkspace reads the VMs from their cluster and the references of their images from the hub.
func (s *demoStory) readWorkspace(ctx context.Context) error {
	var list v1alpha1.VirtualMachineList
	if err := s.demoFleet.members[bergen].Client().List(ctx, &list, client.InNamespace(workspaceNamespace)); err != nil {
		return fmt.Errorf("listing VirtualMachines of %s: %w", bergen, err)
	}
	s.machines = list.Items
	for i := range s.machines {
		if s.machines[i].Status.Reason == v1alpha1.ReasonWaitingForImage {
			s.waited[s.machines[i].Name] = true
		}
	}
	images, err := s.replicas[secondReplica].ListImages(ctx)
	if err != nil {
		if errors.Is(err, program.ErrNotServed) {
			return nil
		}
		return err
	}
	s.references = map[string]int64{}
	for i := range images {
		for _, name := range []string{desktop, router} {
			if strings.HasSuffix(images[i].Source, s.sourceURL(name)) {
				s.references[name] = images[i].References
			}
		}
	}
	return nil
}

// checkKubeVirt notes when KubeVirt is installed in bergen, and returns why it cannot be.
func (s *demoStory) checkKubeVirt() error {
	if s.kubevirtInstalled {
		return nil
	}
	select {
	case err := <-s.kubevirt:
		s.kubevirtInstalled = true
		if err != nil {
			return fmt.Errorf("installing KubeVirt in %s: %w", bergen, err)
		}
		s.screen.printNote("KubeVirt is installed in %s", bergen)
	default:
	}
	return nil
}

func (s *demoStory) countRunning() (n int) {
	for i := range s.machines {
		if s.machines[i].Status.Phase == v1alpha1.MachineReady {
			n++
		}
	}
	return n
}

func (s *demoStory) desktopImage() *v1alpha1.VMDiskImage {
	for i := range s.images[bergen] {
		if img := &s.images[bergen][i]; img.Name == desktop {
			return img
		}
	}
	return nil
}

// isStoragePresent reports whether the desktop image has its claim.
func (s *demoStory) isStoragePresent(ctx context.Context) (bool, error) {
	var claims corev1.PersistentVolumeClaimList
	err := s.demoFleet.members[bergen].Client().List(ctx, &claims, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelImageUID: s.uid})
	if err != nil {
		return false, fmt.Errorf("listing the claims of VMDiskImage %s: %w", desktop, err)
	}
	return slices.ContainsFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool {
		return c.DeletionTimestamp == nil && c.Status.Phase == corev1.ClaimBound
	}), nil
}

// checkWorkspace checks the outcome of the workspace.
func (s *demoStory) checkWorkspace(ctx context.Context, check func(bool, string, ...any)) error {
	present, err := s.isStoragePresent(ctx)
	if err != nil {
		return err
	}
	img := &v1alpha1.VMDiskImage{}
	err = s.demoFleet.members[bergen].Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: router}, img)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	check(len(s.waited) == workspaceVMs && s.ran == workspaceVMs, "%s: 3 VirtualMachines waited for their images, with a reason, and then ran", bergen)
	check(s.runningReferences[desktop] == 2 && s.runningReferences[router] == 1, "the hub knew how many VirtualMachines referenced each image")
	check(s.kept && !present, "%s: %s kept its storage until its last VirtualMachine was deleted", bergen, desktop)
	check(!apierrors.IsNotFound(err) && img.DeletionTimestamp.IsZero(), "%s: %s, which was not deleted, exists", bergen, router)
	return nil
}
