package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// imageHolders lists what holds an image: VirtualMachines, and their disks.
type imageHolders struct {
	cached, live client.Reader
	// disks is a cache of the objects with the label of a machine's UID.
	disks client.Reader
	// isServed reports whether the cluster serves a kind.
	isServed func(schema.GroupVersionKind) bool
}

// listPageSize is the number of objects per list request.
const listPageSize = 500

// list lists what holds an image: VirtualMachines, running or stopped, and their disks. With
// live, it reads all of the cluster, in pages of one resourceVersion: only caches have an index.
func (h imageHolders) list(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
	if live {
		return h.listLive(ctx, img)
	}
	var found []image.Holder
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
		machine := ""
		if len(list.Items) > 0 {
			machine = list.Items[0].Name
		}
		if holder, held := vm.HolderOfDisk(disk, machine, img); held {
			found = append(found, holder)
		}
	}
	return vm.SortHolders(found), nil
}

// listLive lists VirtualMachines before disks: the disk of a machine that is created meanwhile
// counts as orphaned, which keeps the image.
func (h imageHolders) listLive(ctx context.Context, img *v1alpha1.VMDiskImage) ([]image.Holder, error) {
	var found []image.Holder
	names := map[types.UID]string{}
	err := h.listPages(ctx, func() client.ObjectList { return &v1alpha1.VirtualMachineList{} }, func(page client.ObjectList) {
		machines := page.(*v1alpha1.VirtualMachineList).Items
		found = vm.AppendHolders(found, machines, img)
		for i := range machines {
			names[machines[i].UID] = machines[i].Name
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
		err := h.listPages(ctx, newList, func(page client.ObjectList) {
			disks := page.(*metav1.PartialObjectMetadataList).Items
			for i := range disks {
				if holder, held := vm.HolderOfDisk(&disks[i], names[types.UID(disks[i].Labels[v1alpha1.LabelMachineUID])], img); held {
					found = append(found, holder)
				}
			}
		}, client.HasLabels{v1alpha1.LabelMachineUID})
		if err != nil {
			return nil, fmt.Errorf("listing disks live: %w", err)
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
