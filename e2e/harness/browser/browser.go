// Package browser drives chromium for tests of the dashboard. A page fails its test on errors
// in its console, uncaught exceptions, violations of its Content-Security-Policy, failed requests
// and requests to other origins, unless the test has announced them.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/chromedp/chromedp"
)

// ExecutableVariable is the environment variable that names chromium's executable.
const ExecutableVariable = "OT_FLEET_CHROMIUM"

// ErrNotInstalled is the error where no chromium is found.
var ErrNotInstalled = errors.New("no chromium is installed: apt-get install chromium-headless-shell, or set " + ExecutableVariable)

// FindExecutable returns the path of chromium. The headless shell comes first: it has no windows,
// which take the whole browser more CPU time than the pages in them.
func FindExecutable() (string, error) {
	names := []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}
	if named := os.Getenv(ExecutableVariable); named != "" {
		names = []string{named}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNotInstalled
}

// Browser is a running chromium. Pages are isolated from each other: each has its own cookies.
type Browser struct {
	ctx  context.Context
	stop func()
}

// Start starts chromium.
func Start() (*Browser, error) {
	executable, err := FindExecutable()
	if err != nil {
		return nil, err
	}
	profile, err := os.MkdirTemp("", "ot-fleet-chromium-")
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(executable), chromedp.UserDataDir(profile), chromedp.NoSandbox, chromedp.DisableGPU,
		// Hubs of tests have certificates of their own making.
		chromedp.IgnoreCertErrors,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("force-device-scale-factor", "1"), chromedp.Flag("font-render-hinting", "none"), chromedp.Flag("lang", "en-US"),
		// A machine with many tests at once is slow to start it.
		chromedp.WSURLReadTimeout(3*time.Minute),
	)
	allocated, release := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocated)
	b := &Browser{ctx: ctx, stop: func() {
		cancel()
		release()
		_ = os.RemoveAll(profile) // a temporary directory
	}}
	if err := chromedp.Do(ctx); err != nil {
		b.stop()
		return nil, fmt.Errorf("starting %s: %w", executable, err)
	}
	return b, nil
}

// Stop ends chromium.
func (b *Browser) Stop() { b.stop() }
