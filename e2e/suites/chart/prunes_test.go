//go:build linux

package chart_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func awaitPrunePolicyEnforced(t *testing.T) {
	t.Helper()
	awaitRightsGranted(t)
	awaitDenied(t, newImagePrune(t, map[string]any{"approvedBy": "somebody-else"}), deniedPrune)
	awaitDenied(t, newReportPage("anybody"), deniedPage)
}

func TestPrunersSignWithTheirOwnName(t *testing.T) {
	awaitPrunePolicyEnforced(t)
	writes := map[string]func(c client.Client, object *unstructured.Unstructured) error{
		"create": func(c client.Client, object *unstructured.Unstructured) error {
			return c.Create(t.Context(), object, client.DryRunAll)
		},
		"create by a part of the name": func(c client.Client, object *unstructured.Unstructured) error {
			object.SetGenerateName(object.GetName())
			object.SetName("")
			return c.Create(t.Context(), object, client.DryRunAll)
		},
		"apply": func(c client.Client, object *unstructured.Unstructured) error {
			return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("person"), client.ForceOwnership, client.DryRunAll)
		},
	}
	mayNot := func(user string) string {
		return deniedPrune + "user " + user + " may not approve of what is pruned. Ask for verb approve on imageprunes.pelotech.ot (ClusterRole ot-fleet-pruner has it), " +
			"or have somebody who has it review PruneReport weekly and create the ImagePrune"
	}
	inAnotherName := func(user string) string {
		return fmt.Sprintf(deniedPrune+"approvedBy says alice, and it is %[1]s who creates the ImagePrune: set approvedBy to %[1]s", user)
	}
	for user, test := range map[string]struct {
		own, another string // expected messages in its own and in alice's name; empty: allowed
	}{
		"fleet-viewer":   {forbiddenText, forbiddenText},
		"fleet-author":   {forbiddenText, forbiddenText},
		"fleet-approver": {forbiddenText, forbiddenText},
		"prune-maker":    {mayNot("prune-maker"), mayNot("prune-maker")},
		"pruner-of-one":  {mayNot("pruner-of-one"), mayNot("pruner-of-one")},
		"fleet-pruner":   {"", inAnotherName("fleet-pruner")},
		"admin":          {"", inAnotherName(currentUser(t))},
	} {
		c := clientFor(t, user)
		for verb, write := range writes {
			t.Run(user+" by "+verb, func(t *testing.T) {
				name := user
				if user == "admin" {
					name = currentUser(t)
				}
				err := write(c, newImagePrune(t, map[string]any{"approvedBy": name}))
				if test.own == "" {
					require.NoError(t, err)
				} else {
					requireForbidden(t, err, test.own)
				}
				requireForbidden(t, write(c, newImagePrune(t, map[string]any{"approvedBy": "alice"})), test.another)
			})
		}
	}
	t.Run("one name", func(t *testing.T) {
		c := clientFor(t, "pruner-of-one")
		object := newImagePrune(t, map[string]any{"approvedBy": "pruner-of-one"})
		object.SetName("prune-of-one")
		require.NoError(t, c.Create(t.Context(), object.DeepCopy(), client.DryRunAll))
		requireForbidden(t, writes["create by a part of the name"](c, object), mayNot("pruner-of-one"))
	})
}

func TestUndoNeedsOnlyUpdate(t *testing.T) {
	awaitPrunePolicyEnforced(t)
	pruner := clientFor(t, "fleet-pruner")
	object := newImagePrune(t, map[string]any{"approvedBy": "fleet-pruner"})
	object.SetName("to-be-undone")
	createForTest(t, pruner, object)
	undo := newSpecPatch(t, map[string]any{"undo": true})
	requireForbidden(t, clientFor(t, "fleet-author").Patch(t.Context(), object.DeepCopy(), undo, client.DryRunAll), forbiddenText)
	for _, user := range []string{"prune-maker", "fleet-approver"} {
		require.NoError(t, clientFor(t, user).Patch(t.Context(), object.DeepCopy(), undo, client.DryRunAll), user)
	}
	requireForbidden(t, clientFor(t, "fleet-approver").Delete(t.Context(), object.DeepCopy(), client.DryRunAll), forbiddenText)

	// A typed client formats durations differently.
	typed := &v1alpha1.ImagePrune{}
	c := clientFor(t, "prune-maker")
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), typed))
	typed.Spec.Undo = true
	require.NoError(t, c.Update(t.Context(), typed))
	assert.True(t, typed.Spec.Undo)
	typed.Spec.Undo = false
	require.ErrorContains(t, c.Update(t.Context(), typed), "undo cannot be unset: create another ImagePrune")
}

func newReportPage(cluster string) *v1alpha1.PruneReportPage {
	return &v1alpha1.PruneReportPage{
		ObjectMeta: metav1.ObjectMeta{Name: "weekly-29d1e8d7c2a04f5b-0"},
		Clusters:   []v1alpha1.ReportedCluster{{Cluster: cluster}},
	}
}

func TestOnlyTheHubWritesReportPages(t *testing.T) {
	awaitPrunePolicyEnforced(t)
	mayNot := func(user string) string {
		return deniedPage + "user " + user + " may not write what PruneReports say: the hub alone does, as ServiceAccount ot-hub/ot-hub. Create a PruneReport, and the hub makes its pages"
	}
	hub := clientFor(t, "ot-hub")
	forger := clientFor(t, "prune-forger")
	requireForbidden(t, forger.Create(t.Context(), newReportPage("bergen"), client.DryRunAll), mayNot("prune-forger"))
	requireForbidden(t, adminClient.Create(t.Context(), newReportPage("bergen"), client.DryRunAll), mayNot(currentUser(t)))
	for _, user := range []string{"fleet-viewer", "fleet-author", "fleet-approver", "fleet-pruner"} {
		requireForbidden(t, clientFor(t, user).Create(t.Context(), newReportPage("bergen"), client.DryRunAll), forbiddenText)
	}
	written := newReportPage("bergen")
	createForTest(t, hub, written)

	for name, c := range map[string]client.Client{"prune-forger": forger, currentUser(t): adminClient} {
		changed := written.DeepCopy()
		changed.Clusters[0].Candidates = []v1alpha1.PruneCandidate{{Namespace: "images", Name: "ubuntu-1", UID: "uid"}}
		requireForbidden(t, c.Update(t.Context(), changed, client.DryRunAll), mayNot(name))
		requireForbidden(t, c.Patch(t.Context(), written.DeepCopy(), newMergePatch(`{"clusters":[]}`), client.DryRunAll), mayNot(name))
	}
	require.NoError(t, forger.Patch(t.Context(), written, newMergePatch(`{"metadata":{"labels":{"a":"b"},"ownerReferences":null}}`)), "the garbage collector writes metadata")
	require.NoError(t, forger.Delete(t.Context(), written), "a report without a page deletes nothing")
}

// TestLargestReportPageIsStored wants the admission policy to evaluate it as well.
func TestLargestReportPageIsStored(t *testing.T) {
	awaitPrunePolicyEnforced(t)
	large := newReportPage("bergen")
	large.Name = "large-29d1e8d7c2a04f5b-0"
	c := &large.Clusters[0]
	for n := range 1500 {
		c.Candidates = append(c.Candidates, v1alpha1.PruneCandidate{
			Namespace: "images", Name: fmt.Sprintf("ubuntu-%06d", n), UID: types.UID(strings.Repeat("u", 36)), Revision: "1cu4lz8bfceqj",
			Phase: v1alpha1.PhaseSucceeded, Origin: v1alpha1.OriginPlan, Bytes: 1 << 40, UnreferencedSince: &metav1.Time{Time: time.Unix(1_700_000_000, 0)},
		})
		c.Kept = append(c.Kept, v1alpha1.KeptImages{Reason: v1alpha1.KeptWanted, Detail: fmt.Sprintf("FleetDiskImage ubuntu-%d", n), Images: []string{fmt.Sprintf("images/debian-%06d", n)}})
	}
	createForTest(t, clientFor(t, "ot-hub"), large)
	changed := large.DeepCopy()
	changed.Clusters[0].Kept[1499].Detail = "another"
	requireForbidden(t, adminClient.Update(t.Context(), changed, client.DryRunAll), deniedPage)
	require.NoError(t, adminClient.Patch(t.Context(), large, newMergePatch(`{"metadata":{"labels":{"a":"b"}}}`)))
}
