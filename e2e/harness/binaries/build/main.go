// Command build builds the programs of the local control planes ahead of the tests: all of them, or
// those named as arguments.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	names := binaries.All()
	if len(os.Args) > 1 {
		names = nil
		for _, arg := range os.Args[1:] {
			names = append(names, binaries.Name(arg))
		}
	}
	paths, err := binaries.Ensure(ctx, names...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range names {
		fmt.Println(paths[name])
	}
}
