// Command serve serves the dashboard over a played fleet:
//
//	go run ./e2e/harness/playedfleet/serve -scenario burning
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pelotech/ot-fleet/e2e/harness/playedfleet"
	"github.com/pelotech/ot-fleet/ui"
)

func main() {
	address := flag.String("addr", "127.0.0.1:8089", "address to listen on")
	scenario := flag.String("scenario", playedfleet.Healthy, "one of "+strings.Join(playedfleet.Scenarios(), ", "))
	seed := flag.Uint64("seed", 1, "seed of what happens by chance")
	frozen := flag.Bool("frozen", false, "the fleet stands still at "+playedfleet.Epoch.Format(time.RFC3339))
	dist := flag.String("dist", "", "directory of the app, read for each request (default: the app that is built in)")
	viewer := flag.Bool("viewer", false, "the person may read alone")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := playedfleet.Options{Scenario: *scenario, Seed: *seed}
	if *frozen {
		o.Now = func() time.Time { return playedfleet.Epoch }
	}
	if err := serveFleet(ctx, *address, *dist, *viewer, o); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func serveFleet(ctx context.Context, address, dist string, viewer bool, o playedfleet.Options) error {
	fleet, err := playedfleet.New(o)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	handler := playedfleet.HandlerOptions{Origin: "http://" + listener.Addr().String()}
	if dist != "" {
		handler.Files = os.DirFS(dist)
	}
	if viewer {
		handler.User = playedfleet.Viewer
	}
	server := ui.NewServer(fleet.Handler(handler))
	fmt.Printf("%s/ (%s)\n", handler.Origin, o.Scenario)
	go fleet.Run(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}
