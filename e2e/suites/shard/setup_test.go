//go:build linux

// Package shard_test shows that three replicas of a hub divide its members, and that none is
// lost, synced by nobody or written back to an older state when replicas are killed, paused past
// their Lease, or cut off from the hub's API server or from members. hub/shard decides who gets
// which member without API servers.
package shard_test

import (
	"context"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/fakemember"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

const (
	fakeCount = 7
	// leaseDuration is as short as a busy machine can renew it.
	leaseDuration = 15 * time.Second
)

var replicaNames = []string{"one", "two", "three"}

// shared is the fleet of all tests. A test leaves it with all replicas alive.
var shared *testFleet

type testFleet struct {
	*fleet.Fleet
	replicas map[string]*replica
	judge    *versionJudge
}

// replica of the hub, with its own ways to the hub's API server and to the members.
type replica struct {
	*program.Hub
	name        string
	hubLink     *faults.Link
	memberLinks *memberProxy
}

func TestMain(m *testing.M) {
	fleet.RunTests(m, fleet.Options{
		Policy: map[string]string{"concurrency": "2"}, MemberTimeout: 5 * time.Second, WithoutHub: true, Fakes: fakeCount,
	}, func(ctx context.Context, f *fleet.Fleet) error {
		shared = &testFleet{Fleet: f, replicas: map[string]*replica{}}
		api, err := url.Parse(f.Plane.Config().Host)
		if err != nil {
			return err
		}
		for _, name := range replicaNames {
			if err := shared.addReplica(ctx, name, api.Host); err != nil {
				return err
			}
		}
		for _, m := range f.Fakes.List {
			if err := shared.registerFake(ctx, m); err != nil {
				return err
			}
		}
		shared.judge, err = startJudge(shared)
		return err
	})
}

// addReplica starts a replica with links of its own.
func (f *testFleet) addReplica(ctx context.Context, name, apiServer string) (err error) {
	r := &replica{name: name}
	if r.hubLink, err = faults.StartLink(f.Plane.Config()); err != nil {
		return err
	}
	f.OnStop(r.hubLink.Close)
	if r.memberLinks, err = newMemberProxy(apiServer); err != nil {
		return err
	}
	f.OnStop(func() { _ = r.memberLinks.listener.Close() })
	if err := f.startReplica(ctx, r); err != nil {
		return err
	}
	f.replicas[name] = r
	f.OnStop(func() { r.Kill() })
	return nil
}

func (f *testFleet) startReplica(ctx context.Context, r *replica, args ...string) (err error) {
	r.Hub, err = f.RunHub(ctx, program.Options{
		ConfigureClient: r.hubLink.Redirect, LeaseDuration: leaseDuration, Log: filepath.Join(f.Plane.Dir(), r.name+".log"),
		Args: append([]string{"--replica-name=" + r.name}, args...), Env: r.memberLinks.proxyEnv(),
	})
	return err
}

// registerFake registers a fake member, which replicas reach by a name that only their proxies
// know.
func (f *testFleet) registerFake(ctx context.Context, m *fakemember.Member) error {
	cfg, err := m.Config(ctx)
	if err != nil {
		return err
	}
	api, err := url.Parse(cfg.Host)
	if err != nil {
		return err
	}
	cfg.ServerName, cfg.Host = api.Hostname(), "https://"+m.Name+".test:443"
	return f.CreateMember(ctx, m.Name, m.Name, nil, cfg)
}
