package readapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Root is the path below which all answers are.
const Root = "/fleet/v1/"

const (
	// MaxAnswerBytes bounds an answer.
	MaxAnswerBytes = 32 << 20
	// maxErrorBytes bounds the message of a server, which need not be a hub.
	maxErrorBytes = 1024
	// maxURLBytes bounds what a message quotes of a URL.
	maxURLBytes = 256
	// maxKeptAnswers and maxKeptBytes bound the answers that are kept for their ETag.
	maxKeptAnswers = 64
	maxKeptBytes   = 16 << 20
	// maxRetryAfter bounds what a server may ask for.
	maxRetryAfter = time.Minute
)

// Client asks the read API. It keeps answers with their ETag: an answer that has not
// changed is not sent again.
//
// Client is safe for concurrent use.
type Client struct {
	// BaseURL of the hub, as https://ot-hub.example.com, without a path.
	BaseURL string
	// HTTP sends the requests, with the caller's credential.
	HTTP *http.Client

	mu        sync.Mutex
	kept      map[string]keptAnswer
	keptOrder []string
	keptBytes int
}

type keptAnswer struct {
	etag string
	body []byte
}

// NewClient returns a client of the read API at a URL. It follows no redirect: the credential
// is for this server alone.
func NewClient(baseURL string, sender *http.Client) (*Client, error) {
	u, err := url.Parse(baseURL)
	shown := v1alpha1.SanitizeText(baseURL, maxURLBytes)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery+u.Fragment != "":
		return nil, fmt.Errorf("%q is not the URL of a read API: give one such as https://ot-hub.example.com", shown)
	case u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return nil, fmt.Errorf("%q would send your credential in plain text: give a URL with https", shown)
	}
	direct := *sender
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{BaseURL: strings.TrimRight(baseURL, "/"), HTTP: &direct}, nil
}

// IsLoopback reports whether what is sent to a host stays on this machine.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Get asks for a path below Root, and decodes the answer.
func (c *Client) Get(ctx context.Context, path string, query url.Values, into any) error {
	target := Root + path
	if text := query.Encode(); text != "" {
		target += "?" + text
	}
	kept := c.keptAnswer(target)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.BaseURL+target, nil)
	if err != nil {
		return fmt.Errorf("asking the read API for %s: %w", Root+path, err)
	}
	request.Header.Set("Accept", "application/json")
	if kept.etag != "" {
		request.Header.Set("If-None-Match", kept.etag)
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return askingError(path, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusNotModified && kept.etag != "" {
		return decode(path, kept.body, into)
	}
	body, err := readBounded(response.Body, MaxAnswerBytes)
	switch {
	case response.StatusCode != http.StatusOK:
		return newError(path, response, body)
	case err != nil:
		return askingError(path, err)
	}
	if etag := response.Header.Get("ETag"); etag != "" && len(etag) <= maxErrorBytes {
		c.keepAnswer(target, keptAnswer{etag, body})
	}
	return decode(path, body, into)
}

func askingError(path string, err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // its URL has the query
	}
	return fmt.Errorf("asking the read API for %s: %w", Root+path, err)
}

func readBounded(from io.Reader, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err == nil && int64(len(body)) > limit {
		return body[:limit], ErrTooLarge
	}
	return body, err
}

func decode(path string, body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer to %s is not one of a hub's read API: %w", Root+path, err)
	}
	return nil
}

func newError(path string, response *http.Response, body []byte) *Error {
	e := &Error{Path: Root + path, Status: response.StatusCode}
	var answer ErrorAnswer
	if json.Unmarshal(body, &answer) == nil {
		e.Message = v1alpha1.SanitizeText(answer.Error, maxErrorBytes)
	} else if !strings.Contains(response.Header.Get("Content-Type"), "html") {
		// The filter that authorizes callers answers in plain text.
		e.Message = v1alpha1.SanitizeText(v1alpha1.Truncate(string(body), maxErrorBytes), maxErrorBytes)
	}
	if to := response.Header.Get("Location"); response.StatusCode/100 == 3 {
		e.Message = fmt.Sprintf("the server sends on to %s: give the URL of the read API itself", v1alpha1.SanitizeText(to, maxURLBytes))
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 16); err == nil {
		e.RetryAfter = min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	return e
}

func (c *Client) keptAnswer(target string) keptAnswer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept[target]
}

// keepAnswer remembers an answer, and forgets the oldest ones.
func (c *Client) keepAnswer(target string, answer keptAnswer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = map[string]keptAnswer{}
	}
	if before, known := c.kept[target]; known {
		c.keptBytes -= len(before.body)
	} else {
		c.keptOrder = append(c.keptOrder, target)
	}
	c.kept[target] = answer
	c.keptBytes += len(answer.body)
	for len(c.keptOrder) > maxKeptAnswers || c.keptBytes > maxKeptBytes {
		oldest := c.keptOrder[0]
		c.keptBytes -= len(c.kept[oldest].body)
		delete(c.kept, oldest)
		c.keptOrder = c.keptOrder[1:]
	}
}
