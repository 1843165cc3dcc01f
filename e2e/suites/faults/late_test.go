//go:build linux

package faults

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// TestLateImporterIsDeleted plays a CDI whose cache is late: it makes the importer of a
// finished claim once more and then looks at neither again, so the Pod keeps the claim
// and the claim the Pod. Both have to go, while the image serves and after it.
func TestLateImporterIsDeleted(t *testing.T) {
	testScene.SetPolicy(t, newPolicy())
	ns := createHomeNamespace(t)
	populated, direct := testScene.NewImage(ns, "populated", "/ok/10s/a"), testScene.NewImage(ns, "direct", "/ok/10s/a")
	populated.Spec.StorageClass, direct.Spec.StorageClass = simulator.ClassCSI, simulator.ClassLocal
	testScene.Create(t, populated)
	prime := createLateImporter(t, populated, func(claim *corev1.PersistentVolumeClaim) bool { return strings.HasPrefix(claim.Name, "prime-") })
	testScene.Create(t, direct)
	createLateImporter(t, direct, func(*corev1.PersistentVolumeClaim) bool { return true })

	awaitSucceeded(t, populated)
	require.True(t, testenv.Await(t, func() bool {
		return apierrors.IsNotFound(testScene.Client().Get(t.Context(), client.ObjectKeyFromObject(prime), &corev1.PersistentVolumeClaim{}))
	}), "the claim that was filled first is still there")
	awaitSucceeded(t, direct)
	for _, img := range []*v1alpha1.VMDiskImage{populated, direct} {
		require.NoError(t, testScene.Client().Delete(t.Context(), img))
		testScene.AwaitGone(t, img)
	}
	awaitNothingStored(t, ns)
}

// createLateImporter makes a further importer of a claim of an image that is being imported, as CDI
// makes it.
func createLateImporter(t *testing.T, img *v1alpha1.VMDiskImage, of func(*corev1.PersistentVolumeClaim) bool) *corev1.PersistentVolumeClaim {
	t.Helper()
	awaitImporting(t, img)
	var claims corev1.PersistentVolumeClaimList
	require.NoError(t, testScene.Client().List(t.Context(), &claims, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}))
	i := slices.IndexFunc(claims.Items, func(c corev1.PersistentVolumeClaim) bool { return of(&c) })
	require.GreaterOrEqual(t, i, 0, "claims are %v", claims.Items)
	claim := &claims.Items[i]
	require.NoError(t, testScene.Client().Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: img.Namespace, Name: "late-" + img.Name, Labels: claim.Labels,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: simulator.NodeName, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "importer", Image: "cdi-importer"}},
			Volumes: []corev1.Volume{{Name: "cdi-data-vol", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}}},
		},
	}))
	return claim
}
