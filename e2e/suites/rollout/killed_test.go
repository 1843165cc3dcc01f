//go:build linux

package rollout_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// fatalWrites are the writes of a rollout, each before and after it is stored and each about
// another cluster, so that they spread over the waves.
func fatalWrites(image string) (all []faults.FatalWrite) {
	type write struct {
		name    string
		proxyOf func(cluster string) *faults.Proxy
		matches func(cluster, path string) bool
	}
	onHub := func(string) *faults.Proxy { return shared.Proxy }
	reportCopy := func(cluster string) *faults.Proxy { proxy, _ := shared.mailboxProxies(cluster); return proxy }
	planCopy := func(cluster string) *faults.Proxy { _, proxy := shared.mailboxProxies(cluster); return proxy }
	mailbox := func(cluster, resource string) string {
		return "/namespaces/" + v1alpha1.MemberNamespacePrefix + cluster + "/" + resource
	}
	for i, w := range []write{
		{"the plan", onHub, func(cluster, path string) bool { return strings.Contains(path, mailbox(cluster, "clusterplans")) }},
		{"the copy of the plan in the member", planCopy, func(_, path string) bool { return strings.Contains(path, "/clusterplans") }},
		{"the status of the FleetDiskImage", onHub, func(_, path string) bool {
			return strings.HasSuffix(path, "/fleetdiskimages/"+image+"/status")
		}},
		{"the copy of a page of the report", reportCopy, func(cluster, path string) bool {
			return strings.Contains(path, mailbox(cluster, "clusterreports/")) && !strings.HasSuffix(path, "/"+v1alpha1.MailboxName)
		}},
		{"the copy of the root of the report", reportCopy, func(cluster, path string) bool {
			return strings.HasSuffix(path, mailbox(cluster, "clusterreports/"+v1alpha1.MailboxName))
		}},
		{"the status of the MemberCluster", onHub, func(cluster, path string) bool {
			return strings.HasSuffix(path, "/memberclusters/"+cluster+"/status")
		}},
	} {
		for n := range 2 {
			cluster := onlineMembers[(2*i+n)%len(onlineMembers)]
			all = append(all, faults.FatalWrite{
				Write: w.name + " for " + cluster, Stored: n == 1, Proxy: w.proxyOf(cluster),
				Matches: func(made faults.Write) bool { return w.matches(cluster, made.Path) },
			})
		}
	}
	return all
}

// newHubKiller kills the hub at writes until the test ends.
func newHubKiller(t *testing.T, writes []faults.FatalWrite) *faults.WriteKiller {
	killer := faults.NewWriteKiller(func() *process.Process { return shared.Hub.Process },
		func(ctx context.Context) error { return shared.StartHub(ctx) }, writes)
	proxies := []*faults.Proxy{shared.Proxy}
	for _, m := range shared.Members {
		if proxies = append(proxies, m.Proxy); m.AgentProxy != nil {
			proxies = append(proxies, m.AgentProxy)
		}
	}
	t.Cleanup(func() { shared.RestartHub(t) })
	killer.Watch(t, proxies...)
	return killer
}

// A hub that is killed at a write of a rollout continues where it was: one member at a time,
// none planned twice, nothing downloaded twice, no member left out.
func TestRolloutSurvivesHubKilledAtEachWrite(t *testing.T) {
	img := shared.newFleetImage("killed", onlineMembers...)
	setOneAtATime(img, newWave(canary, labelRing, canary))
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	var list v1alpha1.MemberClusterList
	require.NoError(t, shared.List(t.Context(), &list))
	begun, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	require.NoError(t, err)
	writes := testenv.SweepShare(fatalWrites(img.Name))
	var versions []string
	for _, write := range writes { // a kill may hide other writes of the same version
		version := strconv.Itoa(len(versions) + 1)
		most := shared.watchConcurrency(t, img.ImageNameForVersion(version), onlineMembers...)
		killer := newHubKiller(t, []faults.FatalWrite{write})
		if len(versions) == 0 {
			shared.createFleetImage(t, img)
		} else {
			shared.updateFleetImage(t, img, func() { shared.setVersion(img, version) })
		}
		versions = append(versions, version)
		killer.AwaitCondition(t, "version "+img.Spec.Version, func() bool {
			got := &v1alpha1.FleetDiskImage{}
			return shared.Get(t.Context(), client.ObjectKeyFromObject(img), got) == nil && got.Status.ObservedGeneration == got.Generation && hasSucceeded(got)
		})
		killer.Stop()
		assert.Empty(t, killer.Remaining(), "a write that version %s did not need", img.Spec.Version)
		assert.LessOrEqual(t, most(t), 1, "members that synced version %s at a time", img.Spec.Version)
	}
	for _, why := range shared.journal.offlineSince(t, begun) {
		assert.Contains(t, why, " "+island+": ", "a hub that starts takes no reachable member for offline")
	}
	for _, version := range versions {
		name := img.ImageNameForVersion(version)
		course := shared.journal.imageCourse(t, name)
		assert.Equal(t, onlineMembers, course.begun, name)
		assert.Equal(t, 1, course.most, name)
		assert.Empty(t, course.moved, "%s: the time from which it is planned", name)
		for _, cluster := range onlineMembers {
			shared.Members[cluster].AwaitPhase(t, name, v1alpha1.PhaseSucceeded)
			assert.Equal(t, 1, shared.Members[cluster].countDownloads(t, name), "%s: %s", cluster, name)
		}
	}

	// A hub that is killed while it waits for deletions does not forget them.
	killer := newHubKiller(t, slices.DeleteFunc(fatalWrites(img.Name), func(w faults.FatalWrite) bool {
		return w.Stored || !strings.HasPrefix(w.Write, "the status of the FleetDiskImage")
	}))
	require.NoError(t, shared.Delete(t.Context(), img))
	require.True(t, testenv.AwaitCondition(t, shared.Hub.HasEnded), "the hub was not killed before it planned the deletion")
	killer.Stop()
	shared.RestartHub(t)
	shared.awaitFleetImageGone(t, img)
	for _, cluster := range onlineMembers {
		for _, version := range versions {
			shared.Members[cluster].AwaitImageGone(t, img.ImageNameForVersion(version), "")
		}
	}
}

// A hub that was away for longer than the member timeout takes no member for offline before it
// had the time to hear from it: the waves hold.
func TestRolloutResumesAfterLongHubOutage(t *testing.T) {
	img := shared.newFleetImage("away", onlineMembers...)
	setOneAtATime(img, newWave(canary, labelRing, canary))
	name := img.ImageNameForVersion("1")
	release := shared.Members[bergen].HoldImports(t, name)
	shared.createFleetImage(t, img)
	shared.Members[bergen].AwaitPhase(t, name, v1alpha1.PhaseSyncing)
	shared.Hub.Kill()
	<-shared.Hub.Done()
	t.Cleanup(func() { shared.RestartHub(t) })
	for _, cluster := range onlineMembers {
		m := testenv.GetMember(t, shared, cluster)
		last := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
		m.Status.LastReport = &last
		require.NoError(t, shared.Status().Update(t.Context(), m))
	}
	shared.RestartHub(t)
	shared.awaitFreshPlans(t, "away-beside", frankfurt, lab)
	shared.awaitFleetImage(t, img, "syncing in bergen", hasCounts(v1alpha1.ClusterCounts{Total: 4, Progressing: 1, ToApply: 3}))
	assert.Equal(t, []string{bergen}, shared.journal.imageCourse(t, name).begun)
	release()
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	course := shared.journal.imageCourse(t, name)
	assert.Equal(t, onlineMembers, course.begun)
	assert.Equal(t, 1, course.most)
}
