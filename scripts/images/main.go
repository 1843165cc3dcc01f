// Command images builds what a release consists of: the container images of agent and hub,
// without a container engine or a registry, and the kubectl plugin. Each image holds one static
// binary, which runs as a user other than root.
//
// It writes to -o, for agent and hub:
//
//	ot-agent-amd64.tar   for `docker load`, `podman load`, `kind load image-archive`, `ctr images import`
//	ot-agent-arm64.tar
//	ot-agent.tar         an OCI layout with all platforms, for `skopeo copy oci-archive:`, `crane push`
//
// and for the plugin, to be installed as kubectl-ot:
//
//	kubectl-ot-linux-amd64, kubectl-ot-darwin-arm64, kubectl-ot-windows-amd64.exe, …
//
// SHA256SUMS has the sums of all of them.
//
// Invariant: every file depends on nothing but the sources, the version of Go, -version,
// -revision and SOURCE_DATE_EPOCH.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

// program is a package to build: what an image runs, or a plugin.
type program struct{ name, pkg, description, module string }

var programs = []program{
	{name: "ot-agent", pkg: "./agent", description: "Syncs VM disk images into a cluster under a budget and builds machines from them"},
	{name: "ot-hub", pkg: "./hub", description: "Sees the clusters of a fleet and sets how many VM disk images each downloads at a time"},
}

type options struct {
	directory, registry, version, revision string
	// platforms are architectures of Linux, pluginPlatforms have the system too, as linux/amd64.
	platforms, pluginPlatforms []string
	created                    time.Time
}

func main() {
	var o options
	flag.StringVar(&o.directory, "o", "dist", "Directory to write to.")
	flag.StringVar(&o.registry, "registry", "ghcr.io/pelotech", "Registry and path that the images' names begin with.")
	flag.StringVar(&o.version, "version", "dev", "Version, stamped into the binaries, and tag.")
	flag.StringVar(&o.revision, "revision", "", "Commit, set as a label.")
	platforms := flag.String("platforms", "amd64,arm64", "Architectures to build for, on Linux.")
	pluginPlatforms := flag.String("plugin-platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64", "Platforms to build the plugin for; empty for none.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o.platforms, o.pluginPlatforms = splitList(*platforms), splitList(*pluginPlatforms)
	if err := buildAll(ctx, o, programs, plugin); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		stop()
		os.Exit(1)
	}
}

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// buildAll builds the images of programs, the binaries of a plugin, and the sums of both.
func buildAll(ctx context.Context, o options, programs []program, plugin program) error {
	var err error
	if o.created, err = readSourceDate(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.directory, 0o755); err != nil {
		return err
	}
	var written []string
	for _, p := range programs {
		files, err := buildImages(ctx, o, p)
		if err != nil {
			return err
		}
		written = append(written, files...)
	}
	files, err := buildPlugin(ctx, o, plugin)
	if err != nil {
		return err
	}
	return writeSums(o.directory, append(written, files...))
}

// buildImages builds the images of a program and returns the names of their archives.
func buildImages(ctx context.Context, o options, p program) (files []string, err error) {
	if len(o.platforms) == 0 {
		return nil, nil
	}
	var all []platformImage
	for _, architecture := range o.platforms {
		binary, version, err := compileBinary(ctx, o, p, "linux", architecture)
		if err != nil {
			return nil, err
		}
		image, err := newImage(o, p, architecture, binary)
		if err != nil {
			return nil, err
		}
		digest, err := image.Digest()
		if err != nil {
			return nil, err
		}
		one := platformImage{image, architecture}
		all = append(all, one)
		if err := writeArchive(o, p.name+"-"+architecture, p.name, []platformImage{one}); err != nil {
			return nil, err
		}
		files = append(files, p.name+"-"+architecture+".tar")
		fmt.Printf("%s/%s:%s linux/%s %s, by %s\n", o.registry, p.name, o.version, architecture, digest, version)
	}
	return append(files, p.name+".tar"), writeArchive(o, p.name, p.name, all)
}

// readSourceDate reads the only time that appears in images, SOURCE_DATE_EPOCH as of
// reproducible-builds.org.
func readSourceDate() (time.Time, error) {
	given := os.Getenv("SOURCE_DATE_EPOCH")
	if given == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(given, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
