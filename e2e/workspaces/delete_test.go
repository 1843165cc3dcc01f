//go:build linux

package workspaces

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

func TestMachineGoesWithAllThatWasMadeForIt(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	vm := scene.Machine(ns, "vm", base(t))
	started(t, vm)
	remove(t, vm)
	place.Gone(t, vm)
	wantNothingLeft(t, ns)
}

// TestMachineMadeAgain under the name of one that is still being taken apart.
func TestMachineMadeAgain(t *testing.T) {
	t.Parallel()
	ns := place.Namespace(t)
	old := scene.Machine(ns, "vm", base(t))
	started(t, old)
	disk := read(t, rootDisk(old))
	remove(t, old)
	again := scene.Machine(ns, "vm", base(t))
	require.True(t, scene.Await(t, func() bool { return place.Client().Create(t.Context(), again) == nil }))
	runs(t, again)
	require.NotEqual(t, old.UID, again.UID)
	for _, o := range []client.Object{theirs(again), rootDisk(again), told(again)} {
		assert.Equal(t, string(again.UID), read(t, o).GetLabels()[v1alpha1.LabelMachineUID], "%T", o)
	}
	assert.NotEqual(t, disk.UID, read(t, rootDisk(again)).UID, "a guest's data is not the next one's")
}
