//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

const (
	// fleetLifetime ends a fleet that nobody has ended; its credentials hold for longer.
	fleetLifetime = 24 * time.Hour
	// tendInterval is how often the fleet is looked after.
	tendInterval = 2 * time.Second
	// lockDescriptor is the first of the files that launch hands over.
	lockDescriptor = 3
)

// runFleet runs the fleet until it is told to end, its directory is removed, or its time is over.
func (b backgroundFleet) runFleet(ctx context.Context) (err error) {
	// The fleet's other processes must not hold the lock.
	syscall.CloseOnExec(lockDescriptor)
	lock := os.NewFile(lockDescriptor, b.lockFile())
	if !b.isLockFile(lock) {
		return fmt.Errorf("%s is a part of up: the lock of %s was not handed over", serveVerb, b)
	}
	// The reaper removes what is in it, however this process ends.
	if err := os.Setenv(process.TempVariable, b.temporary()); err != nil {
		return err
	}
	// What is registered first runs last, after the control planes have stopped.
	process.AtInterrupt(func() { _ = b.removeFiles(lock) })
	f := &demoFleet{logs: b.logs(), background: true}
	defer func() {
		b.endDashboard()
		if err = errors.Join(err, f.stopAll()); err == nil || ctx.Err() != nil {
			err = errors.Join(err, b.removeFiles(lock))
		}
	}()
	binaries.ReportTo(os.Stdout)
	steps := []startStep{
		{"building programs", f.buildPrograms},
		{"starting control planes", f.startClusters},
		{"installing charts", f.installAgents},
		{"starting agents", f.startAgents},
		{"starting hub", f.startHub},
	}
	t := newTraffic(f)
	defer t.close()
	steps = append(steps, startStep{"connecting clusters", t.awaitPolicy}, startStep{"creating images", t.populate}, startStep{"starting imports", t.awaitFirst})
	if err := f.start(ctx, steps); err != nil {
		return err
	}
	if err := b.announce(f); err != nil {
		return err
	}
	return b.tend(ctx, f, t, lock)
}

// removeFiles removes the files of a fleet that has ended; the logs, too. What it does not know is
// removed as well: the next fleet would take it for somebody else's without the lock.
func (b backgroundFleet) removeFiles(lock *os.File) error {
	if !b.isLockFile(lock) {
		return nil // the directory was removed, and may be another fleet's
	}
	return errors.Join(b.removeAllButLock(), b.remove(lock))
}

// announce writes the kubeconfig, and then that the fleet is ready.
func (b backgroundFleet) announce(f *demoFleet) error {
	if _, err := plugin.New(string(b), f.contexts()...); err != nil {
		return err
	}
	checkout, err := os.Getwd()
	if err != nil {
		return err
	}
	now := time.Now()
	return b.writeState(fleetState{Pid: os.Getpid(), Checkout: checkout, Since: now, Until: now.Add(fleetLifetime)})
}

// tend keeps agents, hub and traffic going.
func (b backgroundFleet) tend(ctx context.Context, f *demoFleet, t *traffic, lock *os.File) error {
	over := time.After(fleetLifetime)
	ticker := time.NewTicker(tendInterval)
	defer ticker.Stop()
	for {
		if !b.isLockFile(lock) {
			fmt.Println("the directory of the fleet was removed: the fleet ends")
			return nil
		}
		if err := f.restartEnded(ctx); err != nil {
			fmt.Println(err)
		}
		if err := f.noteKubeVirt(); err != nil {
			fmt.Println(err)
		}
		if err := t.move(ctx); err != nil {
			fmt.Println(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			fmt.Printf("the fleet has run for %s: it ends\n", fleetLifetime)
			return nil
		case <-ticker.C:
		}
	}
}

// noteKubeVirt notes the end of KubeVirt's installation in bergen, and returns why it failed.
func (f *demoFleet) noteKubeVirt() error {
	if f.kubevirtInstalled {
		return nil
	}
	select {
	case err := <-f.kubevirt:
		f.kubevirtInstalled = true
		if err != nil {
			return fmt.Errorf("installing KubeVirt in %s: %w", bergen, err)
		}
		fmt.Printf("KubeVirt is installed in %s\n", bergen)
	default:
	}
	return nil
}

// restartEnded starts agents and replicas of the hub again, as a kubelet does: they end when they
// lose their Lease: after this machine has slept, or while it is too busy to renew one.
func (f *demoFleet) restartEnded(ctx context.Context) error {
	for i := range f.programs {
		p := &f.programs[i]
		if !p.process.HasEnded() {
			continue
		}
		fmt.Printf("%s has ended (%v): it is started again\n", p.name, p.process.Wait())
		started, err := p.start(ctx)
		if err != nil {
			return fmt.Errorf("starting %s again: %w", p.name, err)
		}
		p.process = started
	}
	return nil
}

// hubContext is the context of the hub; those of members have their names.
const hubContext = "hub"

// contexts are those of the fleet's kubeconfig.
func (f *demoFleet) contexts() []plugin.Context {
	contexts := []plugin.Context{{Name: hubContext, Config: f.plane.Config()}}
	for _, name := range memberNames {
		contexts = append(contexts, plugin.Context{Name: name, Config: f.members[name].ControlPlane.Config(), Hub: hubContext})
	}
	return contexts
}
