package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildFromCheckout builds a package of the checkout top and copies the program to path. The last
// build stays in the cache, since the Go toolchain links nothing that has not changed; path gets a
// copy, since the next build must not change a running program. A version is stamped into it
// unless it is empty.
func BuildFromCheckout(ctx context.Context, top, pkg, version, path string) error {
	cache, err := cacheDirectory()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(top))
	directory := filepath.Join(cache, "checkout-"+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("making the cache directory for %s (set %s to a writable one): %w", pkg, CacheVariable, err)
	}
	name := filepath.Base(path)
	built, flags := filepath.Join(directory, name), "-s -w"
	if version != "" {
		built, flags = built+"-"+version, flags+" -X main.version="+version
	}
	unlock, err := lockBuild(ctx, built+".lock", Name(name))
	if err != nil {
		return err
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags="+flags, "-o", built, "./"+pkg)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	// Another process copies: a file that this process, or a child forked meanwhile, has open for
	// writing cannot be executed.
	if out, err := exec.CommandContext(ctx, "cp", built, path).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w\n%s", name, err, out)
	}
	return nil
}
