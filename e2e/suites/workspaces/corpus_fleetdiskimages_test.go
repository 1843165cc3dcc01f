//go:build linux

package workspaces

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/plan"
	"github.com/pelotech/ot-fleet/api/override"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func newFleetCorpus() *corpus {
	c := &corpus{
		kind: "FleetDiskImage",
		base: map[string]any{
			"metadata": map[string]any{"name": "ubuntu"},
			"spec": map[string]any{
				"version": "2.1.0", "targetNamespace": "images", "template": newImageCorpus().base["spec"],
				"placement": map[string]any{"clusterSelector": map[string]any{}},
			},
		},
	}
	c.vary("metadata.name", objectNames)
	for _, field := range []string{"version", "imageName", "targetNamespace"} {
		c.vary("spec."+field, objectNames)
	}
	longest := map[string]any{"spec.version": strings.Repeat("v", 63)}
	c.vary("spec.imageName", []any{strings.Repeat("i", 180), strings.Repeat("i", 181)}, longest)
	c.vary("metadata.name", []any{strings.Repeat("i", 180), strings.Repeat("i", 181)}, longest)
	templates := newImageCorpus()
	for i := 0; i < len(templates.cases); i += 5 {
		c.add(map[string]any{"spec.template": templates.cases[i].object.Object["spec"]})
	}
	durations := []any{"30m", "1h30m", "0s", "-1h", "1d", "soon", "", "9999999h", int64(5)}
	c.vary("spec.rollout.minSuccessTime", durations)
	c.vary("spec.rollout.progressDeadline", durations)
	c.vary("spec.retention.keepUnreferencedFor", durations)
	shares := []any{int64(0), int64(1), int64(-1), int64(1_000_001), "25%", "0%", "100%", "101%", "1.5%", "many", "", 1.5}
	c.vary("spec.rollout.maxConcurrency", shares)
	c.vary("spec.rollout.maxFailures", shares)
	c.vary("spec.placement", []any{removed, map[string]any{}, map[string]any{"clusterNames": []any{"bergen"}}, map[string]any{"clusterNames": []any{"Bergen"}}, map[string]any{"clusterNames": []any{}}})
	wave := func(name any, selector any) map[string]any {
		return map[string]any{"name": name, "clusterSelector": selector}
	}
	c.vary("spec.rollout.waves", []any{
		[]any{wave("canary", map[string]any{})}, []any{wave("rest", map[string]any{})}, []any{wave("Canary", map[string]any{})}, []any{wave("canary", removed)}, []any{wave("a", map[string]any{}), wave("a", map[string]any{})},
	})
	for field, values := range map[string][]any{"maxConcurrency": everySecond(shares), "minSuccessTime": everySecond(durations), "requireApproval": {true, "yes"}} {
		for _, value := range values {
			canary := wave("canary", map[string]any{})
			canary[field] = value
			c.vary("spec.rollout.waves", []any{[]any{canary}})
		}
	}
	c.vary("spec.rollout.paused", []any{true, "yes"})
	c.vary("spec.rollout.offlineClusters", []any{"Defer", "Wait", "Skip", ""})
	c.vary("spec.placement.excludedClusters", []any{[]any{"bergen"}, []any{"Bergen"}, []any{}})
	approval := map[string]any{"wave": "rest", "version": "2.1.0", "by": "ada"}
	for field, values := range map[string][]any{"wave": {"rest", "canary", ""}, "version": {"2.1.0", strings.Repeat("v", 64)}, "by": {"ada", ""}, "at": {"2026-01-02T15:04:05Z", "today", ""}, "sources": {[]any{"a"}, []any{""}, []any{"a", "a"}}} {
		for _, value := range values {
			changed := maps.Clone(approval)
			changed[field] = value
			c.vary("spec.approvals", []any{[]any{changed}})
		}
	}
	c.vary("spec.approvals", []any{[]any{}, []any{approval, approval}, approval})
	c.vary("spec.retention.keepVersions", []any{int64(1), int64(0), int64(10), int64(11)})
	c.vary("spec.retry", []any{
		map[string]any{"token": "again"}, map[string]any{"token": ""}, map[string]any{}, map[string]any{"token": strings.Repeat("t", 64)}, map[string]any{"token": "again", "clusters": []any{"bergen"}},
		map[string]any{"token": "again", "clusters": []any{"Bergen"}}, map[string]any{"token": "again", "clusters": []any{}}, map[string]any{"token": "again", "clusters": []any{"bergen", "bergen"}},
	})
	for field, values := range map[string][]any{
		"clusterNames": {[]any{"bergen"}, []any{"Bergen"}}, "clusterSelector": {map[string]any{"matchLabels": map[string]any{"a": "b"}}, removed},
		"sourceType": {"http", "ftp", "registry"}, "url": {"https://${cluster.name}.example.com/a", "https://${labels.site}.example.com/a", "https://${site}/a", "https://u:p@example.com/a", "", "docker://a/b"},
		"checksum": {"", "md5:0"}, "secretRef": {"", "farm", "a b"}, "certConfigMap": {"", "ca", "a b"}, "extraHeaders": {[]any{}, []any{"X-A: b"}, []any{"b"}}, "secretExtraHeaders": {[]any{}, []any{"a"}, []any{"A"}},
		"pullMethod": {"node", "", "both"}, "storageClass": {"", "ceph", "a b"}, "snapshotClass": {"", "ceph", "a b"}, "diskSize": {"1Gi", "1", "many", int64(1 << 30)}, "architecture": {"arm64", "x86_64"},
		"dataSource": {map[string]any{"name": "fedora"}, map[string]any{"namespace": "a"}}, "priority": {int64(1), int64(1001)},
	} {
		for _, value := range values {
			override := map[string]any{"clusterSelector": map[string]any{}, field: value}
			if value == removed {
				delete(override, field)
			}
			c.vary("spec.overrides", []any{[]any{override}})
		}
	}
	c.vary("spec.deletionPolicy", []any{"Retain", "Delete", "Orphan", ""})
	return c
}

// stricterFleetDiskImages are the rules of what members do not see.
var stricterFleetDiskImages = []difference{
	{refusal: regexp.MustCompile(`spec\.template`), why: "the same is refused in a VMDiskImage"},
	{refusal: regexp.MustCompile(`spec\.(placement|rollout|retention|retry|deletionPolicy|approvals|overrides)|approvals name a wave`), why: "the field is the hub's alone"},
	{refusal: regexp.MustCompile(`metadata\.name|at most 180 characters|spec\.(version|imageName): `), why: "it becomes part of names"},
}

// errCannotBegin: the cluster waits, as its FleetDiskImage says.
var errCannotBegin = errors.New("the cluster cannot begin")

// fleetWaits are those of images, and of clusters to which overrides give nothing valid.
var fleetWaits = append([]difference{
	{refusal: regexp.MustCompile(`cannot begin: its MemberCluster has no label`), why: "a label may come later", reason: "LabelMissing"},
	{refusal: regexp.MustCompile(`cannot begin: .*no valid image of the template`), why: "only the template and all overrides together are invalid", reason: "SourceInvalid"},
}, imageWaits...)

func fleetWaitReason(err error) v1alpha1.Reason {
	switch {
	case !errors.Is(err, errCannotBegin):
		return imageWaitReason(err)
	case strings.Contains(err.Error(), "has no label"):
		return "LabelMissing"
	default:
		return "SourceInvalid"
	}
}

// submitFleetDiskImage sends the plan that the hub would write, the image that the agent makes
// of it, and the image's DataVolume.
func submitFleetDiskImage(t *testing.T, ns string, object *unstructured.Unstructured) error {
	fleetImage := &v1alpha1.FleetDiskImage{}
	if err := decode(object, fleetImage); err != nil {
		return err
	}
	if problems := validation.ValidateNamespaceName(fleetImage.Spec.TargetNamespace, false); len(problems) > 0 {
		return fmt.Errorf("%w: namespace %q: %s", errImpossibleName, fleetImage.Spec.TargetNamespace, problems[0])
	}
	overrides, err := override.Parse(fleetImage)
	if err != nil {
		return err
	}
	effective := overrides.For("bergen", nil)
	if why := effective.WhyUnusable(); why != "" {
		return fmt.Errorf("%w: %s", errCannotBegin, why)
	}
	fleetImage.Spec.Template = effective.Spec
	desired := rollout.ComputeDesiredImages(fleetImage, rollout.ClusterProgress{Placed: true, Started: true}, nil, time.Unix(1e9, 0))
	require.Len(t, desired.Images, 1)
	clusterPlan := &v1alpha1.ClusterPlan{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.MailboxName}}
	clusterPlan.Spec.ClusterUID, clusterPlan.Spec.Images, clusterPlan.Spec.Kept = "cluster", desired.Images, desired.Kept
	if err := env.Client().Create(t.Context(), clusterPlan, client.DryRunAll); err != nil {
		return err
	}
	img := plan.NewImage(&desired.Images[0])
	img.Namespace = ns // the target need not exist here
	if err := env.Client().Create(t.Context(), img, client.DryRunAll); err != nil {
		return err
	}
	return submitDataVolume(t, img)
}

func TestCorpusOfFleetDiskImages(t *testing.T) {
	t.Parallel()
	require.NoError(t, controlplane.InstallCRDFiles(t.Context(), env.ControlPlane.Config(), "../../../charts/ot-hub/files/crds/pelotech.ot_fleetdiskimages.yaml"))
	c := newFleetCorpus()
	c.submit, c.waitReason, c.waits, c.stricter = submitFleetDiskImage, fleetWaitReason, fleetWaits, stricterFleetDiskImages
	c.compare(t, env.CreateNamespace(t), 100)
}
