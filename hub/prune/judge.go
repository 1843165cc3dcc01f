package prune

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/fleet"
)

// Cluster is one cluster when a PruneReport is made.
type Cluster struct {
	Name       string
	ClusterUID types.UID
	// Unknown and Message say why nothing of it counts, as Answer does; empty: it has
	// answered.
	Unknown, Message string
	Root             *v1alpha1.ReportRoot
	// Images of all pages that the root lists, in any order.
	Images []v1alpha1.ReportedImage
	// Wanted are the images that are to be there, and who wants each, as in
	// "FleetDiskImage ubuntu" or "ClusterPlan".
	Wanted map[types.NamespacedName]string
	// Declared names the FleetDiskImage that an image is a version of.
	Declared map[types.NamespacedName]string
}

// Bounds of what a cluster's images are told with.
const (
	mostReason  = 64
	mostMessage = 512
	// mostNamed is how many images a group has.
	mostNamed = 4096
	// mostGroup is how many bytes the names of a group take: a page has room for
	// several groups.
	mostGroup = 64 << 10
)

// Judge says of each image whether it could go, or why it is kept. What it returns
// is what an API server gives back, so that its digest stays: times are in whole
// seconds, and what is empty is not there.
func Judge(spec *v1alpha1.PruneReportSpec, c Cluster) v1alpha1.ReportedCluster {
	r := v1alpha1.ReportedCluster{Cluster: c.Name, ClusterUID: c.ClusterUID}
	if c.Unknown == "" && c.Root == nil {
		c.Unknown, c.Message = v1alpha1.ReasonNeverReported, "the hub has no report of it"
	}
	if c.Unknown != "" {
		r.Unknown, r.Message = text(c.Unknown, mostReason), text(c.Message, mostMessage)
		return r
	}
	r.Plan = c.Root.AnsweredPlan.DeepCopy()
	r.ObservedAt = whole(&c.Root.ObservedAt)
	r.Orphans = slices.Clone(c.Root.Orphans)
	if len(r.Orphans) == 0 {
		r.Orphans = nil
	}
	r.OmittedOrphans = max(0, c.Root.OrphanCount-int32(len(r.Orphans)))
	if r.OmittedOrphans > 0 {
		r.OmittedOrphanBytes = max(0, c.Root.OrphanBytes-bytesOf(r.Orphans))
	}

	j := judgement{spec: spec, cluster: &c}
	if s := spec.ImageSelector; s != nil {
		j.namespaces, j.names = s.Namespaces, newPatterns(s.Names)
	}
	verdicts := j.all()
	for i := range verdicts {
		if v := &verdicts[i]; v.kept == "" {
			r.Candidates = append(r.Candidates, j.candidate(v.image))
		}
	}
	r.Kept = group(verdicts)
	return r
}

func bytesOf(orphans []v1alpha1.OrphanedObject) (sum int64) {
	for i := range orphans {
		sum += orphans[i].Bytes
	}
	return sum
}

// judgement works out what is said of one cluster.
type judgement struct {
	spec       *v1alpha1.PruneReportSpec
	cluster    *Cluster
	namespaces []string
	names      *patterns // nil for all
}

// verdict is what is said of one image; without kept it is a candidate.
type verdict struct {
	image  *v1alpha1.ReportedImage
	kept   v1alpha1.KeptReason
	detail string
}

// all returns the verdict on each image that is there and selected, by namespace
// and name. One that is listed twice, as on two pages, stands once, and is kept
// where either says so.
func (j *judgement) all() []verdict {
	list := make([]verdict, 0, len(j.cluster.Images))
	for i := range j.cluster.Images {
		img := &j.cluster.Images[i]
		if img.UID == "" || !j.selects(img) {
			continue
		}
		kept, detail := j.keeps(img)
		list = append(list, verdict{img, kept, detail})
	}
	slices.SortStableFunc(list, func(a, b verdict) int {
		return cmp.Or(
			strings.Compare(a.image.Namespace, b.image.Namespace), strings.Compare(a.image.Name, b.image.Name),
			rank(a.kept)-rank(b.kept), strings.Compare(a.detail, b.detail), strings.Compare(string(a.image.UID), string(b.image.UID)),
		)
	})
	return slices.CompactFunc(list, func(a, b verdict) bool {
		return a.image.Namespace == b.image.Namespace && a.image.Name == b.image.Name
	})
}

// rank orders reasons as they are looked for; a candidate comes last.
func rank(kept v1alpha1.KeptReason) int {
	if i := slices.Index(order, kept); i >= 0 {
		return i
	}
	return len(order)
}

var order = []v1alpha1.KeptReason{
	v1alpha1.KeptLeaving, v1alpha1.KeptReferenced, v1alpha1.KeptWanted, v1alpha1.KeptInTransition, v1alpha1.KeptTooRecent,
}

func (j *judgement) selects(img *v1alpha1.ReportedImage) bool {
	return (len(j.namespaces) == 0 || slices.Contains(j.namespaces, img.Namespace)) && j.names.match(img.Name)
}

// keeps tells why an image is kept; without a reason it could go. A phase that
// this hub does not know keeps it.
func (j *judgement) keeps(img *v1alpha1.ReportedImage) (reason v1alpha1.KeptReason, detail string) {
	wantedBy, wanted := j.cluster.Wanted[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}]
	switch {
	case img.Phase == v1alpha1.PhaseTerminating, img.Phase == v1alpha1.PhaseDeleting, img.Phase == v1alpha1.PhasePrunePending:
		return v1alpha1.KeptLeaving, phaseText(img)
	case img.References != 0:
		return v1alpha1.KeptReferenced, counted(int(img.References), "VirtualMachine", "VirtualMachines")
	case wanted:
		return v1alpha1.KeptWanted, text(wantedBy, mostMessage)
	case img.Phase != v1alpha1.PhaseSucceeded && img.Phase != v1alpha1.PhaseFailed:
		return v1alpha1.KeptInTransition, phaseText(img)
	}
	since := whole(img.UnreferencedSince)
	if since == nil || j.cluster.Root.ObservedAt.IsZero() {
		return v1alpha1.KeptTooRecent, "since when no VirtualMachine references it is not known"
	}
	var least time.Duration
	if j.spec.UnreferencedFor != nil {
		least = j.spec.UnreferencedFor.Duration
	}
	if whole(&j.cluster.Root.ObservedAt).Sub(since.Time) < least {
		return v1alpha1.KeptTooRecent, "unreferenced for less than " + span(least)
	}
	return "", ""
}

func (j *judgement) candidate(img *v1alpha1.ReportedImage) v1alpha1.PruneCandidate {
	return v1alpha1.PruneCandidate{
		Namespace: img.Namespace, Name: img.Name, UID: img.UID, Revision: img.Revision, Phase: img.Phase, Origin: img.Origin,
		DeclaredBy: j.cluster.Declared[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}],
		Bytes:      img.Bytes, UnreferencedSince: whole(img.UnreferencedSince),
	}
}

// group lists the images that are kept by reason and detail, the reasons in the
// order of KeptReasons. What has no room in one group goes on in another of the
// same reason and detail.
func group(verdicts []verdict) []v1alpha1.KeptImages {
	type key struct {
		reason v1alpha1.KeptReason
		detail string
	}
	reasons := v1alpha1.KeptReasons()
	groups := map[key][]v1alpha1.KeptImages{}
	taken := map[key]int{} // bytes of the names of the last group
	for i := range verdicts {
		v := &verdicts[i]
		if v.kept == "" {
			continue
		}
		k := key{v.kept, v.detail}
		name := v.image.Namespace + "/" + v.image.Name
		list := groups[k]
		if n := len(list); n == 0 || len(list[n-1].Images) == mostNamed || taken[k]+len(name) > mostGroup {
			list = append(list, v1alpha1.KeptImages{Reason: v.kept, Detail: v.detail})
			taken[k] = 0
		}
		last := &list[len(list)-1]
		last.Images = append(last.Images, name)
		last.Bytes += v.image.Bytes
		taken[k] += len(name)
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

// whole is a time as it is stored; nil where there is none.
func whole(t *metav1.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return stamp(t.Time)
}

func stamp(t time.Time) *metav1.Time {
	at := metav1.NewTime(t.UTC().Truncate(time.Second))
	return &at
}

// text is a text as it is stored.
func text(of string, most int) string {
	return fleet.Cut(strings.ToValidUTF8(of, "�"), most)
}

// phaseText is an image's phase, with its reason.
func phaseText(img *v1alpha1.ReportedImage) string {
	phase := cmp.Or(string(img.Phase), "no phase yet")
	if img.Reason != "" {
		phase += " (" + string(img.Reason) + ")"
	}
	return text(phase, mostMessage)
}

// span is a duration without what is 0 at its end: 24h, not 24h0m0s.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
