package prune_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/prune"
)

func TestKeptReasons(t *testing.T) {
	wanted := map[types.NamespacedName]string{{Namespace: "farm", Name: "wanted"}: "FleetDiskImage ubuntu", {Namespace: "farm", Name: "unnamed"}: ""}
	tests := map[string]struct {
		img        v1alpha1.ReportedImage
		want       v1alpha1.KeptReason
		wantDetail string
	}{
		"unreferenced": {img: newUnreferenced("a")},
		"failed":       {img: newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Phase = v1alpha1.PhaseFailed })},
		"not planned":  {img: newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Origin = "" })},
		"one machine":  {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.References = 1 }), v1alpha1.KeptReferenced, "1 VirtualMachine"},
		"two machines": {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.References = 2 }), v1alpha1.KeptReferenced, "2 VirtualMachines"},
		"wanted":       {newUnreferenced("wanted"), v1alpha1.KeptWanted, "FleetDiskImage ubuntu"},
		"wanted without a name": {
			newUnreferenced("unnamed"), v1alpha1.KeptWanted, "",
		},
		"referenced and wanted": {newUnreferenced("wanted", func(i *v1alpha1.ReportedImage) { i.References = 1 }), v1alpha1.KeptReferenced, "1 VirtualMachine"},
		"queued": {
			newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Phase, i.Reason = v1alpha1.PhaseQueued, v1alpha1.ReasonBackingOff }),
			v1alpha1.KeptInTransition, "Queued (BackingOff)",
		},
		"syncing":       {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Phase, i.Reason = v1alpha1.PhaseSyncing, "" }), v1alpha1.KeptInTransition, "Syncing"},
		"no phase":      {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Phase, i.Reason = "", "" }), v1alpha1.KeptInTransition, "no phase yet"},
		"unknown phase": {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Phase, i.Reason = "OfTomorrow", "" }), v1alpha1.KeptInTransition, "OfTomorrow"},
		"terminating and referenced": {
			newUnreferenced("a", func(i *v1alpha1.ReportedImage) {
				i.Phase, i.Reason, i.References = v1alpha1.PhaseTerminating, v1alpha1.ReasonReferenced, 1
			}),
			v1alpha1.KeptLeaving, "Terminating (Referenced)",
		},
		"deleting":      {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Phase, i.Reason = v1alpha1.PhaseDeleting, "" }), v1alpha1.KeptLeaving, "Deleting"},
		"prune pending": {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.Phase, i.Reason = v1alpha1.PhasePrunePending, "" }), v1alpha1.KeptLeaving, "PrunePending"},
		"unknown":       {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.UnreferencedSince = nil }), v1alpha1.KeptTooRecent, "it is unknown since when it is unreferenced"},
		"null":          {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.UnreferencedSince = &metav1.Time{} }), v1alpha1.KeptTooRecent, "it is unknown since when it is unreferenced"},
		"long enough":   {img: newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.UnreferencedSince = toStoredTime(now.Add(-2 * time.Hour)) })},
		"a second too short": {newUnreferenced("a", func(i *v1alpha1.ReportedImage) {
			i.UnreferencedSince = toStoredTime(now.Add(-2*time.Hour + time.Second))
		}), v1alpha1.KeptTooRecent, "unreferenced for less than 2h"},
		"since a later time": {newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.UnreferencedSince = toStoredTime(now.Add(time.Hour)) }), v1alpha1.KeptTooRecent, "unreferenced for less than 2h"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			spec := &v1alpha1.PruneReportSpec{UnreferencedFor: newDuration(2 * time.Hour)}
			r := prune.JudgeCluster(spec, prune.Cluster{Name: "c", Root: newRoot(), Images: []v1alpha1.ReportedImage{test.img}, WantedBy: wanted})
			if test.want == "" {
				require.Empty(t, r.Kept)
				require.Len(t, r.Candidates, 1)
				return
			}
			require.Empty(t, r.Candidates)
			require.Equal(t, []v1alpha1.KeptImages{{Reason: test.want, Detail: test.wantDetail, Bytes: 1 << 30, Images: []string{"farm/" + test.img.Name}}}, r.Kept)
		})
	}
}

func TestUnknownClusterHasNoCandidates(t *testing.T) {
	images := []v1alpha1.ReportedImage{newUnreferenced("a")}
	r := prune.JudgeCluster(&v1alpha1.PruneReportSpec{}, prune.Cluster{Name: "c", ClusterUID: "u", Unknown: v1alpha1.ReasonOffline, Message: strings.Repeat("é", 600), Root: newRoot(), Images: images})
	require.LessOrEqual(t, len(r.Message), 512)
	require.Equal(t, v1alpha1.ReportedCluster{Cluster: "c", ClusterUID: "u", Unknown: v1alpha1.ReasonOffline, Message: r.Message}, r)
	r = prune.JudgeCluster(&v1alpha1.PruneReportSpec{}, prune.Cluster{Name: "c", Images: images})
	require.Equal(t, v1alpha1.ReasonNeverReported, r.Unknown)
	require.Empty(t, r.Candidates)
}

func TestCandidateFields(t *testing.T) {
	img := newUnreferenced("a")
	since := now.Add(-90 * time.Hour)
	img.UnreferencedSince = toStoredTime(since.Add(700 * time.Millisecond).In(time.FixedZone("", 3600)))
	c := prune.Cluster{Name: "c", ClusterUID: "u", Root: newRoot(), Images: []v1alpha1.ReportedImage{img}, DeclaredBy: map[types.NamespacedName]string{{Namespace: "farm", Name: "a"}: "ubuntu"}}
	c.Root.Orphans, c.Root.OrphanCount, c.Root.OrphanBytes = []v1alpha1.OrphanedObject{{Kind: "DataVolume", Namespace: "farm", Name: "dv", Bytes: 5}}, 40, 47
	require.Equal(t, v1alpha1.ReportedCluster{
		Cluster: "c", ClusterUID: "u", Plan: &v1alpha1.PlanVersion{Epoch: 1, Sequence: 7, Hash: "abc"}, ObservedAt: toStoredTime(now),
		Candidates: []v1alpha1.PruneCandidate{{
			Namespace: "farm", Name: "a", UID: "uid-a", Revision: "r1", Phase: v1alpha1.PhaseSucceeded, Origin: v1alpha1.OriginPlan,
			DeclaredBy: "ubuntu", Bytes: 1 << 30, UnreferencedSince: toStoredTime(since),
		}},
		Orphans: []v1alpha1.OrphanedObject{{Kind: "DataVolume", Namespace: "farm", Name: "dv", Bytes: 5}}, OmittedOrphans: 39, OmittedOrphanBytes: 42,
	}, prune.JudgeCluster(&v1alpha1.PruneReportSpec{}, c))
}

func TestDuplicateImageIsKeptIfEitherIsKept(t *testing.T) {
	used := newUnreferenced("a", func(i *v1alpha1.ReportedImage) { i.References = 1 })
	for _, images := range [][]v1alpha1.ReportedImage{{newUnreferenced("a"), used}, {used, newUnreferenced("a")}} {
		r := prune.JudgeCluster(&v1alpha1.PruneReportSpec{}, prune.Cluster{Name: "c", Root: newRoot(), Images: images})
		require.Empty(t, r.Candidates)
		require.Equal(t, []string{"farm/a"}, r.Kept[0].Images)
	}
}

func TestKeptImagesAreGroupedWithinLimits(t *testing.T) {
	long := strings.Repeat("n", 200)
	for name, prefix := range map[string]string{"many": "n", "long": long} {
		t.Run(name, func(t *testing.T) {
			var images []v1alpha1.ReportedImage
			for i := range 10000 {
				images = append(images, newUnreferenced(fmt.Sprintf("%s-%d", prefix, i), func(i *v1alpha1.ReportedImage) { i.References, i.Bytes = 1, 3 }))
			}
			r := prune.JudgeCluster(&v1alpha1.PruneReportSpec{}, prune.Cluster{Name: "c", Root: newRoot(), Images: images})
			n, bytes := 0, int64(0)
			for _, g := range r.Kept {
				require.Equal(t, v1alpha1.KeptReferenced, g.Reason)
				require.Equal(t, int64(3*len(g.Images)), g.Bytes)
				require.LessOrEqual(t, len(g.Images), 4096)
				require.LessOrEqual(t, len(strings.Join(g.Images, "")), 64<<10)
				n, bytes = n+len(g.Images), bytes+g.Bytes
			}
			require.Equal(t, 10000, n)
			require.Equal(t, int64(30000), bytes)
		})
	}
}

// An image that is referenced, wanted, too recent, in transition, not selected or of an
// unknown cluster is never a candidate; each selected image is listed once.
func TestPropertyCandidates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec, c := drawSpec(t), drawCluster(t, "c")
		r := prune.JudgeCluster(spec, c)
		require.Equal(t, toJSON(t, r), toJSON(t, prune.JudgeCluster(spec, c)), "the same cluster has the same judgement")
		require.Equal(t, toJSON(t, r), toJSON(t, roundTrip(t, r)), "the judgement survives the API server")
		if c.Unknown != "" || c.Root == nil {
			require.NotEmpty(t, r.Unknown)
			require.Empty(t, r.Candidates)
			require.Empty(t, r.Kept)
			return
		}
		require.Empty(t, r.Unknown)
		times := map[string]int{}
		for _, candidate := range r.Candidates {
			times[candidate.Namespace+"/"+candidate.Name]++
		}
		could := len(times)
		bytes := int64(0)
		for _, g := range r.Kept {
			require.NotEmpty(t, g.Images)
			for _, name := range g.Images {
				times[name]++
			}
			bytes += g.Bytes
		}
		candidates := map[string]v1alpha1.PruneCandidate{}
		for _, candidate := range r.Candidates {
			candidates[candidate.Namespace+"/"+candidate.Name] = candidate
			bytes += candidate.Bytes
		}
		least := time.Duration(0)
		if spec.UnreferencedFor != nil {
			least = spec.UnreferencedFor.Duration
		}
		selected, all, may := 0, int64(0), 0
		for _, img := range c.Images {
			name := img.Namespace + "/" + img.Name
			if img.UID == "" || !expectedSelection(spec.ImageSelector, img.Namespace, img.Name) {
				require.Zero(t, times[name], name)
				continue
			}
			selected++
			all += img.Bytes
			require.Equal(t, 1, times[name], name)
			_, wanted := c.WantedBy[types.NamespacedName{Namespace: img.Namespace, Name: img.Name}]
			settled := img.Phase == v1alpha1.PhaseSucceeded || img.Phase == v1alpha1.PhaseFailed
			long := !img.UnreferencedSince.IsZero() && !c.Root.ObservedAt.Truncate(time.Second).Before(img.UnreferencedSince.Truncate(time.Second).Add(least))
			candidate, isCandidate := candidates[name]
			require.Equal(t, img.References == 0 && !wanted && settled && long, isCandidate, "%s: %+v", name, img)
			if isCandidate {
				may++
				require.Equal(t, img.UID, candidate.UID)
				require.Equal(t, img.Revision, candidate.Revision)
				require.Equal(t, img.Origin, candidate.Origin)
			}
		}
		require.Equal(t, may, could)
		require.Len(t, times, selected)
		require.Equal(t, all, bytes)
	})
}

// expectedSelection implements imageSelector in another way.
func expectedSelection(s *v1alpha1.ImageSelector, namespace, name string) bool {
	if s == nil {
		return true
	}
	in := len(s.Namespaces) == 0
	for _, n := range s.Namespaces {
		in = in || n == namespace
	}
	named := len(s.Names) == 0
	for _, pattern := range s.Names {
		named = named || matchesStars(pattern, name)
	}
	return in && named
}

func matchesStars(pattern, name string) bool {
	switch {
	case pattern == "":
		return name == ""
	case pattern[0] == '*':
		return matchesStars(pattern[1:], name) || name != "" && name[0] != '/' && matchesStars(pattern, name[1:])
	default:
		return name != "" && name[0] == pattern[0] && matchesStars(pattern[1:], name[1:])
	}
}
