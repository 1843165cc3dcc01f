//go:build linux

// Package local_test runs harness/fleetjourneys on local control planes: real API servers and CDI,
// simulated nodes. It shows whole journeys of a fleet without a container engine.
package local_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/registration"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/fleetjourneys"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// The members: edge is in pull mode, and the hub reaches far over a link.
const (
	edge = "edge"
	far  = "far"
)

// Only the turn of the journeys pays for their clusters.
func TestJourneys(t *testing.T) {
	testenv.RunInTurn(t, 1)
	ctrl.SetLogger(logr.Discard())
	f := &processFleet{members: map[string]*member.Member{}, agents: map[string]*program.Agent{}}
	t.Cleanup(func() { require.NoError(t, f.stop()) })
	require.NoError(t, f.start(context.Background()))
	for _, journey := range fleetjourneys.Journeys {
		t.Run(journey.Name, func(t *testing.T) { journey.Run(t, f) })
	}
}

// processFleet is a fleetjourneys.Fleet of local processes.
type processFleet struct {
	hubPlane  *controlplane.ControlPlane
	hubClient client.Client
	hub       *program.Hub
	members   map[string]*member.Member
	agents    map[string]*program.Agent
	link      *faults.Link
	source    *httptest.Server
}

func (f *processFleet) start(ctx context.Context) (err error) {
	// The source has every image; the path selects how the download goes.
	f.source = httptest.NewServer(nil)
	var group errgroup.Group
	group.Go(func() error {
		if f.hubPlane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
			return err
		}
		if f.hubClient, err = client.New(f.hubPlane.Config(), client.Options{Scheme: testenv.NewScheme()}); err != nil {
			return err
		}
		policy := map[string]any{"concurrency": "2", "retryLimit": "1", "retryBackoffDuration": "1s", "preflight": "false"}
		return program.InstallHub(ctx, f.hubPlane, map[string]any{"policy": map[string]any{"data": policy}})
	})
	group.Go(func() error {
		started, err := member.StartAll(ctx, member.Options{Name: edge, Scheme: testenv.NewScheme()}, member.Options{Name: far, Scheme: testenv.NewScheme()})
		for _, m := range started {
			f.members[m.Name()] = m
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for _, m := range f.members {
		err := program.InstallAgent(ctx, m.ControlPlane, map[string]any{
			"policy": map[string]any{"create": false}, "hub": map[string]any{"serviceAccount": map[string]any{"create": true}},
		})
		if err := errors.Join(err, f.startAgent(ctx, m)); err != nil {
			return err
		}
	}
	if err := f.startHub(ctx); err != nil {
		return err
	}
	if err := program.RegisterPullMember(ctx, f.hubClient, f.members[edge].Client(), program.AgentNamespace, edge, nil, func(*registration.HubAccess) {}); err != nil {
		return err
	}
	if f.link, err = faults.StartLink(f.members[far].ControlPlane.Config()); err != nil {
		return err
	}
	cfg, err := f.members[far].ControlPlane.ServiceAccountConfig(ctx, program.AgentNamespace, "ot-hub")
	if err != nil {
		return err
	}
	f.link.Redirect(cfg)
	return program.CreateMemberSecret(ctx, f.hubClient, far, cfg)
}

func (f *processFleet) startAgent(ctx context.Context, m *member.Member) (err error) {
	f.agents[m.Name()], err = program.StartAgent(ctx, m.ControlPlane, program.Options{LeaseDuration: program.StableLease, Args: []string{"--report-heartbeat=2s"}})
	return err
}

func (f *processFleet) startHub(ctx context.Context) (err error) {
	if err := program.DeleteHubLease(ctx, f.hubClient); err != nil {
		return err
	}
	f.hub, err = program.StartHub(ctx, f.hubPlane, program.Options{LeaseDuration: program.LongLease, Args: []string{"--probe-interval=1s", "--member-timeout=5s"}})
	return err
}

func (f *processFleet) stop() error {
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
	if f.hubPlane != nil {
		errs = append(errs, f.hubPlane.Stop())
	}
	f.source.Close()
	return errors.Join(errs...)
}

// Hub implements fleetjourneys.Fleet.
func (f *processFleet) Hub() client.Client { return f.hubClient }

// Members implements fleetjourneys.Fleet.
func (f *processFleet) Members() (members []fleetjourneys.Member) {
	for _, name := range []string{edge, far} {
		m := f.members[name]
		members = append(members, fleetjourneys.Member{Name: name, Client: m.Client(), Config: m.ControlPlane.Config(), PullMode: name == edge})
	}
	return members
}

// ImageSpec implements fleetjourneys.Fleet.
func (f *processFleet) ImageSpec(way fleetjourneys.SourceBehaviour, name string) v1alpha1.VMDiskImageSpec {
	path := map[fleetjourneys.SourceBehaviour]string{fleetjourneys.SlowDownload: "/ok/5s/", fleetjourneys.FailingDownload: "/servererror/"}[way]
	return v1alpha1.VMDiskImageSpec{
		Name: name, SourceType: v1alpha1.SourceHTTP, URL: f.source.URL + path + name + ".qcow2",
		DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi",
	}
}

// RequireBytes implements fleetjourneys.Fleet: downloads are simulated.
func (f *processFleet) RequireBytes(*testing.T, fleetjourneys.Member, *v1alpha1.VMDiskImage) {}

// SourceRequests implements fleetjourneys.Fleet: nothing is requested from the source.
func (f *processFleet) SourceRequests(*testing.T, v1alpha1.VMDiskImageSpec) (fleetjourneys.RequestCounts, bool) {
	return fleetjourneys.RequestCounts{}, false
}

// KillAgent implements fleetjourneys.Fleet.
func (f *processFleet) KillAgent(t *testing.T, m fleetjourneys.Member) {
	f.agents[m.Name].Kill()
	require.NoError(t, f.startAgent(context.Background(), f.members[m.Name]))
}

// KillHub implements fleetjourneys.Fleet.
func (f *processFleet) KillHub(t *testing.T) {
	f.hub.Kill()
	require.NoError(t, f.startHub(context.Background()))
}

// CutNetwork implements fleetjourneys.Fleet, for far alone.
func (f *processFleet) CutNetwork(t *testing.T, m fleetjourneys.Member) func() {
	require.Equal(t, far, m.Name)
	f.link.Cut()
	mend := func() { require.NoError(t, f.link.Repair(context.Background())) }
	t.Cleanup(mend)
	return mend
}
