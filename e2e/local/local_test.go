//go:build linux

// Package local_test takes a fleet on local control planes through the journeys of
// package backend: real API servers and CDI, nodes that are played.
package local_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/join"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/backend"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/link"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// The members: the agent of edge dials in, far is reached over a link.
const (
	edge = "edge"
	far  = "far"
)

var shared *fleet

func TestMain(m *testing.M) {
	scene.Shared(m, func(ctx context.Context) (func() error, error) {
		shared = &fleet{members: map[string]*member.Member{}, agents: map[string]*agent.Agent{}}
		return shared.stop, shared.start(ctx)
	})
}

func TestJourneys(t *testing.T) {
	for _, journey := range backend.Journeys {
		t.Run(journey.Name, func(t *testing.T) { journey.Run(t, shared) })
	}
}

// fleet is a backend.Fleet of processes of this machine.
type fleet struct {
	plane   *controlplane.ControlPlane
	client  client.Client
	hub     *hub.Hub
	members map[string]*member.Member
	agents  map[string]*agent.Agent
	link    *link.Link
	source  *httptest.Server
}

func (f *fleet) start(ctx context.Context) (err error) {
	// It has whatever it is asked for: how a download goes is in the path.
	f.source = httptest.NewServer(nil)
	var group errgroup.Group
	group.Go(func() error {
		if f.plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
			return err
		}
		if f.client, err = client.New(f.plane.Config(), client.Options{Scheme: scene.NewScheme()}); err != nil {
			return err
		}
		policy := map[string]any{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "1s", "preflight": "false"}
		return hub.Install(ctx, f.plane, map[string]any{"policy": map[string]any{"data": policy}})
	})
	group.Go(func() error {
		started, err := member.StartAll(ctx, member.Options{Name: edge, Scheme: scene.NewScheme()}, member.Options{Name: far, Scheme: scene.NewScheme()})
		for _, m := range started {
			f.members[m.Name()] = m
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, m := range f.members {
		err := agent.Install(ctx, m.ControlPlane, map[string]any{
			"policy": map[string]any{"create": false}, "hub": map[string]any{"serviceAccount": map[string]any{"create": true}},
		})
		if err := errors.Join(err, f.startAgent(ctx, m)); err != nil {
			return err
		}
	}
	if err := f.startHub(ctx); err != nil {
		return err
	}
	if err := hub.DialIn(ctx, f.client, f.members[edge].Client(), agent.Namespace, edge, nil, func(*join.Access) {}); err != nil {
		return err
	}
	if f.link, err = link.Start(f.members[far].ControlPlane.Config()); err != nil {
		return err
	}
	cfg, err := f.members[far].ControlPlane.ServiceAccountConfig(ctx, agent.Namespace, "ot-hub")
	if err != nil {
		return err
	}
	f.link.Through(cfg)
	return hub.Join(ctx, f.client, far, cfg)
}

func (f *fleet) startAgent(ctx context.Context, m *member.Member) (err error) {
	f.agents[m.Name()], err = agent.Start(ctx, m.ControlPlane, agent.Options{LeaseDuration: 15 * time.Second, Args: []string{"--report-heartbeat=2s"}})
	return err
}

func (f *fleet) startHub(ctx context.Context) (err error) {
	f.hub, err = hub.Start(ctx, f.plane, hub.Options{Args: []string{"--probe-interval=1s", "--member-timeout=5s"}})
	return err
}

func (f *fleet) stop() error {
	var errs []error
	if f.hub != nil {
		errs = append(errs, f.hub.Stop(time.Minute))
	}
	for name, m := range f.members {
		if a := f.agents[name]; a != nil {
			a.Kill()
		}
		errs = append(errs, m.Stop())
	}
	if f.link != nil {
		f.link.Close()
	}
	if f.plane != nil {
		errs = append(errs, f.plane.Stop())
	}
	f.source.Close()
	return errors.Join(errs...)
}

// Hub implements backend.Fleet.
func (f *fleet) Hub() client.Client { return f.client }

// Members implements backend.Fleet.
func (f *fleet) Members() (members []backend.Member) {
	for _, name := range []string{edge, far} {
		m := f.members[name]
		members = append(members, backend.Member{Name: name, Client: m.Client(), Config: m.ControlPlane.Config(), DialsIn: name == edge})
	}
	return members
}

// Image implements backend.Fleet.
func (f *fleet) Image(way backend.Way, name string) v1alpha1.VMDiskImageSpec {
	path := map[backend.Way]string{backend.Downloads: "/ok/5s/", backend.Fails: "/servererror/"}[way]
	return v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: f.source.URL + path + name + ".qcow2",
		DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
	}
}

// WantBytes implements backend.Fleet: no bytes move here.
func (f *fleet) WantBytes(*testing.T, backend.Member, *v1alpha1.VMDiskImage) {}

// Asked implements backend.Fleet: nobody asks the source.
func (f *fleet) Asked(*testing.T, v1alpha1.VMDiskImageSpec) (backend.Asked, bool) {
	return backend.Asked{}, false
}

// KillAgent implements backend.Fleet.
func (f *fleet) KillAgent(t *testing.T, m backend.Member) {
	f.agents[m.Name].Kill()
	require.NoError(t, f.startAgent(context.Background(), f.members[m.Name]))
}

// KillHub implements backend.Fleet.
func (f *fleet) KillHub(t *testing.T) {
	f.hub.Kill()
	require.NoError(t, f.startHub(context.Background()))
}

// Cut implements backend.Fleet, for far alone.
func (f *fleet) Cut(t *testing.T, m backend.Member) func() {
	require.Equal(t, far, m.Name)
	f.link.Cut()
	mend := func() { require.NoError(t, f.link.Mend(context.Background())) }
	t.Cleanup(mend)
	return mend
}
