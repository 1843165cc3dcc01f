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

// BuildFromCheckout builds a program of this checkout, whose top folder is top, and puts
// it at path. What was built last is kept in the cache: the Go toolchain links
// nothing that has not changed since, and linking takes seconds of a core in
// each of the many processes that need the same program. path gets a copy, for
// the next build must not change under one that runs. version is stamped into it where
// it is given.
func BuildFromCheckout(ctx context.Context, top, pkg, version, path string) error {
	cache, err := cacheDirectory()
	if err != nil {
		return err
	}
	of := sha256.Sum256([]byte(top))
	directory := filepath.Join(cache, "checkout-"+hex.EncodeToString(of[:8]))
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
	// By another process: a file that this one has open for writing, and with it
	// any child that it forks meanwhile, cannot be run.
	if out, err := exec.CommandContext(ctx, "cp", built, path).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w\n%s", name, err, out)
	}
	return nil
}
