package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// classOf returns the StorageClass of an image; empty where it has none and none is the
// default.
func (e *examiner) classOf(img *Image) string {
	return cmp.Or(img.StorageClass, capacity.DefaultStorageClass(e.StorageClasses))
}

// classes returns the StorageClasses that matter: the default, that of --storage-class, and
// those of images.
func (e *examiner) classes() []string {
	names := map[string]bool{capacity.DefaultStorageClass(e.StorageClasses): true, e.Asked.StorageClass: true}
	for i := range e.Images {
		names[e.classOf(&e.Images[i])] = true
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

// existingClasses leaves out those that do not exist, which default-sc names.
func (e *examiner) existingClasses() []string {
	names := slices.DeleteFunc(e.classes(), func(name string) bool { return e.storageClass(name) == nil })
	if len(names) == 0 {
		e.addSkip("there is no StorageClass to look at: see default-sc")
	}
	return names
}

func (e *examiner) imagesIn(class string) (names []string) {
	for i := range e.Images {
		if e.Images[i].StorageClass == class {
			names = append(names, e.Images[i].key())
		}
	}
	return names
}

func (e *examiner) defaultStorageClass() {
	for _, name := range e.classes() {
		if e.storageClass(name) != nil {
			continue
		}
		neededBy := "--storage-class"
		if images := e.imagesIn(name); len(images) > 0 {
			neededBy = "images " + joinFirst(images)
		}
		e.addFail("StorageClass "+name, "does not exist, and is needed by "+neededBy, "it exists", "create it, or correct spec.storageClass")
	}
	var defaults []string
	for i := range e.StorageClasses {
		c := &e.StorageClasses[i]
		if c.Annotations[capacity.AnnotationDefaultClass] == "true" || c.Annotations[capacity.AnnotationDefaultVirtClass] == "true" {
			defaults = append(defaults, c.Name)
		}
	}
	slices.Sort(defaults)
	name := capacity.DefaultStorageClass(e.StorageClasses)
	var existing []string
	for i := range e.StorageClasses {
		existing = append(existing, e.StorageClasses[i].Name)
	}
	slices.Sort(existing)
	switch without := e.imagesIn(""); {
	case name != "" && len(defaults) > 1:
		e.addWarn("", fmt.Sprintf("%s are defaults; %s is taken, as the youngest of those that CDI prefers", strings.Join(defaults, ", "), name), "one default", "")
	case name != "":
		e.addPass("", "%s is the default StorageClass", name)
	case e.Asked.StorageClass != "" && len(without) == 0:
		e.addPass("", "none is the default, and every image names its own")
	default:
		found := "no StorageClass is the default"
		if len(without) > 0 {
			found += ", and these images name none: " + joinFirst(without)
		}
		mend := shellword.FormatCommand("kubectl annotate storageclass <name> %s=true", capacity.AnnotationDefaultClass)
		if len(existing) > 0 {
			mend += " (there is: " + joinFirst(existing) + ")"
		}
		e.addFail("", found, "one default, or spec.storageClass in every image", mend)
	}
}

func (e *examiner) storageProfiles() {
	if !e.hasCDI() {
		return
	}
	for _, name := range e.existingClasses() {
		subject, profile := "StorageProfile "+name, e.profile(name)
		if profile == nil {
			e.addWarn(subject, "does not exist", "CDI makes one for each StorageClass", "see whether cdi-deployment runs in CDI's namespace")
			continue
		}
		claim := capacity.ClaimRequest{Class: name, Bytes: 1, Exact: true, ClassField: "storageClass", SizeField: "diskSize"}
		if blocker := capacity.FindClaimBlocker(claim, capacity.Availability{Profile: profile}); blocker != nil {
			e.addFail(subject, blocker.Message, "claimPropertySets with accessModes", shellword.FormatCommand(
				`kubectl patch storageprofile %s --type=merge --patch='{"spec":{"claimPropertySets":[{"accessModes":["ReadWriteOnce"],"volumeMode":"Filesystem"}]}}'`, name))
			continue
		}
		e.addPass(subject, "%s", describeClaimProperties(profile))
	}
}

func describeClaimProperties(profile *cdiv1.StorageProfile) string {
	var sets []string
	for _, set := range profile.Status.ClaimPropertySets {
		var modes []string
		for _, mode := range set.AccessModes {
			modes = append(modes, string(mode))
		}
		text := strings.Join(modes, ", ")
		if set.VolumeMode != nil {
			text += " " + string(*set.VolumeMode)
		}
		sets = append(sets, text)
	}
	return strings.Join(sets, "; ")
}

func (e *examiner) cloneStrategies() {
	if !e.hasCDI() {
		return
	}
	for _, name := range e.existingClasses() {
		subject, profile, provisioner := "StorageClass "+name, e.profile(name), e.storageClass(name).Provisioner
		if profile == nil || profile.Status.CloneStrategy == nil {
			e.addPass(subject, "no cloneStrategy is set: CDI chooses by what the driver can do")
			continue
		}
		const wanted = "snapshot or csi-clone, as the driver can"
		switch strategy := *profile.Status.CloneStrategy; {
		case strategy == cdiv1.CloneStrategyCsiClone && e.Unread[SourceCSIDrivers] != "", strategy == cdiv1.CloneStrategySnapshot && e.Unread[SourceSnapshotClasses] != "":
			e.hasRead(SourceCSIDrivers, SourceSnapshotClasses)
		case strategy == cdiv1.CloneStrategyCsiClone && !slices.Contains(e.CSIDrivers, provisioner):
			e.addFail(subject, fmt.Sprintf("cloneStrategy csi-clone, and %s is no CSI driver of this cluster", provisioner), wanted,
				shellword.FormatCommand(`kubectl patch storageprofile %s --type=merge --patch='{"spec":{"cloneStrategy":"copy"}}'`, name))
		case strategy == cdiv1.CloneStrategySnapshot && len(e.snapshotClassesOf(provisioner)) == 0:
			e.addWarn(subject, "cloneStrategy snapshot, and there is no VolumeSnapshotClass of driver "+provisioner+": each clone is a copy", wanted, "")
		case strategy == cdiv1.CloneStrategyHostAssisted:
			e.addWarn(subject, "cloneStrategy copy: each clone copies the whole disk through two Pods", wanted, "")
		default:
			e.addPass(subject, "cloneStrategy %s", strategy)
		}
	}
}

func (e *examiner) snapshotClassesOf(driver string) (names []string) {
	for i := range e.SnapshotClasses {
		if e.SnapshotClasses[i].Driver == driver {
			names = append(names, e.SnapshotClasses[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// snapshotClassDrivers judges each pair of classes that images name, once.
func (e *examiner) snapshotClassDrivers() {
	type pair struct{ snapshots, storage string }
	users := map[pair][]string{}
	for i := range e.Images {
		if img := &e.Images[i]; img.SnapshotClass != "" {
			p := pair{img.SnapshotClass, e.classOf(img)}
			users[p] = append(users[p], img.key())
		}
	}
	pairs := slices.SortedFunc(maps.Keys(users), func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.snapshots, b.snapshots), cmp.Compare(a.storage, b.storage))
	})
	for _, p := range pairs {
		subject, class, storage := "VolumeSnapshotClass "+p.snapshots, e.snapshotClass(p.snapshots), e.storageClass(p.storage)
		switch {
		case class == nil:
			e.addFail(subject, "does not exist, and is needed by "+joinFirst(users[p]), "it exists", e.nameSnapshotClasses(p.storage))
		case storage == nil:
			e.addPass(subject, "of driver %s; StorageClass %q does not exist, see default-sc", class.Driver, p.storage)
		default:
			if blocker := capacity.FindDriverMismatch(storage, class); blocker != nil {
				e.addFail(subject, blocker.Message+"; of "+joinFirst(users[p]), "driver "+storage.Provisioner, e.nameSnapshotClasses(p.storage))
				continue
			}
			e.addPass(subject, "of driver %s, as StorageClass %s", class.Driver, storage.Name)
		}
	}
	asked := e.storageClass(e.Asked.StorageClass)
	switch {
	case asked != nil && e.Serves(KindSnapshot) && len(e.snapshotClassesOf(asked.Provisioner)) == 0:
		e.addWarn("StorageClass "+asked.Name, "no VolumeSnapshotClass is of its driver "+asked.Provisioner, "one, for images with snapshotClass", "")
	case asked != nil && e.Serves(KindSnapshot):
		e.addPass("StorageClass "+asked.Name, "VolumeSnapshotClasses of its driver: %s", joinFirst(e.snapshotClassesOf(asked.Provisioner)))
	case len(pairs) == 0:
		e.addSkip("no image names a snapshotClass")
	}
}

func (e *examiner) nameSnapshotClasses(class string) string {
	storage := e.storageClass(class)
	if storage == nil {
		return ""
	}
	names := e.snapshotClassesOf(storage.Provisioner)
	if len(names) == 0 {
		return "create a VolumeSnapshotClass of driver " + storage.Provisioner + ", or remove spec.snapshotClass"
	}
	return "name a VolumeSnapshotClass of driver " + storage.Provisioner + " in spec.snapshotClass (there is: " + joinFirst(names) + ")"
}

// capacities judges whether the room of a class is known, and whether waiting images fit.
func (e *examiner) capacities() {
	var scratch *string
	if e.CDIConfig != nil {
		scratch = &e.CDIConfig.ScratchClass
	}
	for _, name := range e.existingClasses() {
		subject := "StorageClass " + name
		available := capacity.Availability{ScratchClass: capacity.ScratchClassFor(scratch, name)}
		for i := range e.Capacities {
			if e.Capacities[i].StorageClassName == name && e.Capacities[i].NodeTopology != nil {
				available.Capacities = append(available.Capacities, e.Capacities[i])
			}
		}
		if len(available.Capacities) == 0 {
			e.addWarn(subject, "no CSIStorageCapacity is published: its room cannot be told, and an image that does not fit fails late", "storageCapacity: true in its CSIDriver", "")
			continue
		}
		tooLarge := 0
		for i := range e.Images {
			img := &e.Images[i]
			if img.Imported || e.classOf(img) != name {
				continue
			}
			spec := &v1alpha1.VMDiskImage{Spec: v1alpha1.VMDiskImageSpec{SourceType: img.SourceType, PullMethod: img.PullMethod, DiskSize: img.DiskSize}}
			if blocker := capacity.FindBlocker(spec, name, available); blocker != nil {
				tooLarge++
				e.addFail(subject, "image "+img.key()+" "+blocker.Message, "room for it", "")
			}
		}
		if tooLarge == 0 {
			e.addPass(subject, "its room is published, and every image that waits fits")
		}
	}
}

// snapshotPatience is how long a VolumeSnapshot is without any status at most: the controller
// writes one at once, however long the snapshot takes.
const snapshotPatience = 2 * time.Minute

func (e *examiner) snapshotController() {
	var wanting []string
	for i := range e.Images {
		if e.Images[i].SnapshotClass != "" {
			wanting = append(wanting, e.Images[i].key())
		}
	}
	switch {
	case !e.Serves(KindSnapshot) && len(wanting) > 0:
		e.addFail("", "VolumeSnapshot is not served, and is needed by "+joinFirst(wanting), "the snapshot controller and its CRDs", "")
		return
	case !e.Serves(KindSnapshot):
		e.addSkip("VolumeSnapshot is not served; only images with a snapshotClass need it")
		return
	case !e.hasRead(SourceSnapshots):
		return
	}
	var ignored []string
	for _, s := range e.Snapshots {
		if e.ServerTime.Sub(s.CreatedAt.Time) >= snapshotPatience {
			ignored = append(ignored, s.Namespace+"/"+s.Name)
		}
	}
	if len(ignored) > 0 {
		e.addFail("", "no controller has answered VolumeSnapshots "+joinFirst(ignored), "a running snapshot controller", "")
		return
	}
	e.addPass("", "VolumeSnapshot is served, and none is without an answer")
}
