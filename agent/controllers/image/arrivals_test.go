package image

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestCompareArrival(t *testing.T) {
	at := func(name string, second int, version string, finalizers ...string) v1alpha1.VMDiskImage {
		return v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{
			Name: name, ResourceVersion: version, Finalizers: finalizers,
			CreationTimestamp: metav1.NewTime(time.Unix(int64(second), 0)),
		}}
	}
	got := []v1alpha1.VMDiskImage{
		at("f", 2, "40"),
		at("e", 2, "9", "somebody.else/finalizer"),
		at("c", 1, "30"),
		at("d", 2, "55", v1alpha1.FinalizerImage), // an earlier agent has seen it
		at("b", 1, "4"),
		at("a", 0, "99"),
	}
	slices.SortFunc(got, compareArrival)
	var names []string
	for _, img := range got {
		names = append(names, img.Name)
	}
	assert.Equal(t, []string{"a", "b", "c", "d", "e", "f"}, names)
}
