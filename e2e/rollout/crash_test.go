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
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// death is a write of a rollout at which the hub is killed.
type death struct {
	what string
	// cluster that the write is about; empty for any.
	cluster string
	// in is where the write goes: the hub's own API server, or a member. What an agent
	// that dials in writes is lost with the hub, too.
	in func(f *fleet, cluster string) *proxy.Proxy
	at func(cluster, path string) bool
	// stored: killed when the write is stored and not answered, else before it gets
	// there.
	stored bool
}

func (d death) String() string {
	when, about := "before ", ""
	if d.stored {
		when = "after "
	}
	if d.cluster != "" {
		about = " at the turn of " + d.cluster
	}
	return when + d.what + about
}

// deaths are all kinds of writes that a rollout consists of, each before and
// after, and each about another cluster, so that they are spread over the waves.
func deaths(image string) (all []death) {
	onHub := func(f *fleet, _ string) *proxy.Proxy { return f.proxy }
	carriedUp := func(f *fleet, cluster string) *proxy.Proxy { up, _ := f.carried(cluster); return up }
	inMember := func(f *fleet, cluster string) *proxy.Proxy { _, down := f.carried(cluster); return down }
	for i, d := range []death{
		{what: "the plan", in: onHub, at: func(cluster, path string) bool {
			return strings.Contains(path, "/namespaces/"+v1alpha1.MemberNamespacePrefix+cluster+"/clusterplans")
		}},
		{what: "the copy of the plan in the member", in: inMember, at: func(_, path string) bool { return strings.Contains(path, "/clusterplans") }},
		{what: "the status of the FleetDiskImage", in: onHub, at: func(_, path string) bool {
			return strings.HasSuffix(path, "/fleetdiskimages/"+image+"/status")
		}},
		{what: "the copy of a page of the report", in: carriedUp, at: func(cluster, path string) bool {
			return strings.Contains(path, "/namespaces/"+v1alpha1.MemberNamespacePrefix+cluster+"/clusterreports/") && !strings.HasSuffix(path, "/"+v1alpha1.MailboxName)
		}},
		{what: "the copy of the root of the report", in: carriedUp, at: func(cluster, path string) bool {
			return strings.HasSuffix(path, "/namespaces/"+v1alpha1.MemberNamespacePrefix+cluster+"/clusterreports/"+v1alpha1.MailboxName)
		}},
		{what: "the status", in: onHub, at: func(cluster, path string) bool { return strings.HasSuffix(path, "/memberclusters/"+cluster+"/status") }},
	} {
		after := d
		after.stored = true
		d.cluster, after.cluster = online[2*i%len(online)], online[(2*i+1)%len(online)]
		all = append(all, d, after)
	}
	return all
}

// arm has a hub killed at a write.
func (f *fleet) arm(h *hub.Hub, d death) {
	var dead atomic.Bool
	hook := func(w proxy.Write) error {
		if !d.at(d.cluster, w.Path) || dead.Swap(true) {
			return nil
		}
		h.Kill()
		<-h.Done()
		return proxy.Lose()
	}
	if p := d.in(f, d.cluster); d.stored {
		p.After(hook)
	} else {
		p.Before(hook)
	}
}

func (f *fleet) disarm() {
	for _, s := range f.sites {
		for _, p := range []*proxy.Proxy{s.proxy, s.mouth} {
			if p != nil {
				p.Before(nil)
				p.After(nil)
			}
		}
	}
	f.proxy.Before(nil)
	f.proxy.After(nil)
}

// A hub that is killed at any write of a rollout goes on where it was: one member
// at a time, none asked twice, nothing downloaded twice, and nobody left out.
func TestHubIsKilledAtItsWrites(t *testing.T) {
	img := shared.fleetImage("killed", online...)
	oneAtATime(img, wave(canary, labelRing, canary))
	img.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	t.Cleanup(func() { shared.revive(t) })
	t.Cleanup(shared.disarm)
	left := deaths(img.Name)
	shared.arm(shared.hub, left[0])
	var versions []string
	died := 0
	var list v1alpha1.MemberClusterList
	require.NoError(t, shared.List(t.Context(), &list))
	begun, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	require.NoError(t, err)
	for ; len(left) > 0 && len(versions) < len(deaths(img.Name)); versions = append(versions, img.Spec.Version) {
		if len(versions) == 0 {
			shared.apply(t, img)
		} else {
			shared.change(t, img, func() { shared.toVersion(img, strconv.Itoa(len(versions)+1)) })
		}
		most := shared.spectate(t, img.VMDiskImage(img.Spec.Version), online...)
		got := &v1alpha1.FleetDiskImage{}
		for done := false; !done; {
			require.True(t, scene.Await(t, func() bool {
				done = shared.Get(t.Context(), client.ObjectKeyFromObject(img), got) == nil && got.Status.ObservedGeneration == got.Generation && succeeded(got)
				return done || shared.ended()
			}), "version %s: %s", img.Spec.Version, describe(got))
			if shared.ended() {
				t.Logf("killed %s, at version %s", left[0], img.Spec.Version)
				died++
				shared.disarm()
				left = left[1:]
				shared.revive(t)
				if len(left) > 0 {
					shared.arm(shared.hub, left[0])
				}
			}
		}
		assert.LessOrEqual(t, most(t), 1, "members that had version %s on its way at a time", img.Spec.Version)
	}
	assert.Empty(t, left, "writes that were never made in %d versions", len(versions))
	assert.Equal(t, len(deaths(img.Name)), died)
	for _, why := range shared.journal.offlineSince(t, begun) {
		assert.Contains(t, why, " "+island+": ", "a hub that starts takes nobody for offline who is not")
	}
	for _, version := range versions {
		name := img.VMDiskImage(version)
		course := shared.journal.course(t, name)
		assert.Equal(t, online, course.begun, name)
		assert.Equal(t, 1, course.most, name)
		assert.Empty(t, course.moved, "%s: since when it is planned", name)
		for _, cluster := range online {
			shared.sites[cluster].has(t, name, v1alpha1.PhaseSucceeded)
			assert.Equal(t, 1, shared.sites[cluster].downloads(t, name), "%s: %s", cluster, name)
		}
	}

	// Nor is it lost what is to go, when the hub is killed while it waits for that.
	shared.disarm()
	last := deaths(img.Name)[2]
	last.cluster = edge
	shared.arm(shared.hub, last)
	require.NoError(t, shared.Delete(t.Context(), img))
	require.True(t, scene.Await(t, shared.ended), "the hub was to be killed before it told edge what is to go")
	shared.disarm()
	shared.revive(t)
	shared.gone(t, img)
	for _, cluster := range online {
		for _, version := range versions {
			assert.True(t, scene.Await(t, func() bool { // it is let go of once there is no way back for its images
				return shared.sites[cluster].image(t, img.VMDiskImage(version)) == nil
			}), "%s: version %s", cluster, version)
		}
	}
}

// A hub that comes back after it was away for longer than a member may be silent
// takes nobody for offline before it has had its time to hear of it: the waves hold.
func TestHubWasAwayForLong(t *testing.T) {
	img := shared.fleetImage("away", online...)
	oneAtATime(img, wave(canary, labelRing, canary))
	name := img.VMDiskImage("1")
	release := shared.sites[bergen].hold(t, name)
	shared.apply(t, img)
	shared.sites[bergen].has(t, name, v1alpha1.PhaseSyncing)
	shared.hub.Kill()
	<-shared.hub.Done()
	t.Cleanup(func() { shared.revive(t) })
	for _, cluster := range online {
		m := scene.Member(t, shared, cluster)
		last := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
		m.Status.LastReport = &last
		require.NoError(t, shared.Status().Update(t.Context(), m))
	}
	shared.revive(t)
	shared.pulse(t, "away-beside", frankfurt, lab)
	shared.eventually(t, img, "on its way to bergen", counts(v1alpha1.ClusterCounts{Total: 4, Progressing: 1, ToApply: 3}))
	assert.Equal(t, []string{bergen}, shared.journal.course(t, name).begun)
	release()
	shared.eventually(t, img, "rolled out", succeeded, counts(v1alpha1.ClusterCounts{Total: 4, Succeeded: 4}))
	course := shared.journal.course(t, name)
	assert.Equal(t, online, course.begun)
	assert.Equal(t, 1, course.most)
}

// ended tells whether the hub has.
func (f *fleet) ended() bool {
	select {
	case <-f.hub.Done():
		return true
	default:
		return false
	}
}

// revive starts a hub where none runs.
func (f *fleet) revive(t *testing.T) {
	t.Helper()
	if f.ended() {
		require.NoError(t, f.startHub(context.Background()))
	}
}
