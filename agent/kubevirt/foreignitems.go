package kubevirt

import (
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// restoreAnnotation stands on a KubeVirt VirtualMachine that was restored from a snapshot, and on the
// claims of that restore (KubeVirt 1.8).
const restoreAnnotation = "restore.kubevirt.io/lastRestoreUID"

var (
	volumesPath    = []string{"spec", "template", "spec", "volumes"}
	interfacesPath = []string{"spec", "template", "spec", "domain", "devices", "interfaces"}
)

// sharedLists are the lists of a KubeVirt VirtualMachine that others add to, by virtctl
// addvolume, memory dumps and hotplugged interfaces. Server-side apply replaces each list
// as a whole, so what is applied has to include the items of others. agentNames matches the
// names of the agent's own items.
var sharedLists = []struct {
	path       []string
	agentNames *regexp.Regexp
}{
	{[]string{"spec", "template", "spec", "domain", "devices", "disks"}, regexp.MustCompile(`^(root|cloudinit)$`)},
	{volumesPath, regexp.MustCompile(`^(root|cloudinit)$`)},
	{interfacesPath, regexp.MustCompile(`^(default|net[0-9]+)$`)},
	{[]string{"spec", "template", "spec", "networks"}, regexp.MustCompile(`^(default|net[0-9]+)$`)},
}

// overlayItemNames returns the names of the items that spec.disks and the overlay added to
// shared lists.
func overlayItemNames(u *unstructured.Unstructured) string {
	var names []string
	for _, list := range sharedLists {
		items, _, _ := unstructured.NestedSlice(u.Object, list.path...)
		for _, item := range items {
			if name := itemName(item); !list.agentNames.MatchString(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// PreserveForeignItems copies into desired, at their places, the items that others have
// added to the live KubeVirt VirtualMachine. Items that the agent applied earlier are not
// copied, so they are removed when desired lacks them.
func PreserveForeignItems(desired, live *unstructured.Unstructured) {
	overlaid := strings.Split(live.GetAnnotations()[v1alpha1.AnnotationOverlaid], ",")
	for _, list := range sharedLists {
		desiredItems, _, _ := unstructured.NestedSlice(desired.Object, list.path...)
		liveItems, _, _ := unstructured.NestedSlice(live.Object, list.path...)
		merged := mergeForeignItems(desiredItems, liveItems, func(name string) bool {
			return list.agentNames.MatchString(name) || slices.Contains(overlaid, name)
		})
		if len(merged) > len(desiredItems) {
			_ = unstructured.SetNestedSlice(desired.Object, merged, list.path...) // fails only where a parent is no object
		}
	}
	if live.GetAnnotations()[restoreAnnotation] == "" {
		return
	}
	desiredItems, _, _ := unstructured.NestedSlice(desired.Object, volumesPath...)
	liveItems, _, _ := unstructured.NestedSlice(live.Object, volumesPath...)
	for i, item := range desiredItems {
		if name := itemName(item); isDataVolume(item) && RestoredClaim(live, name) != "" {
			desiredItems[i] = liveItems[indexOfItem(liveItems, name)]
		}
	}
	_ = unstructured.SetNestedSlice(desired.Object, desiredItems, volumesPath...) // it has just been read there
}

func isDataVolume(volume any) bool {
	m, _ := volume.(map[string]any)
	return m["dataVolume"] != nil
}

// PreservePodNetworkMAC keeps the address that the live interface on the Pod network has, of a
// person or an address pool: the guest's network is tied to it. The agent's own, cfg's, is for
// an interface that has none; the overlay's wins.
func PreservePodNetworkMAC(desired, live *unstructured.Unstructured, vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) {
	own := podNetworkMAC(vm, cfg)
	desiredItems, _, _ := unstructured.NestedSlice(desired.Object, interfacesPath...)
	liveItems, _, _ := unstructured.NestedSlice(live.Object, interfacesPath...)
	i, j := indexOfItem(desiredItems, PodNetwork), indexOfItem(liveItems, PodNetwork)
	if own == "" || i < 0 || j < 0 {
		return
	}
	item, _ := desiredItems[i].(map[string]any)
	liveItem, _ := liveItems[j].(map[string]any)
	if mac, _ := liveItem["macAddress"].(string); mac != "" && item["macAddress"] == own {
		item["macAddress"] = mac
		_ = unstructured.SetNestedSlice(desired.Object, desiredItems, interfacesPath...) // it has just been read there
	}
}

// mergeForeignItems returns the desired items in their order, with the foreign ones of
// live between them.
func mergeForeignItems(desired, live []any, isOwn func(name string) bool) []any {
	var merged []any
	next := 0
	for _, item := range live {
		switch name := itemName(item); {
		case indexOfItem(desired, name) >= 0:
			if next < len(desired) {
				merged = append(merged, desired[next])
				next++
			}
		case name != "" && !isOwn(name):
			merged = append(merged, item)
		}
	}
	return append(merged, desired[next:]...)
}

func indexOfItem(list []any, name string) int {
	return slices.IndexFunc(list, func(item any) bool { return itemName(item) == name })
}

// RestoredClaim returns the name of the PersistentVolumeClaim that KubeVirt put in the
// place of a disk when it restored a snapshot; empty for none.
func RestoredClaim(live *unstructured.Unstructured, volume string) string {
	if live.GetAnnotations()[restoreAnnotation] == "" {
		return ""
	}
	source := findVolume(live, volume)
	claim, _, _ := unstructured.NestedString(source, "persistentVolumeClaim", "claimName")
	return claim
}

// IsOfSameRestore reports whether a claim was made by the last restore of a KubeVirt VirtualMachine that
// is complete: the machine gets the annotation after its claims.
func IsOfSameRestore(claim, live metav1.Object) bool {
	restore := live.GetAnnotations()[restoreAnnotation]
	return restore != "" && claim.GetAnnotations()[restoreAnnotation] == restore
}

// UsesDataVolume reports whether a KubeVirt VirtualMachine has a volume that is a DataVolume.
func UsesDataVolume(live *unstructured.Unstructured, volume, dataVolume string) bool {
	name, _, _ := unstructured.NestedString(findVolume(live, volume), "dataVolume", "name")
	return name == dataVolume
}

// findVolume returns nil for none.
func findVolume(live *unstructured.Unstructured, name string) map[string]any {
	list, _, _ := unstructured.NestedSlice(live.Object, volumesPath...)
	i := indexOfItem(list, name)
	if i < 0 {
		return nil
	}
	volume, _ := list[i].(map[string]any)
	return volume
}
