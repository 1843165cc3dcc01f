//go:build linux

package kind_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// attemptCost is the cost of one attempt, counted at the source.
type attemptCost struct {
	description string
	phase       v1alpha1.Phase
	attempts    int
	restarts    int32
	requests    fleetjourneys.RequestCounts
	fileSize    int64
}

const costsHead = `
## What an attempt costs

Counted at the source, one attempt where nothing else is said. Full GETs are those without a range; bytes are what was sent of all of them, beside the size of the file. The SyncLedger says of OneDownloadPerAttempt: %s.

| Attempt | Ended | DataVolumes | Restarts seen | HEAD | Full GETs | Ranged GETs | MiB sent | MiB of the file |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
`

func (c attemptCost) tableRow() string {
	return fmt.Sprintf("| %s | %s | %d | %d | %d | %d | %d | %.1f | %.1f |\n", c.description, c.phase, c.attempts, c.restarts,
		c.requests.Heads, c.requests.Gets, c.requests.Ranges, float64(c.requests.Bytes)/(1<<20), float64(c.fileSize)/(1<<20))
}

// costCase says how an image is served, and what happens during its download.
type costCase struct {
	description, path, file string
	wantPhase               v1alpha1.Phase
	// wantGets bounds the full GETs of the attempt. CDI's importer cancels one after the
	// file's header, and another when ranges serve it better: only bytes measure the download.
	wantGets int64
	// wantFileSizes bounds the bytes of the attempt, in multiples of the file's size.
	wantFileSizes float64
	// wantAttempts is the number of attempts; 0 means one.
	wantAttempts int
	interfere    func(t *testing.T, f *kindFleet, m fleetjourneys.Member, img *v1alpha1.VMDiskImage)
}

// TestCostOfAnAttempt wants no more requests to the source than an attempt needs.
func TestCostOfAnAttempt(t *testing.T) {
	f := requireFleet(t)
	runJourney(t, "what one attempt asks of its source, by how it ends", func(t *testing.T) {
		fleetjourneys.SetPolicy(t, f, map[string]string{"retryLimit": "0", "preflight": "false"})
		m := f.Members()[0]
		ledger := &v1alpha1.SyncLedger{}
		fleetjourneys.AwaitCondition(t, "the agent has looked whether an attempt costs one download", func() bool {
			if m.Get(t.Context(), client.ObjectKey{Namespace: program.AgentNamespace, Name: v1alpha1.LedgerName}, ledger) != nil || ledger.Status == nil {
				return false
			}
			c := meta.FindStatusCondition(ledger.Status.Conditions, v1alpha1.ConditionOneDownload)
			if c != nil {
				resultsPage.oneDownloadStatus = fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message)
			}
			return c != nil && c.Status != metav1.ConditionUnknown
		}, func() string { return fmt.Sprintf("%+v", ledger.Status) })
		require.True(t, meta.IsStatusConditionTrue(ledger.Status.Conditions, v1alpha1.ConditionOneDownload), resultsPage.oneDownloadStatus)
		for _, u := range []costCase{
			{"raw", "costs", "disk.raw", v1alpha1.PhaseSucceeded, 2, 1, 0, nil},
			{"raw, gzip", "costs", "disk.raw.gz", v1alpha1.PhaseSucceeded, 2, 1, 0, nil},
			// The first container exits because it needs scratch space.
			{"qcow2, by way of scratch space", "costs", "disk.qcow2", v1alpha1.PhaseSucceeded, 2, 1, 0, nil},
			{"404", "status/404/costs", "disk.qcow2", v1alpha1.PhaseFailed, 1, 0, 0, nil},
			{"500", "status/500/costs", "disk.qcow2", v1alpha1.PhaseFailed, 1, 0, 0, nil},
			{"raw, cut in the middle", "cut/costs", "disk.raw", v1alpha1.PhaseFailed, 2, 0.5, 0, nil},
			{"qcow2, cut in the middle", "cut/costs", "disk.qcow2", v1alpha1.PhaseFailed, 2, 0.5, 0, nil},
			// CDI sees the failure before the deletion.
			{"raw, importer Pod deleted on the way", "slow/10/costs", "disk.raw", v1alpha1.PhaseFailed, 2, 1, 0, deleteImporterPod},
		} {
			t.Run(u.description, func(t *testing.T) { f.measureCost(t, m, u) })
		}
		t.Run("given up", func(t *testing.T) {
			fleetjourneys.SetPolicy(t, f, map[string]string{"retryLimit": "2", "retryBackoffDuration": "1s"})
			f.measureCost(t, m, costCase{"500, with retryLimit 2", "status/500/costs", "disk.qcow2", v1alpha1.PhaseFailed, 1, 0, 3, nil})
		})
		t.Run("memory", func(t *testing.T) {
			limitMemory(t, m, "32Mi")
			f.measureCost(t, m, costCase{"raw, importer out of memory", "slow/5/costs", "disk.raw", v1alpha1.PhaseFailed, 2, 1, 0, nil})
		})
		t.Run("populator", func(t *testing.T) {
			enablePopulators(t, m)
			f.measureCost(t, m, costCase{"raw, by a populator", "populated", "disk.raw", v1alpha1.PhaseSucceeded, 2, 1, 0, nil})
			f.measureCost(t, m, costCase{"raw, cut in the middle, by a populator", "cut/populated", "disk.raw", v1alpha1.PhaseFailed, 2, 0.5, 0, nil})
			f.measureCost(t, m, costCase{"500, by a populator", "status/500/populated", "disk.raw", v1alpha1.PhaseFailed, 1, 0, 0, nil})
		})
	})
}

// measureCost makes one attempt and waits until its slot is free.
func (f *kindFleet) measureCost(t *testing.T, m fleetjourneys.Member, u costCase) {
	name := fmt.Sprintf("cost-%d", len(resultsPage.costs))
	// The source counts by path, over all runs: each run has its own paths.
	spec := f.imageSpecAt(u.path, rand.String(8), u.file)
	o := fleetjourneys.ObserveMember(t, m)
	img := fleetjourneys.CreateImage(t, m, name, spec)
	if u.interfere != nil {
		u.interfere(t, f, m, img)
	}
	got := fleetjourneys.AwaitImage(t, m, name, "at its end", fleetjourneys.HasPhase(v1alpha1.PhaseSucceeded, v1alpha1.PhaseFailed))
	assert.Equal(t, u.wantPhase, got.Status.Phase, "%s: %s", got.Status.Reason, got.Status.Message)
	if got.Status.Phase == v1alpha1.PhaseSucceeded {
		f.RequireBytes(t, m, got)
	}
	// An importer that CDI created after the import had succeeded stays, Completed.
	fleetjourneys.AwaitCondition(t, "the end of the attempt's Pods", func() bool {
		var pods corev1.PodList
		return m.List(t.Context(), &pods, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}) == nil &&
			!slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
				return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
			})
	}, func() string { return "" })
	asked, _ := f.SourceRequests(t, spec)
	h := testenv.History(t, o)
	info, err := os.Stat(filepath.Join(f.Images, u.file))
	require.NoError(t, err)
	c := attemptCost{u.description, got.Status.Phase, h.Attempts(img.UID), h.Restarts(img.UID), asked, info.Size()}
	resultsPage.costs = append(resultsPage.costs, c)
	t.Log(c.tableRow())
	assert.Equal(t, max(u.wantAttempts, 1), c.attempts)
	assert.Zero(t, c.restarts, "containers that CDI's Pods started over")
	assert.LessOrEqual(t, c.requests.Gets, u.wantGets*int64(c.attempts), "full GETs")
	// The buffers of a cancelled response count as well.
	assert.LessOrEqual(t, c.requests.Bytes, int64(u.wantFileSizes*float64(c.fileSize))+c.fileSize/10+8<<20, "bytes")
}

// limitMemory limits the memory of importers until the test ends.
func limitMemory(t *testing.T, m fleetjourneys.Member, limit string) {
	t.Helper()
	set := func(ctx context.Context, requirements string) error {
		cdi := &cdiv1.CDI{ObjectMeta: metav1.ObjectMeta{Name: "cdi"}}
		return m.Patch(ctx, cdi, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec": {"config": {"podResourceRequirements": %s}}}`, requirements)))
	}
	require.NoError(t, set(t.Context(), fmt.Sprintf(`{"limits": {"cpu": "750m", "memory": %q}, "requests": {"cpu": "10m", "memory": %q}}`, limit, limit)))
	t.Cleanup(func() { require.NoError(t, set(context.Background(), "null")) })
	config := &cdiv1.CDIConfig{}
	fleetjourneys.AwaitCondition(t, "importers with "+limit, func() bool {
		if m.Get(t.Context(), client.ObjectKey{Name: "config"}, config) != nil || config.Status.DefaultPodResourceRequirements == nil {
			return false
		}
		memory := config.Status.DefaultPodResourceRequirements.Limits[corev1.ResourceMemory]
		return memory.String() == limit
	}, func() string { return fmt.Sprintf("%+v", config.Status) })
}

// enablePopulators has CDI use populators for new imports, as it does with CSI drivers. The provisioners
// of kind are none.
func enablePopulators(t *testing.T, m fleetjourneys.Member) {
	t.Helper()
	if served := testenv.MutatingAdmissionAPI(t, m.Config); served != admissionv1.SchemeGroupVersion.String() {
		t.Skipf("populators are switched on by a MutatingAdmissionPolicy of v1; the API server serves %q", served)
	}
	named := metav1.ObjectMeta{Name: "kind-populators"}
	policy := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: named, Spec: admissionv1.MutatingAdmissionPolicySpec{
		FailurePolicy: ptr.To(admissionv1.Fail),
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{cdiv1.SchemeGroupVersion.Group}, APIVersions: []string{"*"}, Resources: []string{"datavolumes"}},
		}}}},
		ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
		Mutations: []admissionv1.Mutation{{
			PatchType: admissionv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionv1.ApplyConfiguration{
				Expression: `Object{metadata: Object.metadata{annotations: {"cdi.kubevirt.io/storage.usePopulator": "true"}}}`,
			},
		}},
	}}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: named, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: named.Name}}
	for _, o := range []client.Object{policy, binding} {
		require.NoError(t, m.Create(t.Context(), o))
		fleetjourneys.DeleteAfterTest(t, m.Client, o)
	}
	probe := &cdiv1.DataVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: named.Name},
		Spec: cdiv1.DataVolumeSpec{
			Source:  &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}},
		},
	}
	fleetjourneys.AwaitCondition(t, "DataVolumes that are filled by populators", func() bool {
		tried := probe.DeepCopy()
		return m.Create(t.Context(), tried, client.DryRunAll) == nil && tried.Annotations["cdi.kubevirt.io/storage.usePopulator"] == "true"
	}, func() string { return "" })
}

// deleteImporterPod deletes the importer Pod during its download.
func deleteImporterPod(t *testing.T, f *kindFleet, m fleetjourneys.Member, img *v1alpha1.VMDiskImage) {
	fleetjourneys.AwaitCondition(t, "an importer Pod that downloads", func() bool {
		if asked, _ := f.SourceRequests(t, img.Spec); asked.Bytes < 32<<20 {
			return false
		}
		var pods corev1.PodList
		if m.List(t.Context(), &pods, client.InNamespace(img.Namespace), client.MatchingLabels{v1alpha1.LabelImageUID: string(img.UID)}) != nil {
			return false
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Status.Phase == corev1.PodRunning {
				return m.Delete(t.Context(), p) == nil
			}
		}
		return false
	}, func() string { return "" })
}
