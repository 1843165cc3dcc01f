package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// vmHolders lists the VirtualMachines that hold an image.
type vmHolders struct {
	cached, live client.Reader
}

// vmPageSize is the number of VirtualMachines per list request.
const vmPageSize = 500

// listHolders lists the VirtualMachines that hold an image, running or stopped. With live,
// it reads all VirtualMachines of the cluster, in pages of one resourceVersion: only the
// cache has an index.
func (h vmHolders) listHolders(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
	if live {
		return h.listHoldersLive(ctx, img)
	}
	var found []image.Holder
	for _, key := range vm.ImageIndexKeys(img) {
		var list v1alpha1.VirtualMachineList
		if err := h.cached.List(ctx, &list, client.MatchingFields{vm.ImageIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing VirtualMachines by image: %w", err)
		}
		found = vm.AppendHolders(found, list.Items, img)
	}
	return vm.SortHolders(found), nil
}

func (h vmHolders) listHoldersLive(ctx context.Context, img *v1alpha1.VMDiskImage) ([]image.Holder, error) {
	var (
		found         []image.Holder
		continueToken string
	)
	for {
		var list v1alpha1.VirtualMachineList
		if err := h.live.List(ctx, &list, client.Limit(vmPageSize), client.Continue(continueToken)); err != nil {
			return nil, fmt.Errorf("listing VirtualMachines live: %w", err)
		}
		found = vm.AppendHolders(found, list.Items, img)
		if continueToken = list.Continue; continueToken == "" {
			return vm.SortHolders(found), nil
		}
	}
}
