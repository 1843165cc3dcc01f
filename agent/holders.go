package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// machines tell which VirtualMachines hold an image.
type machines struct {
	cached, live client.Reader
}

// page is how many machines are read at a time.
const page = 500

// holders lists the machines that hold an image, running or stopped. Live, every
// machine of the cluster is read, in pages of one moment: an index is of the
// cache.
func (m machines) holders(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
	if live {
		return m.listLive(ctx, img)
	}
	var found []image.Holder
	for _, key := range vm.ImageKeys(img) {
		var list v1alpha1.VirtualMachineList
		if err := m.cached.List(ctx, &list, client.MatchingFields{vm.ImageIndex: key}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("finding the VirtualMachines that hold it: %w", err)
		}
		found = vm.AddHolders(found, list.Items, img)
	}
	return vm.Sorted(found), nil
}

func (m machines) listLive(ctx context.Context, img *v1alpha1.VMDiskImage) ([]image.Holder, error) {
	var (
		found []image.Holder
		next  string
	)
	for {
		var list v1alpha1.VirtualMachineList
		if err := m.live.List(ctx, &list, client.Limit(page), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("listing VirtualMachines live: %w", err)
		}
		found = vm.AddHolders(found, list.Items, img)
		if next = list.Continue; next == "" {
			return vm.Sorted(found), nil
		}
	}
}
