package startup

import (
	"context"
	"flag"
	"fmt"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/pelotech/ot-fleet/api/health"
)

// RunProgram parses the flags, sets memory limit, garbage collection and logger, and calls run. With --check-url or
// --head-url it requests that URL instead. It ends the process with 1 on an error.
func RunProgram(name string, run func() error) {
	checkURL := flag.String("check-url", "", "Request this URL with the token of the Pod's ServiceAccount, and exit with 0 if it is served. For the chart's test.")
	headURL := flag.String("head-url", "", "Send a HEAD request to this URL without credentials, print what it answers, and exit. For kubectl ot doctor --probe.")
	var logging zap.Options
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	limitMemory(memoryLimitFiles)
	startPacingCollections()
	setLogger(zap.New(zap.UseFlagOptions(&logging)))
	if *checkURL != "" {
		run = func() error { return health.CheckURL(context.Background(), *checkURL, health.ServiceAccountTokenFile) }
	}
	if *headURL != "" {
		run = func() error { return health.SendHead(context.Background(), *headURL, health.HeadAnswerFile) }
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, sanitizeLogged(err.Error()))
		os.Exit(1)
	}
}
