//go:build linux

// Package pull_test tries what agents that dial in may and may not on the hub: a
// real hub, with the rights of its chart and no others, and agents that the tests
// play.
package pull_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/controlplane"
	"github.com/pelotech/ot-fleet/e2e/hub"
	"github.com/pelotech/ot-fleet/e2e/proxy"
)

// stage is a hub that all tests share.
type stage struct {
	plane *controlplane.ControlPlane
	// Client reaches the hub's API server with all rights.
	client.Client
	proxy *proxy.Proxy
	hub   *hub.Hub
}

var shared *stage

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

func TestMain(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	var err error
	shared, err = start(ctx)
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	shared.stop()
	os.Exit(code)
}

func start(ctx context.Context) (s *stage, err error) {
	s = &stage{}
	// Namespaces of members are deleted with what is in them.
	if s.plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
		return s, err
	}
	if s.Client, err = client.New(s.plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return s, err
	}
	if err := hub.Install(ctx, s.plane, nil); err != nil {
		return s, err
	}
	if err := os.WriteFile(s.ca(), s.plane.Config().CAData, 0o600); err != nil {
		return s, err
	}
	if s.proxy, err = proxy.Start(s.plane.Config()); err != nil {
		return s, err
	}
	return s, s.startHub(ctx)
}

func (s *stage) ca() string { return filepath.Join(s.plane.Dir(), "hub-api-ca.crt") }

// startHub runs a hub behind the proxy; agents reach the API server itself.
func (s *stage) startHub(ctx context.Context) (err error) {
	s.hub, err = hub.Start(ctx, s.plane, hub.Options{
		Through: s.proxy.Through, Log: os.Getenv("OT_FLEET_HUB_LOG"),
		Args: []string{"--hub-api-url=" + s.plane.Config().Host, "--hub-api-ca-file=" + s.ca()},
	})
	return err
}

func (s *stage) stop() {
	if s.hub != nil {
		s.hub.Kill()
		<-s.hub.Done()
	}
	if s.proxy != nil {
		_ = s.proxy.Close()
	}
	if s.plane != nil {
		_ = s.plane.Stop()
	}
}
