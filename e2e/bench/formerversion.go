//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
)

// formerVersion is a commit whose programs and charts are measured beside those of this checkout.
type formerVersion struct{ name, folder string }

// checkOutFormer checks out a tag, branch or commit into the cache. Its folder stays the same, so
// that a second run finds its programs built.
func checkOutFormer(ctx context.Context, revision string) (*formerVersion, error) {
	commit, err := git(ctx, "rev-parse", "--verify", "--end-of-options", revision+"^{commit}")
	if err != nil {
		return nil, err
	}
	cache := os.Getenv(binaries.CacheVariable)
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("finding the cache directory: %w", err)
		}
		cache = filepath.Join(user, "ot-fleet")
	}
	v := &formerVersion{revision, filepath.Join(cache, "baseline-"+commit[:12])}
	if _, err := os.Stat(filepath.Join(v.folder, "go.mod")); err == nil {
		return v, nil
	}
	if _, err := git(ctx, "worktree", "prune"); err != nil {
		return nil, err
	}
	_, err = git(ctx, "worktree", "add", "--force", "--detach", v.folder, commit)
	return v, err
}

func git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// measureBoth runs a benchmark with the former version and then with this one, and returns the
// figures of this one beside those. What cannot measure the former version says so: it may not
// have what is measured.
func (v *formerVersion) measureBoth(ctx context.Context, b benchmark) ([]figureRow, []string, error) {
	program.UseCheckout(v.folder)
	former, _, formerErr := b.run(ctx)
	program.UseCheckout("")
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	figures, notes, err := b.run(ctx)
	if formerErr != nil {
		notes = append(notes, fmt.Sprintf("%s was not measured with %s: %v", b.name, v.name, formerErr))
	}
	return besideFormer(figures, former), notes, err
}

// besideFormer puts the figures of the former version beside those of the same name.
func besideFormer(figures, former []figureRow) []figureRow {
	measured := map[string]string{}
	for _, f := range former {
		measured[f.name] = f.measured
	}
	for i := range figures {
		if figures[i].former = measured[figures[i].name]; figures[i].former == "" {
			figures[i].former = "-"
		}
	}
	return figures
}
