//go:build linux

package rollout_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/proxy"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// death is a write of a rollout at which the hub is killed.
type death struct {
	what string
	// in is where the write goes: the hub's own API server, or a member.
	in func(*fleet) []*proxy.Proxy
	at func(proxy.Write) bool
	// stored: killed when the write is stored and not answered, else before it gets
	// there.
	stored bool
}

func (d death) String() string {
	if d.stored {
		return "after " + d.what
	}
	return "before " + d.what
}

// deaths are all kinds of writes that a rollout consists of, each before and
// after.
func deaths(image string) (all []death) {
	onHub := func(f *fleet) []*proxy.Proxy { return []*proxy.Proxy{f.proxy} }
	inMembers := func(f *fleet) (in []*proxy.Proxy) {
		for _, name := range online {
			in = append(in, f.sites[name].proxy)
		}
		return in
	}
	path := func(words ...string) func(proxy.Write) bool {
		return func(w proxy.Write) bool {
			for _, word := range words {
				if !strings.Contains(w.Path, word) {
					return false
				}
			}
			return true
		}
	}
	for _, d := range []death{
		{what: "the plan of a member", in: onHub, at: path("/clusterplans/", v1alpha1.MemberNamespacePrefix)},
		{what: "the copy of the plan in the member", in: inMembers, at: path("/clusterplans/")},
		{what: "the status of the FleetDiskImage", in: onHub, at: path("/fleetdiskimages/" + image + "/status")},
		{what: "the copy of a report's page", in: onHub, at: func(w proxy.Write) bool {
			return path("/clusterreports", v1alpha1.MemberNamespacePrefix)(w) && !path("/clusterreports/"+v1alpha1.MailboxName)(w)
		}},
		{what: "the copy of a report's root", in: onHub, at: path("/clusterreports/"+v1alpha1.MailboxName, v1alpha1.MemberNamespacePrefix)},
		{what: "the status of a member", in: onHub, at: path("/memberclusters/", "/status")},
	} {
		after := d
		after.stored = true
		all = append(all, d, after)
	}
	return all
}

// arm has a hub killed at a write.
func (f *fleet) arm(h *hub.Hub, d death) {
	var dead atomic.Bool
	hook := func(w proxy.Write) error {
		if !d.at(w) || dead.Swap(true) {
			return nil
		}
		h.Kill()
		<-h.Done()
		return proxy.Lose()
	}
	for _, p := range d.in(f) {
		if d.stored {
			p.After(hook)
		} else {
			p.Before(hook)
		}
	}
}

func (f *fleet) disarm() {
	for _, s := range f.sites {
		s.proxy.Before(nil)
		s.proxy.After(nil)
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
	for ; len(left) > 0 && len(versions) < len(deaths(img.Name)); versions = append(versions, img.Spec.Version) {
		if len(versions) == 0 {
			shared.apply(t, img)
		} else {
			shared.change(t, img, func() { shared.toVersion(img, strconv.Itoa(len(versions)+1)) })
		}
		most := shared.spectate(t, img.VMDiskImage(img.Spec.Version), online...)
		got := &v1alpha1.FleetDiskImage{}
		require.True(t, scene.Await(t, func() bool {
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
			return shared.Get(t.Context(), client.ObjectKeyFromObject(img), got) == nil && got.Status.ObservedGeneration == got.Generation && succeeded(got)
		}), "version %s: %s", img.Spec.Version, describe(got))
		assert.LessOrEqual(t, most(t), 1, "members that had version %s on its way at a time", img.Spec.Version)
	}
	assert.Empty(t, left, "writes that were never made in %d versions", len(versions))
	assert.Equal(t, len(deaths(img.Name)), died)
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
	shared.arm(shared.hub, death{in: func(f *fleet) []*proxy.Proxy { return []*proxy.Proxy{f.sites[edge].proxy} }, at: func(w proxy.Write) bool {
		return strings.Contains(w.Path, "/clusterplans/")
	}})
	require.NoError(t, shared.Delete(t.Context(), img))
	require.True(t, scene.Await(t, shared.ended), "the hub was to be killed before it told edge what is to go")
	shared.disarm()
	shared.revive(t)
	shared.gone(t, img)
	for _, cluster := range online {
		for _, version := range versions {
			assert.Nil(t, shared.sites[cluster].image(t, img.VMDiskImage(version)), "%s: version %s", cluster, version)
		}
	}
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
