package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageHolders lists what holds an image: VirtualMachines, and their disks.
type imageHolders struct {
	cached, live client.Reader
	// disks is a cache of the objects with the label of a machine's UID: disks, their claims and
	// KubeVirt's VirtualMachines.
	disks client.Reader
	// isServed reports whether the cluster serves a kind.
	isServed func(schema.GroupVersionKind) bool
}

// listPageSize is the number of objects per list request: the most that package liveread reads at once.
const listPageSize = 50

// list lists what holds an image: VirtualMachines, running or stopped, and their disks. With
// live, it reads all of the cluster, in pages of one resourceVersion: only caches have an index.
func (h imageHolders) list(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) (found []image.Holder, err error) {
	if live {
		return h.listLive(ctx, img)
	}
	for _, key := range vm.ImageIndexKeys(img) {
		var list v1alpha1.VirtualMachineList
		if err := h.cached.List(ctx, &list, client.MatchingFields{vm.ImageIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing VirtualMachines by image: %w", err)
		}
		found = vm.AppendHolders(found, list.Items, img)
	}
	var dvs cdiv1.DataVolumeList
	var claims corev1.PersistentVolumeClaimList
	match := client.MatchingFields{vm.ClonedFromIndex: string(img.UID)}
	if h.isServed(image.DataVolumeGVK) {
		if err := h.disks.List(ctx, &dvs, match, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing disks by image: %w", err)
		}
	}
	if err := h.disks.List(ctx, &claims, match, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing claims of disks by image: %w", err)
	}
	var disks []metav1.Object
	for i := range dvs.Items {
		disks = append(disks, &dvs.Items[i])
	}
	for i := range claims.Items {
		disks = append(disks, &claims.Items[i])
	}
	for _, disk := range disks {
		var list v1alpha1.VirtualMachineList
		if err := h.cached.List(ctx, &list, client.MatchingFields{vm.UIDIndex: disk.GetLabels()[v1alpha1.LabelMachineUID]}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing VirtualMachines by UID: %w", err)
		}
		var machine types.NamespacedName
		if len(list.Items) > 0 {
			machine = client.ObjectKeyFromObject(&list.Items[0])
		}
		if found, err = h.appendHolder(ctx, found, disk, machine, img); err != nil {
			return nil, err
		}
	}
	return vm.SortHolders(found), nil
}

// appendHolder appends who holds an image by a disk. An orphaned disk is in use where KubeVirt's
// VirtualMachine was left behind, too: the guest runs on.
func (h imageHolders) appendHolder(ctx context.Context, holders []image.Holder, disk metav1.Object, machine types.NamespacedName, img *v1alpha1.VMDiskImage) ([]image.Holder, error) {
	holder, held := vm.HolderOfDisk(disk, machine, img)
	if !held {
		return holders, nil
	}
	if holder.OrphanedDisk && h.isServed(kubevirt.VirtualMachineGVK) {
		users := &unstructured.UnstructuredList{}
		users.SetGroupVersionKind(kubevirt.VirtualMachineGVK)
		match := client.MatchingLabels{v1alpha1.LabelMachineUID: disk.GetLabels()[v1alpha1.LabelMachineUID]}
		if err := h.disks.List(ctx, users, client.InNamespace(disk.GetNamespace()), match); err != nil {
			return nil, fmt.Errorf("listing KubeVirt VirtualMachines of an orphaned disk: %w", err)
		}
		if len(users.Items) > 0 {
			holder.UsedBy = "KubeVirt VirtualMachine " + disk.GetNamespace() + "/" + users.Items[0].GetName()
		}
	}
	return append(holders, holder), nil
}

// listLive lists VirtualMachines before disks. The disk of a machine that is created meanwhile
// counts for nobody: it has an owner that the first list lacks.
//
// Invariant: such a machine reads the image live before it clones, after the image was marked as
// Deleting, and clones nothing.
func (h imageHolders) listLive(ctx context.Context, img *v1alpha1.VMDiskImage) ([]image.Holder, error) {
	var found []image.Holder
	names := map[types.UID]types.NamespacedName{}
	err := h.listPages(ctx, func() client.ObjectList { return &v1alpha1.VirtualMachineList{} }, func(page client.ObjectList) {
		machines := page.(*v1alpha1.VirtualMachineList).Items
		found = vm.AppendHolders(found, machines, img)
		for i := range machines {
			names[machines[i].UID] = client.ObjectKeyFromObject(&machines[i])
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing VirtualMachines live: %w", err)
	}
	for _, kind := range []schema.GroupVersionKind{image.DataVolumeGVK, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")} {
		if kind == image.DataVolumeGVK && !h.isServed(kind) {
			continue
		}
		newList := func() client.ObjectList {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
			return list
		}
		var disks []metav1.PartialObjectMetadata
		err := h.listPages(ctx, newList, func(page client.ObjectList) {
			for _, disk := range page.(*metav1.PartialObjectMetadataList).Items {
				if vm.ClonedImageUID(&disk) == img.UID {
					disks = append(disks, disk)
				}
			}
		}, client.HasLabels{v1alpha1.LabelMachineUID})
		if err != nil {
			return nil, fmt.Errorf("listing disks live: %w", err)
		}
		for i := range disks {
			if found, err = h.appendHolder(ctx, found, &disks[i], names[types.UID(disks[i].Labels[v1alpha1.LabelMachineUID])], img); err != nil {
				return nil, err
			}
		}
	}
	return vm.SortHolders(found), nil
}

// listPages lists page by page, each in a list of its own.
func (h imageHolders) listPages(ctx context.Context, newList func() client.ObjectList, visit func(page client.ObjectList), match ...client.ListOption) error {
	for next := ""; ; {
		page := newList()
		if err := h.live.List(ctx, page, append([]client.ListOption{client.Limit(listPageSize), client.Continue(next)}, match...)...); err != nil {
			return err
		}
		visit(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}
