//go:build linux

package mirror_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
)

// importer asks a source as CDI's importer does for a qcow2 image. How many requests of which kind
// that are was counted with the real one: "What an attempt costs" in kind-configs/results.md.
type importer struct{ *http.Client }

const (
	importerHeads      = 5
	importerRanges     = 18
	importerRangeBytes = 64 << 10
)

// newImporter trusts one authority, as of a certConfigMap.
func newImporter(authority []byte) importer {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return importer{&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 64}}}
}

// download returns the digest of what the source sends.
func (i importer) download(ctx context.Context, url string) (string, error) {
	var size int64
	for range importerHeads {
		response, err := i.sendRequest(ctx, http.MethodHead, url, "")
		if err != nil {
			return "", err
		}
		size = response.ContentLength
		_ = response.Body.Close()
	}
	// The first GET is cancelled once the importer has seen what format the file has.
	first, cancel := context.WithCancel(ctx)
	response, err := i.sendRequest(first, http.MethodGet, url, "")
	if err == nil {
		_, err = io.CopyN(io.Discard, response.Body, min(importerRangeBytes, size))
		_ = response.Body.Close()
	}
	cancel()
	if err != nil {
		return "", fmt.Errorf("Unable to process data: %w", err)
	}
	for n := range int64(importerRanges) {
		from := max(0, size-importerRangeBytes) * n / (importerRanges - 1)
		response, err := i.sendRequest(ctx, http.MethodGet, url, fmt.Sprintf("bytes=%d-%d", from, min(size, from+importerRangeBytes)-1))
		if err != nil {
			return "", err
		}
		_, err = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if err != nil {
			return "", fmt.Errorf("Unable to process data: %w", err)
		}
	}
	return i.downloadWhole(ctx, url)
}

// downloadWhole is the last request of download.
func (i importer) downloadWhole(ctx context.Context, url string) (string, error) {
	response, err := i.sendRequest(ctx, http.MethodGet, url, "")
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, response.Body); err != nil {
		return "", fmt.Errorf("Unable to process data: Unable to transfer source data to scratch space: failed to pull image: %w", err)
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// sendRequest sends a request that must be answered with content.
func (i importer) sendRequest(ctx context.Context, method, url, ranged string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	want := http.StatusOK
	if ranged != "" {
		request.Header.Set("Range", ranged)
		want = http.StatusPartialContent
	}
	response, err := i.Do(request)
	if err != nil {
		return nil, fmt.Errorf("Unable to connect to http data source: %w", err)
	}
	if response.StatusCode != want {
		_ = response.Body.Close()
		return nil, fmt.Errorf("Unable to connect to http data source: expected status code %d, got %d. Status: %s", want, response.StatusCode, response.Status)
	}
	return response, nil
}

// digest is the checksum of content, as an image has it.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
