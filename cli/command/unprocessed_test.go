package command

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
)

// serveRollouts is a hub with FleetDiskImages, a member and nothing else. A write is answered with what is stored.
func serveRollouts(t *testing.T, images ...v1alpha1.FleetDiskImage) {
	lab := v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{"region": "nordics"}}}
	answers := answersOf(lab)
	groups, version := answers["/apis"].(metav1.APIGroupList), v1alpha1.GroupVersion.String()
	of := answers["/apis/"+version].(metav1.APIResourceList)
	for name, list := range map[string]struct {
		kind   string
		answer any
	}{
		"fleetdiskimages": {"FleetDiskImage", v1alpha1.FleetDiskImageList{Items: images}},
		"prunereports":    {"PruneReport", v1alpha1.PruneReportList{}},
		"imageprunes":     {"ImagePrune", v1alpha1.ImagePruneList{}},
		"clusterreports":  {"ClusterReport", v1alpha1.ClusterReportList{}},
	} {
		of.APIResources = append(of.APIResources, metav1.APIResource{Name: name, SingularName: strings.ToLower(list.kind), Kind: list.kind, Verbs: metav1.Verbs{"get", "list"}})
		answers["/apis/"+version+"/"+name] = list.answer
	}
	caller := authenticationv1.SelfSubjectReview{}
	caller.Status.UserInfo.Username = "anna@example.com"
	for kind, answer := range map[string]any{
		"authentication.k8s.io/v1 SelfSubjectReview":      caller,
		"authorization.k8s.io/v1 SelfSubjectAccessReview": authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}},
	} {
		version, kind, _ := strings.Cut(kind, " ")
		group, _, _ := strings.Cut(version, "/")
		known := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: "v1"}
		groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{known}, PreferredVersion: known})
		name := strings.ToLower(kind) + "s"
		answers["/apis/"+version] = metav1.APIResourceList{GroupVersion: version, APIResources: []metav1.APIResource{{Name: name, Kind: kind, Verbs: metav1.Verbs{"create"}}}}
		answers["/apis/"+version+"/"+name] = answer
	}
	answers["/apis"], answers["/apis/"+version] = groups, of
	answers["/apis/"+version+"/memberclusters/lab"] = lab
	for i := range images {
		answers["/apis/"+version+"/fleetdiskimages/"+images[i].Name] = images[i]
	}
	serveContexts(t, answerWith(t, answers), "hub")
}

// variantsOf returns the command line with each flag of cmd that needs no value, in each format. A command that
// waits looks once.
func variantsOf(cmd *cobra.Command, line string) (lines []string) {
	timeout := cmd.Flags().Lookup("timeout")
	if timeout != nil && timeout.Annotations[needsAnnotation] == nil {
		line += " --timeout 0s"
	}
	variants := []string{line}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Value.Type() != "bool":
		case timeout != nil && slices.Contains(timeout.Annotations[needsAnnotation], f.Name):
			variants = append(variants, line+" --timeout 0s --"+f.Name)
		case f.Name == "unknown":
			variants = append(variants, line+" --unknown", line+" --unknown --failing")
		default:
			variants = append(variants, line+" --"+f.Name)
		}
	})
	for _, variant := range variants {
		lines = append(lines, variant)
		for _, format := range []string{
			"wide", "json", "yaml", "name", "markdown", "jsonpath={.clusters.total}{.items[*].clusters.total}{.rollouts[*].clusters.total}{.waves[*].name}",
			"go-template={{.clusters.total}}{{range.rollouts}}{{.clusters.total}}{{end}}", "custom-columns=NAME:.name,N:.clusters.total,FAILED:.failed",
		} {
			lines = append(lines, variant+" -o "+format)
		}
	}
	return lines
}

// TestUnprocessedRolloutsAreShown goes through all commands that take or list FleetDiskImages. What is not known
// of a rollout that the hub has not processed is nil, for each of them to look at: none ends in a panic.
func TestUnprocessedRolloutsAreShown(t *testing.T) {
	changed := apitest.FleetDiskImage("ubuntu").WithGeneration(2).WithVersion("1.1.0").WithWaves(v1alpha1.Wave{Name: "canary", RequireApproval: true}).Obj()
	changed.Status = v1alpha1.FleetDiskImageStatus{ObservedGeneration: 1, Phase: v1alpha1.RolloutSucceeded, Clusters: v1alpha1.ClusterCounts{Total: 2, Succeeded: 2}}
	processed := apitest.FleetDiskImage("win").WithGeneration(1).Obj()
	processed.Status = v1alpha1.FleetDiskImageStatus{ObservedGeneration: 1, Phase: v1alpha1.RolloutProgressing, Clusters: v1alpha1.ClusterCounts{Total: 2, Deferred: 1, Failed: 1}}
	serveRollouts(t, *apitest.FleetDiskImage("debian").WithGeneration(1).Obj(), *changed, *processed)
	needs := map[string][]string{ // others take a name
		"status": {""}, "fleet status": {""}, "get rollouts": {"", "ubuntu debian", "--sort-by failed", "--sort-by age"},
		"preload": {"ubuntu -l region=nordics", "debian ubuntu --cluster lab"}, "image publish": {"ubuntu --version 9 --url https://images.example.com/9.qcow2 --size 1Gi"},
	}
	root, _ := newCompletedRoot()
	var silent []string
	for _, cmd := range allCommands(root) {
		path := strings.TrimPrefix(cmd.CommandPath(), "kubectl ot ")
		ends, listed := needs[path]
		switch {
		case listed:
		case path == "rollout approve":
			continue // it waits 10 seconds for the hub, and refuses
		case kindOf(strings.Fields(path)) == fleetImageKind && strings.Contains(cmd.Use, "NAME"):
			ends = []string{"ubuntu", "debian"}
		default:
			continue
		}
		answered := false
		for _, end := range ends {
			for _, line := range variantsOf(cmd, path+" "+end) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				out := &interrupter{interrupt: cancel} // a watch ends once it has printed something
				e := &environment{IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: out, ErrOut: &bytes.Buffer{}}, Flags: connect.NewFlags(), now: time.Now, interrupted: ctx.Done()}
				root := e.newRoot()
				root.SetArgs(strings.Fields(line))
				require.NotPanics(t, func() { _ = root.ExecuteContext(ctx) }, line)
				require.NotErrorIs(t, ctx.Err(), context.DeadlineExceeded, line)
				answered = answered || out.Len() > 0
				e.closeReadAPI()
				cancel()
			}
		}
		if !answered {
			silent = append(silent, path)
		}
	}
	assert.Equal(t, []string{"image retry"}, silent, "this hub does not store its request")
}
