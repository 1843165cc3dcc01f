package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// vmHolders tell which VirtualMachines hold an image.
type vmHolders struct {
	cached, live client.Reader
}

// vmPageSize is how many machines are read at a time.
const vmPageSize = 500

// listHolders lists the machines that hold an image, running or stopped. Live, every
// machine of the cluster is read, in pages of one moment: an index is of the
// cache.
func (m vmHolders) listHolders(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
	if live {
		return m.listHoldersLive(ctx, img)
	}
	var found []image.Holder
	for _, key := range vm.ImageIndexKeys(img) {
		var list v1alpha1.VirtualMachineList
		if err := m.cached.List(ctx, &list, client.MatchingFields{vm.ImageIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("finding the VirtualMachines that hold it: %w", err)
		}
		found = vm.AppendHolders(found, list.Items, img)
	}
	return vm.SortHolders(found), nil
}

func (m vmHolders) listHoldersLive(ctx context.Context, img *v1alpha1.VMDiskImage) ([]image.Holder, error) {
	var (
		found []image.Holder
		next  string
	)
	for {
		var list v1alpha1.VirtualMachineList
		if err := m.live.List(ctx, &list, client.Limit(vmPageSize), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("listing VirtualMachines live: %w", err)
		}
		found = vm.AppendHolders(found, list.Items, img)
		if next = list.Continue; next == "" {
			return vm.SortHolders(found), nil
		}
	}
}
