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
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// everything are the images of all members, as cluster/name, with their UIDs.
func (f *fleet) everything(t *testing.T) map[string]types.UID {
	t.Helper()
	all := map[string]types.UID{}
	for name, s := range f.sites {
		var list v1alpha1.VMDiskImageList
		require.NoError(t, s.List(t.Context(), &list))
		for i := range list.Items {
			all[name+"/"+list.Items[i].Name] = list.Items[i].UID
		}
	}
	return all
}

// without is what is left of a set of images without some of them.
func without(all map[string]types.UID, gone ...string) map[string]types.UID {
	all = maps.Clone(all)
	for _, name := range gone {
		delete(all, name)
	}
	return all
}

// What nobody needs is reported, with all else and why it is kept; what is reported
// and approved of goes, first tentatively and then for good, and nothing else.
func TestReportedApprovedPruned(t *testing.T) {
	inBergen, inEdge := shared.sites[bergen], shared.sites[edge]
	img := fleetImage("journey", bergen, edge)
	for _, version := range []string{"1", "2", "3"} {
		toVersion(img, version)
		shared.rollOut(t, img)
	}
	forgotten := fleetImage("journey-forgotten", edge)
	shared.rollOut(t, forgotten)
	require.NoError(t, shared.Delete(t.Context(), forgotten))
	first := img.VMDiskImage("1")
	vm := inBergen.machine(t, first)
	inBergen.gets(t, vm, inBergen.image(t, first))

	inBergen.create(t, "journey-own")
	own := inBergen.serves(t, "journey-own")
	t.Cleanup(inBergen.Instant().Hold(func(dv *cdiv1.DataVolume) bool {
		return dv.Annotations[v1alpha1.AnnotationImageName] == "journey-waits"
	}))
	inBergen.create(t, "journey-waits")
	inBergen.has(t, "journey-waits", v1alpha1.PhaseSyncing)
	inEdge.create(t, "journey-leaves")
	leaves := inEdge.serves(t, "journey-leaves")
	holder := inEdge.machine(t, leaves.Name)
	inEdge.gets(t, holder, leaves)
	require.NoError(t, inEdge.Delete(t.Context(), leaves.DeepCopy()))
	inEdge.has(t, leaves.Name, v1alpha1.PhaseTerminating)
	inEdge.create(t, "journey-orphan")
	orphan := inEdge.serves(t, "journey-orphan")
	left := inEdge.storage(t, orphan)
	require.NotEmpty(t, left)
	inEdge.rip(t, orphan)

	// Nothing has been without machines for an hour.
	recent := pruneReport("journey-recent", "journey", bergen, edge)
	recent.Spec.UnreferencedFor = &metav1.Duration{Duration: time.Hour}
	shared.ask(t, recent)
	recent = shared.complete(t, recent)
	assert.Zero(t, recent.Status.Candidates)
	said := shared.said(t, recent)
	assert.Equal(t, map[string]string{
		first: "TooRecent", forgotten.VMDiskImage("1"): "TooRecent", leaves.Name: "Leaving",
		img.VMDiskImage("2"): "Wanted: FleetDiskImage journey", img.VMDiskImage("3"): "Wanted: FleetDiskImage journey",
	}, reasons(kept(said[edge])))

	r := shared.report(t, "journey", bergen, edge)
	said = shared.said(t, r)
	require.Len(t, said, 2)
	for name, c := range said {
		assert.Empty(t, c.Unknown, name)
		assert.Equal(t, shared.sites[name].clusterUID(t), c.ClusterUID, name)
		assert.NotNil(t, c.Plan, name)
		assert.NotNil(t, c.ObservedAt, name)
	}
	assert.Equal(t, []string{own.Name}, candidates(said[bergen]))
	assert.Equal(t, []string{first, forgotten.VMDiskImage("1")}, candidates(said[edge]))
	assert.Equal(t, map[string]string{
		first: "Referenced: 1 VirtualMachine", "journey-waits": "InTransition",
		img.VMDiskImage("2"): "Wanted: FleetDiskImage journey", img.VMDiskImage("3"): "Wanted: FleetDiskImage journey",
	}, reasons(kept(said[bergen])))
	assert.Equal(t, map[string]string{
		leaves.Name: "Leaving", img.VMDiskImage("2"): "Wanted: FleetDiskImage journey", img.VMDiskImage("3"): "Wanted: FleetDiskImage journey",
	}, reasons(kept(said[edge])))
	assert.Empty(t, said[bergen].Orphans)
	for _, o := range said[edge].Orphans {
		assert.Equal(t, orphan.UID, o.ImageUID)
		assert.Equal(t, orphan.Name, o.Image)
		assert.Equal(t, namespace, o.Namespace)
	}
	assert.Len(t, said[edge].Orphans, len(left), "%v", left)
	declared := said[edge].Candidates[0]
	there := inEdge.image(t, first)
	since := declared.UnreferencedSince
	require.NotNil(t, since)
	assert.True(t, since.Equal(there.Status.References.UnreferencedSince))
	declared.UnreferencedSince = nil
	assert.Equal(t, v1alpha1.PruneCandidate{
		Namespace: namespace, Name: first, UID: there.UID, Revision: there.Status.Revision, Phase: v1alpha1.PhaseSucceeded,
		Origin: v1alpha1.OriginPlan, DeclaredBy: "journey", Bytes: gibibyte,
	}, declared)
	assert.Empty(t, said[edge].Candidates[1].DeclaredBy)
	assert.Empty(t, said[bergen].Candidates[0].Origin)

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
	wantExported(t, r.Name, [][]string{
		{"candidate", bergen, own.Name}, {"candidate", edge, first}, {"candidate", edge, forgotten.VMDiskImage("1")},
	})

	// Tentatively: it serves on, and stays when that is undone.
	before := shared.everything(t)
	p := shared.pending(t, "journey-undone", r, time.Hour)
	assert.Equal(t, v1alpha1.ImagePruneRunning, p.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonUndoWindow, p.Status.Reason)
	assert.Equal(t, v1alpha1.TargetCounts{Total: 2, Pending: 2}, p.Status.Targets, "people's are left out")
	for _, name := range []string{first, forgotten.VMDiskImage("1")} {
		pending := inEdge.has(t, name, v1alpha1.PhasePrunePending)
		ready(t, pending)
		assert.Nil(t, pending.DeletionTimestamp)
		require.NotNil(t, pending.Status.Prune)
		assert.Equal(t, p.UID, pending.Status.Prune.UID)
		require.NotNil(t, pending.Status.Prune.Until)
		assert.WithinDuration(t, time.Now().Add(time.Hour), pending.Status.Prune.Until.Time, scene.Patience)
	}
	assert.Equal(t, map[string]int{"Pending": 2}, states(t, p.Name))
	shared.undo(t, p)
	shared.ends(t, p, v1alpha1.ImagePruneUndone, v1alpha1.ReasonUndone, v1alpha1.TargetCounts{Total: 2, Undone: 2})
	for _, name := range []string{first, forgotten.VMDiskImage("1")} {
		inEdge.serves(t, name)
	}
	assert.Equal(t, map[string]int{"Undone": 2}, states(t, p.Name))
	assert.Equal(t, before, shared.everything(t))

	// For good: exactly those that were reported, of plans.
	goes := []*v1alpha1.VMDiskImage{inEdge.image(t, first), inEdge.image(t, forgotten.VMDiskImage("1"))}
	p = imagePrune("journey-pruned", r)
	shared.apply(t, p)
	shared.pruned(t, p, 2)
	for _, img := range goes {
		inEdge.loses(t, img)
	}
	assert.Equal(t, map[string]int{"Pruned": 2}, states(t, p.Name))
	after := without(before, edge+"/"+first, edge+"/"+forgotten.VMDiskImage("1"))
	assert.Equal(t, after, shared.everything(t))

	// And people's, where that is said. What has gone is told as such.
	p = imagePrune("journey-others", r)
	p.Spec.IncludeOthers = true
	p.Spec.Images = []string{namespace + "/journey-*"}
	shared.apply(t, p)
	shared.pruned(t, p, 3)
	inBergen.loses(t, own)
	after = without(after, bergen+"/"+own.Name)
	assert.Equal(t, after, shared.everything(t))
	assert.Equal(t, left, inEdge.storage(t, orphan), "an orphan is reported and not touched")
	inBergen.gets(t, vm, inBergen.image(t, first))

	// Nothing that the report does not list can be named.
	p = imagePrune("journey-nothing", r)
	p.Spec.Images = []string{namespace + "/" + img.VMDiskImage("3")}
	shared.apply(t, p)
	failed := shared.awaits(t, p, "failed", func(p *v1alpha1.ImagePrune) bool { return p.Status.Phase.Ended() })
	assert.Equal(t, v1alpha1.ImagePruneFailed, failed.Status.Phase)
	assert.Equal(t, v1alpha1.ReasonNothingSelected, failed.Status.Reason)
	assert.Equal(t, after, shared.everything(t))
}

// reasons are those why images are kept, without the words that say more where
// there are none in the contract.
func reasons(kept map[string]string) map[string]string {
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

// rip takes an image away and leaves its storage: its finalizer goes first. What is
// still in a slot the agent would remove, finished or not.
func (s *site) rip(t *testing.T, img *v1alpha1.VMDiskImage) {
	t.Helper()
	key := client.ObjectKeyFromObject(img)
	require.True(t, scene.Await(t, func() bool {
		ledger := &v1alpha1.SyncLedger{}
		return s.Get(t.Context(), client.ObjectKey{Namespace: agent.Namespace, Name: v1alpha1.LedgerName}, ledger) == nil && ledger.Status != nil &&
			!slices.ContainsFunc(ledger.Status.Slots, func(slot v1alpha1.Slot) bool { return slot.Image.UID == img.UID })
	}), "its slot is freed")
	require.NoError(t, s.agent.Pause(t.Context()))
	defer func() { require.NoError(t, s.agent.Resume()) }()
	got := &v1alpha1.VMDiskImage{}
	require.NoError(t, s.Get(t.Context(), key, got))
	got.Finalizers = nil
	require.NoError(t, s.Update(t.Context(), got))
	require.NoError(t, client.IgnoreNotFound(s.Delete(t.Context(), got)))
	require.True(t, scene.Await(t, func() bool { return apierrors.IsNotFound(s.Get(t.Context(), key, got)) }))
}

// clusterUID of a member.
func (s *site) clusterUID(t *testing.T) types.UID {
	t.Helper()
	ns := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, ns))
	return ns.UID
}

// wantExported wants rows of a report, as verdict, cluster and name, in both forms
// in which it can be had, and none of that verdict beside them.
func wantExported(t *testing.T, name string, want [][]string) {
	t.Helper()
	path := "/fleet/v1/prunereports/rows?report=" + name + "&verdict=" + want[0][0]
	text, err := shared.hub.Text(t.Context(), path+"&format=csv")
	require.NoError(t, err)
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

	text, err = shared.hub.Text(t.Context(), path+"&format=json")
	require.NoError(t, err)
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

// states counts the images of an ImagePrune by what the read API says of each.
func states(t *testing.T, prune string) map[string]int {
	t.Helper()
	var targets struct {
		Targets []struct{ State string }
	}
	require.NoError(t, shared.hub.Get(t.Context(), "/fleet/v1/imageprunes/targets?prune="+prune, &targets))
	counts := map[string]int{}
	for _, target := range targets.Targets {
		counts[target.State]++
	}
	return counts
}
