// Package health asks a program that runs whether it serves. The images hold nothing
// but their one program, so the charts' tests have that do the asking.
package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"
)

// ServiceAccountTokenFile is where a Pod finds the token of its ServiceAccount.
const ServiceAccountTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // the name of a file

const (
	// checkTimeout of one request.
	checkTimeout = 10 * time.Second
	// maxShownBytes of an answer that is not the one that was wanted.
	maxShownBytes = 1024
)

// CheckURL asks for a CheckURL, with the token in tokenFile where there is one, and returns an
// error unless it is answered with 200.
//
// The certificates are made by the processes that serve, for themselves, and cannot
// be checked here: give a token that opens nothing but that CheckURL.
func CheckURL(ctx context.Context, url, tokenFile string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", url, err)
	}
	token, err := os.ReadFile(tokenFile)
	switch {
	case err == nil:
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reading the token to ask for %s with: %w", url, err)
	}
	client := &http.Client{
		Timeout:   checkTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // see above
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", url, err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxShownBytes))
	if err != nil {
		return fmt.Errorf("reading what %s answers: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s: %s", url, response.Status, strings.TrimSpace(string(answer)))
	}
	return nil
}
