//go:build linux

package rollout_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// killPoint is a write of a rollout at which the hub is killed.
type killPoint struct {
	write string
	// cluster that the write is about; empty for any.
	cluster string
	// proxyOf is where the write goes: the hub's own API server, or a member. What an agent
	// that dials in writes is lost with the hub, too.
	proxyOf func(f *testFleet, cluster string) *faults.Proxy
	matches func(cluster, path string) bool
	// stored: killed when the write is stored and not answered, else before it gets
	// there.
	stored bool
}

func (d killPoint) String() string {
	when, about := "before ", ""
	if d.stored {
		when = "after "
	}
	if d.cluster != "" {
		about = " at the turn of " + d.cluster
	}
	return when + d.write + about
}

// killPoints are all kinds of writes that a rollout consists of, each before and
// after, and each about another cluster, so that they are spread over the waves.
func killPoints(image string) (all []killPoint) {
	onHub := func(f *testFleet, _ string) *faults.Proxy { return f.Proxy }
	carriedUp := func(f *testFleet, cluster string) *faults.Proxy { up, _ := f.mailboxProxies(cluster); return up }
	inMember := func(f *testFleet, cluster string) *faults.Proxy { _, down := f.mailboxProxies(cluster); return down }
	for i, d := range []killPoint{
		{write: "the plan", proxyOf: onHub, matches: func(cluster, path string) bool {
			return strings.Contains(path, "/namespaces/"+v1alpha1.MemberNamespacePrefix+cluster+"/clusterplans")
		}},
		{write: "the copy of the plan in the member", proxyOf: inMember, matches: func(_, path string) bool { return strings.Contains(path, "/clusterplans") }},
		{write: "the status of the FleetDiskImage", proxyOf: onHub, matches: func(_, path string) bool {
			return strings.HasSuffix(path, "/fleetdiskimages/"+image+"/status")
		}},
		{write: "the copy of a page of the report", proxyOf: carriedUp, matches: func(cluster, path string) bool {
			return strings.Contains(path, "/namespaces/"+v1alpha1.MemberNamespacePrefix+cluster+"/clusterreports/") && !strings.HasSuffix(path, "/"+v1alpha1.MailboxName)
		}},
		{write: "the copy of the root of the report", proxyOf: carriedUp, matches: func(cluster, path string) bool {
			return strings.HasSuffix(path, "/namespaces/"+v1alpha1.MemberNamespacePrefix+cluster+"/clusterreports/"+v1alpha1.MailboxName)
		}},
		{write: "the status", proxyOf: onHub, matches: func(cluster, path string) bool { return strings.HasSuffix(path, "/memberclusters/"+cluster+"/status") }},
	} {
		after := d
		after.stored = true
		d.cluster, after.cluster = onlineMembers[2*i%len(onlineMembers)], onlineMembers[(2*i+1)%len(onlineMembers)]
		all = append(all, d, after)
	}
	return all
}

// killHubAt has a hub killed at a write.
func (f *testFleet) killHubAt(h *program.Hub, d killPoint) {
	var dead atomic.Bool
	hook := func(w faults.Write) error {
		if !d.matches(d.cluster, w.Path) || dead.Swap(true) {
			return nil
		}
		h.Kill()
		<-h.Done()
		return faults.DropConnection()
	}
	if p := d.proxyOf(f, d.cluster); d.stored {
		p.SetAfterHook(hook)
	} else {
		p.SetBeforeHook(hook)
	}
}

func (f *testFleet) removeHooks() {
	for _, s := range f.Members {
		for _, p := range []*faults.Proxy{s.Proxy, s.AgentProxy} {
			if p != nil {
				p.SetBeforeHook(nil)
				p.SetAfterHook(nil)
			}
		}
	}
	f.Proxy.SetBeforeHook(nil)
	f.Proxy.SetAfterHook(nil)
}

// A hub that is killed at any write of a rollout goes on where it was: one member
// at a time, none asked twice, nothing downloaded twice, and nobody left out.
func TestRolloutSurvivesHubKilledAtEachWrite(t *testing.T) {
	img := shared.newFleetImage("killed", onlineMembers...)
	setOneAtATime(img, newWave(canary, labelRing, canary))
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	t.Cleanup(func() { shared.restartHub(t) })
	t.Cleanup(shared.removeHooks)
	left := killPoints(img.Name)
	shared.killHubAt(shared.Hub, left[0])
	var versions []string
	died := 0
	var list v1alpha1.MemberClusterList
	require.NoError(t, shared.List(t.Context(), &list))
	begun, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	require.NoError(t, err)
	for ; len(left) > 0 && len(versions) < len(killPoints(img.Name)); versions = append(versions, img.Spec.Version) {
		if len(versions) == 0 {
			shared.createFleetImage(t, img)
		} else {
			shared.updateFleetImage(t, img, func() { shared.setVersion(img, strconv.Itoa(len(versions)+1)) })
		}
		most := shared.watchConcurrency(t, img.ImageNameForVersion(img.Spec.Version), onlineMembers...)
		got := &v1alpha1.FleetDiskImage{}
		for done := false; !done; {
			require.True(t, testenv.Await(t, func() bool {
				done = shared.Get(t.Context(), client.ObjectKeyFromObject(img), got) == nil && got.Status.ObservedGeneration == got.Generation && hasSucceeded(got)
				return done || shared.hubHasEnded()
			}), "version %s: %s", img.Spec.Version, describeFleetImage(got))
			if shared.hubHasEnded() {
				t.Logf("killed %s, at version %s", left[0], img.Spec.Version)
				died++
				shared.removeHooks()
				left = left[1:]
				shared.restartHub(t)
				if len(left) > 0 {
					shared.killHubAt(shared.Hub, left[0])
				}
			}
		}
		assert.LessOrEqual(t, most(t), 1, "members that had version %s on its way at a time", img.Spec.Version)
	}
	assert.Empty(t, left, "writes that were never made in %d versions", len(versions))
	assert.Equal(t, len(killPoints(img.Name)), died)
	for _, why := range shared.journal.offlineSince(t, begun) {
		assert.Contains(t, why, " "+island+": ", "a hub that starts takes nobody for offline who is not")
	}
	for _, version := range versions {
		name := img.ImageNameForVersion(version)
		course := shared.journal.imageCourse(t, name)
		assert.Equal(t, onlineMembers, course.begun, name)
		assert.Equal(t, 1, course.most, name)
		assert.Empty(t, course.moved, "%s: since when it is planned", name)
		for _, cluster := range onlineMembers {
			shared.Members[cluster].awaitPhase(t, name, v1alpha1.PhaseSucceeded)
			assert.Equal(t, 1, shared.Members[cluster].countDownloads(t, name), "%s: %s", cluster, name)
		}
	}

	// Nor is it lost what is to go, when the hub is killed while it waits for that.
	shared.removeHooks()
	last := killPoints(img.Name)[2]
	last.cluster = edge
	shared.killHubAt(shared.Hub, last)
	require.NoError(t, shared.Delete(t.Context(), img))
	require.True(t, testenv.Await(t, shared.hubHasEnded), "the hub was to be killed before it told edge what is to go")
	shared.removeHooks()
	shared.restartHub(t)
	shared.awaitFleetImageGone(t, img)
	for _, cluster := range onlineMembers {
		for _, version := range versions {
			assert.True(t, testenv.Await(t, func() bool { // it is let go of once there is no way back for its images
				return shared.Members[cluster].getImage(t, img.ImageNameForVersion(version)) == nil
			}), "%s: version %s", cluster, version)
		}
	}
}

// A hub that comes back after it was away for longer than a member may be silent
// takes nobody for offline before it has had its time to hear of it: the waves hold.
func TestRolloutResumesAfterLongHubOutage(t *testing.T) {
	img := shared.newFleetImage("away", onlineMembers...)
	setOneAtATime(img, newWave(canary, labelRing, canary))
	name := img.ImageNameForVersion("1")
	release := shared.Members[bergen].holdImport(t, name)
	shared.createFleetImage(t, img)
	shared.Members[bergen].awaitPhase(t, name, v1alpha1.PhaseSyncing)
	shared.Hub.Kill()
	<-shared.Hub.Done()
	t.Cleanup(func() { shared.restartHub(t) })
	for _, cluster := range onlineMembers {
		m := testenv.GetMember(t, shared, cluster)
		last := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
		m.Status.LastReport = &last
		require.NoError(t, shared.Status().Update(t.Context(), m))
	}
	shared.restartHub(t)
	shared.awaitFreshPlans(t, "away-beside", frankfurt, lab)
	shared.awaitFleetImage(t, img, "on its way to bergen", hasCounts(v1alpha1.ClusterCounts{Total: 4, Progressing: 1, ToApply: 3}))
	assert.Equal(t, []string{bergen}, shared.journal.imageCourse(t, name).begun)
	release()
	shared.awaitFleetImage(t, img, "rolled out", hasSucceeded, hasCounts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	course := shared.journal.imageCourse(t, name)
	assert.Equal(t, onlineMembers, course.begun)
	assert.Equal(t, 1, course.most)
}

// hubHasEnded tells whether the hub has.
func (f *testFleet) hubHasEnded() bool {
	select {
	case <-f.Hub.Done():
		return true
	default:
		return false
	}
}

// restartHub starts a hub where none runs.
func (f *testFleet) restartHub(t *testing.T) {
	t.Helper()
	if f.hubHasEnded() {
		require.NoError(t, f.StartHub(context.Background()))
	}
}
