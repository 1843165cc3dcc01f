// Command images builds the container images of both programs, without a container
// engine and without a registry: static binaries, each alone in its image, run by a user
// that is not root.
//
// It writes, below -o:
//
//	ot-agent-amd64.tar   for `docker load`, `podman load`, `kind load image-archive`, `ctr images import`
//	ot-agent-arm64.tar
//	ot-agent.tar         an OCI layout with all platforms, for `skopeo copy oci-archive:`, `crane push`
//
// and the same of ot-hub. What is in them depends on the sources, the version, the commit
// and the time that are given and the version of Go, which it tells, and on nothing else:
// two builds have one digest.
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

// program is one of the two.
type program struct {
	name, pkg, description string
}

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
	flag.StringVar(&o.directory, "o", "dist", "Folder to write to.")
	flag.StringVar(&o.registry, "registry", "ghcr.io/pelotech", "What the images' names begin with.")
	flag.StringVar(&o.version, "version", "dev", "The version, stamped into the binaries, and the tag.")
	flag.StringVar(&o.revision, "revision", "", "The commit, told in a label.")
	platforms := flag.String("platforms", "amd64,arm64", "Architectures, of Linux.")
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
		var all []image
		for _, architecture := range o.platforms {
			binary, version, err := compileBinary(ctx, o, p, architecture)
			if err != nil {
				return err
			}
			made, err := newImage(o, p, architecture, binary)
			if err != nil {
				return err
			}
			all = append(all, made)
			if err := writeArchive(o, p.name+"-"+architecture, []image{made}); err != nil {
				return err
			}
			fmt.Printf("%s/%s:%s linux/%s %s, by %s\n", o.registry, p.name, o.version, architecture, made.manifest.digest, version)
		}
		if err := writeArchive(o, p.name, all); err != nil {
			return err
		}
	}
	return nil
}

// readSourceDate is the one time that images tell: reproducible-builds.org has what
// SOURCE_DATE_EPOCH is.
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
