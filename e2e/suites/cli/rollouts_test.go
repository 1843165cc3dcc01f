//go:build linux

package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

func getFleetImage(t *testing.T, name string) *v1alpha1.FleetDiskImage {
	t.Helper()
	img := &v1alpha1.FleetDiskImage{}
	require.NoError(t, shared.Get(t.Context(), types.NamespacedName{Name: name}, img))
	return img
}

// awaitFleetImage waits until the hub has observed what is wanted, and says a reason.
func awaitFleetImage(t *testing.T, name, reason string) {
	t.Helper()
	got, held := testenv.AwaitObject(t, shared, types.NamespacedName{Name: name}, func(img *v1alpha1.FleetDiskImage) bool {
		return img.Status.ObservedGeneration == img.Generation && img.Status.Reason == reason
	})
	require.True(t, held, "%s is %s: %s", name, got.Status.Reason, got.Status.Message)
}

func publishArgs(name, version string, more ...string) []string {
	return append([]string{"image", "publish", name, "--version", version, "--url", shared.source.URL + "/" + name + "/" + version, "--size", "1Gi", "--target-namespace", fleet.Namespace}, more...)
}

// asAdministrator returns the plugin for another person with all rights.
func asAdministrator(t *testing.T, person string) *plugin.Plugin {
	t.Helper()
	config, err := plugin.CreateAdministrator(t.Context(), shared.Plane, person)
	require.NoError(t, err)
	p, err := plugin.New(t.TempDir(), plugin.Context{Name: hubContext, Config: config})
	require.NoError(t, err)
	return p
}

// asViewer returns the plugin for a person who may read and change FleetDiskImages, and approve of
// nothing.
func asViewer(t *testing.T, person string) *plugin.Plugin {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: plugin.PeopleNamespace, Name: person}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "people-" + person}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"fleetdiskimages"}, Verbs: []string{"get", "list", "update", "patch"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: person}},
	}
	for _, o := range []client.Object{account, role, binding} {
		require.NoError(t, shared.Create(t.Context(), o))
		t.Cleanup(func() { assert.NoError(t, shared.Delete(context.Background(), o)) })
	}
	config, err := shared.Plane.ServiceAccountConfig(t.Context(), account.Namespace, person)
	require.NoError(t, err)
	p, err := plugin.New(t.TempDir(), plugin.Context{Name: hubContext, Config: config})
	require.NoError(t, err)
	return p
}

// A version goes through its waves: two people approve at once, it is paused, and another
// version goes back to it without a download.
func TestRolloutByCommands(t *testing.T) {
	const name = "by-commands"
	deleteFleetImageAtEnd(t, name)
	manifest := `{"kind":"FleetDiskImage","spec":{"rollout":{"waves":[
		{"name":"canary","clusterSelector":{"matchLabels":{"region":"nordics"}}},
		{"name":"production","clusterSelector":{"matchLabels":{"region":"south"}},"requireApproval":true}]}}}`
	result, err := shared.Run(t.Context(), strings.NewReader(manifest), publishArgs(name, "1", "-l", "region in (nordics,south)", "-f", "-", "--dry-run", "server")...)
	require.NoError(t, err)
	require.Equal(t, 0, result.Code, result.Err)
	assert.Contains(t, result.Out, "for 2 of 2 clusters: at most 2 GiB")
	assert.Contains(t, result.Out, "nothing is written")
	shared.run(t, 2, "image", "wait", name)

	result, err = shared.Run(t.Context(), strings.NewReader(manifest), publishArgs(name, "1", "-l", "region in (nordics,south)", "-f", "-", "--wait")...)
	require.NoError(t, err)
	require.Equal(t, 4, result.Code, "it waits for a person: %s%s", result.Out, result.Err)
	assert.Contains(t, result.Err, "AwaitingApproval")
	shared.run(t, 0, "image", "wait", name, "--until-hold")
	shared.run(t, 0, "image", "wait", name, "--for", "wave=canary")
	shared.run(t, 0, "image", "wait", name, "--for", "in="+bergen)
	shared.run(t, 2, "image", "wait", name, "--for", "wave=nowhere")
	shared.run(t, 2, "image", "wait", name, "--for", "in=nowhere")

	var progress struct {
		Reason string
		Waves  []struct {
			Name       string
			ApprovedBy string
		}
		Paused *struct{ By, Because string }
	}
	shared.runJSON(t, 4, &progress, "rollout", "status", name)
	assert.Equal(t, v1alpha1.ReasonAwaitingApproval, progress.Reason)

	result = shared.run(t, 2, "rollout", "approve", name)
	assert.Contains(t, result.Err, "cannot prompt without a terminal: add -y")
	assert.Empty(t, getFleetImage(t, name).Spec.Approvals)

	// Who may not approve is told before anything is tried.
	denied, err := asViewer(t, "carl").Run(t.Context(), nil, "rollout", "approve", name, "-y")
	require.NoError(t, err)
	assert.Equal(t, 2, denied.Code)
	assert.Contains(t, denied.Err, "you may not approve fleetdiskimages.pelotech.ot: ask for ClusterRole ot-fleet-approver")

	// Two at once: one gives the approval, the other is told who did.
	people := map[string]*plugin.Plugin{"anna": shared.Plugin, "bea": asAdministrator(t, "bea")}
	var both sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]plugin.Result{}
	for person, as := range people {
		both.Go(func() {
			answer, err := as.Run(t.Context(), nil, "rollout", "approve", name, "--wave", "production", "-y", "-o", "json")
			mu.Lock()
			defer mu.Unlock()
			assert.NoError(t, err)
			answers[person] = answer
		})
	}
	both.Wait()
	by := getFleetImage(t, name).Spec.Approvals[0].By
	given := 0
	for person, a := range answers {
		require.Equal(t, 0, a.Code, a.Err)
		var approval struct {
			Given   bool
			Already []struct{ By string }
		}
		require.NoError(t, json.Unmarshal([]byte(a.Out), &approval))
		if approval.Given {
			given++
			assert.Equal(t, "system:serviceaccount:people:"+person, by)
		} else {
			require.Len(t, approval.Already, 1)
			assert.Equal(t, by, approval.Already[0].By)
		}
	}
	assert.Equal(t, 1, given)
	require.Len(t, getFleetImage(t, name).Spec.Approvals, 1)
	shared.run(t, 0, "image", "wait", name)

	// The next version keeps what the first one set.
	shared.run(t, 4, publishArgs(name, "2", "--wait")...)
	img := getFleetImage(t, name)
	assert.Len(t, img.Spec.Rollout.Waves, 2)
	assert.Len(t, img.Spec.Approvals, 1)
	shared.run(t, 0, "rollout", "pause", name, "-m", "it does not boot")
	awaitFleetImage(t, name, v1alpha1.ReasonRolloutPaused)
	shared.runJSON(t, 4, &progress, "rollout", "status", name)
	require.NotNil(t, progress.Paused)
	assert.Equal(t, "it does not boot", progress.Paused.Because)
	assert.Equal(t, "system:serviceaccount:people:anna", progress.Paused.By)

	result = shared.run(t, 0, "rollout", "history", name)
	assert.Contains(t, result.Out, "production: "+by)
	shared.run(t, 2, "rollout", "abort", name, "--back-to", "0", "-y")
	result = shared.run(t, 0, "rollout", "abort", name, "--back-to", "1", "-y")
	assert.Contains(t, result.Out, "version 1 is wanted again")
	shared.run(t, 0, "image", "wait", name)
	img = getFleetImage(t, name)
	assert.Equal(t, "1", img.Spec.Version)
	assert.False(t, img.Spec.Rollout.Paused)
	require.Len(t, img.Spec.Approvals, 1)
	assert.Equal(t, "system:serviceaccount:people:anna", img.Spec.Approvals[0].By, "whoever gave it before, anna may approve, and does")
	assert.EqualValues(t, 1, shared.Members[bergen].GetImage(t, img.ImageNameForVersion("1")).Status.LastAttempt, "nothing is downloaded again")

	// A wait for a version that is taken back has failed, although that one is everywhere.
	release := shared.Members[bergen].HoldImports(t, img.ImageNameForVersion("2b"))
	shared.run(t, 0, publishArgs(name, "2b")...)
	waiting, err := shared.Command(t.Context(), "image", "wait", name, "--timeout", "5m")
	require.NoError(t, err)
	var verdict bytes.Buffer
	waiting.Stderr = &verdict
	out, err := waiting.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, waiting.Start())
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n') // from then on it waits for 2b
	require.NoError(t, err)
	assert.Contains(t, first, "2b")
	shared.Members[bergen].AwaitPhase(t, img.ImageNameForVersion("2b"), v1alpha1.PhaseSyncing)
	claire, err := asViewer(t, "claire").Run(t.Context(), nil, "rollout", "abort", name, "--back-to", "1", "-y")
	require.NoError(t, err)
	require.Equal(t, 0, claire.Code, "an author may go back, too: %s", claire.Err)
	assert.Contains(t, claire.Out, "wave production needs approval of 1, also where it was given before")
	_, err = io.Copy(io.Discard, lines)
	require.NoError(t, err)
	require.Error(t, waiting.Wait())
	assert.Equal(t, 1, waiting.ProcessState.ExitCode(), verdict.String())
	assert.Contains(t, verdict.String(), "is at version 1 now, and 2b was waited for")
	release()
	shared.run(t, 4, "image", "wait", name)
	shared.run(t, 0, "rollout", "approve", name, "-y")
	shared.run(t, 0, "image", "wait", name)

	// Not within the time.
	release = shared.Members[bergen].HoldImports(t, img.ImageNameForVersion("3"))
	shared.run(t, 0, publishArgs(name, "3")...)
	awaitFleetImage(t, name, v1alpha1.ReasonAwaitingClusters)
	result = shared.run(t, 3, "image", "wait", name, "--timeout", "3s")
	assert.Contains(t, result.Err, "not within 3s: by-commands 3 is Progressing")
	release()
	shared.run(t, 4, "image", "wait", name)

	var where struct {
		Clusters []struct {
			Cluster string
			Has     map[string]struct{ Phase string }
		}
	}
	shared.runJSON(t, 0, &where, "image", "where", name)
	require.Len(t, where.Clusters, 2)
	assert.Equal(t, "Succeeded", where.Clusters[0].Has["2"].Phase)
	assert.Equal(t, "Succeeded", where.Clusters[0].Has["3"].Phase)
	assert.NotContains(t, where.Clusters[1].Has, "2")
	shared.run(t, 2, "image", "retry", name)
}

// A file without its checksum follows one that had it: the API server refuses an empty one.
func TestPublishDropsTheFormerChecksum(t *testing.T) {
	const name = "by-checksum"
	deleteFleetImageAtEnd(t, name)
	sum := "sha256:" + strings.Repeat("0", 64)
	shared.run(t, 0, publishArgs(name, "1", "-l", "no=cluster", "--checksum", sum)...)
	assert.Equal(t, sum, getFleetImage(t, name).Spec.Template.Checksum)
	result := shared.run(t, 0, publishArgs(name, "2")...)
	assert.Contains(t, result.Out, "checksum: "+sum)
	assert.Empty(t, getFleetImage(t, name).Spec.Template.Checksum)
}

// What GitOps owns is not changed, and the owner is named.
func TestGitOpsOwnsTheRollout(t *testing.T) {
	testenv.RunInTurn(t, 2)
	const name = "by-flux"
	deleteFleetImageAtEnd(t, name)
	shared.run(t, 0, publishArgs(name, "1", "--clusters", bergen, "--wait")...)
	applied := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "FleetDiskImage",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"kustomize.toolkit.fluxcd.io/name": "images", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}},
		"spec":     map[string]any{"version": "1", "rollout": map[string]any{"paused": false}},
	}}
	require.NoError(t, shared.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("kustomize-controller"), client.ForceOwnership))
	for _, args := range [][]string{publishArgs(name, "2"), {"rollout", "pause", name}, {"rollout", "abort", name}} {
		result := shared.run(t, 2, args...)
		assert.Contains(t, result.Err, "Flux (Kustomization flux-system/images) owns spec.")
	}
	assert.Equal(t, "1", getFleetImage(t, name).Spec.Version)
	result := shared.run(t, 0, publishArgs(name, "2", "--force-conflicts", "--wait")...)
	assert.Contains(t, result.Out, "change it in Git, or it comes back")
	assert.Equal(t, "2", getFleetImage(t, name).Spec.Version)
}

// A further cluster gets an image before its users come, by the hub or beside it.
func TestPreload(t *testing.T) {
	const name = "preloaded"
	deleteFleetImageAtEnd(t, name)
	shared.run(t, 0, publishArgs(name, "1", "--clusters", bergen, "--wait")...)
	image := getFleetImage(t, name).ImageNameForVersion("1")
	var cost struct {
		Written bool
		Images  []struct{ Download, There []string }
	}
	shared.runJSON(t, 0, &cost, "preload", image, "-l", "region in (nordics,south)", "--dry-run")
	assert.False(t, cost.Written)
	assert.Equal(t, []string{kiel}, cost.Images[0].Download)
	assert.Equal(t, []string{bergen}, cost.Images[0].There)
	result := shared.run(t, 2, "preload", name, "--cluster", kiel)
	assert.Contains(t, result.Err, "add -y")
	assert.Nil(t, shared.Members[kiel].GetImage(t, image))

	// In the member itself, and the plan takes it over as it is.
	shared.run(t, 0, "preload", name, "--cluster", kiel, "--live", "-y")
	created := shared.Members[kiel].AwaitPhase(t, image, v1alpha1.PhaseSucceeded)
	result = shared.run(t, 2, "preload", "nothing", "--cluster", kiel, "-y")
	assert.Contains(t, result.Err, "there is no FleetDiskImage nothing")
	require.True(t, testenv.AwaitCondition(t, func() bool {
		cost.Images = nil
		shared.runJSON(t, 0, &cost, "preload", name, "--cluster", kiel, "--dry-run")
		return len(cost.Images) == 1 && slices.Equal(cost.Images[0].There, []string{kiel})
	}), "the hub does not know of the image: %+v", &cost)
	shared.runJSON(t, 0, &cost, "preload", name, "--cluster", kiel, "-y")
	assert.False(t, cost.Written, "it is there already")
	shared.run(t, 0, publishArgs(name, "1", "--clusters", bergen+","+kiel, "--wait")...)
	taken := shared.Members[kiel].GetImage(t, image)
	assert.Equal(t, created.UID, taken.UID)
	assert.EqualValues(t, 1, taken.Status.LastAttempt, "it is not downloaded again")
	shared.run(t, 0, publishArgs(name, "2", "--clusters", bergen, "--wait")...)
	shared.runJSON(t, 0, &cost, "preload", name, "--cluster", kiel, "-y")
	assert.True(t, cost.Written)
	shared.run(t, 0, "image", "wait", name, "--for", "in="+kiel)
}
