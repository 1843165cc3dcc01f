//go:build linux

package prune_test

import (
	"encoding/csv"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// listImages are the images of all members, as cluster/name, with their UIDs.
func (f *testFleet) listImages(t *testing.T) map[string]types.UID {
	t.Helper()
	all := map[string]types.UID{}
	for name, s := range f.Members {
		var list v1alpha1.VMDiskImageList
		require.NoError(t, s.List(t.Context(), &list))
		for i := range list.Items {
			all[name+"/"+list.Items[i].Name] = list.Items[i].UID
		}
	}
	return all
}

// withoutKeys is what is left of a set of images without some of them.
func withoutKeys(all map[string]types.UID, gone ...string) map[string]types.UID {
	all = maps.Clone(all)
	for _, name := range gone {
		delete(all, name)
	}
	return all
}

// What nobody needs is reported, with all else and why it is kept; what is reported
// and approved of goes, first tentatively and then for good, and nothing else.
func TestReportedApprovedPruned(t *testing.T) {
	inBergen, inEdge := shared.Members[bergen], shared.Members[edge]
	img := newFleetImage("journey", bergen, edge)
	for _, version := range []string{"1", "2", "3"} {
		setVersion(img, version)
		shared.rollOut(t, img)
	}
	forgotten := newFleetImage("journey-forgotten", edge)
	shared.rollOut(t, forgotten)
	require.NoError(t, shared.Delete(t.Context(), forgotten))
	first := img.ImageNameForVersion("1")
	vm := inBergen.createMachine(t, first)
	inBergen.awaitMachineReady(t, vm, inBergen.GetImage(t, first))

	inBergen.CreateImage(t, "journey-own")
	own := inBergen.requireServing(t, "journey-own")
	t.Cleanup(inBergen.InstantImporter().HoldImports(func(dv *cdiv1.DataVolume) bool {
		return dv.Annotations[v1alpha1.AnnotationImageName] == "journey-waits"
	}))
	inBergen.CreateImage(t, "journey-waits")
	inBergen.AwaitPhase(t, "journey-waits", v1alpha1.PhaseSyncing)
	inEdge.CreateImage(t, "journey-leaves")
	leaves := inEdge.requireServing(t, "journey-leaves")
	holder := inEdge.createMachine(t, leaves.Name)
	inEdge.awaitMachineReady(t, holder, leaves)
	require.NoError(t, inEdge.Delete(t.Context(), leaves.DeepCopy()))
	inEdge.AwaitPhase(t, leaves.Name, v1alpha1.PhaseTerminating)
	inEdge.CreateImage(t, "journey-orphan")
	orphan := inEdge.requireServing(t, "journey-orphan")
	left := inEdge.listStorage(t, orphan)
	require.NotEmpty(t, left)
	inEdge.deleteStorage(t, orphan)

	// Nothing has been without machines for an hour.
	recent := newPruneReport("journey-recent", "journey", bergen, edge)
	recent.Spec.UnreferencedFor = &metav1.Duration{Duration: time.Hour}
	shared.CreateForTest(t, recent)
	recent = shared.awaitReportComplete(t, recent)
	assert.Zero(t, recent.Status.Candidates)
	clusters := shared.clustersInReport(t, recent)
	assert.Equal(t, map[string]string{
		first: "TooRecent", forgotten.ImageNameForVersion("1"): "TooRecent", leaves.Name: "Leaving",
		img.ImageNameForVersion("2"): "Wanted: FleetDiskImage journey", img.ImageNameForVersion("3"): "Wanted: FleetDiskImage journey",
	}, trimDetails(keptReasons(clusters[edge])))

	r := shared.createCompleteReport(t, "journey", bergen, edge)
	clusters = shared.clustersInReport(t, r)
	require.Len(t, clusters, 2)
	for name, c := range clusters {
		assert.Empty(t, c.Unknown, name)
		assert.Equal(t, shared.Members[name].ClusterUID(t), c.ClusterUID, name)
		assert.NotNil(t, c.Plan, name)
		assert.NotNil(t, c.ObservedAt, name)
	}
	assert.Equal(t, []string{own.Name}, candidateNames(clusters[bergen]))
	assert.Equal(t, []string{first, forgotten.ImageNameForVersion("1")}, candidateNames(clusters[edge]))
	assert.Equal(t, map[string]string{
		first: "Referenced: 1 VirtualMachine", "journey-waits": "InTransition",
		img.ImageNameForVersion("2"): "Wanted: FleetDiskImage journey", img.ImageNameForVersion("3"): "Wanted: FleetDiskImage journey",
	}, trimDetails(keptReasons(clusters[bergen])))
	assert.Equal(t, map[string]string{
		leaves.Name: "Leaving", img.ImageNameForVersion("2"): "Wanted: FleetDiskImage journey", img.ImageNameForVersion("3"): "Wanted: FleetDiskImage journey",
	}, trimDetails(keptReasons(clusters[edge])))
	assert.Empty(t, clusters[bergen].Orphans)
	for _, o := range clusters[edge].Orphans {
		assert.Equal(t, orphan.UID, o.ImageUID)
		assert.Equal(t, orphan.Name, o.Image)
		assert.Equal(t, namespace, o.Namespace)
	}
	assert.Len(t, clusters[edge].Orphans, len(left), "%v", left)
	declared := clusters[edge].Candidates[0]
	there := inEdge.GetImage(t, first)
	since := declared.UnreferencedSince
	require.NotNil(t, since)
	assert.True(t, since.Equal(there.Status.References.UnreferencedSince))
	declared.UnreferencedSince = nil
	assert.Equal(t, v1alpha1.PruneCandidate{
		Namespace: namespace, Name: first, UID: there.UID, Revision: there.Status.Revision, Phase: v1alpha1.PhaseSucceeded,
		Origin: v1alpha1.OriginPlan, DeclaredBy: "journey", Bytes: gibibyte,
	}, declared)
	assert.Empty(t, clusters[edge].Candidates[1].DeclaredBy)
	assert.Empty(t, clusters[bergen].Candidates[0].Origin)

	st := r.Status
	assert.Equal(t, v1alpha1.AnswerCounts{Total: 2, Answered: 2}, st.Clusters)
	assert.Equal(t, v1alpha1.PruneTotal{Count: 3, Bytes: 3 * gibibyte}, st.Candidates)
	assert.Equal(t, v1alpha1.PruneTotal{Count: 1, Bytes: gibibyte}, st.Others)
	assert.Equal(t, v1alpha1.PruneTotal{Count: 1, Bytes: gibibyte}, st.Undeclared)
	assert.Equal(t, int32(len(left)), st.Orphans.Count)
	assert.Equal(t, int64(gibibyte), st.Orphans.Bytes, "counted once")
	total := map[v1alpha1.KeptReason]int32{}
	for _, k := range st.Kept {
		total[k.Reason] = k.Count
	}
	assert.Equal(t, map[v1alpha1.KeptReason]int32{v1alpha1.KeptReferenced: 1, v1alpha1.KeptWanted: 4, v1alpha1.KeptInTransition: 1, v1alpha1.KeptLeaving: 1}, total)
	assert.Equal(t, int32(1), st.Pages)
	assert.NotEmpty(t, st.Digest)
	requireExported(t, r.Name, [][]string{
		{"candidate", bergen, own.Name}, {"candidate", edge, first}, {"candidate", edge, forgotten.ImageNameForVersion("1")},
	})

	// Tentatively: it serves on, and stays when that is undone.
	before := shared.listImages(t)
	p := shared.createPendingPrune(t, "journey-undone", r, time.Hour)
	assert.Equal(t, v1alpha1.ImagePruneRunning, p.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonUndoWindow, p.Status.Reason)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Pending: 2}, p.Status.Targets, "people's are left out")
	for _, name := range []string{first, forgotten.ImageNameForVersion("1")} {
		pending := inEdge.AwaitPhase(t, name, v1alpha1.PhasePrunePending)
		requireReady(t, pending)
		assert.Nil(t, pending.DeletionTimestamp)
		require.NotNil(t, pending.Status.Prune)
		assert.Equal(t, p.UID, pending.Status.Prune.UID)
		require.NotNil(t, pending.Status.Prune.Until)
		assert.WithinDuration(t, time.Now().Add(time.Hour), pending.Status.Prune.Until.Time, testenv.Patience)
	}
	awaitExportedStates(t, p.Name, map[string]int{"Pending": 2})
	shared.undoPrune(t, p)
	shared.awaitPruneEnd(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
	for _, name := range []string{first, forgotten.ImageNameForVersion("1")} {
		inEdge.requireServing(t, name)
	}
	awaitExportedStates(t, p.Name, map[string]int{"Undone": 2})
	assert.Equal(t, before, shared.listImages(t))

	// For good: exactly those that were reported, of plans.
	goes := []*v1alpha1.VMDiskImage{inEdge.GetImage(t, first), inEdge.GetImage(t, forgotten.ImageNameForVersion("1"))}
	p = newImagePrune("journey-pruned", r)
	shared.CreateForTest(t, p)
	shared.awaitPruned(t, p, 2)
	for _, img := range goes {
		inEdge.awaitImageGone(t, img)
	}
	awaitExportedStates(t, p.Name, map[string]int{"Pruned": 2})
	after := withoutKeys(before, edge+"/"+first, edge+"/"+forgotten.ImageNameForVersion("1"))
	assert.Equal(t, after, shared.listImages(t))

	// What is named and is people's stays, and is not passed over in silence.
	p = newImagePrune("journey-named", r)
	p.Spec.Images = []string{namespace + "/" + own.Name}
	shared.CreateForTest(t, p)
	named := shared.awaitPrune(t, p, "failed", func(p *v1alpha1.ImagePrune) bool { return p.Status.Phase.IsFinal() })
	assert.Equal(t, v1alpha1.ReasonNothingSelected, named.Status.Reason)
	require.Len(t, named.Status.Skipped, 1)
	assert.Equal(t, []string{bergen, own.Name, v1alpha1.PruneNeedsIncludeOthers}, []string{named.Status.Skipped[0].Cluster, named.Status.Skipped[0].Name, named.Status.Skipped[0].Reason})

	// And people's, where that is clusters. What has gone is told as such.
	p = newImagePrune("journey-others", r)
	p.Spec.IncludeOthers = true
	p.Spec.Images = []string{namespace + "/journey-*"}
	shared.CreateForTest(t, p)
	shared.awaitPruned(t, p, 3)
	inBergen.awaitImageGone(t, own)
	after = withoutKeys(after, bergen+"/"+own.Name)
	assert.Equal(t, after, shared.listImages(t))
	assert.Equal(t, left, inEdge.listStorage(t, orphan), "an orphan is reported and not touched")
	inBergen.awaitMachineReady(t, vm, inBergen.GetImage(t, first))

	// Nothing that the report does not list can be named.
	p = newImagePrune("journey-nothing", r)
	p.Spec.Images = []string{namespace + "/" + img.ImageNameForVersion("3")}
	shared.CreateForTest(t, p)
	failed := shared.awaitPrune(t, p, "failed", func(p *v1alpha1.ImagePrune) bool { return p.Status.Phase.IsFinal() })
	assert.Equal(t, v1alpha1.ImagePruneFailed, failed.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonNothingSelected, failed.Status.Reason)
	assert.NotEmpty(t, failed.Status.Skipped, "it says why")
	assert.Equal(t, after, shared.listImages(t))
}

// trimDetails are those why images are kept, without the words that say more where
// there are none in the contract.
func trimDetails(kept map[string]string) map[string]string {
	short := map[string]string{}
	for name, why := range kept {
		switch reason, _, _ := strings.Cut(why, ":"); v1alpha1.KeptReason(reason) {
		case v1alpha1.KeptReferenced, v1alpha1.KeptWanted:
			short[name] = why
		default:
			short[name] = reason
		}
	}
	return short
}

// deleteStorage takes an image away and leaves its storage: its finalizer goes first. What is
// still in a slot the agent would remove, finished or not.
func (s *testMember) deleteStorage(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	key := client.ObjectKeyFromObject(img)
	require.True(t, testenv.AwaitCondition(t, func() bool {
		ledger := &v1alpha1.SyncLedger{}
		return s.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger) == nil && ledger.Status != nil &&
			!slices.ContainsFunc(ledger.Status.Slots, func(slot v1alpha1.Slot) bool { return slot.Image.UID == img.UID })
	}), "its slot is freed")
	require.NoError(t, s.Agent.Pause(t.Context()))
	defer func() { require.NoError(t, s.Agent.Resume()) }()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, s.Get(t.Context(), key, got))
	got.Finalizers = nil
	require.NoError(t, s.Update(t.Context(), got))
	require.NoError(t, client.IgnoreNotFound(s.Delete(t.Context(), got)))
	require.True(t, testenv.AwaitCondition(t, func() bool { return apierrors.IsNotFound(s.Get(t.Context(), key, got)) }))
}

// requireExported wants rows of a report, as verdict, cluster and name, in both forms
// in which it can be had, and none of that verdict beside them.
func requireExported(t *testing.T, name string, want [][]string) {
	t.Helper()
	path := "/fleet/v1/prunereports/rows?report=" + name + "&verdict=" + want[0][0]
	text := awaitText(t, path+"&format=csv")
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	require.NoError(t, err, text)
	require.NotEmpty(t, records)
	column := func(of string) int {
		at := slices.Index(records[0], of)
		require.GreaterOrEqual(t, at, 0, "no column %s in %v", of, records[0])
		return at
	}
	var got [][]string
	for _, record := range records[1:] {
		got = append(got, []string{record[column("verdict")], record[column("cluster")], record[column("name")]})
	}
	assert.Equal(t, want, got, text)

	text = awaitText(t, path+"&format=json")
	var rows struct {
		Rows []struct{ Verdict, Cluster, Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(text), &rows), text)
	got = nil
	for _, row := range rows.Rows {
		got = append(got, []string{row.Verdict, row.Cluster, row.Name})
	}
	assert.Equal(t, want, got, text)
}

// awaitText waits until the read API has an answer: its cache shows a moment later that a report is
// complete.
func awaitText(t *testing.T, path string) (text string) {
	t.Helper()
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		var err error
		text, err = shared.Hub.GetText(t.Context(), path)
		require.NoError(check, err)
	}, testenv.Patience, 50*time.Millisecond)
	return text
}

// awaitExportedStates waits until the read API, which answers from the hub's cache, says this of
// the images of an ImagePrune: how many there are of each state.
func awaitExportedStates(t *testing.T, prune string, want map[string]int) {
	t.Helper()
	require.EventuallyWithT(t, func(check *assert.CollectT) {
		var targets struct {
			Targets []struct{ State string }
		}
		require.NoError(check, shared.Hub.GetJSON(t.Context(), "/fleet/v1/imageprunes/targets?prune="+prune, &targets))
		counts := map[string]int{}
		for _, target := range targets.Targets {
			counts[target.State]++
		}
		assert.Equal(check, want, counts)
	}, testenv.Patience, 50*time.Millisecond)
}
