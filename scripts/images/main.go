// Command images builds the container images of agent and hub without a container engine
// or a registry. Each holds one static binary, which runs as a user other than root.
//
// It writes to -o, for both:
//
//	ot-agent-amd64.tar   for `docker load`, `podman load`, `kind load image-archive`, `ctr images import`
//	ot-agent-arm64.tar
//	ot-agent.tar         an OCI layout with all platforms, for `skopeo copy oci-archive:`, `crane push`
//
// Invariant: the digests depend on nothing but the sources, the version of Go, -version,
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

// program is what an image runs.
type program struct{ name, pkg, description string }

var programs = []program{
	{"ot-agent", "./agent", "Syncs VM disk images into a cluster under a budget and builds machines from them"},
	{"ot-hub", "./hub", "Sees the clusters of a fleet and sets how many VM disk images each downloads at a time"},
}

type options struct {
	directory, registry, version, revision string
	platforms                              []string
	created                                time.Time
}

func main() {
	var o options
	flag.StringVar(&o.directory, "o", "dist", "Directory to write to.")
	flag.StringVar(&o.registry, "registry", "ghcr.io/pelotech", "Registry and path that the images' names begin with.")
	flag.StringVar(&o.version, "version", "dev", "Version, stamped into the binaries, and tag.")
	flag.StringVar(&o.revision, "revision", "", "Commit, set as a label.")
	platforms := flag.String("platforms", "amd64,arm64", "Architectures to build for, on Linux.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o.platforms = strings.Split(*platforms, ",")
	if err := buildAll(ctx, o, programs); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		stop()
		os.Exit(1)
	}
}

func buildAll(ctx context.Context, o options, programs []program) error {
	var err error
	if o.created, err = readSourceDate(); err != nil {
		return err
	}
	if err := os.MkdirAll(o.directory, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		var all []platformImage
		for _, architecture := range o.platforms {
			binary, version, err := compileBinary(ctx, o, p, architecture)
			if err != nil {
				return err
			}
			image, err := newImage(o, p, architecture, binary)
			if err != nil {
				return err
			}
			digest, err := image.Digest()
			if err != nil {
				return err
			}
			one := platformImage{image, architecture}
			all = append(all, one)
			if err := writeArchive(o, p.name+"-"+architecture, p.name, []platformImage{one}); err != nil {
				return err
			}
			fmt.Printf("%s/%s:%s linux/%s %s, by %s\n", o.registry, p.name, o.version, architecture, digest, version)
		}
		if err := writeArchive(o, p.name, p.name, all); err != nil {
			return err
		}
	}
	return nil
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
