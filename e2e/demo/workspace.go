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
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/simulator"
)

// The workspace: three machines of two images, in bergen.
const (
	workspaceNamespace    = "workspace-7"
	desktop, router       = "ubuntu-24", "router-2"
	desk1, desk2, gateway = "desk-1", "desk-2", "gateway"
	machinesInAll         = 3
)

// workspace is what has been seen of it.
type workspace struct {
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

func machineOf(name, image string) *v1alpha1.VirtualMachine {
	return &v1alpha1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: workspaceNamespace, Name: name},
		Spec: v1alpha1.VirtualMachineSpec{
			Resources:      &v1alpha1.MachineResources{CPU: ptr.To(resource.MustParse("2")), Memory: ptr.To(resource.MustParse("2Gi"))},
			VMDiskImageRef: v1alpha1.ImageReference{Namespace: namespace, Name: image},
		},
	}
}

func (s *story) sourceOf(image string) string {
	return s.source.URL + "/ok/" + downloadTakes + "/" + image + ".qcow2"
}

// openWorkspace applies the machines. Each brings a template of its image, as
// none of them is there.
func (s *story) openWorkspace(ctx context.Context) error {
	c := s.fleet.members[bergen].Client()
	s.waited = map[string]bool{}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspaceNamespace}}); err != nil {
		return err
	}
	for _, vm := range []*v1alpha1.VirtualMachine{machineOf(desk1, desktop), machineOf(desk2, desktop), machineOf(gateway, router)} {
		image := vm.Spec.VMDiskImageRef.Name
		vm.Spec.VMDiskImageTemplate = &v1alpha1.VMDiskImageSpec{
			Name: image, SourceType: v1alpha1.SourceHTTP, URL: s.sourceOf(image),
			DiskSize: resource.MustParse("24Gi"), StorageClass: simulator.ClassCSI, SnapshotClass: simulator.SnapshotClass,
		}
		if err := c.Create(ctx, vm); err != nil {
			return fmt.Errorf("creating VirtualMachine %s in %s: %w", vm.Name, bergen, err)
		}
	}
	s.screen.say("workspace of 3 VirtualMachines applied in %s, which has neither of their 2 images", bergen)
	return nil
}

// ofWorkspace is what is done with the workspace, one after another.
func (s *story) ofWorkspace() []act {
	return []act{
		{func() bool {
			return s.running() == machinesInAll && s.references[desktop] == 2 && s.references[router] == 1
		}, s.askForDeletion},
		{func() bool { return s.desktopsHeldBy(desk1, desk2) }, func(ctx context.Context) error {
			s.screen.say("%s %s: %s", desktop, v1alpha1.PhaseTerminating, s.desktops().Status.Message)
			return s.deleteMachines(ctx, desk1)
		}},
		// The PruneReport is to tell of the workspace as it is now.
		{func() bool { return s.oneDesktopLeft() && s.reported() }, func(ctx context.Context) (err error) {
			if s.kept, err = s.storageThere(ctx); err != nil {
				return err
			}
			s.screen.say("%s is deleted; %s still holds %s", desk1, desk2, desktop)
			return s.deleteMachines(ctx, desk2, gateway)
		}},
		{func() bool {
			_, listed := s.references[desktop]
			return s.desktops() == nil && !listed && s.references[router] == 0
		}, func(context.Context) error {
			s.screen.say("the other two are deleted, and %s has gone with the last; %s stays, unreferenced", desktop, router)
			return nil
		}},
	}
}

// desktopsHeldBy tells whether the desktops' image is to be deleted and waits for
// these machines.
func (s *story) desktopsHeldBy(names ...string) bool {
	img := s.desktops()
	if img == nil || img.Status.Phase != v1alpha1.PhaseTerminating || len(img.Status.References.Holders) != len(names) {
		return false
	}
	return !slices.ContainsFunc(names, func(name string) bool {
		return !slices.Contains(img.Status.References.Holders, workspaceNamespace+"/"+name)
	})
}

func (s *story) oneDesktopLeft() bool { return s.desktopsHeldBy(desk2) }

func (s *story) askForDeletion(ctx context.Context) error {
	c := s.fleet.members[bergen].Client()
	var theirs kubevirtv1.VirtualMachineList
	if err := c.List(ctx, &theirs, client.InNamespace(workspaceNamespace)); err != nil {
		return fmt.Errorf("listing KubeVirt VirtualMachines: %w", err)
	}
	for i := range theirs.Items {
		if theirs.Items[i].Status.Ready {
			s.ran++
		}
	}
	s.told, s.uid = s.references, string(s.desktops().UID)
	s.screen.say("all machines run; the hub's read API: %s is referenced by %d machines, %s by %d", desktop, s.told[desktop], router, s.told[router])
	if err := c.Delete(ctx, s.desktops()); err != nil {
		return fmt.Errorf("deleting VMDiskImage %s: %w", desktop, err)
	}
	s.screen.say("kubectl delete vmdi %s: asked for", desktop)
	return nil
}

func (s *story) deleteMachines(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := s.fleet.members[bergen].Client().Delete(ctx, machineOf(name, "")); err != nil {
			return fmt.Errorf("deleting VirtualMachine %s: %w", name, err)
		}
	}
	return nil
}

// lookAtWorkspace reads the machines where they are, and the references of their
// images from the hub.
func (s *story) lookAtWorkspace(ctx context.Context) error {
	var list v1alpha1.VirtualMachineList
	if err := s.fleet.members[bergen].Client().List(ctx, &list, client.InNamespace(workspaceNamespace)); err != nil {
		return fmt.Errorf("listing VirtualMachines of %s: %w", bergen, err)
	}
	s.machines = list.Items
	for i := range s.machines {
		if s.machines[i].Status.Reason == v1alpha1.ReasonWaitingForImage {
			s.waited[s.machines[i].Name] = true
		}
	}
	images, err := s.hub.Images(ctx)
	if err != nil {
		if errors.Is(err, hub.ErrNotServed) {
			return nil
		}
		return err
	}
	s.references = map[string]int64{}
	for i := range images {
		for _, name := range []string{desktop, router} {
			if strings.HasSuffix(images[i].Source, s.sourceOf(name)) {
				s.references[name] = images[i].References
			}
		}
	}
	return nil
}

func (s *story) running() (n int) {
	for i := range s.machines {
		if s.machines[i].Status.Phase == v1alpha1.MachineReady {
			n++
		}
	}
	return n
}

func (s *story) desktops() *v1alpha1.VMDiskImage {
	for i := range s.images[bergen] {
		if img := &s.images[bergen][i]; img.Name == desktop {
			return img
		}
	}
	return nil
}

// storageThere tells whether the desktops' image has its claim.
func (s *story) storageThere(ctx context.Context) (bool, error) {
	var claims corev1.PersistentVolumeClaimList
	err := s.fleet.members[bergen].Client().List(ctx, &claims, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelImageUID: s.uid})
	if err != nil {
		return false, fmt.Errorf("listing the claims of VMDiskImage %s: %w", desktop, err)
	}
	return slices.ContainsFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool {
		return c.DeletionTimestamp == nil && c.Status.Phase == corev1.ClaimBound
	}), nil
}

// judgeWorkspace says what came of the workspace.
func (s *story) judgeWorkspace(ctx context.Context, check func(bool, string, ...any)) error {
	there, err := s.storageThere(ctx)
	if err != nil {
		return err
	}
	img := &v1alpha1.VMDiskImage{}
	err = s.fleet.members[bergen].Client().Get(ctx, client.ObjectKey{Namespace: namespace, Name: router}, img)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	check(len(s.waited) == machinesInAll && s.ran == machinesInAll, "%s: 3 machines waited for their images, with a reason, and then ran", bergen)
	check(s.told[desktop] == 2 && s.told[router] == 1, "the hub knew by how many machines each image was referenced")
	check(s.kept && !there, "%s: %s kept its storage until its last machine was deleted, and no longer", bergen, desktop)
	check(!apierrors.IsNotFound(err) && img.DeletionTimestamp.IsZero(), "%s: %s, whose deletion nobody asked for, is still there", bergen, router)
	return nil
}
