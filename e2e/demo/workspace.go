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

// The workspace: three machines of two images, in bergen.
const (
	workspaceNamespace    = "workspace-7"
	desktop, router       = "ubuntu-24", "router-2"
	desk1, desk2, gateway = "desk-1", "desk-2", "gateway"
	workspaceVMs          = 3
)

// workspaceState is what has been seen of it.
type workspaceState struct {
	machines []v1alpha1.VirtualMachine
	// references of the two images, as the hub's read API tells them.
	references map[string]int64
	// waited holds the machines that were seen to wait for their images.
	waited map[string]bool
	// ran is how many machines KubeVirt had ready at a time.
	ran int
	// told is what the hub said of references while all machines ran.
	told map[string]int64
	// kept: the desktops' image had its storage while it was to be deleted and one
	// machine was left.
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

// openWorkspace applies the machines. Each brings a template of its image, as
// none of them is there.
func (s *demoStory) openWorkspace(ctx context.Context) error {
	c := s.demoFleet.members[pushMember].Client()
	s.waited = map[string]bool{}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspaceNamespace}}); err != nil {
		return err
	}
	for _, vm := range []*v1alpha1.VirtualMachine{newVM(desk1, desktop), newVM(desk2, desktop), newVM(gateway, router)} {
		image := vm.Spec.VMDiskImageRef.Name
		vm.Spec.VMDiskImageTemplate = &v1alpha1.VMDiskImageSpec{
			Name: image, SourceType: v1alpha1.SourceHTTP, URL: s.sourceURL(image),
			DiskSize: resource.MustParse("24Gi"), StorageClass: simulator.ClassCSI, SnapshotClass: simulator.SnapshotClass,
		}
		if err := c.Create(ctx, vm); err != nil {
			return fmt.Errorf("creating VirtualMachine %s in %s: %w", vm.Name, pushMember, err)
		}
	}
	s.screen.printNote("workspace of 3 VirtualMachines applied in %s, which has neither of their 2 images", pushMember)
	return nil
}

// workspaceActs is what is done with the workspace, one after another.
func (s *demoStory) workspaceActs() []storyAct {
	return []storyAct{
		{func() bool {
			return s.countRunning() == workspaceVMs && s.references[desktop] == 2 && s.references[router] == 1
		}, s.deleteDesktopImage},
		{func() bool { return s.areDesktopsHeldBy(desk1, desk2) }, func(ctx context.Context) error {
			s.screen.printNote("%s %s: %s", desktop, v1alpha1.PhaseTerminating, s.desktopImage().Status.Message)
			return s.deleteVMs(ctx, desk1)
		}},
		// The PruneReport is to tell of the workspace as it is now.
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
			s.screen.printNote("the other two are deleted, and %s has gone with the last; %s stays, unreferenced", desktop, router)
			return nil
		}},
	}
}

// areDesktopsHeldBy tells whether the desktops' image is to be deleted and waits for
// these machines.
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
	c := s.demoFleet.members[pushMember].Client()
	var theirs kubevirtv1.VirtualMachineList
	if err := c.List(ctx, &theirs, client.InNamespace(workspaceNamespace)); err != nil {
		return fmt.Errorf("listing KubeVirt VirtualMachines: %w", err)
	}
	for i := range theirs.Items {
		if theirs.Items[i].Status.Ready {
			s.ran++
		}
	}
	s.told, s.uid = s.references, string(s.desktopImage().UID)
	s.screen.printNote("all machines run; the hub's read API: %s is referenced by %d machines, %s by %d", desktop, s.told[desktop], router, s.told[router])
	if err := c.Delete(ctx, s.desktopImage()); err != nil {
		return fmt.Errorf("deleting VMDiskImage %s: %w", desktop, err)
	}
	s.screen.printNote("kubectl delete vmdi %s: asked for", desktop)
	return nil
}

func (s *demoStory) deleteVMs(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := s.demoFleet.members[pushMember].Client().Delete(ctx, newVM(name, "")); err != nil {
			return fmt.Errorf("deleting VirtualMachine %s: %w", name, err)
		}
	}
	return nil
}

// readWorkspace reads the machines where they are, and the references of their
// images from the hub.
func (s *demoStory) readWorkspace(ctx context.Context) error {
	var list v1alpha1.VirtualMachineList
	if err := s.demoFleet.members[pushMember].Client().List(ctx, &list, client.InNamespace(workspaceNamespace)); err != nil {
		return fmt.Errorf("listing VirtualMachines of %s: %w", pushMember, err)
	}
	s.machines = list.Items
	for i := range s.machines {
		if s.machines[i].Status.Reason == v1alpha1.ReasonWaitingForImage {
			s.waited[s.machines[i].Name] = true
		}
	}
	images, err := s.hub.ListImages(ctx)
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

func (s *demoStory) countRunning() (n int) {
	for i := range s.machines {
		if s.machines[i].Status.Phase == v1alpha1.MachineReady {
			n++
		}
	}
	return n
}

func (s *demoStory) desktopImage() *v1alpha1.VMDiskImage {
	for i := range s.images[pushMember] {
		if img := &s.images[pushMember][i]; img.Name == desktop {
			return img
		}
	}
	return nil
}

// isStoragePresent tells whether the desktops' image has its claim.
func (s *demoStory) isStoragePresent(ctx context.Context) (bool, error) {
	var claims corev1.PersistentVolumeClaimList
	err := s.demoFleet.members[pushMember].Client().List(ctx, &claims, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelImageUID: s.uid})
	if err != nil {
		return false, fmt.Errorf("listing the claims of VMDiskImage %s: %w", desktop, err)
	}
	return slices.ContainsFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool {
		return c.DeletionTimestamp == nil && c.Status.Phase == corev1.ClaimBound
	}), nil
}

// checkWorkspace says what came of the workspace.
func (s *demoStory) checkWorkspace(ctx context.Context, check func(bool, string, ...any)) error {
	there, err := s.isStoragePresent(ctx)
	if err != nil {
		return err
	}
	img := &v1alpha1.VMDiskImage{}
	err = s.demoFleet.members[pushMember].Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: router}, img)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	check(len(s.waited) == workspaceVMs && s.ran == workspaceVMs, "%s: 3 machines waited for their images, with a reason, and then ran", pushMember)
	check(s.told[desktop] == 2 && s.told[router] == 1, "the hub knew by how many machines each image was referenced")
	check(s.kept && !there, "%s: %s kept its storage until its last machine was deleted, and no longer", pushMember, desktop)
	check(!apierrors.IsNotFound(err) && img.DeletionTimestamp.IsZero(), "%s: %s, whose deletion nobody asked for, is still there", pushMember, router)
	return nil
}
