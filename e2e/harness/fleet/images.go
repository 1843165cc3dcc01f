//go:build linux

package fleet

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// Namespace is that of all images and machines in the members.
const Namespace = metav1.NamespaceDefault

// NewImageSpec describes an image that no test looks for at its source.
func NewImageSpec(name string) v1alpha1.VMDiskImageSpec {
	return v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: "http://images.example.com/" + name + ".qcow2",
		DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
	}
}

// NewImage is an image that was not created yet.
func NewImage(name string) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}, Spec: NewImageSpec(name)}
}

// CreateImage creates an image as a person does.
func (m *Member) CreateImage(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := NewImage(name)
	require.NoError(t, m.Create(t.Context(), img))
	return img
}

// CreateImageForTest creates an image and deletes it when the test ends.
func (m *Member) CreateImageForTest(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := m.CreateImage(t, name)
	m.deleteAfter(t, img)
	return img
}

func (m *Member) deleteAfter(t *testing.T, o client.Object) {
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(m.Delete(context.Background(), o))) })
}

// GetImage returns an image of the member, nil for none.
func (m *Member) GetImage(t *testing.T, name string) *v1alpha1.VMDiskImage {
	t.Helper()
	img := &v1alpha1.VMDiskImage{}
	err := m.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: name}, img)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return img
}

// AwaitImage waits until the member has an image that meets a condition.
func (m *Member) AwaitImage(t *testing.T, name, wanted string, condition func(*v1alpha1.VMDiskImage) bool) *v1alpha1.VMDiskImage {
	t.Helper()
	img, held := testenv.AwaitObject(t, m, client.ObjectKey{Namespace: Namespace, Name: name}, condition)
	if !held {
		require.Failf(t, "image is not as wanted", "%s: want %s %s, there is %+v", m.Name(), name, wanted, img)
	}
	return img
}

// AwaitPhase waits until the member has an image in a phase.
func (m *Member) AwaitPhase(t *testing.T, name string, phase v1alpha1.Phase) *v1alpha1.VMDiskImage {
	t.Helper()
	return m.AwaitImage(t, name, string(phase), testenv.InPhase(phase))
}

// AwaitImageGone waits until the member has no image of a name and UID; of any UID for "".
func (m *Member) AwaitImageGone(t *testing.T, name string, uid types.UID) {
	t.Helper()
	var img *v1alpha1.VMDiskImage
	require.True(t, testenv.AwaitCondition(t, func() bool {
		img = m.GetImage(t, name)
		return img == nil || uid != "" && img.UID != uid
	}), "%s: image %s is still there: %+v", m.Name(), name, &img)
}

// CreateMachine creates a VirtualMachine that references an image and makes no KubeVirt
// machine, until the test ends.
func (m *Member) CreateMachine(t *testing.T, name, image string) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := testenv.NewMachine(Namespace, name, NewImage(image))
	vm.Spec.IgnoreOnDeploy = true
	require.NoError(t, m.Create(t.Context(), vm))
	m.deleteAfter(t, vm)
	return vm
}

// HoldImports keeps imports from ending until release or the end of the test: of some
// images, of all without names.
func (m *Member) HoldImports(t *testing.T, images ...string) (release func()) {
	t.Helper()
	release = m.InstantImporter().HoldImports(func(dv *cdiv1.DataVolume) bool {
		for _, name := range images {
			if dv.Annotations[v1alpha1.AnnotationImageName] == name {
				return true
			}
		}
		return len(images) == 0
	})
	t.Cleanup(release)
	return release
}

// ClusterUID of the member.
func (m *Member) ClusterUID(t *testing.T) types.UID {
	t.Helper()
	return ClusterUID(t, m)
}

// ClusterUID is the UID of a cluster's kube-system namespace.
func ClusterUID(t *testing.T, c client.Reader) types.UID {
	t.Helper()
	ns := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns))
	return ns.UID
}

// GetReportedImage returns what the hub's copy of a member's report says of an image; the zero
// value for nothing.
func (f *Fleet) GetReportedImage(t *testing.T, member, image string) v1alpha1.ReportedImage {
	t.Helper()
	return testenv.FindReportedImage(t, f, MailboxKey(member).Namespace, client.ObjectKey{Namespace: Namespace, Name: image})
}

// MailboxKey is the key of a member's plan, grant and report on the hub.
func MailboxKey(member string) client.ObjectKey {
	return client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: v1alpha1.MailboxName}
}

// NewFleetImage is a FleetDiskImage for clusters by name, without a version, that was not
// created yet.
func NewFleetImage(name string, clusters ...string) *v1alpha1.FleetDiskImage {
	return &v1alpha1.FleetDiskImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.FleetDiskImageSpec{
			TargetNamespace: Namespace, Template: NewImageSpec(name), Placement: v1alpha1.Placement{ClusterNames: clusters},
		},
	}
}

// CreateForTest creates an object on the hub and deletes it when the test ends.
func (f *Fleet) CreateForTest(t *testing.T, o client.Object) {
	t.Helper()
	require.NoError(t, f.Create(t.Context(), o))
	t.Cleanup(func() { require.NoError(t, client.IgnoreNotFound(f.Delete(context.Background(), o))) })
}

// AwaitGone waits until an object of the hub is deleted.
func (f *Fleet) AwaitGone(t *testing.T, o client.Object) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		return apierrors.IsNotFound(f.Get(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(o), o))
	}), "%T %s is still there", o, o.GetName())
}
