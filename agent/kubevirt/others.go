package kubevirt

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// restoreAnnotation stands on a BuildVirtualMachine VirtualMachine that has been restored
// from a snapshot (BuildVirtualMachine 1.8).
const restoreAnnotation = "restore.kubevirt.io/lastRestoreUID"

// sharedLists are the lists of a BuildVirtualMachine VirtualMachine that others add to: virtctl
// addvolume, memory dumps, interfaces that are plugged in. Applied they are one
// value each, so what is others' has to be in what is applied. own are the names
// in them that are the agent's.
var sharedLists = []struct {
	path []string
	own  *regexp.Regexp
}{
	{[]string{"spec", "template", "spec", "domain", "devices", "disks"}, regexp.MustCompile(`^(root|cloudinit)$`)},
	{volumesPath, regexp.MustCompile(`^(root|cloudinit)$`)},
	{[]string{"spec", "template", "spec", "domain", "devices", "interfaces"}, regexp.MustCompile(`^(default|net[0-9]+)$`)},
	{[]string{"spec", "template", "spec", "networks"}, regexp.MustCompile(`^(default|net[0-9]+)$`)},
}

var volumesPath = []string{"spec", "template", "spec", "volumes"}

// overlayItemNames are those that an overlay has put into shared lists.
func overlayItemNames(u *unstructured.Unstructured) string {
	var names []string
	for _, list := range sharedLists {
		items, _, _ := unstructured.NestedSlice(u.Object, list.path...)
		for _, item := range items {
			if name := itemName(item); !list.own.MatchString(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// PreserveForeignItems puts into want what others have added to the BuildVirtualMachine
// VirtualMachine that is there, where they have added it. What the agent has
// applied itself and does not want any more is no others'.
func PreserveForeignItems(want, live *unstructured.Unstructured) {
	overlaid := strings.Split(live.GetAnnotations()[v1alpha1.AnnotationOverlaid], ",")
	for _, list := range sharedLists {
		wanted, _, _ := unstructured.NestedSlice(want.Object, list.path...)
		there, _, _ := unstructured.NestedSlice(live.Object, list.path...)
		merged := mergeForeignItems(wanted, there, func(name string) bool {
			return list.own.MatchString(name) || slices.Contains(overlaid, name)
		})
		if len(merged) > len(wanted) {
			_ = unstructured.SetNestedSlice(want.Object, merged, list.path...) // fails only where a parent is no object
		}
	}
	if RestoredClaim(live) == "" {
		return
	}
	wanted, _, _ := unstructured.NestedSlice(want.Object, volumesPath...)
	if i := indexOfItem(wanted, RootVolume); i >= 0 {
		there, _, _ := unstructured.NestedSlice(live.Object, volumesPath...)
		wanted[i] = there[indexOfItem(there, RootVolume)]
		_ = unstructured.SetNestedSlice(want.Object, wanted, volumesPath...)
	}
}

func mergeForeignItems(wanted, there []any, own func(string) bool) []any {
	var merged []any
	next := 0
	for _, item := range there {
		switch name := itemName(item); {
		case indexOfItem(wanted, name) >= 0:
			if next < len(wanted) {
				merged = append(merged, wanted[next])
				next++
			}
		case name != "" && !own(name):
			merged = append(merged, item)
		}
	}
	return append(merged, wanted[next:]...)
}

func indexOfItem(list []any, name string) int {
	return slices.IndexFunc(list, func(item any) bool { return itemName(item) == name })
}

// RestoredClaim is the claim that BuildVirtualMachine has put in the place of a machine's root
// disk when it restored a snapshot; empty where it has not.
func RestoredClaim(live *unstructured.Unstructured) string {
	if live.GetAnnotations()[restoreAnnotation] == "" {
		return ""
	}
	list, _, _ := unstructured.NestedSlice(live.Object, volumesPath...)
	i := indexOfItem(list, RootVolume)
	if i < 0 {
		return ""
	}
	volume, _ := list[i].(map[string]any)
	claim, _, _ := unstructured.NestedString(volume, "persistentVolumeClaim", "claimName")
	return claim
}
