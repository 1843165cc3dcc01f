package kubevirt

import (
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// restoreAnnotation stands on a KubeVirt VirtualMachine that was restored from a snapshot, and on the
// claims of that restore (KubeVirt 1.8).
const restoreAnnotation = "restore.kubevirt.io/lastRestoreUID"

// maxMigrations bounds AnnotationMigratedVolumes, which others may write, too: a machine has 17 disks at most, and a
// lost status may lack some that were removed. Each decision about a machine reads it many times.
const maxMigrations = 64

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
func PreserveForeignItems(desired, live *unstructured.Unstructured, vm *v1alpha1.VirtualMachine) {
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
	preserveReplacedDisks(desired, live, vm)
}

// preserveReplacedDisks keeps the claims that KubeVirt put in the place of DataVolumes, and the record of
// those that it migrated to. An overlay that names the machine's own disk, maybe all along, does not say that it
// is to return: the guest has written to the other. One that names a third disk does.
func preserveReplacedDisks(desired, live *unstructured.Unstructured, vm *v1alpha1.VirtualMachine) {
	desiredItems, _, _ := unstructured.NestedSlice(desired.Object, volumesPath...)
	liveItems, _, _ := unstructured.NestedSlice(live.Object, volumesPath...)
	for i, item := range desiredItems {
		volume, _ := item.(map[string]any)
		dataVolume, _, _ := unstructured.NestedString(volume, "dataVolume", "name")
		name, wanted := itemName(item), volumeClaim(volume)
		claim, isMigration := ReplacingClaim(live, name, wanted)
		switch at := indexOfItem(liveItems, name); {
		case claim == "" || (wanted != diskName(vm, name) && (dataVolume == "" || isMigration)):
		case at >= 0:
			desiredItems[i] = liveItems[at]
		default: // it is attached again
			desiredItems[i] = map[string]any{"name": name, "persistentVolumeClaim": map[string]any{"claimName": claim}}
		}
	}
	_ = unstructured.SetNestedSlice(desired.Object, desiredItems, volumesPath...) // it has just been read there

	var records []string
	for _, item := range liveItems {
		name := itemName(item)
		claim, isMigration := ReplacingClaim(live, name, diskName(vm, name))
		if hasStoredDisk(vm, name) && claim != "" && claim != diskName(vm, name) && !isMigration && indexOfItem(desiredItems, name) < 0 {
			records = append(records, migrationRecord(name, claim)) // a restored disk is detached: nothing else tells of the claim
		}
	}
	records = boundRecords(append(records, migrations(live, vm)...))
	// What is left out would stay: the annotation is not of this apply alone.
	if _, isRecorded := live.GetAnnotations()[v1alpha1.AnnotationMigratedVolumes]; isRecorded || len(records) > 0 {
		annotations := desired.GetAnnotations()
		annotations[v1alpha1.AnnotationMigratedVolumes] = strings.Join(records, ",")
		desired.SetAnnotations(annotations)
	}
}

// UnrecordedMigrations returns the value of AnnotationMigratedVolumes that a KubeVirt VirtualMachine is to
// get; empty where it lacks none of the migrations.
func UnrecordedMigrations(live *unstructured.Unstructured, vm *v1alpha1.VirtualMachine) string {
	all, recorded := boundRecords(migrations(live, vm)), recordedMigrations(live)
	if !slices.ContainsFunc(all, func(record string) bool { return !slices.Contains(recorded, record) }) {
		return ""
	}
	return strings.Join(all, ",")
}

// migrations lists, as the annotation does, the volumes that KubeVirt migrates or has migrated: those of the
// machine's disks, also by the overlay. A recorded one stays when spec.disks no longer has the disk, also once it
// is detached. Those that are attached come first.
func migrations(live *unstructured.Unstructured, vm *v1alpha1.VirtualMachine) (records []string) {
	recorded := recordedMigrations(live)
	volumes, _, _ := unstructured.NestedSlice(live.Object, volumesPath...)
	for _, item := range volumes {
		name := itemName(item)
		claim, isMigration := ReplacingClaim(live, name, diskName(vm, name))
		isDisk := name == RootVolume || slices.ContainsFunc(vm.Spec.Disks, func(disk v1alpha1.Disk) bool { return disk.Name == name }) || hasStoredDisk(vm, name)
		if record := migrationRecord(name, claim); isMigration && (isDisk || slices.Contains(recorded, record)) {
			records = append(records, record)
		}
	}
	for _, record := range recorded {
		if name, claim, _ := strings.Cut(record, "="); claim != "" && indexOfItem(volumes, name) < 0 {
			records = append(records, record)
		}
	}
	return records
}

// hasStoredDisk reports whether a machine has or had a data disk, which its status keeps until it is discarded.
func hasStoredDisk(vm *v1alpha1.VirtualMachine, name string) bool {
	return slices.ContainsFunc(vm.Status.Disks, func(disk v1alpha1.DataDisk) bool { return disk.Name == name })
}

func migrationRecord(volume, claim string) string { return volume + "=" + claim }

// boundRecords keeps the first records, and sorts them: once, since a second cut would go by the alphabet.
//
// Invariant: what is written is read back whole, or it would be written again and again.
func boundRecords(records []string) []string {
	records = records[:min(len(records), maxMigrations)]
	slices.Sort(records)
	return records
}

func recordedMigrations(live *unstructured.Unstructured) []string {
	records := strings.SplitN(live.GetAnnotations()[v1alpha1.AnnotationMigratedVolumes], ",", maxMigrations+1)
	return records[:min(len(records), maxMigrations)]
}

// recordedClaim returns the claim that a volume was migrated to; empty for none.
func recordedClaim(live *unstructured.Unstructured, volume string) string {
	for _, record := range recordedMigrations(live) {
		if name, claim, _ := strings.Cut(record, "="); name == volume {
			return claim
		}
	}
	return ""
}

// diskName returns the name of the DataVolume of a volume that is a disk of the machine.
func diskName(vm *v1alpha1.VirtualMachine, volume string) string {
	if volume == RootVolume {
		return RootDiskName(vm)
	}
	return DataDiskName(vm, volume)
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

// ReplacingClaim returns the name of the claim that KubeVirt put in the place of a disk, when it restored a
// snapshot or since a person has it migrate the volume; empty for none. dataVolume is the disk.
//
// Invariant: a volume that was migrated stays so, whether spec.updateVolumesStrategy is changed afterwards
// or not, and whether the disk is detached meanwhile: the guest writes to no other. It returns where the live
// volume names the DataVolume again. So a migration is recorded before anything else is done, whatever is held
// back: see UnrecordedMigrations.
func ReplacingClaim(live *unstructured.Unstructured, volume, dataVolume string) (claim string, isMigration bool) {
	source, recorded := findVolume(live.Object, volume), recordedClaim(live, volume)
	claim = volumeClaim(source)
	if source == nil || (claim != dataVolume && claim == recorded) {
		return recorded, recorded != ""
	}
	if _, isClaim := source["persistentVolumeClaim"]; isClaim && claim != "" && live.GetAnnotations()[restoreAnnotation] != "" {
		return claim, false
	}
	if claim == "" || claim == dataVolume {
		return "", false
	}
	strategy, _, _ := unstructured.NestedString(live.Object, "spec", "updateVolumesStrategy")
	if strategy != string(kubevirtv1.UpdateVolumesStrategyMigration) {
		return "", false
	}
	return claim, true
}

// IsOfSameRestore reports whether a claim was made by the last restore of a KubeVirt VirtualMachine that
// is complete: the machine gets the annotation after its claims.
func IsOfSameRestore(claim, live metav1.Object) bool {
	restore := live.GetAnnotations()[restoreAnnotation]
	return restore != "" && claim.GetAnnotations()[restoreAnnotation] == restore
}

// UsesDataVolume reports whether a KubeVirt VirtualMachine has a volume that is a DataVolume.
func UsesDataVolume(live *unstructured.Unstructured, volume, dataVolume string) bool {
	name, _, _ := unstructured.NestedString(findVolume(live.Object, volume), "dataVolume", "name")
	return name == dataVolume
}

// volumeClaim returns the claim of a volume, also where it names the DataVolume; empty for none.
func volumeClaim(volume map[string]any) string {
	if claim, _, _ := unstructured.NestedString(volume, "persistentVolumeClaim", "claimName"); claim != "" {
		return claim
	}
	dataVolume, _, _ := unstructured.NestedString(volume, "dataVolume", "name")
	return dataVolume
}

// findVolume returns nil for none. The volume is content's, no copy: it is asked for many times per decision.
func findVolume(content map[string]any, name string) map[string]any {
	volumes, _, _ := unstructured.NestedFieldNoCopy(content, volumesPath...)
	list, _ := volumes.([]any)
	i := indexOfItem(list, name)
	if i < 0 {
		return nil
	}
	volume, _ := list[i].(map[string]any)
	return volume
}
