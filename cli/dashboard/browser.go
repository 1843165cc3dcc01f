package dashboard

import (
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
)

// Browser opens addresses in the person's browser.
type Browser struct {
	// HideKey keeps addresses out of the arguments of processes, which all users of the machine
	// see: the browser gets a file that only the person can read.
	HideKey bool

	mu  sync.Mutex
	dir string // empty until it is needed
}

// OpenURL opens an address.
func (b *Browser) OpenURL(address string) error {
	if b.HideKey {
		file, err := b.writePage(address)
		if err != nil {
			return err
		}
		address = file
	}
	command := browserCommand(runtime.GOOS, address)
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("there is no %s", command[0])
	}
	if runtime.GOOS == "linux" && !hasScreen() {
		return errors.New("this session has no screen")
	}
	cmd := exec.Command(path, command[1:]...)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // a browser may run for long
	return nil
}

// writePage writes a page that leads to an address, and returns its file.
func (b *Browser) writePage(address string) (file string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "ot-fleet-dashboard-"); err != nil { // for its owner alone
			return "", err
		}
	}
	file = filepath.Join(b.dir, "open.html")
	return file, os.WriteFile(file, redirectPage(address), 0o600)
}

// Close removes the file of OpenURL.
func (b *Browser) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// hasScreen reports whether a browser of this session has where to be shown. WSL has Windows.
func hasScreen() bool {
	if os.Getenv("DISPLAY")+os.Getenv("WAYLAND_DISPLAY")+os.Getenv("BROWSER") != "" {
		return true
	}
	return isWSL()
}

func isWSL() bool {
	_, err := os.Stat("/proc/sys/fs/binfmt_misc/WSLInterop")
	return err == nil
}

func browserCommand(system, address string) []string {
	switch system {
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler", address}
	case "darwin":
		return []string{"open", address}
	default:
		return []string{"xdg-open", address}
	}
}

// redirectPage is a page that leads to an address.
func redirectPage(address string) []byte {
	escaped := html.EscapeString(address)
	return fmt.Appendf(nil, `<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>OT Fleet</title>`+
		`<meta http-equiv="refresh" content="0; url=%s"><a href="%s">Open the dashboard</a>`, escaped, escaped)
}
