//go:build linux

package chart_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// fullRollout has every field that an author can set.
const fullRollout = `
apiVersion: pelotech.ot/v1alpha1
kind: FleetDiskImage
metadata: {name: ubuntu}
spec:
  version: 2.1.0
  imageName: ubuntu-lts
  targetNamespace: vmdi-farm
  template:
    name: Ubuntu LTS
    sourceType: http
    url: https://images.example.com/ubuntu/2.1.0/disk.qcow2
    diskSize: 24Gi
    storageClass: gp3
    snapshotClass: ebs-snapshot
  placement:
    clusterSelector:
      matchLabels: {region: north}
      matchExpressions: [{key: stage, operator: In, values: [prod, test]}]
    clusterNames: [bergen, oslo]
    excludedClusters: [oslo]
  rollout:
    maxConcurrency: 25%
    minSuccessTime: 30m
    maxFailures: 5%
    progressDeadline: 6h
    paused: true
    offlineClusters: Wait
    waves:
    - {name: canary, clusterSelector: {matchLabels: {canary: "true"}}, maxConcurrency: 1, minSuccessTime: 1h30m}
    - {name: edge, clusterSelector: {matchLabels: {edge: "true"}}, requireApproval: true}
  approvals: []
  retention: {keepVersions: 3, keepUnreferencedFor: 168h}
  deletionPolicy: Delete
`

// newFleetImage returns fullRollout with spec fields replaced by path; nil removes a field.
func newFleetImage(t *testing.T, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	return newFromYAML(t, fullRollout, changes)
}

func newWaves(name string, changes map[string]any) []any {
	w := map[string]any{"name": name, "clusterSelector": map[string]any{"matchLabels": map[string]any{"wave": "any"}}}
	maps.Copy(w, changes)
	return []any{w}
}

func TestFleetDiskImageRoundTrips(t *testing.T) {
	written := newFleetImage(t, nil)
	require.NoError(t, adminClient.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(written.DeepCopy()), client.FieldOwner("person")))
	stored := &v1alpha1.FleetDiskImage{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(written), stored))
	require.NoError(t, adminClient.Delete(t.Context(), stored))

	want := &v1alpha1.FleetDiskImage{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(fullRollout), want))
	assert.Equal(t, want.Spec, stored.Spec)
	assert.Equal(t, "ubuntu-lts-2.1.0", stored.ImageNameForVersion(stored.Spec.Version))
	assert.Equal(t, intstr.FromString("25%"), *stored.Spec.Rollout.MaxConcurrency)
	assert.Equal(t, 90*time.Minute, stored.Spec.Rollout.Waves[0].MinSuccessTime.Duration)
	assert.Zero(t, stored.Status.Clusters)
}

func TestFleetDiskImageDefaults(t *testing.T) {
	object := newFleetImage(t, map[string]any{
		"imageName": nil, "rollout": map[string]any{}, "approvals": nil, "retention": map[string]any{}, "deletionPolicy": nil,
		"placement": map[string]any{"clusterSelector": map[string]any{}},
	})
	require.NoError(t, adminClient.Create(t.Context(), object, client.DryRunAll))
	spec := object.Object["spec"].(map[string]any)
	assert.Equal(t, map[string]any{"offlineClusters": "Defer"}, spec["rollout"])
	assert.Equal(t, map[string]any{"keepVersions": int64(2)}, spec["retention"])
	assert.Equal(t, "Retain", spec["deletionPolicy"])
}

// TestValidFleetDiskImages decodes them as well: one object that the hub cannot decode would
// keep it from reading all others.
func TestValidFleetDiskImages(t *testing.T) {
	label := strings.Repeat("v", 63)
	for name, changes := range map[string]map[string]any{
		"as it stands":               {},
		"only what is required":      {"imageName": nil, "rollout": nil, "approvals": nil, "retention": nil, "deletionPolicy": nil},
		"all clusters":               {"placement": map[string]any{"clusterSelector": map[string]any{}}},
		"clusters by name":           {"placement": map[string]any{"clusterNames": []any{"bergen"}}},
		"a selector for the hub":     {"placement": map[string]any{"clusterSelector": map[string]any{"matchExpressions": []any{map[string]any{"key": "a", "operator": "Near"}}}}},
		"a long version":             {"version": label},
		"a version of one letter":    {"version": "1"},
		"a long image name":          {"imageName": strings.Repeat("i", 180)},
		"a concurrency of one":       {"rollout.maxConcurrency": int64(1)},
		"a very large concurrency":   {"rollout.maxConcurrency": int64(1_000_000)},
		"one per cent":               {"rollout.maxConcurrency": "1%"},
		"all at once":                {"rollout.maxConcurrency": "100%"},
		"no failures":                {"rollout.maxFailures": int64(0)},
		"no failures, in per cent":   {"rollout.maxFailures": "0%"},
		"as many failures as it has": {"rollout.maxFailures": "100%"},
		"a time of none":             {"rollout.minSuccessTime": "0s"},
		"all units":                  {"rollout.minSuccessTime": "1h1m1s"},
		"a deadline of a second":     {"rollout.progressDeadline": "1s"},
		"a hundred years":            {"retention.keepUnreferencedFor": "876000h"},
		"unreferenced for no time":   {"retention.keepUnreferencedFor": "0s"},
		"a wave of a long name":      {"rollout.waves": newWaves(label, nil)},
		"a wave of all":              {"rollout.waves": newWaves("all", map[string]any{"clusterSelector": map[string]any{}})},
		"an approval by the minute":  {"approvals": []any{map[string]any{"wave": "edge", "version": "2.1.0", "by": "admin", "at": "2026-01-02T03:04:05Z"}}},
		"an approval in July":        {"approvals": []any{map[string]any{"wave": "edge", "version": "2.1.0", "by": "admin", "at": "2026-07-02T03:04:05.678+02:00"}}},
		"the most waves":             {"rollout.waves": repeat(20, func(i int) any { return newWaves(fmt.Sprintf("wave-%d", i), nil)[0] })},
		"the most clusters by name":  {"placement.clusterNames": repeat(1000, func(i int) any { return fmt.Sprintf("cluster-%d", i) })},
	} {
		t.Run(name, func(t *testing.T) {
			object := signApprovals(t, newFleetImage(t, changes))
			require.NoError(t, adminClient.Create(t.Context(), object, client.DryRunAll))
			assert.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &v1alpha1.FleetDiskImage{}))
		})
	}
}

func TestOddFleetDiskImagesAreRejectedOrDecodable(t *testing.T) {
	var all []map[string]any
	for _, at := range []any{
		"2026-01-02t03:04:05z", "2026-01-02 03:04:05Z", "2026-01-02T03:04:05", "2016-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "2026-02-30T00:00:00Z",
		"2026-01-02T24:00:00Z", "2026-01-02T03:04:05+2:00", "2026-01-02T03:04:05+25:00", "2026-01-02T03:04:05,5Z", "2026-01-02", "", nil,
	} {
		all = append(all, map[string]any{"approvals": []any{map[string]any{"wave": "edge", "version": "2.1.0", "by": "admin", "at": at}}})
	}
	for _, duration := range []any{"0h", "2562047h47m16s", "2562047h47m17s", "1m1h", "1h1h", "٣h", " 1h", "1h\n", "1h0m99999999999s"} {
		all = append(all, map[string]any{"rollout.minSuccessTime": duration}, map[string]any{"retention.keepUnreferencedFor": duration},
			map[string]any{"rollout.progressDeadline": duration}, map[string]any{"rollout.waves": newWaves("canary", map[string]any{"minSuccessTime": duration})})
	}
	for _, number := range []any{1.0, 1e18, int64(1) << 31, "+5%", "5 %", "٥%", "5%\n"} {
		all = append(all, map[string]any{"rollout.maxFailures": number}, map[string]any{"rollout.maxConcurrency": number},
			map[string]any{"rollout.waves": newWaves("canary", map[string]any{"maxConcurrency": number})})
	}
	for _, size := range []any{"1e3Mi", "1E9", "0x10Gi", "9223372036854775807", "1.000000000000000000001Gi", " 1Gi"} {
		all = append(all, map[string]any{"template.diskSize": size})
	}
	for _, changes := range all {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			object := signApprovals(t, newFleetImage(t, changes))
			if err := adminClient.Create(t.Context(), object, client.DryRunAll); err != nil {
				assert.True(t, apierrors.IsInvalid(err), "%v", err)
				return
			}
			assert.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &v1alpha1.FleetDiskImage{}))
		})
	}
}

// signApprovals replaces the name in approvals by the tests' own user.
func signApprovals(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	approvals, _, err := unstructured.NestedSlice(object.Object, "spec", "approvals")
	require.NoError(t, err)
	for _, approval := range approvals {
		approval.(map[string]any)["by"] = currentUser(t)
	}
	if approvals != nil {
		require.NoError(t, unstructured.SetNestedSlice(object.Object, approvals, "spec", "approvals"))
	}
	return object
}

func repeat(n int, one func(int) any) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = one(i)
	}
	return all
}

func TestInvalidFleetDiskImagesAreRejected(t *testing.T) {
	const (
		version     = "version becomes part of a name: it must consist of a-z, 0-9, - and ., as in 2.1.0"
		imageName   = "imageName must consist of a-z, 0-9, - and ., as in ubuntu"
		waveName    = "the name of a wave must consist of a-z, 0-9 and -, as in canary"
		concurrency = "maxConcurrency must be at least 1, or a percentage as in 25%, up to 100%"
		failures    = "maxFailures must be at least 0, or a percentage as in 5%, up to 100%"
		soak        = "minSuccessTime must be a duration in hours, minutes and seconds, as in 1h30m"
		deadline    = "progressDeadline must be a duration in hours, minutes and seconds, as in 6h"
		unused      = "keepUnreferencedFor must be a duration in hours, minutes and seconds, as in 168h"
		nowhere     = "placement selects no cluster: set clusterSelector ({} for all) or clusterNames"
		noWave      = "approvals name a wave that is not in spec.rollout.waves: correct the name, or add the wave"
		tooLong     = "Too long: may not be more than"
	)
	approval := func(wave string) []any {
		return []any{map[string]any{"wave": wave, "version": "2.1.0", "by": "admin"}}
	}
	for name, test := range map[string]struct {
		changes map[string]any
		says    string
	}{
		"no version":                       {map[string]any{"version": nil}, "spec.version: Required value"},
		"an empty version":                 {map[string]any{"version": ""}, version},
		"a version in capitals":            {map[string]any{"version": "2.1.0-RC1"}, version},
		"a version with a plus":            {map[string]any{"version": "2.1.0+build"}, version},
		"a version that ends in a dot":     {map[string]any{"version": "2.1."}, version},
		"a version of two lines":           {map[string]any{"version": "2.1\n2.2"}, version},
		"a version that is too long":       {map[string]any{"version": strings.Repeat("1", 64)}, tooLong},
		"an image name in capitals":        {map[string]any{"imageName": "Ubuntu"}, imageName},
		"an image name that is too long":   {map[string]any{"imageName": strings.Repeat("i", 181)}, tooLong},
		"no namespace":                     {map[string]any{"targetNamespace": nil}, "spec.targetNamespace: Required value"},
		"a namespace with a dot":           {map[string]any{"targetNamespace": "vmdi.farm"}, "targetNamespace must be the name of a namespace"},
		"no template":                      {map[string]any{"template": nil}, "spec.template: Required value"},
		"a template without a unit":        {map[string]any{"template.diskSize": "24"}, "diskSize must be at least 1Mi: is the unit missing, as in 24Gi?"},
		"a template of another scheme":     {map[string]any{"template.url": "ftp://images.example.com/a"}, "url must start with http:// or https:// for sourceType http"},
		"a template of a YAML block":       {map[string]any{"template.url": "https://images.example.com/a\n"}, "url must have no space at its beginning or end, and no line break"},
		"a template with a password":       {map[string]any{"template.url": "https://user:secret@example.com/a"}, "url must not carry a user name or password"},
		"a template without a source":      {map[string]any{"template.url": nil}, "url is required: say where the image is downloaded from"},
		"a template with a short sum":      {map[string]any{"template.checksum": "sha256:00"}, "checksum must be an algorithm and a hash of its length"},
		"no placement":                     {map[string]any{"placement": nil}, "spec.placement: Required value"},
		"a placement without clusters":     {map[string]any{"placement": map[string]any{}}, nowhere},
		"a placement that excludes only":   {map[string]any{"placement": map[string]any{"excludedClusters": []any{"oslo"}}}, nowhere},
		"a placement of no names":          {map[string]any{"placement": map[string]any{"clusterNames": []any{}}}, nowhere},
		"a cluster twice":                  {map[string]any{"placement.clusterNames": []any{"oslo", "oslo"}}, "Duplicate value"},
		"too many clusters":                {map[string]any{"placement.clusterNames": repeat(1001, func(i int) any { return fmt.Sprint(i) })}, "must have at most 1000 items"},
		"a cluster of a long name":         {map[string]any{"placement.clusterNames": []any{strings.Repeat("c", 54)}}, tooLong},
		"a cluster in capitals":            {map[string]any{"placement.clusterNames": []any{"Oslo"}}, "no MemberCluster can have this name"},
		"an excluded cluster of two lines": {map[string]any{"placement.excludedClusters": []any{"oslo\n"}}, "no MemberCluster can have this name"},
		"a wave without a name":            {map[string]any{"rollout.waves": newWaves("", nil)}, waveName},
		"a wave in capitals":               {map[string]any{"rollout.waves": newWaves("Canary", nil)}, waveName},
		"a wave with a dot":                {map[string]any{"rollout.waves": newWaves("canary.1", nil)}, waveName},
		"a wave of a name too long":        {map[string]any{"rollout.waves": newWaves(strings.Repeat("w", 64), nil)}, tooLong},
		"rest as a wave":                   {map[string]any{"rollout.waves": newWaves("rest", nil)}, "rest is reserved for the clusters that no other wave selects: choose another name"},
		"a wave without a selector":        {map[string]any{"rollout.waves": []any{map[string]any{"name": "canary"}}}, "clusterSelector: Required value"},
		"a wave twice":                     {map[string]any{"rollout.waves": append(newWaves("canary", nil), newWaves("canary", nil)...)}, "Duplicate value"},
		"too many waves":                   {map[string]any{"rollout.waves": repeat(21, func(i int) any { return newWaves(fmt.Sprintf("wave-%d", i), nil)[0] })}, "must have at most 20 items"},
		"no concurrency":                   {map[string]any{"rollout.maxConcurrency": int64(0)}, concurrency},
		"no concurrency, in per cent":      {map[string]any{"rollout.maxConcurrency": "0%"}, concurrency},
		"a concurrency below zero":         {map[string]any{"rollout.maxConcurrency": int64(-1)}, concurrency},
		"a concurrency beyond all":         {map[string]any{"rollout.maxConcurrency": "101%"}, concurrency},
		"a concurrency as text":            {map[string]any{"rollout.maxConcurrency": "5"}, concurrency},
		"a concurrency in fractions":       {map[string]any{"rollout.maxConcurrency": "2.5%"}, concurrency},
		"a concurrency that Go cannot":     {map[string]any{"rollout.maxConcurrency": int64(1) << 40}, concurrency},
		"a fraction of a cluster":          {map[string]any{"rollout.maxConcurrency": 1.5}, "must be of type integer"},
		"no concurrency in a wave":         {map[string]any{"rollout.waves": newWaves("canary", map[string]any{"maxConcurrency": int64(0)})}, concurrency},
		"no per cent in a wave":            {map[string]any{"rollout.waves": newWaves("canary", map[string]any{"maxConcurrency": "0%"})}, concurrency},
		"a sign in a wave":                 {map[string]any{"rollout.waves": newWaves("canary", map[string]any{"maxConcurrency": "+5%"})}, "spec.rollout.waves[0].maxConcurrency in body should match"},
		"a wave beyond what Go can":        {map[string]any{"rollout.waves": newWaves("canary", map[string]any{"maxConcurrency": int64(1) << 40})}, concurrency},
		"failures below zero":              {map[string]any{"rollout.maxFailures": int64(-1)}, failures},
		"failures beyond all":              {map[string]any{"rollout.maxFailures": "200%"}, failures},
		"failures that Go cannot":          {map[string]any{"rollout.maxFailures": int64(1) << 40}, failures},
		"a soak without a unit":            {map[string]any{"rollout.minSuccessTime": "30"}, soak},
		"a soak in days":                   {map[string]any{"rollout.minSuccessTime": "1d"}, soak},
		"a soak of nothing":                {map[string]any{"rollout.minSuccessTime": ""}, soak},
		"a soak below zero":                {map[string]any{"rollout.minSuccessTime": "-1h"}, soak},
		"a soak in a wave":                 {map[string]any{"rollout.waves": newWaves("canary", map[string]any{"minSuccessTime": "soon"})}, soak},
		"a soak that Go cannot":            {map[string]any{"rollout.minSuccessTime": "99999999999h"}, "rollout.minSuccessTime"},
		"a wave's that Go cannot":          {map[string]any{"rollout.waves": newWaves("canary", map[string]any{"minSuccessTime": "99999999999h"})}, "minSuccessTime"},
		"a deadline of none":               {map[string]any{"rollout.progressDeadline": "0s"}, deadline},
		"a deadline in fractions":          {map[string]any{"rollout.progressDeadline": "1.5h"}, deadline},
		"a deadline that Go cannot":        {map[string]any{"rollout.progressDeadline": "99999999999h"}, "rollout.progressDeadline"},
		"another word for offline":         {map[string]any{"rollout.offlineClusters": "Skip"}, `Unsupported value: "Skip": supported values: "Defer", "Wait"`},
		"retention of nothing":             {map[string]any{"retention.keepVersions": int64(0)}, "spec.retention.keepVersions in body should be greater than or equal to 1"},
		"retention of too much":            {map[string]any{"retention.keepVersions": int64(11)}, "spec.retention.keepVersions in body should be less than or equal to 10"},
		"unreferenced without a unit":      {map[string]any{"retention.keepUnreferencedFor": "168"}, unused},
		"unreferenced for longer than Go":  {map[string]any{"retention.keepUnreferencedFor": "99999999999h"}, "retention.keepUnreferencedFor"},
		"unreferenced beyond all":          {map[string]any{"retention.keepUnreferencedFor": "9999999h"}, unused + upToMost},
		"a deadline beyond all":            {map[string]any{"rollout.progressDeadline": "9999999h"}, deadline + upToMost},
		"a soak beyond all":                {map[string]any{"rollout.minSuccessTime": "9999999h"}, soak + upToMost},
		"a retry in no cluster":            {map[string]any{"retry": map[string]any{"token": "1", "clusters": []any{}}}, "spec.retry.clusters in body should have at least 1 items"},
		"another deletion policy":          {map[string]any{"deletionPolicy": "Orphan"}, `Unsupported value: "Orphan": supported values: "Retain", "Delete"`},
		"an approval of no such wave":      {map[string]any{"approvals": approval("prod")}, noWave},
		"an approval without any waves":    {map[string]any{"rollout": nil, "approvals": approval("edge")}, noWave},
		"an approval without waves":        {map[string]any{"rollout.waves": nil, "approvals": approval("edge")}, noWave},
		"an approval by nobody":            {map[string]any{"approvals": []any{map[string]any{"wave": "edge", "version": "2.1.0", "by": ""}}}, "spec.approvals[0].by"},
		"an approval twice":                {map[string]any{"approvals": append(approval("edge"), approval("edge")...)}, "Duplicate value"},
		"an approval at no time":           {map[string]any{"approvals": []any{map[string]any{"wave": "edge", "version": "2.1.0", "by": "admin", "at": "yesterday"}}}, "spec.approvals[0].at"},
	} {
		t.Run(name, func(t *testing.T) {
			err := adminClient.Create(t.Context(), newFleetImage(t, test.changes), client.DryRunAll)
			require.ErrorContains(t, err, test.says)
			assert.NotContains(t, err.Error(), "conversion error")
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
		})
	}
}

func TestFleetDiskImageNameLeavesRoomForVersion(t *testing.T) {
	object := newFleetImage(t, map[string]any{"imageName": nil})
	object.SetName(strings.Repeat("n", 180))
	require.NoError(t, adminClient.Create(t.Context(), object.DeepCopy(), client.DryRunAll))
	object.SetName(strings.Repeat("n", 181))
	err := adminClient.Create(t.Context(), object, client.DryRunAll)
	require.ErrorContains(t, err, "the name of a FleetDiskImage must have at most 180 characters: with its version it becomes the name of its images")
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
}

func TestAllRolloutErrorsAreReportedAtOnce(t *testing.T) {
	err := adminClient.Create(t.Context(), newFleetImage(t, map[string]any{
		"version": "2.1.0+1", "rollout.maxConcurrency": "0%", "rollout.waves": newWaves("rest", nil), "template.diskSize": "24",
	}), client.DryRunAll)
	require.ErrorContains(t, err, "version becomes part of a name")
	require.ErrorContains(t, err, "maxConcurrency must be at least 1")
	require.ErrorContains(t, err, "rest is reserved for the clusters")
	require.ErrorContains(t, err, "diskSize must be at least 1Mi")
}

// TestLargestFleetDiskImageStatusIsStored stores the largest status that the hub can write.
func TestLargestFleetDiskImageStatusIsStored(t *testing.T) {
	object := newFleetImage(t, nil)
	object.SetName("fullest")
	require.NoError(t, adminClient.Create(t.Context(), object))
	t.Cleanup(func() { assert.NoError(t, adminClient.Delete(context.Background(), object)) })
	stored := &v1alpha1.FleetDiskImage{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), stored))
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	counts := v1alpha1.ClusterCounts{Total: 1000, Succeeded: 1000}
	stored.Status = v1alpha1.FleetDiskImageStatus{
		ObservedGeneration: 1, Phase: v1alpha1.RolloutFailed, Reason: v1alpha1.ReasonMaxFailures, Message: strings.Repeat("m", 2048),
		Clusters: counts, CurrentWave: v1alpha1.WaveRest, LastSuccessAt: &now, ExpectedAt: &now,
	}
	for i := range v1alpha1.MaxVersions {
		stored.Status.Versions = append(stored.Status.Versions, v1alpha1.VersionStatus{
			Version: fmt.Sprint(i), Namespace: "vmdi-farm", Image: fmt.Sprintf("ubuntu-%d", i), Revision: "1cu4lz8bfceqj", Since: now,
			Template: stored.Spec.Template.SourceFields(), TemplateOmitted: strings.Repeat("o", 256),
		})
	}
	for i := range 20 {
		stored.Status.Waves = append(stored.Status.Waves, v1alpha1.WaveStatus{Name: fmt.Sprint(i), Clusters: counts, DoneAt: &now})
	}
	stored.Status.Waves = append(stored.Status.Waves, v1alpha1.WaveStatus{Name: v1alpha1.WaveRest})
	for i := range v1alpha1.MaxFailingClusters {
		stored.Status.Failing = append(stored.Status.Failing, v1alpha1.ClusterSummary{
			Cluster: fmt.Sprint(i), State: v1alpha1.ClusterTimedOut, Reason: strings.Repeat("r", 64), Message: strings.Repeat("m", 256),
		})
	}
	for _, condition := range []string{v1alpha1.ConditionFinished, v1alpha1.ConditionSucceeded, v1alpha1.ConditionProgressing, v1alpha1.ConditionStalled} {
		stored.Status.Conditions = append(stored.Status.Conditions, metav1.Condition{
			Type: condition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonMaxFailures, LastTransitionTime: now,
		})
	}
	want := stored.Status.DeepCopy()
	require.NoError(t, adminClient.Status().Update(t.Context(), stored))
	assert.Equal(t, *want, stored.Status)
}
