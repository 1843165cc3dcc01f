package binaries

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const progressInterval = 15 * time.Second

// ensureBuilt returns the cached program or builds it. The cache key covers everything that
// determines the result, so that an entry is never stale and never overwritten.
func ensureBuilt(ctx context.Context, r recipe, source, cache string) (string, error) {
	pinned, err := r.pinnedVersion(source)
	if err != nil {
		return "", err
	}
	version := cmp.Or(r.requestedVersion(), pinned)
	sources, err := readSources(source)
	if err != nil {
		return "", err
	}
	if version != pinned {
		if sources, err = r.sourcesOf(ctx, version, sources); err != nil {
			return "", err
		}
	}
	goVersion, err := goVersion()
	if err != nil {
		return "", err
	}
	ldflags := "-s -w"
	if r.versionFlags != nil {
		ldflags += " " + r.versionFlags(version)
	}
	directory := filepath.Join(cache, cacheKey(goVersion, ldflags, sources))
	path := filepath.Join(directory, string(r.name))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", fmt.Errorf("making the cache directory for %s (set %s to a writable one): %w", r.name, CacheVariable, err)
	}
	unlock, err := lockBuild(ctx, path+".lock", r.name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	reportProgress("building %s from %s@%s, needed for %s: not in %s yet, takes about %s\n",
		r.name, r.module, version, r.purpose, cache, r.coldBuildTime)
	start, flags := time.Now(), ""
	if version != pinned {
		var remove func()
		if source, remove, err = r.writeModule(ctx, version, source, sources); err != nil {
			return "", err
		}
		defer remove()
		flags = modFlag
	}
	if err := buildBinary(ctx, r, source, flags, ldflags, path); err != nil {
		return "", err
	}
	reportProgress("built %s in %s\n", r.name, time.Since(start).Round(time.Second))
	return path, nil
}

// buildBinary builds to a temporary name first: an interrupted build must not leave half a program
// under the final one.
func buildBinary(ctx context.Context, r recipe, source, goFlags, ldflags, path string) error {
	partial := path + ".partial"
	defer os.Remove(partial)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags="+ldflags, "-o", partial, r.pkg)
	cmd.Dir = source
	cmd.Env = goEnvironment(goFlags)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output

	start, ticker, done := time.Now(), time.NewTicker(progressInterval), make(chan error, 1)
	defer ticker.Stop()
	go func() { done <- cmd.Run() }()
	for {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("building %s with go build %s in %s: %w\n%s", r.name, r.pkg, source, err, output.Bytes())
			}
			if err := os.Rename(partial, path); err != nil {
				return fmt.Errorf("moving the built %s into the cache: %w", r.name, err)
			}
			return nil
		case <-ticker.C:
			reportProgress("building %s: %s so far\n", r.name, time.Since(start).Round(time.Second))
		}
	}
}

var goVersion = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("running go, which builds the local control planes: %w", err)
	}
	return strings.Join(strings.Fields(string(out)), " "), nil
})

// goEnvironment is the environment of the go commands on nested modules.
func goEnvironment(goFlags string) []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="+goFlags, "GO111MODULE=on")
}

// sourceFile is a file of a nested module.
type sourceFile struct {
	name    string
	content []byte
}

// readSources reads the files of a nested module, in the order of the directory.
func readSources(source string) ([]sourceFile, error) {
	var all []sourceFile
	err := filepath.WalkDir(source, func(path string, entry os.DirEntry, err error) error {
		name := entry.Name()
		if err != nil || name != "go.mod" && name != "go.sum" && !strings.HasSuffix(name, ".go") {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		all = append(all, sourceFile{relative, content})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the tool module %s: %w", source, err)
	}
	return all, nil
}

func cacheKey(goVersion, ldflags string, sources []sourceFile) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n", goVersion, ldflags)
	for _, file := range sources {
		fmt.Fprintf(hash, "%s\n", file.name)
		hash.Write(file.content)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

// lockBuild keeps other processes from building the same program. The kernel releases the lock of
// a killed process.
func lockBuild(ctx context.Context, path string, name Name) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking the build of %s: %w", name, err)
	}
	reported, ticker := false, time.NewTicker(200*time.Millisecond)
	defer ticker.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("locking the build of %s by %s: %w", name, path, err)
		}
		if !reported {
			reportProgress("waiting for another process that is building %s\n", name)
			reported = true
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("waiting for another process to build %s: %w", name, ctx.Err())
		case <-ticker.C:
		}
	}
}
