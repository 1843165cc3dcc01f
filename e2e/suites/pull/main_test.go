//go:build linux

// Package pull_test shows what agents in pull mode may and may not do on the hub: a real
// hub with exactly the rights of its chart, and fake agents that hold real credentials.
// Only it tries stolen, replayed, expired and forged credentials.
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
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// testHub is a hub that all tests share.
type testHub struct {
	Plane *controlplane.ControlPlane
	// Client reaches the hub's API server with all rights.
	client.Client
	Proxy *faults.Proxy
	Hub   *program.Hub
}

var shared *testHub

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
	shared, err = startHub(ctx)
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	shared.stopAll()
	os.Exit(code)
}

func startHub(ctx context.Context) (s *testHub, err error) {
	s = &testHub{}
	// Namespaces of members are deleted with what is in them.
	if s.Plane, err = controlplane.Start(ctx, controlplane.Options{Name: "hub", ControllerManager: true}); err != nil {
		return s, err
	}
	if s.Client, err = client.New(s.Plane.Config(), client.Options{Scheme: scheme}); err != nil {
		return s, err
	}
	if err := program.InstallHub(ctx, s.Plane, nil); err != nil {
		return s, err
	}
	if err := os.WriteFile(s.caFile(), s.Plane.Config().CAData, 0o600); err != nil {
		return s, err
	}
	if s.Proxy, err = faults.StartProxy(s.Plane.Config()); err != nil {
		return s, err
	}
	return s, s.StartHub(ctx)
}

func (s *testHub) caFile() string { return filepath.Join(s.Plane.Dir(), "hub-api-ca.crt") }

// StartHub runs a hub behind the proxy; agents reach the API server itself.
func (s *testHub) StartHub(ctx context.Context) (err error) {
	s.Hub, err = program.StartHub(ctx, s.Plane, program.Options{
		ConfigureClient: s.Proxy.Redirect, Log: os.Getenv("OT_FLEET_HUB_LOG"),
		Args: []string{"--hub-api-url=" + s.Plane.Config().Host, "--hub-api-ca-file=" + s.caFile()},
	})
	return err
}

func (s *testHub) stopAll() {
	if s.Hub != nil {
		s.Hub.Kill()
		<-s.Hub.Done()
	}
	if s.Proxy != nil {
		_ = s.Proxy.Close()
	}
	if s.Plane != nil {
		_ = s.Plane.Stop()
	}
}
