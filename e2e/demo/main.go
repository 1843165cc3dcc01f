//go:build linux

// Command demo shows an agent at work: real Kubernetes control plane, real CDI
// controller, the agent as its chart installs it. Nodes, storage and the bytes
// of the images are simulated.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/observer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	if err := run(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "\ndemo: interrupted; everything it started is stopped")
			os.Exit(130)
		}
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

const intro = `OT Fleet: one cluster, twelve disk images, three downloads at a time

  real        etcd, kube-apiserver, controller-manager, scheduler, CDI's controller,
              the snapshot controller, and ot-agent with the rights of its chart
  simulated   the node and its importer Pods (KWOK), the storage driver, the bytes

The policy ConfigMap allows 3 downloads at a time. One image does not exist at its
source, one breaks off the first time and is tried again. Midway the policy is
raised to 5. An observer with a watch of its own checks that the budget holds.
`

func run(ctx context.Context) (err error) {
	fmt.Print(intro + "\n")
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	var m *member.Member
	var o *observer.Observer
	defer func() {
		if o != nil {
			o.Stop()
		}
		if m != nil {
			err = errors.Join(err, m.Stop())
		}
	}()
	var s *story
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"cluster", func() (err error) {
			m, err = member.Start(ctx, member.Options{Name: "demo", Scheme: scheme})
			return err
		}},
		{"chart ot-agent", func() error {
			return agent.Install(ctx, m.ControlPlane, map[string]any{"policy": map[string]any{"data": map[string]any{
				"concurrency": "3", "retryLimit": "2", "retryBackoffDuration": "2s",
			}}})
		}},
		{"observer", func() (err error) {
			o, err = observer.Start(ctx, m.ControlPlane.Config())
			return err
		}},
		{"ot-agent", func() error {
			a, err := agent.Start(ctx, m.ControlPlane, agent.Options{Log: filepath.Join(m.ControlPlane.Dir(), "agent.log")})
			if err != nil {
				return err
			}
			_, err = a.Metrics(ctx)
			return err
		}},
	} {
		start := time.Now()
		fmt.Printf("  starting %-16s", step.what)
		if err := step.do(); err != nil {
			fmt.Println()
			return fmt.Errorf("starting %s: %w", step.what, err)
		}
		fmt.Printf("%5.1f s\n", time.Since(start).Seconds())
	}
	fmt.Println()
	s = newStory(m)
	defer s.close()
	if err := s.tell(ctx); err != nil {
		return err
	}
	h, err := o.History(ctx)
	if err != nil {
		return err
	}
	return s.summarize(h)
}
