//go:build linux

package walkthrough

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/pages"
)

// followPolicy previews the policy of the page: its override raises frankfurt's budget.
func followPolicy(t *testing.T, r *Reader) {
	example := pages.Read(t, PolicyPage).Block(t, "yaml", "kind: ConfigMap")
	example = r.fillIn(example, "name: sync-operator-policy,", `name: try, labels: {pelotech.ot/policy-preview: "true"},`)
	r.WriteFile(t, "try.yaml", example)
	r.MustRun(t, "kubectl apply -f try.yaml")
	fleetjourneys.DeleteAfterTest(t, r.hub, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "sync-operator", Name: "try"}})
	var answer string
	command := FindCommand(t, PolicyPage, "get cm try")
	fleetjourneys.AwaitCondition(t, "an answer to the preview", func() bool {
		answer = r.Run(t, command)
		return answer != ""
	}, func() string { return "" })
	assert.Contains(t, answer, r.Frankfurt.Name)
	assert.Contains(t, answer, "8")
	header, _, _ := strings.Cut(r.Run(t, FindCommand(t, PolicyPage, "kubectl get memberclusters -o wide")), "\n")
	for _, column := range []string{"OWNLIMIT", "MESSAGE"} {
		assert.Contains(t, strings.Fields(header), column)
	}
}

// awaitImage waits until a FleetDiskImage is as wanted.
func (r *Reader) awaitImage(t *testing.T, img *v1alpha1.FleetDiskImage, wanted string, holds func() bool) {
	t.Helper()
	fleetjourneys.AwaitCondition(t, "FleetDiskImage "+img.Name+" that "+wanted, func() bool {
		return r.hub.Get(t.Context(), client.ObjectKeyFromObject(img), img) == nil && holds()
	}, func() string { return fmt.Sprintf("%+v", img.Status) })
}

// followRollout rolls out the FleetDiskImage of the page over its two waves, with the approval
// that the page gives.
func followRollout(t *testing.T, r *Reader) {
	for name, ring := range map[string]string{r.Edge.Name: "canary", r.Frankfurt.Name: "production"} {
		r.MustRun(t, "kubectl label membercluster "+name+" region=eu ring="+ring)
		t.Cleanup(func() {
			member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
			assert.NoError(t, r.hub.Patch(context.Background(), member, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"region":null,"ring":null}}}`))))
		})
	}
	r.WriteFile(t, "ubuntu.yaml", strings.Replace(r.example(t, RolloutsPage, "kind: FleetDiskImage", "ubuntu"), "minSuccessTime: 1h", "minSuccessTime: 1s", 1))
	img := &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: "ubuntu"}}
	fleetjourneys.DeleteAfterTest(t, r.hub, img.DeepCopy())
	waited := make(chan error, 1)
	wait := FindCommand(t, RolloutsPage, "kubectl apply -f ubuntu.yaml")
	r.done[wait] = true
	go func() {
		_, err := r.Terminal.Run(t, wait)
		waited <- err
	}()
	r.awaitImage(t, img, "awaits approval", func() bool { return img.Status.Reason == v1alpha1.ReasonAwaitingApproval })
	r.columns(t, RolloutsPage, "kubectl get fdi")
	r.Run(t, FindCommand(t, RolloutsPage, "/spec/approvals"), "<you>", r.userName(t))
	require.NoError(t, <-waited)
	for _, command := range []string{"--for=condition=Ready --timeout=6h", "--for=condition=Reconciling=false"} {
		r.Run(t, FindCommand(t, WaitingPage, command))
	}
	require.NoError(t, r.hub.Get(t.Context(), client.ObjectKeyFromObject(img), img))
	assert.Equal(t, v1alpha1.RolloutSucceeded, img.Status.Phase)
}

// userName returns who the reader is on the hub.
func (r *Reader) userName(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(r.MustRun(t, "kubectl auth whoami -o jsonpath='{.status.userInfo.username}'"))
}

// unapprovedImage returns the FleetDiskImage of the page for edge alone, without waves.
func (r *Reader) unapprovedImage(t *testing.T, name string) string {
	t.Helper()
	example := r.example(t, RolloutsPage, "kind: FleetDiskImage", name)
	example = strings.NewReplacer("{name: ubuntu}", "{name: "+name+"}", "{name: ubuntu,", "{name: "+name+",", "clusterSelector: {matchLabels: {region: eu}}", "clusterNames: ["+r.Edge.Name+"]").Replace(example)
	head, tail, _ := strings.Cut(example, "  rollout:\n")
	_, tail, found := strings.Cut(tail, "  retention:")
	require.True(t, found, "%s: rollout and retention of the FleetDiskImage", RolloutsPage)
	return head + "  retention:" + tail
}

// followReadme applies an image and waits for it by the last of the README's commands.
func followReadme(t *testing.T, r *Reader) {
	r.WriteFile(t, "my-image.yaml", r.unapprovedImage(t, "my-image"))
	fleetjourneys.DeleteAfterTest(t, r.hub, &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: "my-image"}})
	r.Run(t, FindCommand(t, "README.md", "my-image.yaml"))
}

// followHelm has Helm wait for a chart with one FleetDiskImage.
func followHelm(t *testing.T, r *Reader) {
	require.NoError(t, os.MkdirAll(filepath.Join(r.Directory, "images", "templates"), 0o700))
	r.WriteFile(t, "images/Chart.yaml", "apiVersion: v2\nname: images\nversion: 1.0.0\n")
	r.WriteFile(t, "images/templates/image.yaml", r.unapprovedImage(t, "by-helm"))
	img := &v1alpha1.FleetDiskImage{ObjectMeta: metav1.ObjectMeta{Name: "by-helm"}}
	fleetjourneys.DeleteAfterTest(t, r.hub, img.DeepCopy())
	r.Run(t, FindCommand(t, WaitingPage, "helm upgrade"))
	require.NoError(t, r.hub.Get(t.Context(), client.ObjectKeyFromObject(img), img))
	assert.Equal(t, v1alpha1.RolloutSucceeded, img.Status.Phase, "helm has returned before the rollout is finished")
	r.MustRun(t, "helm uninstall images")
}

// followPrune reports and prunes what the rollouts have left, and undoes it.
func followPrune(t *testing.T, r *Reader) {
	page := pages.Read(t, RolloutsPage)
	r.WriteFile(t, "spring.yaml", strings.Replace(page.Block(t, "yaml", "kind: PruneReport"), "unreferencedFor: 168h", "unreferencedFor: 0s", 1))
	report := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "spring"}}
	prune := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: "spring"}}
	fleetjourneys.DeleteAfterTest(t, r.hub, report.DeepCopy(), prune.DeepCopy())
	r.Run(t, FindCommand(t, RolloutsPage, "kubectl apply -f spring.yaml"))
	r.columns(t, RolloutsPage, "kubectl get prunereports")
	require.NoError(t, r.hub.Get(t.Context(), client.ObjectKeyFromObject(report), report))
	require.Positive(t, report.Status.Candidates.Count, "the images that the FleetDiskImages left")

	example := strings.NewReplacer("5d1f0c9e7a3b8842c0de11faa72b3d90", report.Status.Digest, "<you>", r.userName(t)).Replace(page.Block(t, "yaml", "kind: ImagePrune"))
	r.WriteFile(t, "prune.yaml", example)
	r.MustRun(t, "kubectl apply -f prune.yaml")
	fleetjourneys.AwaitCondition(t, "a prune in its undo window", func() bool {
		require.NoError(t, r.hub.Get(t.Context(), client.ObjectKeyFromObject(prune), prune))
		return prune.Status.Reason == v1alpha1.ReasonUndoWindow
	}, func() string { return fmt.Sprintf("%+v", prune.Status) })
	r.Run(t, FindCommand(t, RolloutsPage, "kubectl patch imageprune spring"))
	r.Run(t, FindCommand(t, RolloutsPage, "kubectl wait imageprune/spring"))
}
