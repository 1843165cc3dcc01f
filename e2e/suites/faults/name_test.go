//go:build linux

package faults

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
)

// TestLongAndUnusualNames wants that no name breaks what is derived from it.
func TestLongAndUnusualNames(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("concurrency", "8"))
	history := observeTest(t)
	ns := createHomeNamespace(t)
	long := strings.Repeat("a", 250)
	var images []*v1alpha1.VMDiskImage
	for _, name := range []string{
		long + "bcd",
		long + "bce", // the same up to the last character
		strings.Repeat("a.", 126) + "a",
		"ubuntu-24.04.1-server.qcow2",
		"lab-404", "0", "importer-prime-1",
		"a" + strings.Repeat("-", 100) + "z",
	} {
		for _, class := range []string{simulator.ClassCSI, simulator.ClassLocal} {
			img := testScene.NewImage(ns, name, "/ok/100ms/"+class)
			img.Spec.StorageClass = class
			if class == simulator.ClassLocal {
				if len(name) > 251 {
					continue
				}
				img.Name = name + ".l"
			} else {
				img.Spec.SnapshotClass = simulator.SnapshotClass
			}
			images = append(images, img)
			testScene.Create(t, img)
		}
	}
	for _, img := range images {
		awaitSucceeded(t, img)
		dvs := listDataVolumes(t, img)
		require.Len(t, dvs, 1, "%s", img.Name)
		assert.Empty(t, validation.IsDNS1123Label(dvs[0].Name))
		for key, value := range dvs[0].Labels {
			assert.Empty(t, validation.IsValidLabelValue(value), "label %s", key)
		}
		assert.Equal(t, img.Name, dvs[0].Annotations[v1alpha1.AnnotationImageName])
	}
	h := history()
	for _, img := range images {
		assert.Equal(t, 1, h.Attempts(img.UID), "%s", img.Name)
	}
}

func TestStatusCodeInNameIsIgnored(t *testing.T) {
	testScene.SetPolicy(t, newPolicy("retryLimit", "0"))
	ns := createHomeNamespace(t)
	img := testScene.NewImage(ns, "lab-404", "/servererror/100ms/lab-404/expected-status-code-200-got-404.qcow2")
	testScene.Create(t, img)
	awaitFailed(t, img, v1alpha1.ReasonImportFailed)
}
