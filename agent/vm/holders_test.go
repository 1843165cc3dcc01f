package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestListHolders(t *testing.T) {
	img := goldenImage(1)
	pin := pinServedBy(img, true)
	formerPin := pin
	formerPin.UID = "uid-of-former"
	byName := apitest.VirtualMachine("ns", "b-names").Obj()
	byPin := apitest.VirtualMachine("ns", "a-pins").WithImage("", "another").WithPin(pin).Obj()
	both := apitest.VirtualMachine("other", "c-both").WithImage("ns", "golden").WithPin(pin).Obj()
	ofFormer := apitest.VirtualMachine("ns", "d-names-and-pins-a-former").WithPin(formerPin).Obj()
	onDisks := apitest.VirtualMachine("ns", "f-disks").WithImage("", "another").Obj()
	onDisks.Spec.Disks = []v1alpha1.Disk{{Name: "blank"}, {Name: "data", Image: &v1alpha1.ImageReference{Name: "golden"}}}
	older := pin
	older.Revision, older.Attempt = "older", 7
	onDisks.Status.Disks = []v1alpha1.DataDisk{{Name: "removed", Pinned: &older, Removed: true}, {Name: "data", Pinned: &pin}}
	neither := apitest.VirtualMachine("other", "e").Obj()
	all := []v1alpha1.VirtualMachine{*byName, *byPin, *both, *ofFormer, *neither, *both, *onDisks}
	assert.Equal(t, []image.Holder{
		{Name: "ns/a-pins", Pins: []*v1alpha1.PinnedImage{&pin}}, {Name: "ns/b-names"}, {Name: "ns/d-names-and-pins-a-former"}, {Name: "ns/f-disks", Pins: []*v1alpha1.PinnedImage{&older, &pin}}, {Name: "other/c-both", Pins: []*v1alpha1.PinnedImage{&pin}},
	}, vm.ListHolders(all, img), "each once, by name")
	for i := range all {
		held := false
		for _, key := range vm.ImageIndexKeys(img) {
			for _, value := range vm.HeldImages(&all[i]) {
				held = held || key == value
			}
		}
		assert.Equal(t, len(vm.ListHolders(all[i:i+1], img)) > 0, held, "the index finds %s if it holds the image", all[i].Name)
	}
}

func TestHoldersDoNotAliasMachines(t *testing.T) {
	img := goldenImage(1)
	all := []v1alpha1.VirtualMachine{*apitest.VirtualMachine("ns", "vm").WithPin(pinServedBy(img, true)).Obj()}
	holders := vm.AppendHolders(nil, all, img)
	all[0].Status.Pinned.Attempt = 2
	assert.EqualValues(t, 1, holders[0].Pins[0].Attempt)
	assert.Len(t, vm.SortHolders(vm.AppendHolders(holders, all, img)), 1, "found in two pages or by two keys")
}
