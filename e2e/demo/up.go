//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// up starts the fleet in the background, unless it runs, and prints what to try.
func (b backgroundFleet) up(ctx context.Context) error {
	for {
		state, started, err := b.startUnlessRunning(ctx)
		if err != nil {
			return err
		}
		image, err := b.findWaitingImage(ctx)
		if err == nil {
			if !started {
				fmt.Printf("The fleet is running already, since %s, from %s.\n", state.Since.Local().Format(time.DateTime), state.Checkout)
			}
			b.printHowToTry(ctx, state, image)
			return nil
		}
		// Race: a fleet that was just killed has its lock for a moment longer.
		if ended, awaitErr := b.awaitEnd(ctx); awaitErr != nil || !ended {
			return errors.Join(err, awaitErr)
		}
	}
}

// startUnlessRunning returns when a fleet is ready: this one, or one that ran.
func (b backgroundFleet) startUnlessRunning(ctx context.Context) (state *fleetState, started bool, err error) {
	lock, err := b.lock()
	if err != nil {
		return nil, false, err
	}
	if lock != nil {
		leftovers, err := b.clean(ctx)
		if err != nil {
			return nil, false, errors.Join(fmt.Errorf("cleaning up what was left in %s: %w", b, err), lock.Close())
		}
		if leftovers {
			fmt.Println("Cleaned up a fleet that had ended without make down.")
		}
		fmt.Printf("Starting a hub and three clusters in the background; the first time builds them, which takes some minutes.\nLog: %s\n\n", b.logFile())
		if err := b.launch(lock); err != nil {
			return nil, false, err
		}
	}
	state, err = b.followStart(ctx, lock != nil)
	return state, lock != nil, err
}

// awaitEnd waits for a moment until a fleet that ends has ended.
func (b backgroundFleet) awaitEnd(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	for {
		lock, err := b.lock()
		if lock != nil {
			return true, lock.Close()
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-ticker.C:
		}
	}
}

// launch starts the process that runs the fleet, in a session of its own, and hands it the lock.
func (b backgroundFleet) launch(lock *os.File) error {
	defer func() { _ = lock.Close() }()
	if err := os.MkdirAll(b.temporary(), 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(b.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("/proc/self/exe", serveVerb, string(b)) //nolint:gosec // this program
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{lock}
	cmd.Env = append(os.Environ(), markVariable+"="+string(b))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the fleet in the background: %w", err)
	}
	go func() { _ = cmd.Wait() }() // lets it end if it does before this program
	return nil
}

// followStart shows the log until the fleet is ready. The interrupt of the command that started the
// fleet ends it.
func (b backgroundFleet) followStart(ctx context.Context, started bool) (*fleetState, error) {
	log, err := os.Open(b.logFile())
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	show := func() {
		if started && log != nil {
			_, _ = io.Copy(os.Stdout, log)
		}
	}
	ticker := time.NewTicker(followInterval)
	defer ticker.Stop()
	for {
		state, err := b.readState()
		if err != nil {
			return nil, err
		}
		show()
		if state != nil {
			return state, nil
		}
		lock, err := b.lock()
		if err != nil {
			return nil, err
		}
		if lock != nil {
			show()
			return nil, errors.Join(fmt.Errorf("the fleet ended before it was ready; its log is %s", b.logFile()), lock.Close())
		}
		select {
		case <-ctx.Done():
			if started {
				//nolint:contextcheck // the context of this command has ended
				return nil, errors.Join(ctx.Err(), b.down(context.WithoutCancel(ctx)))
			}
			return nil, ctx.Err()
		case <-ticker.C:
		}
	}
}

// down ends the fleet and removes its files.
func (b backgroundFleet) down(ctx context.Context) error {
	if _, err := os.Stat(string(b)); os.IsNotExist(err) && len(b.listProcesses()) == 0 {
		fmt.Println("No fleet is running.")
		return nil
	}
	lock, err := b.stop(ctx)
	if err != nil {
		return fmt.Errorf("ending the fleet of %s: %w", b, err)
	}
	if _, err := b.clean(ctx); err != nil {
		return errors.Join(fmt.Errorf("removing what the fleet left in %s: %w", b, err), lock.Close())
	}
	if err := b.remove(lock); err != nil {
		return err
	}
	fmt.Println("The fleet has ended, and its files are removed. What was built stays in the cache.")
	return nil
}
