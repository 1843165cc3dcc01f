// Package prometheus fills the history of the elected replica with what a Prometheus remembers
// of the hub's own metrics, after a failover.
package prometheus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/history"
)

const (
	// queryTimeout bounds a query.
	queryTimeout = 20 * time.Second
	// maxAnswerBytes bounds what is read of an answer, maxSeries and maxPoints what is taken.
	maxAnswerBytes = 32 << 20
	maxSeries      = 5000
	maxPoints      = 2_000_000
	// maxCredentialBytes bounds a token or a certificate.
	maxCredentialBytes = 1 << 20
)

// Files of a directory of credentials; each is read where it exists.
const (
	tokenFile = "token"
	caFile    = "ca.crt"
)

// Options say how a Prometheus is asked.
type Options struct {
	// URL of its API, such as https://prometheus.example.com; empty: none is asked.
	URL string
	// Selector is of the hub's series, such as namespace="ot-hub"; empty: all of that name.
	Selector string
	// CredentialsDir has the files token and ca.crt, each where it is needed; empty: none.
	CredentialsDir string
}

// selectorPattern matches matchers of labels, as between the braces of a query.
var selectorPattern = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"([^"\\\n]|\\.)*"(,[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"([^"\\\n]|\\.)*")*$`)

// Validate refuses what cannot work, and what would send a token in plain text.
func (o Options) Validate() error {
	if o.URL == "" {
		if o.Selector != "" || o.CredentialsDir != "" {
			return errors.New("--prometheus-selector and --prometheus-credentials-dir need --prometheus-url")
		}
		return nil
	}
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery+u.Fragment != "":
		return fmt.Errorf("--prometheus-url=%s is not the URL of a Prometheus: give one such as http://prometheus.monitoring:9090, without user and query", v1alpha1.SanitizeText(redactUser(o.URL), 256))
	case o.Selector != "" && !selectorPattern.MatchString(o.Selector):
		return fmt.Errorf(`--prometheus-selector=%s has to be matchers of labels, as namespace="ot-hub"`, v1alpha1.SanitizeText(o.Selector, 256))
	case o.isPlainText() && o.hasFile(tokenFile):
		return fmt.Errorf("--prometheus-url=%s would send the token of --prometheus-credentials-dir in plain text: give a URL with https", o.URL)
	}
	return nil
}

// redactUser removes what may be a password.
func redactUser(text string) string {
	if at := strings.LastIndex(text, "@"); at >= 0 {
		return "…" + text[at:]
	}
	return text
}

// isPlainText reports whether what is sent can be read on the way.
func (o Options) isPlainText() bool {
	u, err := url.Parse(o.URL)
	return err != nil || u.Scheme != "https" && !readapi.IsLoopback(u.Hostname())
}

func (o Options) hasFile(name string) bool {
	if o.CredentialsDir == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(o.CredentialsDir, name))
	return err == nil
}

// readFile returns a file of the credentials; empty where there is none.
func (o Options) readFile(name string) ([]byte, error) {
	if !o.hasFile(name) {
		return nil, nil
	}
	file, err := os.Open(filepath.Join(o.CredentialsDir, name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, maxCredentialBytes))
}

// Reader asks a Prometheus.
type Reader struct{ Options }

// past are the points of one series, with its labels.
type past struct {
	labels map[string]string
	points []history.PastPoint
}

// queryRange returns the series of a query within a time, by the steps that were sampled. What exceeds the bounds is an error:
// a part of it would look like all.
func (r *Reader) queryRange(ctx context.Context, query string, from, until time.Time, step time.Duration) ([]past, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	sender, err := r.newSender()
	if err != nil {
		return nil, err
	}
	defer sender.base.CloseIdleConnections()
	asked, err := api.NewClient(api.Config{Address: r.URL, RoundTripper: sender})
	if err != nil {
		return nil, err
	}
	answer, _, _, err := prometheusv1.NewAPI(asked).QueryRange(ctx, query, prometheusv1.Range{Start: from, End: until, Step: step}, prometheusv1.WithTimeout(queryTimeout))
	if err != nil {
		return nil, describeError(err)
	}
	matrix, ok := answer.(model.Matrix)
	if !ok {
		return nil, fmt.Errorf("the answer is a %s instead of a matrix", answer.Type())
	}
	if len(matrix) > maxSeries {
		return nil, fmt.Errorf("the answer has %d series: select those of this hub by ui.prometheusSelector", len(matrix))
	}
	all, total := make([]past, 0, len(matrix)), 0
	for _, stream := range matrix {
		if total += len(stream.Values); total > maxPoints {
			return nil, fmt.Errorf("the answer has more than %d points", maxPoints)
		}
		s := past{labels: map[string]string{}, points: make([]history.PastPoint, len(stream.Values))}
		for name, value := range stream.Metric {
			s.labels[string(name)] = string(value)
		}
		for i, v := range stream.Values {
			// The newest scrape at the start of a step shows the sample of the step before.
			s.points[i] = history.PastPoint{At: v.Timestamp.Time().Add(-step), Value: float64(v.Value)}
		}
		all = append(all, s)
	}
	return all, nil
}

// describeError returns an error without the URL of the request, which has the query.
func describeError(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if refused, ok := errors.AsType[*prometheusv1.Error](err); ok {
		return fmt.Errorf("%s: %s", refused.Type, v1alpha1.SanitizeText(refused.Msg, 200))
	}
	return err
}

// sender adds the token to requests, follows no redirect and bounds answers.
type sender struct {
	base  *http.Transport
	token string
}

// newSender reads the credentials anew: tokens are rotated.
func (r *Reader) newSender() (*sender, error) {
	token, err := r.readFile(tokenFile)
	if err != nil {
		return nil, fmt.Errorf("reading the token for Prometheus: %w", err)
	}
	if len(token) > 0 && r.isPlainText() { // it may have come after Validate
		return nil, errors.New("the token of --prometheus-credentials-dir is not sent in plain text: give a URL with https")
	}
	authorities, err := r.readFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authorities of Prometheus: %w", err)
	}
	s := &sender{token: strings.TrimSpace(string(token)), base: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: queryTimeout, ResponseHeaderTimeout: queryTimeout, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}}
	if authorities != nil {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(authorities) {
			return nil, fmt.Errorf("%s in --prometheus-credentials-dir has no certificate", caFile)
		}
		s.base.TLSClientConfig.RootCAs = pool
	}
	return s, nil
}

// RoundTrip implements http.RoundTripper.
func (s *sender) RoundTrip(request *http.Request) (*http.Response, error) {
	if s.token != "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err := s.base.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 == 3 {
		_ = response.Body.Close()
		return nil, fmt.Errorf("the server sends on to %s: give the URL of Prometheus itself", v1alpha1.SanitizeText(response.Header.Get("Location"), 200))
	}
	response.Body = &boundedBody{ReadCloser: response.Body, left: maxAnswerBytes}
	return response, nil
}

var errTooLarge = fmt.Errorf("the answer exceeds %d MiB", maxAnswerBytes>>20)

// boundedBody fails where an answer goes on beyond its bound.
type boundedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *boundedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
