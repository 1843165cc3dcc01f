package image

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/api/storedtime"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// pointerGracePeriod is how long storage stays after its DataSource was seen to point elsewhere.
// KubeVirt resolves a DataSource of a dataVolumeTemplate itself and creates a DataVolume with the
// concrete storage right after; CDI reads DataSources from a cache. Both have to end within it.
const pointerGracePeriod = 15 * time.Second

// Labels of a DataSource from which KubeVirt infers what a machine lacks.
const (
	labelDefaultInstancetype     = "instancetype.kubevirt.io/default-instancetype"
	labelDefaultInstancetypeKind = "instancetype.kubevirt.io/default-instancetype-kind"
	labelDefaultPreference       = "instancetype.kubevirt.io/default-preference"
	labelDefaultPreferenceKind   = "instancetype.kubevirt.io/default-preference-kind"
)

// PublishingView is what is known about the DataSources of an image's namespace.
type PublishingView struct {
	// Served: the cluster serves DataSources.
	Served bool
	// DataSources of the namespace.
	DataSources []cdiv1.DataSource
	// Publishers are the images that are to be published, by the name of the DataSource.
	Publishers map[string]PublishCandidate
	// InFlight are the names of the DataSources that unfinished DataVolumes refer to.
	InFlight map[string]bool
	// Refusal is why the API server refuses what has to be done; empty for nothing.
	Refusal string
	// ServerTime is the API server's clock after DataSources was read live; zero where that is
	// not known.
	ServerTime time.Time
	// NamespaceTerminating: nothing is kept, and nothing can be created.
	NamespaceTerminating bool
}

// DataSourceOperation is what is done with a DataSource.
type DataSourceOperation string

// Operations. Each has the UID and the resourceVersion of what it changes as a precondition.
const (
	CreateDataSource DataSourceOperation = "create"
	ApplyDataSource  DataSourceOperation = "apply"
	DeleteDataSource DataSourceOperation = "delete"
)

// DataSourceChange is carried out once the status is stored.
type DataSourceChange struct {
	Operation  DataSourceOperation
	DataSource *cdiv1.DataSource
}

// PublishedName returns the name of the DataSource that an image is to be published as; empty for
// none.
func PublishedName(img *v1alpha1.VMDiskImage) string {
	if p := img.Spec.Publish; p != nil && p.DataSource {
		return cmp.Or(p.Name, img.Name)
	}
	return ""
}

// IsPublishing reports whether an image is, was or is to be published as one of its namespace's
// DataSources.
func IsPublishing(img *v1alpha1.VMDiskImage, dataSources []cdiv1.DataSource) bool {
	return PublishedName(img) != "" || len(img.Status.Publications) > 0 ||
		slices.ContainsFunc(dataSources, func(ds cdiv1.DataSource) bool { return ds.Labels[v1alpha1.LabelImageUID] == string(img.UID) }) ||
		meta.FindStatusCondition(img.Status.Conditions, v1alpha1.ConditionPublished) != nil
}

// reconcilePublication keeps the DataSource that points at what serves.
//
// Invariant: status.publications names storage before a DataSource points at it. The change has
// the resourceVersion that is stored with it, so that a leader that was paused before its change
// cannot point back: the publication ends only when a live read shows another resourceVersion, or
// no DataSource. A created one points nowhere, for it has no resourceVersion to compare.
func (d *decider) reconcilePublication() {
	view := d.Publishing
	if view == nil {
		return
	}
	wanted, reason := d.wantedPublication()
	var awaited string // the name of a DataSource that clones in flight keep
	awaitsPublisher := wanted == nil && reason.Reason == v1alpha1.ReasonPublishing
	if wanted != nil {
		reason = d.publish(wanted)
	}
	for i := range view.DataSources {
		if ds := &view.DataSources[i]; d.isOwn(ds) && !awaitsPublisher && (wanted == nil || ds.Name != wanted.DataSource) && !d.removeDataSource(ds) {
			awaited = ds.Name
		}
	}
	published := reason.Reason == v1alpha1.ReasonPublished || reason.Reason == v1alpha1.ReasonPublishing
	for i := range d.status.Publications {
		p := &d.status.Publications[i]
		d.endPublication(p, published && wanted != nil && isSamePublication(p, wanted))
	}
	d.status.Publications = slices.DeleteFunc(d.status.Publications, func(p v1alpha1.Publication) bool {
		return p.Until != nil && !d.publishedStorageExists(&p) && d.requireLive()
	})
	if awaited != "" && reason.Reason != v1alpha1.ReasonPublished {
		reason = statusReason{Reason: v1alpha1.ReasonPublishing, Message: "DataSource " + awaited + " is removed once no DataVolume that refers to it is unfinished: CDI neither finishes nor deletes one without it"}
	}
	if PublishedName(d.Image) == "" && awaited == "" {
		meta.RemoveStatusCondition(&d.status.Conditions, v1alpha1.ConditionPublished)
		return
	}
	if view.Refusal != "" && reason.Reason != v1alpha1.ReasonPublished {
		reason = statusReason{Reason: v1alpha1.ReasonDataSourceRefused, Message: "the API server refuses to change DataSource " + PublishedName(d.Image) + ": " + quote(view.Refusal)}
	}
	d.setCondition(v1alpha1.ConditionPublished, reason.Reason == v1alpha1.ReasonPublished, reason)
}

// wantedPublication returns what a DataSource is to point at, or why there is to be none.
func (d *decider) wantedPublication() (*v1alpha1.Publication, statusReason) {
	name, serving := PublishedName(d.Image), d.status.Serving
	publisher, exists := d.Publishing.Publishers[name]
	switch {
	case name == "":
		return nil, statusReason{}
	case d.Image.DeletionTimestamp != nil && (d.status.Phase != v1alpha1.PhaseTerminating || exists || serving == nil || belongsToOthers(serving) || !d.Publishing.InFlight[name]):
		return nil, statusReason{Reason: v1alpha1.ReasonNothingToPublish, Message: "is to be deleted: no further clone finds it by DataSource " + name}
	case !d.Publishing.Served:
		return nil, statusReason{Reason: v1alpha1.ReasonDataSourcesNotServed, Message: "the cluster does not serve DataSources of CDI (cdi.kubevirt.io/v1beta1): install or upgrade CDI"}
	case serving == nil || belongsToOthers(serving): // of others, in another namespace maybe
		return nil, statusReason{Reason: v1alpha1.ReasonNothingToPublish, Message: "there is no DataSource " + name + ", because no imported revision is ready: it is created once one is"}
	case !exists && d.Image.DeletionTimestamp == nil:
		return nil, statusReason{Reason: v1alpha1.ReasonPublishing, Message: "DataSource " + name + " is about to point at it"}
	case exists && publisher.UID != d.Image.UID:
		return nil, statusReason{Reason: v1alpha1.ReasonOtherImagePublished, Message: "DataSource " + name + " points at VMDiskImage " + publisher.Name +
			": of the images that serve under one name, those that the plan asks for go first, then the last created"}
	}
	return &v1alpha1.Publication{DataSource: name, Attempt: serving.Attempt, PersistentVolumeClaim: serving.PersistentVolumeClaim, VolumeSnapshot: serving.VolumeSnapshot}, statusReason{}
}

// publish points the DataSource at what is wanted, and returns how far that is.
func (d *decider) publish(wanted *v1alpha1.Publication) statusReason {
	existing := d.findDataSource(wanted.DataSource)
	switch {
	case existing == nil:
		d.changeDataSource(CreateDataSource, d.newDataSource(wanted.DataSource))
		return statusReason{Reason: v1alpha1.ReasonPublishing, Message: "DataSource " + wanted.DataSource + " is being created"}
	case existing.Labels[v1alpha1.LabelImageUID] == "":
		return statusReason{Reason: v1alpha1.ReasonDataSourceForeign, Message: "DataSource " + wanted.DataSource +
			" was made by somebody else and is left alone: delete it, or set another name in spec.publish.name"}
	}
	desired := d.buildDataSource(wanted)
	stored := findPublication(d.status.Publications, wanted)
	if stored == nil {
		if len(d.status.Publications) >= v1alpha1.MaxPublications {
			return statusReason{Reason: v1alpha1.ReasonTooManyPublications, Message: fmt.Sprintf(
				"DataSource %s stays where it is: clones in flight hold %d earlier publications. Find the DataVolumes that do not finish", wanted.DataSource, v1alpha1.MaxPublications)}
		}
		wanted.Since, wanted.ResourceVersion = &d.now, existing.ResourceVersion
		d.status.Publications = append(d.status.Publications, *wanted)
		stored = &d.status.Publications[len(d.status.Publications)-1]
	}
	if stored.Until != nil {
		stored.Until, stored.Since = nil, &d.now
	}
	if isAsDesired(existing, desired) {
		return statusReason{Reason: v1alpha1.ReasonPublished, Message: describePublication(stored)}
	}
	stored.ResourceVersion = existing.ResourceVersion
	desired.UID, desired.ResourceVersion = existing.UID, existing.ResourceVersion
	d.changeDataSource(ApplyDataSource, desired)
	return statusReason{Reason: v1alpha1.ReasonPublishing, Message: "DataSource " + wanted.DataSource + " is being changed"}
}

func describePublication(p *v1alpha1.Publication) string {
	target := "PersistentVolumeClaim " + p.PersistentVolumeClaim
	if p.VolumeSnapshot != "" {
		target = "VolumeSnapshot " + p.VolumeSnapshot
	}
	text := "DataSource " + p.DataSource + " points at " + target
	if p.Since != nil {
		text += ", since " + p.Since.UTC().Format(time.RFC3339)
	}
	return text
}

// removeDataSource deletes a DataSource that is labelled for the image, unless another image takes
// it over. It reports false where clones in flight keep it.
//
// CDI reads the DataSource of a DataVolume with sourceRef in every step until that is finished, and
// before it removes its finalizer.
func (d *decider) removeDataSource(ds *cdiv1.DataSource) bool {
	next, ok := d.Publishing.Publishers[ds.Name]
	switch {
	case ok && next.UID != d.Image.UID:
		d.requeueWithin(blockerRecheckInterval)
	case d.Publishing.InFlight[ds.Name] && !d.Publishing.NamespaceTerminating && !d.NamespaceTerminating:
		return false
	case ds.DeletionTimestamp == nil:
		d.changeDataSource(DeleteDataSource, ds)
	}
	return true
}

// endPublication ends a publication that is not wanted once nothing points at its storage, and no
// change that is under way can. It begins again where somebody has pointed back.
func (d *decider) endPublication(p *v1alpha1.Publication, wanted bool) {
	switch {
	case d.isNamed(p):
		p.Until = nil
		return
	case p.Until != nil, wanted, !d.requireLive():
		return
	}
	if ds := d.findDataSource(p.DataSource); ds != nil && ds.ResourceVersion == p.ResourceVersion && !d.Publishing.NamespaceTerminating {
		// A paused leader may still change this very version.
		if ds.Labels[v1alpha1.LabelImageUID] != "" && !d.changesDataSource(ds.Name) {
			d.changeDataSource(DeleteDataSource, ds)
		}
		return
	}
	if until := d.serverTime(); until != nil {
		p.Until = until
	} else {
		d.requeueWithin(blockerRecheckInterval)
	}
}

// serverTime is the API server's clock after the live read, rounded up to the full seconds that
// the status stores; nil for unknown.
func (d *decider) serverTime() *metav1.Time {
	switch {
	case d.Publishing.NamespaceTerminating:
		return &d.now
	case d.Publishing.ServerTime.IsZero():
		return nil
	}
	until := storedtime.Truncate(d.Publishing.ServerTime.Add(time.Second - 1))
	return &until
}

// isNamed reports whether a DataSource leads to published storage: the one that it was published
// as, or one that refers to that.
func (d *decider) isNamed(p *v1alpha1.Publication) bool {
	return slices.ContainsFunc(d.Publishing.DataSources, func(ds cdiv1.DataSource) bool {
		source := ds.Spec.Source
		if source.DataSource != nil && source.DataSource.Name == p.DataSource {
			source = ds.Status.Source
		} else if ds.Name != p.DataSource {
			return false
		}
		return isPublishedStorage(p, d.Image.Namespace, source.PVC, source.Snapshot, ds.Namespace)
	})
}

// mayBeCloned reports whether storage of an attempt is published, or was until so recently that a
// clone of it may begin unseen. It does not ask for a live View: with a cached one, an ended
// publication counts for nothing, and what is deleted for that needs a live View.
//
// Invariant: the stored status counts, not only the decided one. The DataVolumes of a live View
// are listed after the stored end of a publication, and after the grace period.
func (d *decider) mayBeCloned(matches func(*v1alpha1.Publication) bool) bool {
	found := false
	for _, publications := range [][]v1alpha1.Publication{d.Image.Status.Publications, d.status.Publications} {
		for i := range publications {
			p := &publications[i]
			if !matches(p) {
				continue
			}
			switch {
			case p.Until == nil:
				found = true
			case !d.Live || d.Publishing == nil || d.Publishing.NamespaceTerminating:
			case d.Publishing.ServerTime.IsZero():
				found = true
				d.requeueWithin(blockerRecheckInterval)
			default:
				if left := pointerGracePeriod - d.Publishing.ServerTime.Sub(p.Until.Time); left > 0 {
					found = true
					d.requeueWithin(left)
				}
			}
		}
	}
	return found
}

// attemptMayBeCloned is mayBeCloned for an attempt.
func (d *decider) attemptMayBeCloned(attempt int32) bool {
	return d.mayBeCloned(func(p *v1alpha1.Publication) bool { return p.Attempt == attempt })
}

func (d *decider) imageMayBeCloned() bool {
	return d.mayBeCloned(func(*v1alpha1.Publication) bool { return true })
}

// clonableSnapshots are the snapshots of an attempt for which mayBeCloned holds.
func (d *decider) clonableSnapshots(objects *AttemptObjects) (snapshots []string) {
	for i := range objects.Snapshots {
		name := objects.Snapshots[i].Name
		if d.mayBeCloned(func(p *v1alpha1.Publication) bool { return p.VolumeSnapshot == name }) {
			snapshots = append(snapshots, name)
		}
	}
	return snapshots
}

func (d *decider) publishedStorageExists(p *v1alpha1.Publication) bool {
	objects := d.ObjectsByAttempt[p.Attempt]
	if p.VolumeSnapshot != "" {
		return objects.findSnapshot(p.VolumeSnapshot) != nil
	}
	return objects != nil && objects.Claim != nil
}

func findPublication(publications []v1alpha1.Publication, wanted *v1alpha1.Publication) *v1alpha1.Publication {
	for i := range publications {
		if isSamePublication(&publications[i], wanted) {
			return &publications[i]
		}
	}
	return nil
}

func isSamePublication(a, b *v1alpha1.Publication) bool {
	return a.DataSource == b.DataSource && a.Attempt == b.Attempt && a.PersistentVolumeClaim == b.PersistentVolumeClaim && a.VolumeSnapshot == b.VolumeSnapshot
}

func (d *decider) findDataSource(name string) *cdiv1.DataSource {
	for i := range d.Publishing.DataSources {
		if d.Publishing.DataSources[i].Name == name {
			return &d.Publishing.DataSources[i]
		}
	}
	return nil
}

func (d *decider) isOwn(ds *cdiv1.DataSource) bool {
	return types.UID(ds.Labels[v1alpha1.LabelImageUID]) == d.Image.UID
}

// hasOwnDataSource reports whether a DataSource is labelled for the image.
func (d *decider) hasOwnDataSource() bool {
	return d.Publishing != nil && slices.ContainsFunc(d.Publishing.DataSources, func(ds cdiv1.DataSource) bool { return d.isOwn(&ds) })
}

func (d *decider) changeDataSource(operation DataSourceOperation, ds *cdiv1.DataSource) {
	d.decision.DataSources = append(d.decision.DataSources, DataSourceChange{operation, ds})
}

func (d *decider) changesDataSource(name string) bool {
	return slices.ContainsFunc(d.decision.DataSources, func(c DataSourceChange) bool { return c.DataSource.Name == name })
}

// newDataSource is a DataSource that points nowhere.
func (d *decider) newDataSource(name string) *cdiv1.DataSource {
	return &cdiv1.DataSource{
		TypeMeta: metav1.TypeMeta{APIVersion: cdiv1.SchemeGroupVersion.String(), Kind: DataSourceGVK.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Image.Namespace, Name: name,
			Labels:      map[string]string{v1alpha1.LabelImageUID: string(d.Image.UID)},
			Annotations: map[string]string{v1alpha1.AnnotationImageName: d.Image.Name},
		},
	}
}

func (d *decider) buildDataSource(p *v1alpha1.Publication) *cdiv1.DataSource {
	ds := d.newDataSource(p.DataSource)
	if p.VolumeSnapshot != "" {
		ds.Spec.Source.Snapshot = &cdiv1.DataVolumeSourceSnapshot{Namespace: d.Image.Namespace, Name: p.VolumeSnapshot}
	} else {
		ds.Spec.Source.PVC = &cdiv1.DataVolumeSourcePVC{Namespace: d.Image.Namespace, Name: p.PersistentVolumeClaim}
	}
	spec := &d.Image.Spec
	defaults := spec.Defaults
	if defaults == nil {
		defaults = &v1alpha1.MachineDefaults{}
	}
	for label, value := range map[string]string{
		labelDefaultInstancetype: defaults.Instancetype, labelDefaultInstancetypeKind: defaults.InstancetypeKind,
		labelDefaultPreference: defaults.Preference, labelDefaultPreferenceKind: defaults.PreferenceKind,
		architectureLabel: string(spec.Architecture),
	} {
		if value != "" {
			ds.Labels[label] = cmp.Or(d.labelsOfTarget(p)[label], value)
		}
	}
	ds.Annotations[v1alpha1.AnnotationAppliedDigest] = digestLabels(ds.Labels)
	return ds
}

// labelsOfTarget returns the labels of what a DataSource is to point at. CDI takes those of a claim
// from its container image, and copies them to the DataSource over others, again and again: it
// would never end to set them right.
func (d *decider) labelsOfTarget(p *v1alpha1.Publication) map[string]string {
	objects := d.ObjectsByAttempt[p.Attempt]
	if snapshot := objects.findSnapshot(p.VolumeSnapshot); snapshot != nil {
		return snapshot.Labels
	}
	if p.VolumeSnapshot == "" && objects != nil && objects.Claim != nil {
		return objects.Claim.Labels
	}
	return nil
}

// digestLabels returns a digest of the labels that are applied. It tells one that is no longer
// wanted from one that somebody else has set.
func digestLabels(labels map[string]string) string {
	text, err := json.Marshal(labels) // sorts the keys
	if err != nil {
		panic(err) // a map of strings
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// isAsDesired compares what the agent owns of a DataSource.
func isAsDesired(existing, desired *cdiv1.DataSource) bool {
	for label, value := range desired.Labels {
		if existing.Labels[label] != value {
			return false
		}
	}
	for annotation, value := range desired.Annotations {
		if existing.Annotations[annotation] != value {
			return false
		}
	}
	a, b := existing.Spec.Source, desired.Spec.Source
	switch {
	case a.DataSource != nil, (a.PVC == nil) != (b.PVC == nil), (a.Snapshot == nil) != (b.Snapshot == nil):
		return false
	case b.PVC != nil:
		return *a.PVC == *b.PVC
	default:
		return *a.Snapshot == *b.Snapshot
	}
}
