//go:build linux

package kind_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelotech/ot-fleet/e2e/harness/process"
	"github.com/pelotech/ot-fleet/e2e/harness/walkthrough"
)

// resultsPage collects the results of this run, in order.
var resultsPage = &resultPage{}

// resultPage is the page of results: what ran, where and when.
type resultPage struct {
	rows          []journeyResult
	costs         []attemptCost
	bytesCompared int
	// oneDownloadStatus is the status of the agent's condition OneDownload.
	oneDownloadStatus string
	// notRun are the commands of pages that TestPages does not run.
	notRun []walkthrough.NotRun
}

// journeyResult is a row of the page.
type journeyResult struct {
	name, shows, result string
	duration            time.Duration
}

// runJourney runs a test and records its result.
func runJourney(t *testing.T, shows string, run func(*testing.T)) {
	t.Helper()
	start := time.Now()
	defer func() {
		result := "passed"
		switch {
		case t.Skipped():
			result = "skipped"
		case t.Failed():
			result = "**failed**"
		}
		resultsPage.rows = append(resultsPage.rows, journeyResult{t.Name(), shows, result, time.Since(start).Round(time.Second)})
	}()
	run(t)
}

// writePage writes the page to the path in the environment.
func (p *resultPage) writePage(ctx context.Context, f *kindFleet) error {
	path := os.Getenv("OT_FLEET_RESULTS")
	if path == "" {
		return nil
	}
	var b strings.Builder
	only := flag.Lookup("test.run").Value.String()
	if only == "" {
		b.WriteString("# Results on kind\n\nWritten by `make e2e-kind`, by the run itself: what it ran, where and when.\n\n")
	} else { // a partial run keeps the other results
		before, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("reading the results so far: %w", err)
		}
		b.Write(before)
		fmt.Fprintf(&b, "\n## A part of it, later\n\n- only `-run %s`\n", only)
	}
	fmt.Fprintf(&b, "- when: %s\n- of: `%s`\n- where: %s, %d cores, %d GiB\n", time.Now().UTC().Format("2006-01-02 15:04 UTC"), f.Version, runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), process.MachineMemory()>>30)
	source := "the published node image"
	if f.Offline {
		source = "a node image and images of CDI and KubeVirt built on the machine (`OT_KIND_OFFLINE=1`)"
	}
	fmt.Fprintf(&b, "- with: %s, CDI %s, KubeVirt %s, images of %d MiB by HTTP from one source\n", source, f.CDI, f.KubeVirt, f.diskSize>>20)
	b.WriteByte('\n')
	b.WriteString("| Cluster | Shape | Joined by | Nodes | Kubernetes |\n| --- | --- | --- | --- | --- |\n")
	nodes, version := f.describeNodes(ctx, "hub")
	fmt.Fprintf(&b, "| hub | %s | | %d | %s |\n", f.fleetDescription.Hub, nodes, version)
	for _, m := range f.fleetDescription.Members {
		nodes, version := f.describeNodes(ctx, m.Name)
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s |\n", m.Name, m.Shape, m.Mode, nodes, version)
	}
	b.WriteString("\n| Journey | What it shows | Result | Took |\n| --- | --- | --- | --- |\n")
	for _, r := range p.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.TrimPrefix(r.name, "Test"), r.shows, r.result, r.duration)
	}
	fmt.Fprintf(&b, "\nVolumes whose bytes were held against the source's disk, by sha256: %d.\n", p.bytesCompared)
	if len(p.costs) > 0 {
		fmt.Fprintf(&b, costsHead, p.oneDownloadStatus)
		for _, c := range p.costs {
			b.WriteString(c.tableRow())
		}
	}
	if len(p.notRun) > 0 {
		b.WriteString("\n## Commands of pages that do not run here\n\n| Commands, as a regular expression | Why |\n| --- | --- |\n")
		for _, n := range p.notRun {
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(n.Pattern, "|", `\|`), n.Reason)
		}
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

// describeNodes returns the number of a cluster's nodes and their version.
func (f *kindFleet) describeNodes(ctx context.Context, cluster string) (int, string) {
	var nodes corev1.NodeList
	c, err := f.newClient(cluster, nil)
	if err != nil || c.List(ctx, &nodes) != nil || len(nodes.Items) == 0 {
		return 0, "does not answer"
	}
	return len(nodes.Items), nodes.Items[0].Status.NodeInfo.KubeletVersion
}
