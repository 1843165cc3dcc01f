package prune

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/reportlimits"
)

// Cluster is one cluster at the time a PruneReport is completed.
type Cluster struct {
	Name       string
	ClusterUID types.UID
	// Unknown and Message are the results of UnansweredReason.
	Unknown, Message string
	Root             *v1alpha1.ReportRoot
	// Images of all listed pages, in any order.
	Images []v1alpha1.ReportedImage
	// WantedBy maps images that the cluster is to have to who wants them, such as
	// "FleetDiskImage ubuntu" or "ClusterPlan".
	WantedBy map[types.NamespacedName]string
	// DeclaredBy maps images to the FleetDiskImage they are a version of.
	DeclaredBy map[types.NamespacedName]string
}

const (
	maxGroupImages = 4096
	// maxGroupBytes bounds the image names of a group: a page has room for several groups.
	maxGroupBytes = 64 << 10
)

// JudgeCluster judges each image of a cluster: it is a candidate, or kept for a reason.
// An unknown cluster has neither. The result survives the API server unchanged, and so
// does its digest: times have no fractions, empty lists are nil.
func JudgeCluster(spec *v1alpha1.PruneReportSpec, c Cluster) v1alpha1.ReportedCluster {
	r := v1alpha1.ReportedCluster{Cluster: c.Name, ClusterUID: c.ClusterUID}
	if c.Unknown == "" && c.Root == nil {
		c.Unknown, c.Message = v1alpha1.ReasonNeverReported, "the hub has no report of it"
	}
	if c.Unknown != "" {
		r.Unknown, r.Message = v1alpha1.SanitizeText(c.Unknown, maxReasonLength), v1alpha1.SanitizeText(c.Message, maxMessageLength)
		return r
	}
	r.Plan = c.Root.AnsweredPlan.DeepCopy()
	r.ObservedAt = toStoredTimeOrNil(&c.Root.ObservedAt)
	r.Orphans = slices.Clone(c.Root.Orphans)
	if len(r.Orphans) == 0 {
		r.Orphans = nil
	}
	r.OmittedOrphans = max(0, c.Root.OrphanCount-int32(len(r.Orphans)))
	if r.OmittedOrphans > 0 {
		r.OmittedOrphanBytes = max(0, c.Root.OrphanBytes-orphanBytes(r.Orphans))
	}

	j := clusterJudgement{spec: spec, cluster: &c}
	if s := spec.ImageSelector; s != nil {
		j.namespaces, j.names = s.Namespaces, newNamePatterns(s.Names)
	}
	verdicts := j.judgeImages()
	boundBytes(verdicts)
	for i := range verdicts {
		if v := &verdicts[i]; v.keptReason == "" {
			r.Candidates = append(r.Candidates, j.newCandidate(v))
		}
	}
	r.Kept = groupKept(verdicts)
	return r
}

// boundBytes bounds what the images of a cluster take together. Invariant: no sum over the clusters
// of a report overflows, whatever members say.
func boundBytes(verdicts []imageVerdict) {
	left := int64(reportlimits.MaxClusterBytes)
	for i := range verdicts {
		v := &verdicts[i]
		v.bytes = min(v.image.Bytes, left)
		left -= v.bytes
	}
}

func orphanBytes(orphans []v1alpha1.OrphanedObject) (sum int64) {
	for i := range orphans {
		sum += orphans[i].Bytes
	}
	return sum
}

// clusterJudgement judges the images of one cluster.
type clusterJudgement struct {
	spec       *v1alpha1.PruneReportSpec
	cluster    *Cluster
	namespaces []string
	names      *namePatterns // nil for all
}

// imageVerdict is the judgement of one image; without keptReason it is a candidate.
type imageVerdict struct {
	image      *v1alpha1.ReportedImage
	bytes      int64
	keptReason v1alpha1.KeptReason
	detail     string
}

// judgeImages returns the verdict on each existing selected image, by namespace and name.
// An image on two pages gets one verdict, and is kept where either page keeps it.
func (j *clusterJudgement) judgeImages() []imageVerdict {
	list := make([]imageVerdict, 0, len(j.cluster.Images))
	for i := range j.cluster.Images {
		img := &j.cluster.Images[i]
		if img.UID == "" || !j.selectsImage(img) {
			continue
		}
		kept, detail := j.keptReason(img)
		list = append(list, imageVerdict{image: img, keptReason: kept, detail: detail})
	}
	slices.SortStableFunc(list, func(a, b imageVerdict) int {
		return cmp.Or(
			strings.Compare(a.image.Namespace, b.image.Namespace), strings.Compare(a.image.Name, b.image.Name),
			keptRank(a.keptReason)-keptRank(b.keptReason), strings.Compare(a.detail, b.detail), strings.Compare(string(a.image.UID), string(b.image.UID)),
		)
	})
	return slices.CompactFunc(list, func(a, b imageVerdict) bool {
		return a.image.Namespace == b.image.Namespace && a.image.Name == b.image.Name
	})
}

// keptRank orders reasons as keptReason checks them; a candidate comes last.
func keptRank(kept v1alpha1.KeptReason) int {
	if i := slices.Index(keptOrder, kept); i >= 0 {
		return i
	}
	return len(keptOrder)
}

var keptOrder = []v1alpha1.KeptReason{
	v1alpha1.KeptLeaving, v1alpha1.KeptReferenced, v1alpha1.KeptWanted, v1alpha1.KeptInTransition, v1alpha1.KeptTooRecent,
}

func (j *clusterJudgement) selectsImage(img *v1alpha1.ReportedImage) bool {
	return (len(j.namespaces) == 0 || slices.Contains(j.namespaces, img.Namespace)) && j.names.matches(img.Name)
}

// keptReason returns why an image is kept; no reason makes it a candidate. A phase that
// this hub does not know keeps the image.
func (j *clusterJudgement) keptReason(img *v1alpha1.ReportedImage) (reason v1alpha1.KeptReason, detail string) {
	wantedBy, wanted := j.cluster.WantedBy[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}]
	switch {
	case img.Phase == v1alpha1.PhaseTerminating, img.Phase == v1alpha1.PhaseDeleting, img.Phase == v1alpha1.PhasePrunePending:
		return v1alpha1.KeptLeaving, formatPhase(img)
	case img.References != 0:
		return v1alpha1.KeptReferenced, pluralize(int(img.References), "VirtualMachine", "VirtualMachines")
	case wanted:
		return v1alpha1.KeptWanted, v1alpha1.SanitizeText(wantedBy, maxMessageLength)
	case img.Phase != v1alpha1.PhaseSucceeded && img.Phase != v1alpha1.PhaseFailed:
		return v1alpha1.KeptInTransition, formatPhase(img)
	}
	since, observedAt := toStoredTimeOrNil(img.UnreferencedSince), toStoredTimeOrNil(&j.cluster.Root.ObservedAt)
	switch {
	case since == nil:
		return v1alpha1.KeptTooRecent, "it is unknown since when it is unreferenced"
	case observedAt == nil:
		return v1alpha1.KeptTooRecent, "it is unknown when the cluster was observed"
	}
	var least time.Duration
	if j.spec.UnreferencedFor != nil {
		least = j.spec.UnreferencedFor.Duration
	}
	if observedAt.Sub(since.Time) < least {
		return v1alpha1.KeptTooRecent, "unreferenced for less than " + policy.FormatDuration(least)
	}
	return "", ""
}

func (j *clusterJudgement) newCandidate(v *imageVerdict) v1alpha1.PruneCandidate {
	img := v.image
	return v1alpha1.PruneCandidate{
		Namespace: img.Namespace, Name: img.Name, UID: img.UID, Revision: img.Revision, Phase: img.Phase, Origin: img.Origin,
		DeclaredBy: j.cluster.DeclaredBy[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}],
		Bytes:      v.bytes, UnreferencedSince: toStoredTimeOrNil(img.UnreferencedSince),
	}
}

// groupKept groups kept images by reason and detail, in the order of KeptReasons. A group
// that is full is continued by another one of the same reason and detail.
func groupKept(verdicts []imageVerdict) []v1alpha1.KeptImages {
	type key struct {
		reason v1alpha1.KeptReason
		detail string
	}
	reasons := v1alpha1.KeptReasons()
	groups := map[key][]v1alpha1.KeptImages{}
	taken := map[key]int{} // name bytes in the last group
	for i := range verdicts {
		v := &verdicts[i]
		if v.keptReason == "" {
			continue
		}
		k := key{v.keptReason, v.detail}
		name := v.image.Namespace + "/" + v.image.Name
		list := groups[k]
		if n := len(list); n == 0 || len(list[n-1].Images) == maxGroupImages || taken[k]+nameLength(name) > maxGroupBytes {
			list = append(list, v1alpha1.KeptImages{Reason: v.keptReason, Detail: v.detail})
			taken[k] = 0
		}
		last := &list[len(list)-1]
		last.Images = append(last.Images, name)
		last.Bytes += v.bytes
		taken[k] += nameLength(name)
		groups[k] = list
	}
	keys := make([]key, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(slices.Index(reasons, a.reason)-slices.Index(reasons, b.reason), strings.Compare(a.detail, b.detail))
	})
	var kept []v1alpha1.KeptImages
	for _, k := range keys {
		kept = append(kept, groups[k]...)
	}
	return kept
}
