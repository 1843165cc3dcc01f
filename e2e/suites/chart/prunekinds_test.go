//go:build linux

package chart_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// fullReport has every field of a single PruneReport, fullSchedule those of a scheduled one, and
// fullPrune those of an ImagePrune.
const (
	fullReport = `
apiVersion: pelotech.ot/v1alpha1
kind: PruneReport
metadata: {name: weekly}
spec:
  placement:
    clusterSelector: {matchLabels: {region: north}}
    excludedClusters: [oslo]
  imageSelector: {namespaces: [vmdi-farm], names: [ubuntu-*, debian.11]}
  unreferencedFor: 168h
  answerDeadline: 10m
`
	fullSchedule = fullReport + `
  schedule: "0 6 * * 1"
  timeZone: Europe/Berlin
  suspend: false
  historyLimit: 3
`
	fullPrune = `
apiVersion: pelotech.ot/v1alpha1
kind: ImagePrune
metadata: {name: weekly}
spec:
  reportRef: {name: weekly, digest: 29d1e8d7c2a04f5b}
  clusters: [bergen, oslo]
  images: [vmdi-farm/ubuntu-*, "*/debian.11"]
  includeOthers: true
  undoWindow: 12h
  deadline: 2h
  approvedBy: alice
`
)

// newFromYAML returns an object with spec fields replaced by path; nil removes a field.
func newFromYAML(t *testing.T, text string, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(text), &object.Object))
	for path, value := range changes {
		fields := append([]string{"spec"}, strings.Split(path, ".")...)
		if value == nil {
			unstructured.RemoveNestedField(object.Object, fields...)
			continue
		}
		require.NoError(t, unstructured.SetNestedField(object.Object, runtime.DeepCopyJSONValue(value), fields...))
	}
	return object
}

func newPruneReport(t *testing.T, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	return newFromYAML(t, fullReport, changes)
}

func newSchedule(t *testing.T, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	return newFromYAML(t, fullSchedule, changes)
}

func newImagePrune(t *testing.T, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	return newFromYAML(t, fullPrune, changes)
}

// newOwnPrune returns an ImagePrune that is signed by the tests' own user.
func newOwnPrune(t *testing.T, changes map[string]any) *unstructured.Unstructured {
	t.Helper()
	object := newImagePrune(t, changes)
	if _, ok := changes["approvedBy"]; !ok {
		require.NoError(t, unstructured.SetNestedField(object.Object, currentUser(t), "spec", "approvedBy"))
	}
	return object
}

func TestReportsAndPrunesRoundTrip(t *testing.T) {
	for name, test := range map[string]struct {
		written    *unstructured.Unstructured
		into, want client.Object
	}{
		"a report":   {newPruneReport(t, nil), &v1alpha1.PruneReport{}, &v1alpha1.PruneReport{}},
		"a schedule": {newSchedule(t, nil), &v1alpha1.PruneReport{}, &v1alpha1.PruneReport{}},
		"a prune":    {newOwnPrune(t, nil), &v1alpha1.ImagePrune{}, &v1alpha1.ImagePrune{}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := yaml.Marshal(test.written.Object)
			require.NoError(t, err)
			require.NoError(t, yaml.UnmarshalStrict(text, test.want))
			require.NoError(t, adminClient.Create(t.Context(), test.written, client.DryRunAll))
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(test.written.Object, test.into))
			specOf := func(o client.Object) any {
				if r, ok := o.(*v1alpha1.PruneReport); ok {
					return r.Spec
				}
				return o.(*v1alpha1.ImagePrune).Spec
			}
			assert.Equal(t, specOf(test.want), specOf(test.into))
		})
	}
}

func TestDefaultsOfReportsAndPrunes(t *testing.T) {
	report := newPruneReport(t, map[string]any{"placement": nil, "imageSelector": nil, "unreferencedFor": nil, "answerDeadline": nil})
	require.NoError(t, adminClient.Create(t.Context(), report, client.DryRunAll))
	assert.Empty(t, report.Object["spec"])

	prune := newOwnPrune(t, map[string]any{"clusters": nil, "images": nil, "includeOthers": nil, "undoWindow": nil, "deadline": nil})
	require.NoError(t, adminClient.Create(t.Context(), prune, client.DryRunAll))
	assert.Equal(t, map[string]any{
		"reportRef": map[string]any{"name": "weekly", "digest": "29d1e8d7c2a04f5b"}, "approvedBy": currentUser(t),
		"includeOthers": false, "undo": false, "undoWindow": "24h", "deadline": "1h",
	}, prune.Object["spec"])
}

const (
	badUnreferenced  = "unreferencedFor must be a duration in hours, minutes and seconds, as in 168h"
	badAnswer        = "answerDeadline must be a duration of at least 1s in hours, minutes and seconds, as in 10m"
	badUndoWindow    = "undoWindow must be a duration in hours, minutes and seconds, as in 24h"
	badDeadline      = "deadline must be a duration of at least 1s in hours, minutes and seconds, as in 1h"
	upToMost         = ", up to 999999h"
	badScheduleField = "timeZone, suspend and historyLimit need a schedule: set schedule, or remove them"
)

func TestInvalidReportsAndPrunesAreRejected(t *testing.T) {
	const tooLong = "Too long: may not be more than"
	for name, test := range map[string]struct {
		object *unstructured.Unstructured
		says   string
	}{
		"unreferenced without a unit":      {newPruneReport(t, map[string]any{"unreferencedFor": "168"}), badUnreferenced},
		"unreferenced for days":            {newPruneReport(t, map[string]any{"unreferencedFor": "7d"}), badUnreferenced},
		"unreferenced for nothing":         {newPruneReport(t, map[string]any{"unreferencedFor": ""}), badUnreferenced},
		"unreferenced below zero":          {newPruneReport(t, map[string]any{"unreferencedFor": "-1h"}), badUnreferenced},
		"unreferenced longer than Go":      {newPruneReport(t, map[string]any{"unreferencedFor": "99999999999h"}), "spec.unreferencedFor"},
		"a deadline of none":               {newPruneReport(t, map[string]any{"answerDeadline": "0s"}), badAnswer},
		"a deadline in fractions":          {newPruneReport(t, map[string]any{"answerDeadline": "1.5h"}), badAnswer},
		"a zone without a schedule":        {newPruneReport(t, map[string]any{"timeZone": "Europe/Berlin"}), badScheduleField},
		"suspended without a schedule":     {newPruneReport(t, map[string]any{"suspend": true}), badScheduleField},
		"a history without a schedule":     {newPruneReport(t, map[string]any{"historyLimit": int64(1)}), badScheduleField},
		"an empty schedule":                {newSchedule(t, map[string]any{"schedule": ""}), "spec.schedule in body should be at least 1 chars long"},
		"a very long schedule":             {newSchedule(t, map[string]any{"schedule": strings.Repeat("1", 129)}), tooLong},
		"an empty zone":                    {newSchedule(t, map[string]any{"timeZone": ""}), "spec.timeZone in body should be at least 1 chars long"},
		"no history":                       {newSchedule(t, map[string]any{"historyLimit": int64(0)}), "spec.historyLimit in body should be greater than or equal to 1"},
		"too much history":                 {newSchedule(t, map[string]any{"historyLimit": int64(101)}), "spec.historyLimit in body should be less than or equal to 100"},
		"a placement without clusters":     {newPruneReport(t, map[string]any{"placement": map[string]any{"excludedClusters": []any{"oslo"}}}), "placement selects no cluster: set clusterSelector ({} for all) or clusterNames, or remove placement"},
		"an image in capitals":             {newPruneReport(t, map[string]any{"imageSelector.names": []any{"Ubuntu"}}), "spec.imageSelector.names[0] in body should match"},
		"an image with its namespace":      {newPruneReport(t, map[string]any{"imageSelector.names": []any{"vmdi-farm/ubuntu"}}), "spec.imageSelector.names[0] in body should match"},
		"an image of no name":              {newPruneReport(t, map[string]any{"imageSelector.names": []any{""}}), "spec.imageSelector.names[0] in body should match"},
		"an image twice":                   {newPruneReport(t, map[string]any{"imageSelector.names": []any{"a", "a"}}), "Duplicate value"},
		"an image of a long name":          {newPruneReport(t, map[string]any{"imageSelector.names": []any{strings.Repeat("n", 254)}}), tooLong},
		"a namespace of a long name":       {newPruneReport(t, map[string]any{"imageSelector.namespaces": []any{strings.Repeat("n", 64)}}), tooLong},
		"too many names":                   {newPruneReport(t, map[string]any{"imageSelector.names": repeat(65, func(i int) any { return fmt.Sprint(i) })}), "must have at most 64 items"},
		"no report":                        {newOwnPrune(t, map[string]any{"reportRef": nil}), "spec.reportRef: Required value"},
		"a report of no name":              {newOwnPrune(t, map[string]any{"reportRef.name": ""}), "spec.reportRef.name in body should be at least 1 chars long"},
		"no digest":                        {newOwnPrune(t, map[string]any{"reportRef.digest": nil}), "spec.reportRef.digest: Required value"},
		"an empty digest":                  {newOwnPrune(t, map[string]any{"reportRef.digest": ""}), "spec.reportRef.digest in body should be at least 1 chars long"},
		"a very long digest":               {newOwnPrune(t, map[string]any{"reportRef.digest": strings.Repeat("d", 65)}), tooLong},
		"approved by nobody":               {newOwnPrune(t, map[string]any{"approvedBy": nil}), "spec.approvedBy: Required value"},
		"approved by an empty name":        {newOwnPrune(t, map[string]any{"approvedBy": ""}), "spec.approvedBy in body should be at least 1 chars long"},
		"a prune of an image alone":        {newOwnPrune(t, map[string]any{"images": []any{"ubuntu"}}), "spec.images[0] in body should match"},
		"a prune of two slashes":           {newOwnPrune(t, map[string]any{"images": []any{"a/b/c"}}), "spec.images[0] in body should match"},
		"a prune in capitals":              {newOwnPrune(t, map[string]any{"images": []any{"vmdi-farm/Ubuntu"}}), "spec.images[0] in body should match"},
		"a namespace in capitals":          {newPruneReport(t, map[string]any{"imageSelector.namespaces": []any{"VMs"}}), "no namespace can have this name"},
		"a namespace with dots":            {newPruneReport(t, map[string]any{"imageSelector.namespaces": []any{"vmdi.farm"}}), "no namespace can have this name"},
		"a placement in capitals":          {newPruneReport(t, map[string]any{"placement.clusterNames": []any{"Oslo"}}), "no MemberCluster can have this name"},
		"an exclusion with a space":        {newPruneReport(t, map[string]any{"placement.excludedClusters": []any{"oslo "}}), "no MemberCluster can have this name"},
		"a prune of a cluster in capitals": {newOwnPrune(t, map[string]any{"clusters": []any{"Oslo"}}), "no MemberCluster can have this name"},
		"a prune of a namespace with dots": {newOwnPrune(t, map[string]any{"images": []any{"vmdi.farm/ubuntu"}}), "spec.images[0] in body should match"},
		"a prune of a namespace alone":     {newOwnPrune(t, map[string]any{"images": []any{"vmdi-farm/"}}), "spec.images[0] in body should match"},
		"a prune of another's glob":        {newOwnPrune(t, map[string]any{"images": []any{"vmdi-farm/ubuntu-?"}}), "spec.images[0] in body should match"},
		"a prune of an image twice":        {newOwnPrune(t, map[string]any{"images": []any{"a/b", "a/b"}}), "Duplicate value"},
		"a prune of a long name":           {newOwnPrune(t, map[string]any{"images": []any{"a/" + strings.Repeat("n", 319)}}), tooLong},
		"too many images":                  {newOwnPrune(t, map[string]any{"images": repeat(1001, func(i int) any { return fmt.Sprintf("a/%d", i) })}), "must have at most 1000 items"},
		"a cluster of no name":             {newOwnPrune(t, map[string]any{"clusters": []any{""}}), "spec.clusters[0] in body should be at least 1 chars long"},
		"a cluster of a long name":         {newOwnPrune(t, map[string]any{"clusters": []any{strings.Repeat("c", 54)}}), tooLong},
		"a cluster twice":                  {newOwnPrune(t, map[string]any{"clusters": []any{"oslo", "oslo"}}), "Duplicate value"},
		"a report's name that is a path":   {newOwnPrune(t, map[string]any{"reportRef.name": "../weekly"}), "no PruneReport can have this name"},
		"a window without a unit":          {newOwnPrune(t, map[string]any{"undoWindow": "24"}), badUndoWindow},
		"a window below zero":              {newOwnPrune(t, map[string]any{"undoWindow": "-1h"}), badUndoWindow},
		"a window of nothing":              {newOwnPrune(t, map[string]any{"undoWindow": ""}), badUndoWindow},
		"a window that Go cannot":          {newOwnPrune(t, map[string]any{"undoWindow": "99999999999h"}), "spec.undoWindow"},
		"a prune's deadline of none":       {newOwnPrune(t, map[string]any{"deadline": "0s"}), badDeadline},
		"a prune's deadline in days":       {newOwnPrune(t, map[string]any{"deadline": "1d"}), badDeadline},
		// No entry would mean all: it is what a template of a list that is empty renders.
		"a prune of no images":     {newOwnPrune(t, map[string]any{"images": []any{}}), "spec.images in body should have at least 1 items"},
		"a prune of no clusters":   {newOwnPrune(t, map[string]any{"clusters": []any{}}), "spec.clusters in body should have at least 1 items"},
		"a report of no images":    {newPruneReport(t, map[string]any{"imageSelector.names": []any{}}), "spec.imageSelector.names in body should have at least 1 items"},
		"a report of no namespace": {newPruneReport(t, map[string]any{"imageSelector.namespaces": []any{}}), "spec.imageSelector.namespaces in body should have at least 1 items"},
		// Longer than any duration is: these said that a conversion failed.
		"unreferenced beyond all":      {newPruneReport(t, map[string]any{"unreferencedFor": "9999999h"}), badUnreferenced + upToMost},
		"an answer beyond all":         {newPruneReport(t, map[string]any{"answerDeadline": "9999999h"}), badAnswer + upToMost},
		"a window beyond all":          {newOwnPrune(t, map[string]any{"undoWindow": "9999999h"}), badUndoWindow + upToMost},
		"a prune's deadline in future": {newOwnPrune(t, map[string]any{"deadline": "9999999h"}), badDeadline + upToMost},
	} {
		t.Run(name, func(t *testing.T) {
			err := adminClient.Create(t.Context(), test.object, client.DryRunAll)
			require.ErrorContains(t, err, test.says)
			assert.NotContains(t, err.Error(), "conversion error")
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
		})
	}
}

func TestPruneReportNameLeavesRoomForPages(t *testing.T) {
	object := newPruneReport(t, nil)
	object.SetName(strings.Repeat("n", 180))
	require.NoError(t, adminClient.Create(t.Context(), object.DeepCopy(), client.DryRunAll))
	object.SetName(strings.Repeat("n", 181))
	err := adminClient.Create(t.Context(), object, client.DryRunAll)
	require.ErrorContains(t, err, "the name of a PruneReport must have at most 180 characters: with a time and a number it becomes the name of its pages")
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
}

// TestReportsAndPrunesAreImmutable: a spec that was approved, or that a report was made from,
// must not change.
func TestReportsAndPrunesAreImmutable(t *testing.T) {
	const (
		fine     = ""
		once     = "a PruneReport without a schedule cannot be changed: create another one"
		either   = "schedule can be changed, but not added or removed: create another PruneReport"
		onlyUndo = "only undo can be changed: create another ImagePrune"
		stays    = "undo cannot be unset: create another ImagePrune"
	)
	undone := newOwnPrune(t, map[string]any{"undo": true})
	undone.SetName("undone")
	bare := newPruneReport(t, map[string]any{"placement": nil, "imageSelector": nil, "unreferencedFor": nil, "answerDeadline": nil})
	bare.SetName("bare")
	all := newOwnPrune(t, map[string]any{"clusters": nil, "images": nil})
	all.SetName("all")
	scheduled := newSchedule(t, nil)
	scheduled.SetName("scheduled")
	for _, test := range []struct {
		object  *unstructured.Unstructured
		changes map[string]map[string]any
		says    map[string]string // message by change; none: accepted
	}{
		{newPruneReport(t, nil), map[string]map[string]any{
			"another placement": {"placement.excludedClusters": []any{"bergen"}},
			"no placement":      {"placement": nil},
			"other images":      {"imageSelector.names": []any{"debian-*"}},
			"all images":        {"imageSelector": nil},
			"a shorter time":    {"unreferencedFor": "1h"},
			"no time":           {"unreferencedFor": nil},
			"another deadline":  {"answerDeadline": "1h"},
			"no deadline":       {"answerDeadline": nil},
			"a schedule":        {"schedule": "0 6 * * 1"},
			"in another way":    {"unreferencedFor": "168h0m0s", "answerDeadline": "600s"},
		}, map[string]string{
			"another placement": once, "no placement": once, "other images": once, "all images": once, "a shorter time": once, "no time": once,
			"another deadline": once, "no deadline": once, "a schedule": either,
		}},
		{bare, map[string]map[string]any{
			"a placement": {"placement": map[string]any{"clusterNames": []any{"oslo"}}}, "an image": {"imageSelector": map[string]any{"names": []any{"a"}}},
			"a time": {"unreferencedFor": "0s"}, "a deadline": {"answerDeadline": "10m"},
		}, map[string]string{"a placement": once, "an image": once, "a time": once, "a deadline": once}},
		{scheduled, map[string]map[string]any{
			"another schedule": {"schedule": "0 7 * * 1", "timeZone": "UTC"}, "all else": {"suspend": true, "historyLimit": int64(9), "unreferencedFor": "1h", "placement": nil},
			"no schedule": {"schedule": nil, "timeZone": nil, "suspend": nil, "historyLimit": nil},
		}, map[string]string{"no schedule": either}},
		{newOwnPrune(t, nil), map[string]map[string]any{
			"undo": {"undo": true}, "in another way": {"undoWindow": "12h0m0s", "deadline": "120m"},
			"another report": {"reportRef.name": "daily"}, "another digest": {"reportRef.digest": "00"}, "other clusters": {"clusters": []any{"bergen"}}, "all clusters": {"clusters": nil},
			"other images": {"images": []any{"*/*"}}, "all images": {"images": nil}, "others not": {"includeOthers": false}, "a longer window": {"undoWindow": "13h"},
			"a shorter window": {"undoWindow": "0s"}, "another deadline": {"deadline": "3h"}, "another approver": {"approvedBy": "bob"}, "undo and more": {"undo": true, "undoWindow": "0s"},
		}, map[string]string{
			"another report": onlyUndo, "another digest": onlyUndo, "other clusters": onlyUndo, "all clusters": onlyUndo, "other images": onlyUndo, "all images": onlyUndo,
			"others not": onlyUndo, "a longer window": onlyUndo, "a shorter window": onlyUndo, "another deadline": onlyUndo, "another approver": onlyUndo, "undo and more": onlyUndo,
		}},
		{all, map[string]map[string]any{"a cluster": {"clusters": []any{"bergen"}}, "an image": {"images": []any{"a/b"}}}, map[string]string{"a cluster": onlyUndo, "an image": onlyUndo}},
		{undone, map[string]map[string]any{"not undone": {"undo": false}, "nothing said": {"undo": nil}}, map[string]string{"not undone": stays, "nothing said": stays}},
	} {
		createForTest(t, adminClient, test.object)
		for name, changes := range test.changes {
			t.Run(test.object.GetKind()+" "+test.object.GetName()+" "+name, func(t *testing.T) {
				err := adminClient.Patch(t.Context(), test.object.DeepCopy(), newSpecPatch(t, changes), client.DryRunAll)
				if test.says[name] == fine {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, test.says[name])
				assert.True(t, apierrors.IsInvalid(err), "%v", err)
			})
		}
	}
}

// TestLargestReportAndPruneStatusIsStored stores the largest status that the hub can write.
func TestLargestReportAndPruneStatusIsStored(t *testing.T) {
	now := metav1.NewTime(time.Unix(1_700_000_000, 0))
	conditions := []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReported, LastTransitionTime: now}}

	object := newPruneReport(t, nil)
	object.SetName("fullest")
	createForTest(t, adminClient, object)
	report := &v1alpha1.PruneReport{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), report))
	report.Status = v1alpha1.PruneReportStatus{
		ObservedGeneration: 1, Phase: v1alpha1.PruneReportComplete, Reason: v1alpha1.ReasonReported, Message: strings.Repeat("m", 2048),
		StartedAt: &now, CompletedAt: &now, Digest: strings.Repeat("d", 64), Pages: v1alpha1.MaxPruneReportPages, LastScheduleTime: &now, NextScheduleTime: &now, LastReport: "weekly-1",
		Candidates: v1alpha1.PruneTotal{Count: 1, Bytes: 1 << 60}, Conditions: conditions,
	}
	for i := range v1alpha1.MaxUnknownClusters {
		report.Status.UnknownClusters = append(report.Status.UnknownClusters, v1alpha1.UnknownCluster{Cluster: fmt.Sprint(i), Reason: strings.Repeat("r", 64), Message: strings.Repeat("m", 512)})
	}
	for _, reason := range v1alpha1.KeptReasons() {
		report.Status.Kept = append(report.Status.Kept, v1alpha1.KeptTotal{Reason: reason, PruneTotal: v1alpha1.PruneTotal{Count: 1, Bytes: 1 << 60}})
	}
	want := report.Status.DeepCopy()
	require.NoError(t, adminClient.Status().Update(t.Context(), report))
	assert.Equal(t, *want, report.Status)

	object = newOwnPrune(t, nil)
	object.SetName("fullest")
	createForTest(t, adminClient, object)
	prune := &v1alpha1.ImagePrune{}
	require.NoError(t, adminClient.Get(t.Context(), client.ObjectKeyFromObject(object), prune))
	prune.Status = v1alpha1.ImagePruneStatus{
		ObservedGeneration: 1, Phase: v1alpha1.ImagePruneComplete, Reason: v1alpha1.ReasonPartlyPruned, Message: strings.Repeat("m", 2048),
		StartedAt: &now, FinishedAt: &now, PendingUntil: &now, Clusters: 1000, Targets: v1alpha1.TargetCounts{Total: 1000, Skipped: 1000}, Bytes: 1 << 60, Conditions: conditions,
	}
	for i := range v1alpha1.MaxSkippedTargets {
		prune.Status.Skipped = append(prune.Status.Skipped, v1alpha1.TargetSummary{
			Cluster: fmt.Sprint(i), Namespace: "images", Name: "ubuntu", State: v1alpha1.PruneSkipped, Reason: strings.Repeat("r", 64), Message: strings.Repeat("m", 256),
		})
	}
	wanted := prune.Status.DeepCopy()
	require.NoError(t, adminClient.Status().Update(t.Context(), prune))
	assert.Equal(t, *wanted, prune.Status)
}

// TestLargestPlanWithInquiryAndPrunes stores the largest plan, and the report that answers it.
func TestLargestPlanWithInquiryAndPrunes(t *testing.T) {
	plan := &v1alpha1.ClusterPlan{
		ObjectMeta: metav1.ObjectMeta{Namespace: imageNamespace, Name: v1alpha1.MailboxName},
		Spec:       v1alpha1.ClusterPlanSpec{PlanVersion: v1alpha1.PlanVersion{Epoch: 1, Sequence: 1}, ClusterUID: "uid"},
	}
	for i := range v1alpha1.MaxInquiries {
		plan.Spec.Inquiries = append(plan.Spec.Inquiries, v1alpha1.PlanInquiry{UID: types.UID(fmt.Sprint(i)), Epoch: 1, Sequence: 1})
	}
	for i := range v1alpha1.MaxPlannedPrunes {
		plan.Spec.Prunes = append(plan.Spec.Prunes, v1alpha1.PlannedPrune{
			Namespace: "images", Name: fmt.Sprint(i), ImageUID: "image", Revision: "1cu4lz8bfceqj", UID: "prune", UndoWindow: metav1.Duration{Duration: time.Hour}, Undo: true,
		})
	}
	want := plan.Spec.DeepCopy()
	require.NoError(t, adminClient.Create(t.Context(), plan, client.DryRunAll))
	assert.Equal(t, *want, plan.Spec)

	tooMany := plan.DeepCopy()
	tooMany.ResourceVersion, tooMany.UID = "", ""
	tooMany.Spec.Inquiries = append(tooMany.Spec.Inquiries, v1alpha1.PlanInquiry{UID: "more"})
	assert.True(t, apierrors.IsInvalid(adminClient.Create(t.Context(), tooMany, client.DryRunAll)))
	twice := plan.DeepCopy()
	twice.ResourceVersion, twice.UID = "", ""
	twice.Spec.Prunes = append(twice.Spec.Prunes[:1], twice.Spec.Prunes[0])
	require.ErrorContains(t, adminClient.Create(t.Context(), twice, client.DryRunAll), "Duplicate value")
}
