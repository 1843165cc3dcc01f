// Package health checks whether a program works: its API server answers, its caches are
// synced, and its account has the permissions it needs.
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

// ServiceAccountTokenFile is where a Pod has the token of its ServiceAccount.
const ServiceAccountTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token" //nolint:gosec // the name of a file

const (
	// checkTimeout bounds the whole request.
	checkTimeout = 10 * time.Second
	// maxShownBytes is how much of an unexpected response the error shows.
	maxShownBytes = 1024
)

// CheckURL requests a URL, with the token in tokenFile if that file exists, and returns
// an error unless the response is 200. The chart's tests run it, because the images
// hold no other program.
//
// Servers use self-signed certificates, which are not verified here: use a token that
// grants access to nothing but that URL.
func CheckURL(ctx context.Context, url, tokenFile string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("requesting %s: %w", url, err)
	}
	token, err := os.ReadFile(tokenFile)
	switch {
	case err == nil:
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reading the token for %s: %w", url, err)
	}
	client := &http.Client{
		Timeout:   checkTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // see the comment of CheckURL
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("requesting %s: %w", url, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxShownBytes))
	if err != nil {
		return fmt.Errorf("reading the response of %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
