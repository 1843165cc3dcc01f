//go:build linux

package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	deniedApproval    = "ValidatingAdmissionPolicy 'ot-hub-approvals' with binding 'ot-hub-approvals' denied request: "
	forbiddenResource = "fleetdiskimages.pelotech.ot"
	askForApprove     = "Ask for verb approve on fleetdiskimages.pelotech.ot (ClusterRole ot-fleet-approver has it)"
)

func newApproval(wave, version, by string) map[string]any {
	return map[string]any{"wave": wave, "version": version, "by": by}
}

// currentUser returns the name of the tests' own user, who has all rights.
func currentUser(t *testing.T) string {
	t.Helper()
	review := &authenticationv1.SelfSubjectReview{}
	require.NoError(t, adminClient.Create(t.Context(), review))
	return review.Status.UserInfo.Username
}

// awaitApprovalsEnforced waits until the API server enforces rights and policy.
func awaitApprovalsEnforced(t *testing.T) {
	t.Helper()
	awaitRightsGranted(t)
	object := newFleetImage(t, map[string]any{"approvals": []any{newApproval("edge", "2.1.0", "somebody-else")}})
	awaitDenied(t, object, deniedApproval)
}

// createFleetImage creates an image for one test, with waves that fleet-approver has approved.
func createFleetImage(t *testing.T, name string, approved ...string) *unstructured.Unstructured {
	t.Helper()
	object := newFleetImage(t, map[string]any{"approvals": nil})
	object.SetName(name)
	require.NoError(t, adminClient.Create(t.Context(), object))
	t.Cleanup(func() { assert.NoError(t, client.IgnoreNotFound(adminClient.Delete(context.Background(), object))) })
	if len(approved) > 0 {
		all := repeat(len(approved), func(i int) any { return newApproval(approved[i], "2.1.0", "fleet-approver") })
		require.NoError(t, clientFor(t, "fleet-approver").Patch(t.Context(), object, newSpecPatch(t, map[string]any{"approvals": all})))
	}
	return object
}

// newSpecPatch returns a merge patch of spec fields by path; nil removes a field.
func newSpecPatch(t *testing.T, changes map[string]any) client.Patch {
	t.Helper()
	spec := map[string]any{}
	for path, value := range changes {
		within, name := spec, path
		for {
			field, rest, deeper := strings.Cut(name, ".")
			if !deeper {
				break
			}
			if within[field] == nil {
				within[field] = map[string]any{}
			}
			within, name = within[field].(map[string]any), rest
		}
		within[name] = value
	}
	text, err := json.Marshal(map[string]any{"spec": spec})
	require.NoError(t, err)
	return newMergePatch(string(text))
}

func requireForbidden(t *testing.T, err error, says string) {
	t.Helper()
	require.ErrorContains(t, err, says)
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
}

func TestApproversSignWithTheirOwnName(t *testing.T) {
	awaitApprovalsEnforced(t)
	stored := createFleetImage(t, "approved-by-all-verbs")
	writes := map[string]func(c client.Client, approvals []any) error{
		"create": func(c client.Client, approvals []any) error {
			return c.Create(t.Context(), newFleetImage(t, map[string]any{"approvals": approvals}), client.DryRunAll)
		},
		"update": func(c client.Client, approvals []any) error {
			object := stored.DeepCopy()
			require.NoError(t, unstructured.SetNestedSlice(object.Object, approvals, "spec", "approvals"))
			return c.Update(t.Context(), object, client.DryRunAll)
		},
		"patch": func(c client.Client, approvals []any) error {
			return c.Patch(t.Context(), stored.DeepCopy(), newSpecPatch(t, map[string]any{"approvals": approvals}), client.DryRunAll)
		},
		"apply": func(c client.Client, approvals []any) error {
			object := newFleetImage(t, map[string]any{"approvals": approvals})
			object.SetName(stored.GetName())
			return c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("person"), client.ForceOwnership, client.DryRunAll)
		},
	}
	mayNot := func(user string) string {
		return deniedApproval + "user " + user + " may not approve of wave edge. " + askForApprove + ", or leave spec.approvals as they are"
	}
	const inAnotherName = deniedApproval + "the approval of wave edge says by: alice, and it is %[1]s who writes it: set by to %[1]s"
	for user, test := range map[string]struct {
		create, others, another string // expected messages: of create, of other verbs, and when signed as alice
	}{
		"fleet-viewer":   {create: forbiddenResource, others: forbiddenResource, another: forbiddenResource},
		"fleet-author":   {create: mayNot("fleet-author"), others: mayNot("fleet-author"), another: mayNot("fleet-author")},
		"fleet-approver": {create: forbiddenResource, another: fmt.Sprintf(inAnotherName, "fleet-approver")},
		"fleet-lead":     {another: fmt.Sprintf(inAnotherName, "fleet-lead")},
	} {
		c := clientFor(t, user)
		for verb, write := range writes {
			t.Run(user+" by "+verb, func(t *testing.T) {
				says := test.others
				if verb == "create" {
					says = test.create
				}
				err := write(c, []any{newApproval("edge", "2.1.0", user)})
				if says == "" {
					require.NoError(t, err)
				} else {
					requireForbidden(t, err, says)
				}
				if says == forbiddenResource {
					return // denied by RBAC
				}
				requireForbidden(t, write(c, []any{newApproval("edge", "2.1.0", "alice")}), test.another)
			})
		}
	}
	requireForbidden(t, writes["create"](adminClient, []any{newApproval("edge", "2.1.0", "alice")}), fmt.Sprintf(inAnotherName, currentUser(t)))
}

func TestApproverOfOneImage(t *testing.T) {
	awaitApprovalsEnforced(t)
	c := clientFor(t, "approver-of-one")
	approve := newSpecPatch(t, map[string]any{"approvals": []any{newApproval("edge", "2.1.0", "approver-of-one")}})
	require.NoError(t, c.Patch(t.Context(), createFleetImage(t, "ubuntu-of-one"), approve))
	requireForbidden(t, c.Patch(t.Context(), createFleetImage(t, "ubuntu-of-others"), approve), "user approver-of-one may not approve of wave edge")
	generated := newFleetImage(t, map[string]any{"approvals": []any{newApproval("edge", "2.1.0", "approver-of-one")}})
	generated.SetName("")
	generated.SetGenerateName("ubuntu-of-one")
	requireForbidden(t, c.Create(t.Context(), generated, client.DryRunAll), "user approver-of-one may not approve of wave edge")
}

func TestApprovalMustNameTheCurrentVersion(t *testing.T) {
	awaitApprovalsEnforced(t)
	err := clientFor(t, "fleet-approver").Patch(t.Context(), createFleetImage(t, "approved-ahead"),
		newSpecPatch(t, map[string]any{"approvals": []any{newApproval("edge", "2.2.0", "fleet-approver")}}))
	requireForbidden(t, err, deniedApproval+"the approval of wave edge is for version 2.2.0, and spec.version is 2.1.0: approve of the version that is there")
}

// TestSourcesOfAnApproval: whoever extends an approval to other sources approves of them.
func TestSourcesOfAnApproval(t *testing.T) {
	awaitApprovalsEnforced(t)
	of := func(by string, sources ...any) map[string]any {
		a := newApproval("edge", "2.1.0", by)
		if len(sources) > 0 {
			a["sources"] = sources
		}
		return a
	}
	stored := createFleetImage(t, "approved-sources")
	require.NoError(t, clientFor(t, "fleet-approver").Patch(t.Context(), stored, newSpecPatch(t, map[string]any{"approvals": []any{of("fleet-approver", "aaaa", "bbbb")}})))
	const mayNot, inAnotherName = "user fleet-author may not approve of wave edge", "says by: fleet-approver, and it is fleet-lead who writes it"
	for name, test := range map[string]struct {
		changes           map[string]any
		author, lead, own string // messages for fleet-author, fleet-lead and fleet-approver; empty: allowed
	}{
		"one more":             {changes: map[string]any{"approvals": []any{of("fleet-approver", "aaaa", "bbbb", "cccc")}}, author: mayNot, lead: inAnotherName},
		"another":              {changes: map[string]any{"approvals": []any{of("fleet-approver", "aaaa", "cccc")}}, author: mayNot, lead: inAnotherName},
		"none, so the default": {changes: map[string]any{"approvals": []any{of("fleet-approver")}}, author: mayNot, lead: inAnotherName},
		"the same":             {changes: map[string]any{"approvals": []any{of("fleet-approver", "aaaa", "bbbb")}}},
		"an override":          {changes: map[string]any{"overrides": []any{map[string]any{"clusterNames": []any{"tromso"}, "storageClass": "lvm"}}}},
		"taken away":           {changes: map[string]any{"approvals": []any{}}},
	} {
		t.Run(name, func(t *testing.T) {
			for user, says := range map[string]string{"fleet-author": test.author, "fleet-lead": test.lead, "fleet-approver": test.own} {
				err := clientFor(t, user).Patch(t.Context(), stored.DeepCopy(), newSpecPatch(t, test.changes), client.DryRunAll)
				if says == "" {
					require.NoError(t, err, user)
				} else {
					requireForbidden(t, err, says)
				}
			}
		})
	}
}

func TestChangesAfterApproval(t *testing.T) {
	awaitApprovalsEnforced(t)
	mine := newApproval("edge", "2.1.0", "fleet-approver")
	const (
		author, approver, lead = "fleet-author", "fleet-approver", "fleet-lead"
		fine                   = ""
		former                 = "the approval of wave edge for version 2.1.0 was given by fleet-approver before this version was made what it is now: " +
			"template, imageName, targetNamespace or version have changed. Remove it from spec.approvals in the same change"
		mayNot = "user fleet-author may not approve of wave edge"
	)
	stored := createFleetImage(t, "approved", "edge")
	for name, test := range map[string]struct {
		changes map[string]any
		says    map[string]string
	}{
		"pausing":                       {map[string]any{"rollout.paused": false}, map[string]string{author: fine, approver: fine}},
		"a faster rollout":              {map[string]any{"rollout.maxConcurrency": "50%"}, map[string]string{author: fine, approver: fine}},
		"another placement":             {map[string]any{"placement.clusterNames": []any{"tromso"}}, map[string]string{author: fine}},
		"the next version":              {map[string]any{"version": "2.2.0", "template.url": "https://images.example.com/b"}, map[string]string{author: fine}},
		"taking it away":                {map[string]any{"approvals": nil}, map[string]string{author: fine, approver: fine}},
		"taking all away":               {map[string]any{"approvals": []any{}}, map[string]string{author: fine, approver: fine}},
		"another name":                  {map[string]any{"approvals": []any{newApproval("edge", "2.1.0", author)}}, map[string]string{author: mayNot}},
		"another time":                  {map[string]any{"approvals": []any{map[string]any{"wave": "edge", "version": "2.1.0", "by": "fleet-approver", "at": "2026-01-02T03:04:05Z"}}}, map[string]string{author: mayNot, approver: fine, lead: "says by: fleet-approver, and it is fleet-lead who writes it"}},
		"more sources":                  {map[string]any{"approvals": []any{map[string]any{"wave": "edge", "version": "2.1.0", "by": "fleet-approver", "sources": []any{"a"}}}}, map[string]string{author: mayNot, approver: fine, lead: "says by: fleet-approver, and it is fleet-lead who writes it"}},
		"overrides":                     {map[string]any{"overrides": []any{newOverride(map[string]any{"storageClass": "lvm"})}}, map[string]string{author: fine}},
		"one more wave":                 {map[string]any{"approvals": []any{mine, newApproval("canary", "2.1.0", author)}}, map[string]string{author: "user fleet-author may not approve of wave canary"}},
		"one more by another":           {map[string]any{"approvals": []any{mine, newApproval("canary", "2.1.0", lead)}}, map[string]string{lead: fine}},
		"another source":                {map[string]any{"template.url": "https://images.example.com/b"}, map[string]string{author: former, lead: former, approver: fine}},
		"another secret":                {map[string]any{"template.secretRef": "farm"}, map[string]string{author: former}},
		"another image name":            {map[string]any{"imageName": "debian"}, map[string]string{author: former}},
		"no image name":                 {map[string]any{"imageName": nil}, map[string]string{author: former}},
		"another namespace":             {map[string]any{"targetNamespace": "elsewhere"}, map[string]string{author: former}},
		"another source, approval gone": {map[string]any{"template.url": "https://images.example.com/b", "approvals": nil}, map[string]string{author: fine}},
	} {
		for user, says := range test.says {
			t.Run(name+" by "+user, func(t *testing.T) {
				err := clientFor(t, user).Patch(t.Context(), stored.DeepCopy(), newSpecPatch(t, test.changes), client.DryRunAll)
				if says == fine {
					require.NoError(t, err)
					return
				}
				requireForbidden(t, err, deniedApproval)
				require.ErrorContains(t, err, says)
			})
		}
	}

	t.Run("the version that comes back", func(t *testing.T) {
		c := clientFor(t, author)
		require.NoError(t, c.Patch(t.Context(), stored, newSpecPatch(t, map[string]any{"version": "2.2.0"})))
		back := map[string]any{"version": "2.1.0", "template.url": "https://images.example.com/forged"}
		requireForbidden(t, c.Patch(t.Context(), stored.DeepCopy(), newSpecPatch(t, back)), former)
		back["approvals"] = nil
		require.NoError(t, c.Patch(t.Context(), stored, newSpecPatch(t, back)))
	})
	t.Run("a client that knows the kind", func(t *testing.T) {
		approved := createFleetImage(t, "approved-to-the-millisecond")
		given := newApproval("edge", "2.1.0", "fleet-approver")
		given["at"] = "2026-07-02T03:04:05.678+02:00"
		require.NoError(t, clientFor(t, "fleet-approver").Patch(t.Context(), approved, newSpecPatch(t, map[string]any{"approvals": []any{given}})))
		typed := &v1alpha1.FleetDiskImage{}
		c := clientFor(t, author)
		require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(approved), typed))
		typed.Spec.Rollout.Paused = false
		require.NoError(t, c.Update(t.Context(), typed), "the typed client formats the time of the approval differently")
	})
	t.Run("labels, finalizers and the way out", func(t *testing.T) {
		c := clientFor(t, author)
		kept := createFleetImage(t, "approved-and-deleted", "edge")
		require.NoError(t, c.Patch(t.Context(), kept, newMergePatch(`{"metadata":{"labels":{"a":"b"},"finalizers":["pelotech.ot/fleet-disk-image"]}}`)))
		require.NoError(t, c.Delete(t.Context(), kept))
		require.NoError(t, c.Patch(t.Context(), kept, newMergePatch(`{"metadata":{"finalizers":null}}`)))
	})
}

// TestAuthorsCannotChangeWavesThatRequireApproval: moving clusters out of such a wave, or
// dropping the requirement, would amount to an approval.
func TestAuthorsCannotChangeWavesThatRequireApproval(t *testing.T) {
	awaitApprovalsEnforced(t)
	stored := createFleetImage(t, "waves")
	canary := func(selector map[string]any) map[string]any {
		return map[string]any{"name": "canary", "clusterSelector": selector}
	}
	edge := func(changes map[string]any) map[string]any {
		w := map[string]any{"name": "edge", "requireApproval": true, "clusterSelector": map[string]any{"matchLabels": map[string]any{"edge": "true"}}}
		for field, value := range changes {
			w[field] = value
		}
		return w
	}
	first := canary(map[string]any{"matchLabels": map[string]any{"canary": "true"}})
	for name, test := range map[string]struct {
		waves   []any
		refused bool
	}{
		"slower, and longer":     {[]any{canary(map[string]any{"matchLabels": map[string]any{"canary": "true"}}), edge(map[string]any{"maxConcurrency": int64(1), "minSuccessTime": "2h"})}, false},
		"one more that needs it": {[]any{map[string]any{"name": "canary", "requireApproval": true, "clusterSelector": first["clusterSelector"]}, edge(nil)}, false},
		"no longer required":     {[]any{first, edge(map[string]any{"requireApproval": false})}, true},
		"the wave is gone":       {[]any{first}, true},
		"all are gone":           {[]any{}, true},
		"by another name":        {[]any{first, edge(map[string]any{"name": "border"})}, true},
		"all are canaries":       {[]any{canary(map[string]any{}), edge(nil)}, true},
		"of fewer clusters":      {[]any{first, edge(map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"edge": "yes"}}})}, true},
		"another before":         {[]any{map[string]any{"name": "all", "clusterSelector": map[string]any{}}, first, edge(nil)}, true},
		"by each other's names":  {[]any{edge(map[string]any{"clusterSelector": first["clusterSelector"]}), map[string]any{"name": "canary", "clusterSelector": edge(nil)["clusterSelector"]}}, true},
		"in another order":       {[]any{edge(nil), first}, true},
	} {
		t.Run(name, func(t *testing.T) {
			patch := newSpecPatch(t, map[string]any{"rollout.waves": test.waves})
			require.NoError(t, clientFor(t, "fleet-approver").Patch(t.Context(), stored.DeepCopy(), patch, client.DryRunAll))
			err := clientFor(t, "fleet-author").Patch(t.Context(), stored.DeepCopy(), patch, client.DryRunAll)
			if !test.refused {
				require.NoError(t, err)
				return
			}
			requireForbidden(t, err, deniedApproval+"a wave of FleetDiskImage waves needs approval, and user fleet-author may not say otherwise, nor which clusters are in which wave: "+
				"leave the names, order, clusterSelector and requireApproval of spec.rollout.waves as they are. "+askForApprove)
		})
	}
	t.Run("no rollout at all", func(t *testing.T) {
		patch := newSpecPatch(t, map[string]any{"rollout": nil})
		requireForbidden(t, clientFor(t, "fleet-author").Patch(t.Context(), stored.DeepCopy(), patch, client.DryRunAll), "a wave of FleetDiskImage waves needs approval")
	})
	t.Run("where none needs approval", func(t *testing.T) {
		free := createFleetImage(t, "free-waves")
		require.NoError(t, clientFor(t, "fleet-approver").Patch(t.Context(), free, newSpecPatch(t, map[string]any{"rollout.waves": []any{first}})))
		c := clientFor(t, "fleet-author")
		require.NoError(t, c.Patch(t.Context(), free, newSpecPatch(t, map[string]any{"rollout.waves": []any{canary(map[string]any{})}})))
		require.NoError(t, c.Patch(t.Context(), free, newSpecPatch(t, map[string]any{"rollout.waves": []any{edge(nil)}})), "adding the requirement takes no approver")
		requireForbidden(t, c.Patch(t.Context(), free, newSpecPatch(t, map[string]any{"rollout.waves": []any{}})), "a wave of FleetDiskImage free-waves needs approval")
	})
}

func TestApprovalEnforcementCanBeSwitchedOff(t *testing.T) {
	for key := range renderHub(t, hubNamespace, map[string]any{"approvals": map[string]any{"enforced": false}}) {
		assert.NotContains(t, key, "ot-hub-approvals")
		assert.NotContains(t, key, "ot-hub-prunes")
	}
}

func TestFleetRolesReadTheWholeFleet(t *testing.T) {
	awaitRightsGranted(t)
	for _, role := range []grantedRight{fleetViewer, fleetAuthor, fleetApprover, fleetPruner} {
		user := strings.TrimPrefix(role.role, "ot-")
		for _, resource := range []string{"memberclusters", "fleetdiskimages", "prunereports", "prunereportpages", "imageprunes"} {
			waitUntilAllowed(t, clientFor(t, user), user, newRight("", "pelotech.ot", resource, "watch"))
		}
	}
}

const (
	deniedPrune   = "ValidatingAdmissionPolicy 'ot-hub-prunes' with binding 'ot-hub-prunes' denied request: "
	deniedPage    = "ValidatingAdmissionPolicy 'ot-hub-prune-pages' with binding 'ot-hub-prune-pages' denied request: "
	forbiddenText = "is forbidden: User "
)

// createForTest creates an object and deletes it with its finalizers when the test ends.
func createForTest(t *testing.T, c client.Client, object client.Object) {
	t.Helper()
	require.NoError(t, c.Create(t.Context(), object))
	t.Cleanup(func() {
		object.SetFinalizers(nil)
		assert.NoError(t, client.IgnoreNotFound(adminClient.Patch(context.Background(), object, newMergePatch(`{"metadata":{"finalizers":null}}`))))
		assert.NoError(t, client.IgnoreNotFound(adminClient.Delete(context.Background(), object)))
	})
}
