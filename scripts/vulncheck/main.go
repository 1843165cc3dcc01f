// Command vulncheck runs govulncheck on agent and hub. Where the vulnerability database
// (GOVULNDB, by default https://vuln.go.dev) cannot be reached it says so and succeeds: a
// machine without a network is no finding.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// reachTimeout bounds how long the database may take to answer.
const reachTimeout = 10 * time.Second

func main() {
	database := os.Getenv("GOVULNDB")
	if database == "" {
		database = "https://vuln.go.dev"
	}
	if err := checkDatabase(context.Background(), database); err != nil {
		fmt.Printf("vulncheck: skipped: the vulnerability database does not answer: %v\n", err)
		return
	}
	cmd := exec.CommandContext(context.Background(), "go", "tool", "-modfile=scripts/tools/govulncheck/go.mod", "govulncheck", "-db", database, "./agent", "./hub")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "vulncheck: %v\n", err)
		os.Exit(1)
	}
}

// checkDatabase returns why a database cannot be used. One in a folder always can.
func checkDatabase(ctx context.Context, database string) error {
	if strings.HasPrefix(database, "file://") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(database, "/")+"/index/db.json", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.CopyN(io.Discard, response.Body, 1); err != nil {
		return fmt.Errorf("%s: %w", request.URL, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return nil
}
