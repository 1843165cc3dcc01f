//go:build linux

package kind_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
)

// The storage classes of kind-configs/storage: each is in one of the members only.
const (
	classFast     = "fast"
	classPrepared = "prepared"
	classStandard = "standard"
)

// unlikeMember is a member and what one FleetDiskImage with overrides comes to there.
type unlikeMember struct {
	name, storageClass string
	binding            storagev1.VolumeBindingMode
}

var unlikeMembers = []unlikeMember{
	{"bergen", classFast, storagev1.VolumeBindingWaitForFirstConsumer},
	{"edge", classPrepared, storagev1.VolumeBindingImmediate},
	{"oslo", classStandard, storagev1.VolumeBindingWaitForFirstConsumer},
}

// TestUnlikeClusters rolls one image out to three clusters that have no storage class of their own in
// common: without overrides two of them wait, and say for what.
func TestUnlikeClusters(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "one FleetDiskImage works in clusters with unlike storage classes, each from the url of its own site; without overrides those without the template's class wait", func(t *testing.T) {
		const name = "journey-unlike"
		img := fleetjourneys.NewFleetImage(f, name)
		img.Spec.Placement = v1alpha1.Placement{}
		img.Spec.Template = f.imageSpecAt("template", name, "disk.qcow2")
		img.Spec.Template.StorageClass = classFast
		members := map[string]fleetjourneys.Member{}
		for _, u := range unlikeMembers {
			members[u.name] = f.requireMember(t, u.name)
			class := &storagev1.StorageClass{}
			require.NoError(t, members[u.name].Get(t.Context(), client.ObjectKey{Name: u.storageClass}, class))
			require.Equal(t, u.binding, *class.VolumeBindingMode, "%s of %s", u.storageClass, u.name)
			img.Spec.Placement.ClusterNames = append(img.Spec.Placement.ClusterNames, u.name)
		}
		fleetjourneys.CreateFleetImage(t, f, img)
		for _, u := range unlikeMembers {
			if u.storageClass != classFast {
				fleetjourneys.AwaitImage(t, members[u.name], img.ImageNameForVersion("1"), "waiting for a class that is not there", func(got *v1alpha1.VMDiskImage) bool {
					return got.Status.Reason == v1alpha1.ReasonStorageClassMissing
				})
			}
		}

		base := img.DeepCopy()
		img.Spec.Version = "2"
		img.Spec.Overrides = []v1alpha1.ImageOverride{
			{ClusterSelector: &metav1.LabelSelector{}, URL: ptr.To("http://" + f.Source + "/${labels.site}/" + name + "/disk.qcow2")},
			{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"edge": "true"}}, StorageClass: ptr.To(classPrepared)},
			{ClusterNames: []string{"oslo"}, StorageClass: ptr.To("")}, // the cluster's default
		}
		require.NoError(t, f.Hub().Patch(t.Context(), img, client.MergeFrom(base)))
		fleetjourneys.AwaitFleetImage(t, f, name, "in all clusters", func(got *v1alpha1.FleetDiskImage) bool {
			return fleetjourneys.IsSucceeded(got) && int(got.Status.Clusters.Succeeded) == len(unlikeMembers)
		})
		for _, u := range unlikeMembers {
			got := fleetjourneys.AwaitReadyImage(t, f, members[u.name], img.ImageNameForVersion("2"))
			claim := &corev1.PersistentVolumeClaim{}
			require.NoError(t, members[u.name].Get(t.Context(), client.ObjectKey{Namespace: got.Namespace, Name: got.Status.Serving.PersistentVolumeClaim}, claim))
			assert.Equal(t, u.storageClass, ptr.Deref(claim.Spec.StorageClassName, ""), "the class of %s", u.name)
			asked, _ := f.SourceRequests(t, f.imageSpecAt(u.name, name, "disk.qcow2"))
			assert.Positive(t, asked.Bytes, "what %s downloaded from its site", u.name)
		}
	})
}
